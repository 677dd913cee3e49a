"""Reconciles the table of topics with the queues on the disk, at the start."""

import logging
from pathlib import Path
from typing import Final

from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.tables.attributes import BATCH_QUEUE, QUEUE_TYPE
from skyroute.broker.tables.topics import Topics
from skyroute.message.reserved_topics import LIGHT_QUEUE_PREFIX
from skyroute.routing.topology import QUEUES_MAX
from skyroute.wire.calls.topics import TopicConfig

log = logging.getLogger(__name__)

_NAMED_MAX: Final = 10
_QUEUES, _BATCH_QUEUES = "consumequeue", "batchconsumequeue"


def topics_with_queues(store_folder: Path) -> set[str]:
    """Return the topics that have a folder of queues. Deleting a topic removes its folder."""
    roots = (store_folder / _QUEUES, store_folder / _BATCH_QUEUES)
    return {topic.name for root in roots if root.is_dir() for topic in root.iterdir() if topic.is_dir()}


def reconcile_topics(topics: Topics, store: MessageStore, had_queues: set[str]) -> None:
    """Restore, delete or keep topics that have messages in the store and no entry in the table.

    - Without a folder before the start, in `had_queues`: the topic was deleted, and recovery found its messages again.
      The queues are removed once more.
    - With a folder, and a table that was missing or read from its backup: the table has lost the topic. It is added
      again, with as many queues as there are on the disk.
    - With a folder, and an intact table: nothing is changed. `cleanUnusedTopic` removes such queues.

    Light queues (`%LMQ%`) have no entry in the table, and are kept.

    Raises:
        StorageError: the queues cannot be removed.
    """
    unknown = _unknown_topics(topics, store)
    if topics.may_lack_topics:
        _restore(topics, store, unknown)
        return
    for name in unknown:
        if name not in had_queues:
            store.delete_topic(name)
    _warn("queues of unknown topics kept, cleanUnusedTopic removes them", [n for n in unknown if n in had_queues])


def restore_topics(topics: Topics, store: MessageStore) -> None:
    """Add topics that have messages and no entry in the table: a slave got them from the log of its dead master."""
    _restore(topics, store, _unknown_topics(topics, store))


def _unknown_topics(topics: Topics, store: MessageStore) -> list[str]:
    return [
        name
        for name in sorted(store.topics())
        if topics.get(name) is None and not topics.is_system(name) and not name.startswith(LIGHT_QUEUE_PREFIX)
    ]


def _restore(topics: Topics, store: MessageStore, names: list[str]) -> None:
    for name in names:
        queues = min(store.queue_ids(name)[-1] + 1, QUEUES_MAX)
        attributes = {QUEUE_TYPE: BATCH_QUEUE} if (store.folder / _BATCH_QUEUES / name).is_dir() else {}
        topics.put(TopicConfig(name, queues, queues, attributes=attributes))
    _warn("topics restored from their queues, check their settings", names)


def _warn(what: str, names: list[str]) -> None:
    if names:
        log.warning("%s count=%d topics=%s", what, len(names), ",".join(names[:_NAMED_MAX]))
