"""Where a broker keeps messages: files in Apache's own formats, synchronous, one writer.

Nothing here reads a clock, waits, or knows of the wire. Start with `message_store.MessageStore`.
"""
