"""Adds the namespace to the topic of a queue for brokers, and removes it for the application."""

from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import with_namespace, without_namespace


def queue_with_namespace(namespace: str | None, queue: QueueRef) -> QueueRef:
    """Return a queue as brokers name it."""
    return _renamed(queue, with_namespace(namespace, queue.topic))


def queue_without_namespace(namespace: str | None, queue: QueueRef) -> QueueRef:
    """Return a queue as the application names it."""
    return _renamed(queue, without_namespace(namespace, queue.topic))


def _renamed(queue: QueueRef, topic: str) -> QueueRef:
    return queue if topic == queue.topic else QueueRef(topic, queue.broker_name, queue.queue_id)
