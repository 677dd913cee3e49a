"""Transactions: half messages, commit and rollback, and checks with producers."""

from skyroute.broker.transactions.transactions import Transactions

__all__ = ["Transactions"]
