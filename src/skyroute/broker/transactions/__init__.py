"""Transactions: half messages, commit and rollback, and checks with producers."""

from skyroute.broker.transactions.transactions import CheckTopic, Transactions

__all__ = ["CheckTopic", "Transactions"]
