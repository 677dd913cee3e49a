"""Enforces access control in a server: checks requests before their handlers, and keeps rules and audit log on disk."""
