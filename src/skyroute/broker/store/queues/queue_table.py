"""All queues of a store, by topic and queue id, and their folders."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from skyroute.broker.store.files.segment import OpenSegments
from skyroute.broker.store.queues.batch_queue import BatchQueue
from skyroute.broker.store.queues.consume_queue import ConsumeQueue
from skyroute.broker.store.queues.topic_queue import TopicQueue
from skyroute.broker.store.settings import StoreSettings
from skyroute.files.disk import Disk
from skyroute.message.errors import InvalidNameError
from skyroute.message.names import check_file_name

QUEUES_A_STEP: Final = 10_000
"""Queues scanned in one step for those of a topic that is removed."""


class QueueTable:
    """Loads, creates and removes queues. A topic has consume queues or batch queues, never both."""

    def __init__(
        self,
        folder: Path,
        settings: StoreSettings,
        disk: Disk,
        opened: OpenSegments,
        is_batch_topic: Callable[[str], bool] | None,
    ) -> None:
        self._queue_root = folder / "consumequeue"
        self._batch_root = folder / "batchconsumequeue"
        self._settings = settings
        self._disk = disk
        self._opened = opened
        self._is_new_batch_topic = is_batch_topic
        self.by_key: dict[tuple[str, int], TopicQueue] = {}
        """Queues by topic and queue id. Read by everyone, written here."""

    def __len__(self) -> int:
        return len(self.by_key)

    def load(self) -> None:
        """Load the queues of the folder.

        Raises:
            StoreDamagedError: their files do not have the size in the settings.
        """
        for root in (self._batch_root, self._queue_root):
            for topic in sorted(root.iterdir()) if root.is_dir() else ():
                for queue in sorted(topic.iterdir()) if topic.is_dir() else ():
                    if queue.name.isdecimal():
                        self.find_or_create(topic.name, int(queue.name)).load()

    def find_or_create(self, topic: str, queue_id: int) -> TopicQueue:
        """Return a queue; a new one has no file yet.

        Raises:
            InvalidNameError: the topic cannot be a folder's name, or the queue id is negative.
            FileWriteError: the folder of a batch topic cannot be created.
        """
        queue = self.by_key.get((topic, queue_id))
        if queue is None:
            if queue_id < 0:
                raise InvalidNameError(f"queue id {queue_id} of topic {topic[:80]!r} is negative (expected 0 or more)")
            if self._is_batch_topic(topic):
                # Recovery has to know the kind, even if the process dies before there is a file.
                self.make_batch_folder(topic)
                queue = self._create(BatchQueue, self._batch_root, topic, queue_id, self._settings.batch_segment_units)
            else:
                units = self._settings.queue_segment_units
                queue = self._create(ConsumeQueue, self._queue_root, topic, queue_id, units)
            self.by_key[topic, queue_id] = queue
        return queue

    def create_file(self, topic: str, queue_id: int) -> TopicQueue:
        """Return a queue with its first file.

        Creating a file can take a millisecond, and a backlog may have 256 new queues: not while it is written.
        """
        queue = self.find_or_create(topic, queue_id)
        queue.create_file()
        return queue

    def make_batch_folder(self, topic: str) -> None:
        """Make a topic a batch topic.

        Raises:
            FileWriteError: the folder cannot be created.
        """
        self._disk.make_folder(_topic_folder(self._batch_root, topic))

    def _create(self, kind: type[TopicQueue], root: Path, topic: str, queue_id: int, units: int) -> TopicQueue:
        return kind(_topic_folder(root, topic) / str(queue_id), topic, queue_id, units, self._disk, self._opened)

    def _is_batch_topic(self, topic: str) -> bool:
        # Neither broker opens a folder in which a topic has queues of both kinds: the first queue decides.
        if _topic_folder(self._batch_root, topic).exists():
            return True
        if _topic_folder(self._queue_root, topic).exists():
            return False
        return self._is_new_batch_topic is not None and self._is_new_batch_topic(topic)

    def has_topic(self, topic: str) -> bool:
        """Return whether a topic has a folder, which decides the kind of its queues.

        Raises:
            InvalidNameError: the topic cannot be a folder's name.
        """
        return any(_topic_folder(root, topic).exists() for root in (self._batch_root, self._queue_root))

    def remove_topic(self, topic: str, drop: Callable[[TopicQueue], None]) -> Iterator[None]:
        """Remove the queues of a topic, in steps. `drop` is called with each queue before its files are removed.

        Raises:
            FileWriteError: some queues may be removed.
        """
        keys = list(self.by_key)
        for start in range(0, len(keys), QUEUES_A_STEP):
            for key in [key for key in keys[start : start + QUEUES_A_STEP] if key[0] == topic]:
                queue = self.by_key.get(key)
                if queue is None:
                    continue  # removed by another request in an earlier step
                drop(queue)
                queue.remove()
                del self.by_key[key]
                with suppress(OSError):
                    queue.folder.rmdir()
                yield  # removing a file can take milliseconds
            yield
        for root in (self._queue_root, self._batch_root):
            with suppress(OSError):
                _topic_folder(root, topic).rmdir()

    def close(self) -> None:
        """Close all files."""
        for queue in self.by_key.values():
            queue.close()


def _topic_folder(root: Path, topic: str) -> Path:
    """Return the folder of a topic's queues. No other function puts a topic's name into a path.

    Raises:
        InvalidNameError: the topic cannot be a folder's name.
    """
    check_file_name(topic)
    return root / topic
