"""The two numbers that say where a message is. They must not be mixed up, so they have types."""

from typing import NewType

QueueOffset = NewType("QueueOffset", int)
"""The n-th message of one queue, counted from 0."""

LogPosition = NewType("LogPosition", int)
"""A byte position in a broker's commit log."""
