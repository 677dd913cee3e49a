"""Pops that wait for messages, and notification requests."""

from collections.abc import Callable, Iterator
from typing import Final

from skyroute.broker.delivery.long_polling import LongPolling, SuspendedRequest, WaitingRequests
from skyroute.message.reserved_topics import pop_retry_topic
from skyroute.remoting.dispatch import DeferredResponse

WAITING_MAX: Final = 100_000
"""Waiting pops of all groups."""
WAITING_A_QUEUE_MAX: Final = 1_024
"""Waiting pops of one group for one queue, or for all queues of a topic."""

PopKey = tuple[str, str, int]
"""Topic, group and queue; queue -1 for all queues."""


class PopLongPolling(WaitingRequests[PopKey]):
    """Waiting pops by topic, group and queue.

    A message wakes the pop that has waited longest; the next one only if that one got messages.
    """

    def __init__(self, monotonic: Callable[[], float], arrivals: LongPolling) -> None:
        super().__init__(monotonic)
        self._arrivals = arrivals
        self._keys: dict[str, dict[PopKey, None]] = {}
        """Keys with waiting pops by the topics whose messages wake them: the topic and its retry topics."""

    def has_room(self, key: PopKey) -> bool:
        """Return whether one more pop may wait."""
        return len(self) < WAITING_MAX and self.waiting(key) < WAITING_A_QUEUE_MAX

    def suspend(self, pull: SuspendedRequest[PopKey]) -> DeferredResponse:
        for topic in _topics_of(pull.queue):
            keys = self._keys.get(topic)
            if keys is None:
                keys = self._keys[topic] = {}
                self._arrivals.watch(topic, self._message_arrived)
            keys[pull.queue] = None
        return super().suspend(pull)

    def _message_arrived(self, topic: str, queue_id: int) -> None:
        for key in list(self._keys.get(topic, ())):
            if topic != key[0] or key[2] in (-1, queue_id):
                self.check(key)

    def wake_topic(self, topic: str, group: str, queue_id: int) -> None:
        """Check the pops of a group again that wait for messages of a queue."""
        for key in ((topic, group, -1), (topic, group, queue_id)):
            if self.waiting(key):
                self.check(key)

    def _check_pulls(self, queue: PopKey) -> Iterator[None]:
        try:
            while self._checking[queue]:
                self._checking[queue] = False
                for pull in self._pulls(queue):
                    if not pull.waits or pull.peer.gone:
                        continue
                    if not self._retry(pull):
                        break
                    yield
        finally:
            del self._checking[queue]

    def _remove(self, pull: SuspendedRequest[PopKey]) -> None:
        super()._remove(pull)
        if self.waiting(pull.queue):
            return
        for topic in _topics_of(pull.queue):
            keys = self._keys.get(topic, {})
            keys.pop(pull.queue, None)
            if not keys and self._keys.pop(topic, None) is not None:
                self._arrivals.unwatch(topic)


def _topics_of(key: PopKey) -> tuple[str, str, str]:
    topic, group, _ = key
    return topic, pop_retry_topic(group, topic), pop_retry_topic(group, topic, version=2)
