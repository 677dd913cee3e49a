"""The key index: finds messages by key."""
