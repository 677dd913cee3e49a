"""The message store of a broker: commit log, consume queues and key index, in Apache's file formats.

Synchronous, with one writer. Nothing here reads a clock or knows of requests. Start with `message_store.MessageStore`.
"""
