"""Consume queues: which records of the log belong to which queue."""
