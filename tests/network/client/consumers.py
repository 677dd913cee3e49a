"""Helpers for consumer tests: short intervals, and a handler that keeps its messages."""

from __future__ import annotations

import asyncio

from skyroute.client.consuming.consumer import Consumer
from skyroute.client.consuming.intervals import Intervals
from skyroute.client.consuming.subscription import StartPosition
from skyroute.message.message import StoredMessage
from tests.support.connections import WAIT_S
from tests.support.fake_broker import FakeCluster

HURRIED = Intervals(
    rebalance_gap_s=0.001,
    rebalance_retry_s=0.01,
    failed_pull_s=0.01,
    flow_control_s=0.001,
    failed_send_back_s=0.01,
    takeover_delay_s=0.05,
)


def consumer_of(cluster: FakeCluster, group: str = "g", /, **settings: object) -> Consumer:
    """A consumer that starts at the oldest message, with short intervals."""
    values = {"name_servers": cluster.address, "start": StartPosition.FIRST, "intervals": HURRIED, "suspend_s": 0.01}
    return Consumer(group, **(values | settings))  # type: ignore[arg-type]  # whatever a test wants


class Inbox:
    """A handler that keeps its messages."""

    def __init__(self) -> None:
        self.messages: list[StoredMessage] = []
        self._news = asyncio.Event()

    async def __call__(self, message: StoredMessage) -> None:
        self.keep(message)

    def keep(self, message: StoredMessage) -> None:
        self.messages.append(message)
        self._news.set()

    @property
    def bodies(self) -> list[bytes]:
        return [message.body for message in self.messages]

    async def until(self, count: int) -> list[bytes]:
        """Wait for this number of messages, and return all bodies."""
        async with asyncio.timeout(WAIT_S):
            while len(self.messages) < count:
                self._news.clear()
                await self._news.wait()
        return self.bodies
