"""Pops that wait for messages, and notification requests."""

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from skyroute.broker.delivery.long_polling import LongPolling, SuspendedRequest, WaitingRequests
from skyroute.message.reserved_topics import pop_retry_topic
from skyroute.remoting.dispatch import DeferredResponse

WAITING_MAX: Final = 100_000
"""Waiting pops of all groups."""
WAITING_A_QUEUE_MAX: Final = 1_024
"""Waiting pops of one group for one queue, or for all queues of a topic."""
WAITING_A_GROUP_MAX: Final = 20_000
"""Waiting pops of one group: no group can take the room of all others."""
WAITING_CHARS_MAX: Final = 1 << 26
"""Characters that waiting pops keep: filters and attempt ids, and with access control whole requests."""

SHARING_S: Final = 1.5
"""Time in which all members have asked for their share of the queues after a change. Java's consumers do so within a
second of the notification, and do not process what arrives later for a queue that they lost."""

PopKey = tuple[str, str, int]
"""Topic, group and queue; queue -1 for all queues."""


class SuspendedPop(SuspendedRequest[PopKey]):
    """A pop that waits for a message."""


class PopLongPolling(WaitingRequests[PopKey]):
    """Waiting pops by topic, group and queue.

    A message wakes the pop that has waited longest; the next one only if that one got messages.
    """

    def __init__(self, monotonic: Callable[[], float], arrivals: LongPolling) -> None:
        super().__init__(monotonic)
        self._arrivals = arrivals
        self._keys: dict[str, dict[int, dict[PopKey, None]]] = {}
        """Keys with waiting pops by topic and queue whose messages wake them. All queues of retry topics are -1."""
        self._groups: dict[str, dict[str, dict[SuspendedRequest[PopKey], None]]] = {}
        """Waiting pops by group and topic."""
        self._arrived: dict[tuple[str, int], bool] = {}
        """Queues whose new messages wake pops now, and whether more have arrived since."""
        self._sharing: dict[tuple[str, str], tuple[float, float]] = {}
        """Topics and groups whose waiting pops get no messages: when they are completed, and when the members have
        asked for their shares."""

    def has_room(self, key: PopKey, source: str, chars: int = 0) -> bool:
        """Return whether one more pop of a client address that keeps so many characters may wait.

        A client that has taken all the room has some of its pops completed for others.
        """
        of_group = sum(map(len, self._groups.get(key[1], {}).values()))
        if self.waiting(key) >= WAITING_A_QUEUE_MAX or of_group >= WAITING_A_GROUP_MAX:
            return False
        if not self._fits(chars):
            self._give_way(source)
        return self._fits(chars)

    def _fits(self, chars: int) -> bool:
        return len(self) < WAITING_MAX and self._chars + chars <= WAITING_CHARS_MAX

    def waiting_of(self, group: str, topic: str) -> int:
        """Return the number of waiting pops of a group for a topic."""
        return len(self._groups.get(group, {}).get(topic, ()))

    def suspend(self, pull: SuspendedRequest[PopKey]) -> DeferredResponse:
        key = pull.queue
        self._groups.setdefault(key[1], {}).setdefault(key[0], {})[pull] = None
        for topic, queue_id in _wakers(key):
            queues = self._keys.get(topic)
            if queues is None:
                queues = self._keys[topic] = {}
                self._arrivals.watch(topic, self._message_arrived)
            queues.setdefault(queue_id, {})[key] = None
        return super().suspend(pull)

    def _begin(self, work: Iterable[Iterator[None]]) -> None:
        """Serve pops from the next turn of the loop on: one message may wake those of thousands of groups."""
        self._work.extend(work)
        self._schedule()

    def _message_arrived(self, topic: str, queue_id: int) -> None:
        arrived = topic, queue_id
        is_under_way = arrived in self._arrived
        self._arrived[arrived] = True
        if not is_under_way:
            self._begin([self._wake(arrived)])

    def _wake(self, arrived: tuple[str, int]) -> Iterator[None]:
        topic, queue_id = arrived
        try:
            while self._arrived[arrived]:
                self._arrived[arrived] = False
                for waited in (-1, queue_id):
                    for key in list(self._keys.get(topic, {}).get(waited, ())):
                        yield from self._check(key) or ()
                        yield
        finally:
            del self._arrived[arrived]

    def share(self, group: str, topic: str) -> None:
        """Give waiting pops of a group no messages for `SHARING_S`, and complete them then: its members have changed.

        Members that keep their queues pop again. The others would get messages that come again only at the end of
        their invisible time. After many changes, pops are completed at least every `SHARING_S`.
        """
        shared_at = self._monotonic() + SHARING_S
        until, _ = self._sharing.get((topic, group), (shared_at, 0.0))
        self._sharing[topic, group] = until, shared_at

    def expire(self, now: float) -> None:
        super().expire(now)
        for (topic, group), (until, shared_at) in list(self._sharing.items()):
            if now >= until:
                self._end_pops(self._groups.get(group, {}).get(topic, ()))
                del self._sharing[topic, group]
                if shared_at > now:
                    self._sharing[topic, group] = shared_at, shared_at

    def leave(self, connection: int, group: str) -> None:
        """Complete the waiting pops of a client that left its group."""
        self._end_pops(pull for pull in self._by_connection.get(connection, ()) if pull.queue[1] == group)

    def _end_pops(self, pulls: Iterable[SuspendedRequest[PopKey]]) -> None:
        ended = list(pulls)
        for pull in ended:
            pull.is_ending = True
        if ended:
            self._begin([self._complete(ended)])

    def _complete(self, pulls: Iterable[SuspendedRequest[PopKey]]) -> Iterator[None]:
        for pull in pulls:
            pull.is_ending |= pull.queue[:2] in self._sharing
            yield from super()._complete((pull,))

    def wake_topic(self, topic: str, group: str, queue_id: int) -> None:
        """Check the pops of a group again that wait for messages of a queue."""
        for key in ((topic, group, -1), (topic, group, queue_id)):
            if self.waiting(key):
                self.check(key)

    def _check_pulls(self, queue: PopKey) -> Iterator[None]:
        try:
            while self._checking[queue]:
                self._checking[queue] = False
                if queue[:2] in self._sharing:
                    break
                for pull in self._pulls(queue):
                    if not pull.waits or pull.is_ending or pull.peer.gone:
                        continue
                    if not self._retry(pull):
                        break
                    yield
        finally:
            del self._checking[queue]

    def _remove(self, pull: SuspendedRequest[PopKey]) -> None:
        super()._remove(pull)
        key = pull.queue
        topics = self._groups[key[1]]
        del topics[key[0]][pull]
        if not topics[key[0]]:
            del topics[key[0]]
        if not topics:
            del self._groups[key[1]]
        if self.waiting(key):
            return
        for topic, queue_id in _wakers(key):
            queues = self._keys.get(topic, {})
            keys = queues.get(queue_id, {})
            keys.pop(key, None)
            if not keys:
                queues.pop(queue_id, None)
            if not queues and self._keys.pop(topic, None) is not None:
                self._arrivals.unwatch(topic)


def _wakers(key: PopKey) -> tuple[tuple[str, int], ...]:
    """Return the topics and queues whose messages wake a pop."""
    topic, group, queue_id = key
    return (
        (topic, queue_id),
        (pop_retry_topic(group, topic), -1),
        (pop_retry_topic(group, topic, version=2), -1),
    )
