"""The route table: which brokers serve which topics, and when their leases expire. No sockets, no clock, no tasks."""
