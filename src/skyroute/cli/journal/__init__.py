"""`skyroute journal`: a name server's journal for people and scripts, read as files and never changed."""
