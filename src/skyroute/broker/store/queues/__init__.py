"""Consume queues: for each queue of a topic, the log positions of its records."""
