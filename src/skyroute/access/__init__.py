"""Access control: who sends a request, what it needs, and whether that is allowed. No sockets and no clock."""
