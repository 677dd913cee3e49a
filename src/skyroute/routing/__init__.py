"""Who serves which topic, and for how long we believe it. Pure: no sockets, no clock, no tasks."""
