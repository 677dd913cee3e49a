"""Samples of a cluster for `skyroute top`: all brokers, and some topics and groups per round."""

import asyncio
from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from heapq import nlargest
from typing import Final, Generic, NamedTuple, TypeVar

from skyroute.client.admin import Admin
from skyroute.client.admin.base import CONCURRENT_CALLS_MAX, call_each
from skyroute.client.admin.broker_load import BrokerLoad, read_load
from skyroute.client.errors import ServerFailedError
from skyroute.errors import SkyrouteError
from skyroute.message.reserved_topics import (
    group_of,
    is_dead_letter_topic,
    is_retry_topic,
    is_system_topic,
    retry_topic,
)
from skyroute.wire.calls.groups import ConsumeStats, decode_consume_stats, encode_consume_stats_query
from skyroute.wire.calls.settings import BrokerStats, decode_broker_stats, encode_broker_stats_query

SAMPLED_PER_ROUND: Final = 40
"""Topics, and groups, that one round reads. A cluster may have ten thousand."""
ROUND_TIMEOUT_S: Final = 5.0
"""Longest duration of a round: a broker that hangs must not stop the screen."""
NAMES_INTERVAL_S: Final = 30.0
"""Time between reads of the list of topics."""
ONCE_TIMEOUT_S: Final = 5.0
"""With --once, rounds continue until all topics and groups are read, or for this long."""


class Topic(NamedTuple):
    """Messages stored in a topic: rate of the last minute, count of the last day."""

    name: str
    in_tps: float
    in_day: int

    @property
    def size(self) -> float:
        return self.in_tps


class Group(NamedTuple):
    """Lag of a consumer group."""

    name: str
    lag: int
    out_tps: float
    worst_topic: str | None
    """The topic with the most lag."""

    @property
    def size(self) -> float:
        return self.lag


Row = TypeVar("Row", Topic, Group)
R = TypeVar("R")


class Sampler(Generic[Row]):
    """Reads some of many rows in every round: half are the largest so far, the others rotate."""

    def __init__(self, read: Callable[[str], Awaitable[Row]], count: int) -> None:
        self._read: Callable[[str], Awaitable[Row]] = read
        self._count = count
        self._last = ""
        self.names: Sequence[str] = ()
        self.found: dict[str, Row | None] = {}
        """None: reading it failed."""

    def rows(self, *, by_name: bool = False) -> list[Row]:
        """Return the rows read so far, the largest first."""
        rows = [row for row in self.found.values() if row is not None]
        return sorted(rows, key=lambda row: row.name if by_name else (-row.size, row.name))

    @property
    def is_complete(self) -> bool:
        return len(self.found) >= len(self.names)

    def update_names(self, names: Sequence[str]) -> None:
        """Set the names that exist now, sorted."""
        present = set(names)
        self.names = names
        self.found = {name: row for name, row in self.found.items() if name in present}

    def choose(self) -> list[str]:
        """Return the names to read in this round."""
        sizes = {name: row.size for name, row in self.found.items() if row is not None and row.size > 0}
        chosen = nlargest(self._count // 2, sizes, key=lambda name: sizes[name])
        others = sorted(set(self.names).difference(chosen))
        start = bisect_right(others, self._last)
        rotated = (others[start:] + others[:start])[: self._count - len(chosen)]
        self._last = rotated[-1] if rotated else ""
        return chosen + rotated

    async def round(self) -> None:
        """Read some rows. If the round is cancelled, the rows read so far remain."""
        slots = asyncio.Semaphore(CONCURRENT_CALLS_MAX)

        async def read(name: str) -> None:
            async with slots:
                try:
                    self.found[name] = await self._read(name)
                except SkyrouteError:
                    self.found.setdefault(name, None)  # keep the last row that was read

        await asyncio.gather(*map(read, self.choose()))


class ClusterSample:
    """Brokers, topics and groups of a cluster; every round reads some more."""

    def __init__(self, admin: Admin, count: int) -> None:
        self._admin = admin
        self._clock = admin.session.clock
        self._names_until = 0.0
        self.brokers: list[BrokerLoad] = []
        self.topics = Sampler(self._read_topic, count)
        self.groups = Sampler(self._read_group, count)

    async def update(self) -> None:
        """Read the state of every broker, and some topics and groups.

        Raises:
            NoNameServerError: no name server responds.
        """
        if self._clock.monotonic() >= self._names_until:
            topics = sorted(await self._admin.topics())
            self._names_until = self._clock.monotonic() + NAMES_INTERVAL_S
            self.topics.update_names([name for name in topics if not _is_internal(name)])
            self.groups.update_names(sorted({group_of(name) or "" for name in topics if is_retry_topic(name)}))
        with suppress(TimeoutError):
            async with asyncio.timeout(ROUND_TIMEOUT_S):
                self.brokers = [read_load(broker) for broker in await self._admin.brokers()]
                await asyncio.gather(self.topics.round(), self.groups.round())

    async def update_all(self) -> None:
        """Update until all topics and groups are read, or for `ONCE_TIMEOUT_S`."""
        until = self._clock.monotonic() + ONCE_TIMEOUT_S
        await self.update()
        while self._clock.monotonic() < until and not (self.topics.is_complete and self.groups.is_complete):
            await self.update()

    async def _read_topic(self, topic: str) -> Topic:
        async def call(address: str) -> BrokerStats:
            request = encode_broker_stats_query("TOPIC_PUT_NUMS", topic)
            try:
                return decode_broker_stats((await self._admin.session.ask(address, request)).body)
            except ServerFailedError:
                return BrokerStats()  # a broker that has stored nothing of the topic responds with an error

        results = (await self._call_brokers(topic, call)).values()
        return Topic(topic, sum(stats.minute.tps for stats in results), sum(stats.sum_of_day for stats in results))

    async def _read_group(self, group: str) -> Group:
        async def call(address: str) -> ConsumeStats:
            response = await self._admin.session.ask(address, encode_consume_stats_query(group))
            return decode_consume_stats(response.body)

        results = (await self._call_brokers(retry_topic(group), call)).values()
        lags: Counter[str] = Counter()
        for stats in results:
            for queue, progress in stats.queues.items():
                lags[queue.topic] += max(0, progress.lag)
        worst, most = max(lags.items(), key=lambda each: each[1], default=("", 0))
        return Group(group, lags.total(), sum(stats.tps for stats in results), worst if most else None)

    async def _call_brokers(self, topic: str, call: Callable[[str], Awaitable[R]]) -> dict[str, R]:
        """Call the brokers of a topic, except those that failed in this round: they would delay the others."""
        failed = {load.broker.address for load in self.brokers if load.broker.failure}
        results, _ = await call_each((each for each in await self._admin.serving(topic) if each not in failed), call)
        return results


def _is_internal(topic: str) -> bool:
    return is_system_topic(topic) or is_retry_topic(topic) or is_dead_letter_topic(topic)
