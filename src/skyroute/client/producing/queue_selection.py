"""From a route to queues: which ones can be written, which can be read, and which one is next.

Pure: the time is an argument.
"""

import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from skyroute.client.errors import ClientError
from skyroute.message.queue_ref import QueueRef
from skyroute.routing.topology import MASTER_ID, QUEUES_MAX, ROUTE_QUEUES_MAX, Permission, TopicRoute

_COUNT_CHARS_MAX: Final = 18


def publish_queues(topic: str, route: TopicRoute) -> list[QueueRef]:
    """Return the queues that can be written: on brokers that have a master, or just those an order config names.

    Raises:
        ClientError: there are more than a topic can have.
    """
    if route.order_config:
        return _list_queues(topic, _order_entries(route.order_config))
    masters = {group.name for group in route.groups if MASTER_ID in group.addresses}
    return _list_queues(
        topic,
        (
            (queues.broker_name, queues.settings.write_queues)
            for queues in sorted(route.queues, key=lambda queues: queues.broker_name)
            if queues.settings.permission & Permission.WRITE and queues.broker_name in masters
        ),
    )


def _list_queues(topic: str, counts: Iterable[tuple[str, int]]) -> list[QueueRef]:
    """List the queues of a topic. The counts are a peer's word: no list gets as long as they say unchecked."""
    found: list[QueueRef] = []
    for name, count in counts:
        if count > QUEUES_MAX or len(found) + count > ROUTE_QUEUES_MAX:
            raise ClientError(
                f"the route of topic {topic} has {count} queues on broker {name[:80]!r}, after {len(found)} on others:"
                f" expected at most {QUEUES_MAX} on one broker, {ROUTE_QUEUES_MAX} on all; correct the topic's queue"
                " counts or its order config"
            )
        found += [QueueRef(topic, name, queue_id) for queue_id in range(count)]
    return found


def _order_entries(config: str) -> list[tuple[str, int]]:
    entries = []
    for piece in config.split(";"):
        name, _, count = piece.strip().rpartition(":")
        if name and count.isdecimal():
            entries.append((name, int(count[:_COUNT_CHARS_MAX])))
    return entries


def subscribe_queues(topic: str, route: TopicRoute) -> list[QueueRef]:
    """Return the queues that can be read; a slave alone will do.

    Raises:
        ClientError: there are more than a topic can have.
    """
    readable = (
        (queues.broker_name, queues.settings.read_queues)
        for queues in route.queues
        if queues.settings.permission & Permission.READ
    )
    return sorted(_list_queues(topic, readable))


class Rotation:
    """The queues of one topic in turn, starting anywhere."""

    def __init__(self, queues: Sequence[QueueRef]) -> None:
        self.queues = queues
        self._at = random.randrange(1 << 30)

    def next(self, avoid: Collection[str] = ()) -> QueueRef:
        """Return the next queue, and one on none of the brokers to avoid if there is any such."""
        queues = self.queues
        for _ in range(len(queues)):
            self._at += 1
            queue = queues[self._at % len(queues)]
            if not avoid or queue.broker_name not in avoid:
                return queue
        self._at += 1
        return queues[self._at % len(queues)]


LATENCY_STEPS: Final = ((15.0, 30.0), (5.0, 10.0), (3.0, 6.0), (1.8, 5.0), (0.55, 2.0))
"""An answer that took so long (s) keeps its broker out of the choice for so long (s): Apache's own steps."""

SLOW_S: Final = LATENCY_STEPS[-1][0]
"""Whatever is quicker has no consequence."""

FAILURE_LATENCY_S: Final = 10.0
"""A failure counts as an answer that took so long."""

BROKERS_MAX: Final = 10_000
"""Brokers whose behaviour is remembered; beyond that all is forgotten, and learnt again."""


@dataclass(slots=True)
class BrokerHealth:
    """Which brokers were slow or failed of late, so that sends go elsewhere for a while."""

    _out_until: dict[str, float]

    def __init__(self) -> None:
        self._out_until = {}

    def report(self, broker_name: str, latency_s: float, now: float) -> None:
        """Note how long a broker took; a later penalty only extends an earlier one."""
        for at_least_s, out_s in LATENCY_STEPS:
            if latency_s >= at_least_s:
                if len(self._out_until) >= BROKERS_MAX:
                    self._out_until.clear()
                self._out_until[broker_name] = max(self._out_until.get(broker_name, 0.0), now + out_s)
                return

    def out(self, now: float) -> frozenset[str]:
        """Return the brokers to avoid now."""
        if not self._out_until:
            return frozenset()
        self._out_until = {name: until for name, until in self._out_until.items() if until > now}
        return frozenset(self._out_until)
