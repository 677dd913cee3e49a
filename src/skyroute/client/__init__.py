"""The client: producers, consumers and the admin."""
