"""RocketMQ's system in Python: name server, broker, client and a data pipeline on Spark."""

__version__ = "0.1.0"
