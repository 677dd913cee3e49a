"""Receiving messages: push and pull consumers and their parts."""
