"""What a message is, and how one record of it lies in bytes. Pure: no sockets, no clock, no tasks."""
