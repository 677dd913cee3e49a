"""Controller: grants broker ids, elects the master of each broker group, and keeps the sync state sets."""
