"""A slave that acts for its missing master, and a master that takes back its progress."""
