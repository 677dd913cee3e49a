"""Types of the two positions of a message, so that the type checker keeps them apart."""

from typing import NewType

QueueOffset = NewType("QueueOffset", int)
"""Number of a message in its queue, from 0."""

LogPosition = NewType("LogPosition", int)
"""A byte position in a broker's commit log."""
