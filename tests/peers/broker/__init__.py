"""Real clients and tools of every language against our broker."""
