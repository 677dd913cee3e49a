"""Messages that are delivered once their producer says so: half messages, their end, and asking for it."""

from skyroute.broker.transactions.transactions import Transactions

__all__ = ["Transactions"]
