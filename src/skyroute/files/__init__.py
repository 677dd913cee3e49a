"""File access that broker, name server, client and console share: one disk, one way to replace a file."""
