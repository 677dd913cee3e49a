"""Words on the command line to calls of the other rooms."""
