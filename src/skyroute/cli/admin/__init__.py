"""`skyroute admin`: mqadmin's commands, with its names and flags."""
