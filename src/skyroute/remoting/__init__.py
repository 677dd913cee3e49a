"""Transports requests and responses over asyncio, without knowing their meaning."""
