"""Sending messages: the producer and its parts."""
