"""Carries commands between peers over asyncio, and knows nothing of their meaning."""
