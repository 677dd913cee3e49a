"""Copies of the commit log on other brokers: masters send, slaves follow."""
