"""Encodes and decodes requests and responses. Pure: no sockets, no clock, no tasks."""
