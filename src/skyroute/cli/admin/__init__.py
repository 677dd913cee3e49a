"""`skyroute admin`: commands with the names and options of mqadmin."""
