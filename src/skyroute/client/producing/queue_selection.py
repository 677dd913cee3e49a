"""Selects queues from a route: the writable ones, the readable ones, and the next one to send to.

Pure: the time is an argument.
"""

import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from skyroute.client.errors import ClientError
from skyroute.client.session.logical_queues import logical_leaders
from skyroute.message.queue_ref import QueueRef
from skyroute.routing.topology import MASTER_ID, QUEUES_MAX, ROUTE_QUEUES_MAX, Permission, TopicRoute

_COUNT_CHARS_MAX: Final = 18


def publish_queues(topic: str, route: TopicRoute) -> list[QueueRef]:
    """Return the writable queues: of brokers with a master, or those in the order config.

    Raises:
        ClientError: the route has more queues than allowed.
    """
    if route.order_config:
        return _list_queues(topic, _order_entries(route.order_config))
    if route.mappings and route.order_config is None:
        return _logical_queues(topic, route)
    masters = {group.name for group in route.groups if MASTER_ID in group.addresses}
    return _list_queues(
        topic,
        (
            (queues.broker_name, queues.settings.write_queues)
            for queues in sorted(route.queues, key=lambda queues: queues.broker_name)
            if queues.settings.permission & Permission.WRITE and queues.broker_name in masters
        ),
    )


def awaits_master(route: TopicRoute) -> bool:
    """Return whether a broker with writable queues has lost its master, and one of its replicas may become it."""
    replicated = {group.name for group in route.groups if group.addresses and MASTER_ID not in group.addresses}
    return any(
        queues.broker_name in replicated and queues.settings.permission & Permission.WRITE for queues in route.queues
    )


def _logical_queues(topic: str, route: TopicRoute) -> list[QueueRef]:
    """Return the queues of a static topic, by id."""
    return [QueueRef(topic, name, queue_id) for name, queue_id in logical_leaders(route)]


def _list_queues(topic: str, counts: Iterable[tuple[str, int]]) -> list[QueueRef]:
    """List the queues of a topic. The counts come from the network, so they are bounded."""
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
    """Return the readable queues, with or without a master.

    Raises:
        ClientError: the route has more queues than allowed.
    """
    if route.mappings:
        return _logical_queues(topic, route)
    readable = (
        (queues.broker_name, queues.settings.read_queues)
        for queues in route.queues
        if queues.settings.permission & Permission.READ
    )
    return sorted(_list_queues(topic, readable))


class Rotation:
    """Round-robin over the queues of one topic, from a random start."""

    def __init__(self, queues: Sequence[QueueRef]) -> None:
        self.queues = queues
        self._at = random.randrange(1 << 30)

    def next(self, avoid: Collection[str] = ()) -> QueueRef:
        """Return the next queue, if possible not of a broker to avoid."""
        queues = self.queues
        for _ in range(len(queues)):
            self._at += 1
            queue = queues[self._at % len(queues)]
            if not avoid or queue.broker_name not in avoid:
                return queue
        self._at += 1
        return queues[self._at % len(queues)]


LATENCY_STEPS: Final = ((15.0, 30.0), (5.0, 10.0), (3.0, 6.0), (1.8, 5.0), (0.55, 2.0))
"""Latency (s) from which a broker is avoided, and for how long (s). The same steps as in Apache's client."""

SLOW_S: Final = LATENCY_STEPS[-1][0]
"""Latency below which a broker is not avoided."""

FAILURE_LATENCY_S: Final = 10.0
"""A failure counts as this latency."""

BROKERS_MAX: Final = 10_000
"""Maximum number of avoided brokers; beyond it the table is cleared."""


@dataclass(slots=True)
class BrokerHealth:
    """The brokers that were slow or failed, which sends avoid for a while."""

    _avoided_until: dict[str, float]

    def __init__(self) -> None:
        self._avoided_until = {}

    def report(self, broker_name: str, latency_s: float, now: float) -> None:
        """Record a latency. A later report never shortens the time of an earlier one."""
        for at_least_s, avoided_s in LATENCY_STEPS:
            if latency_s >= at_least_s:
                if len(self._avoided_until) >= BROKERS_MAX:
                    self._avoided_until.clear()
                self._avoided_until[broker_name] = max(self._avoided_until.get(broker_name, 0.0), now + avoided_s)
                return

    def avoided(self, now: float) -> frozenset[str]:
        """Return the brokers to avoid now."""
        if not self._avoided_until:
            return frozenset()
        self._avoided_until = {name: until for name, until in self._avoided_until.items() if until > now}
        return frozenset(self._avoided_until)
