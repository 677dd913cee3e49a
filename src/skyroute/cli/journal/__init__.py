"""`skyroute journal`: reads the journal files of a name server; never changes them."""
