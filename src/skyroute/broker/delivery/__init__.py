"""Delivery of messages: long polling, filters, and waiting for a flush."""
