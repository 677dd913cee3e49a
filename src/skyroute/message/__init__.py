"""Messages and the format of their records. No sockets, no clock, no tasks."""
