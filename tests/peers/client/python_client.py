"""Our consumer behind the same helper interface as Java's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from skyroute import Consumer, ConsumeResult, StartPosition, StoredMessage
from skyroute.client.consuming.intervals import Intervals
from skyroute.client.consuming.subscription import Expression
from tests.peers.client.java_client import ARRIVAL_TIMEOUT_S, Place
from tests.support.waiting import eventually

QUICK = Intervals(rebalance_s=1.0, commit_s=1.0)
"""The intervals of the Java clients of these tests."""


class Inbox:
    """A consumer whose handler keeps each message, and fails the first `failures` deliveries of it."""

    def __init__(self, consumer: Consumer, failures: int) -> None:
        self.consumer = consumer
        self.received: list[StoredMessage] = []
        self._failures = failures
        self._news = asyncio.Condition()

    async def handle(self, message: StoredMessage) -> ConsumeResult:
        async with self._news:
            self.received.append(message)
            self._news.notify_all()
        return ConsumeResult.RETRY if message.reconsume_times < self._failures else ConsumeResult.SUCCESS

    async def take(self, count: int, *, timeout_s: float = ARRIVAL_TIMEOUT_S) -> list[StoredMessage]:
        """Wait for at least `count` messages, and return all received."""
        return await self._wait(lambda: len(self.received) >= count, timeout_s)

    async def take_bodies(
        self, bodies: Iterable[bytes], *, timeout_s: float = ARRIVAL_TIMEOUT_S
    ) -> list[StoredMessage]:
        """Wait until each of these bodies is received, and return all messages."""
        wanted = set(bodies)

        def is_enough() -> bool:
            return len(self.received) >= len(wanted) and wanted <= {each.body for each in self.received}

        return await self._wait(is_enough, timeout_s)

    async def await_owned(self, count: int) -> None:
        async def has_as_many() -> bool:
            return len(self.consumer.assignment) == count

        await eventually(has_as_many, what=f"{self.consumer!r} owns {count} queues, not {self.consumer.assignment}")

    async def _wait(self, is_enough: Callable[[], bool], timeout_s: float) -> list[StoredMessage]:
        try:
            async with asyncio.timeout(timeout_s), self._news:
                await self._news.wait_for(is_enough)
        except TimeoutError:
            got = [(each.body[:40], each.reconsume_times) for each in self.received]
            text = f"{self.consumer!r} got only {len(got)} within {timeout_s:g} s, at last {got[-20:]}"
            raise TimeoutError(text) from None
        return list(self.received)


@asynccontextmanager
async def consuming(
    place: Place,
    group: str,
    subscriptions: str | Mapping[str, str | Expression],
    *,
    start: StartPosition = StartPosition.FIRST,
    failures: int = 0,
    **options: Any,
) -> AsyncIterator[Inbox]:
    """Our consumer of a topic, or of several with their expressions, running for as long as the block."""
    connection = {"route_poll_interval_s": 1.0, "heartbeat_interval_s": 2.0, **place.python}
    consumer = Consumer(group, start=start, intervals=QUICK, **connection, **options)
    inbox = Inbox(consumer, failures)
    wanted = {subscriptions: "*"} if isinstance(subscriptions, str) else subscriptions
    for topic, expression in wanted.items():
        consumer.subscribe(topic, expression, inbox.handle)
    async with consumer:
        yield inbox
