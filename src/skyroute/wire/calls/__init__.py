"""Requests and responses, one file per family."""
