"""Bytes to requests and replies to values, and back. Pure: no sockets, no clock, no tasks."""
