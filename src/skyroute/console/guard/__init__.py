"""Limits and checks before any page: connections, proxies, origin, sign-in and form size."""
