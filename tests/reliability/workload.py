"""Producers and consumers of real clusters. They write the history that the checkers of the simulation judge."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from skyroute import (
    Admin,
    Consumer,
    Intervals,
    Message,
    Producer,
    SkyrouteError,
    StartPosition,
    StoredMessage,
    TransactionOutcome,
)
from tests.simulation.checkers import CHECKERS
from tests.simulation.history import Delivery, Ending, History, Outcome, Send

ORDERS: Final = "Orders"
LEDGER: Final = "Ledger"
JUDGED: Final = (
    "no acknowledged message lost",
    "delivered at least once only",
    "ordered consumption ordered",
    "delayed never early",
    "half messages end once",
)
"""Invariants that clients alone can check."""
INTERVALS: Final = Intervals(rebalance_s=5.0)
BODY_BYTES: Final = 200


@dataclass
class Workload:
    """Sends to two topics at a rate, consumes both, and records what happened."""

    name_servers: str
    rate_per_s: float = 100.0
    queues: int = 4
    transactions: bool = False
    delays: bool = False
    timeout_s: float = 3.0
    history: History = field(default_factory=History)
    failed: list[str] = field(default_factory=list)
    """Sends that raised an error."""
    _number: int = 0
    _is_sending: bool = True

    def __post_init__(self) -> None:
        self.history.topics = {"push": ORDERS, "ordered": LEDGER}
        self.history.ordered_groups = {"ordered"}
        self.history.had_faults = True

    @property
    def acknowledged(self) -> int:
        return sum(send.outcome is Outcome.ACKNOWLEDGED for send in self.history.sends.values())

    async def create_topics(self) -> None:
        """Create the topics on all brokers."""
        async with Admin(self.name_servers) as admin:
            for topic in (ORDERS, LEDGER):
                await admin.create_topic(topic, read_queues=self.queues, write_queues=self.queues)

    @asynccontextmanager
    async def running(self, clients: int = 2) -> AsyncIterator[None]:
        """Send and consume for the block. Then wait until everything acknowledged is consumed, while it progresses."""
        async with AsyncExitStack() as stack:
            for number in range(clients):
                for group, topic in self.history.topics.items():
                    consumer = Consumer(
                        group,
                        self.name_servers,
                        start=StartPosition.FIRST,
                        ordered=group in self.history.ordered_groups,
                        intervals=INTERVALS,
                        instance_name=f"{group}-{number}",
                    )
                    consumer.subscribe(topic, "*", self._handler(group, f"{group}-{number}"))
                    await stack.enter_async_context(consumer)
            producers = [
                await stack.enter_async_context(
                    Producer("producers", self.name_servers, check=self._check, instance_name=f"producer-{number}")
                )
                for number in range(clients)
            ]
            tasks = [asyncio.create_task(self._produce(producer, clients)) for producer in producers]
            try:
                yield
                self._is_sending = False
                await asyncio.gather(*tasks)
                await self._until_consumed()
            finally:
                for task in tasks:
                    task.cancel()

    def violations(self) -> dict[str, list[str]]:
        """Return what the checkers of the simulation say."""
        found = {name: list(CHECKERS[name](self.history)) for name in JUDGED}
        return {name: violations for name, violations in found.items() if violations}

    async def _produce(self, producer: Producer, clients: int) -> None:
        pause_s, due, pending = clients / self.rate_per_s, time.monotonic(), set[asyncio.Task[None]]()
        while self._is_sending:
            due += pause_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            self._number += 1
            task = asyncio.create_task(self._send(producer, self._number))
            pending.add(task)
            task.add_done_callback(pending.discard)
            if len(pending) > 200:
                await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*pending)

    async def _send(self, producer: Producer, number: int) -> None:
        body = f"{number}.".ljust(BODY_BYTES, "x")
        topic = ORDERS if number % 2 else LEDGER
        send = self.history.sends[body] = Send(body, topic, time.time())
        try:
            if self.transactions and number % 20 == 1:
                send.ending = Ending.COMMIT if number % 40 == 1 else Ending.ROLLBACK
                ended = await producer.send_in_transaction(Message(topic, body.encode()), lambda *_: _outcome(send))
                result = ended.sent
            elif self.delays and number % 20 == 3:
                send.not_before = time.time() + 1.0
                result = await producer.send(Message(topic, body.encode(), delay_level=1), timeout_s=self.timeout_s)
            else:
                key = str(number % 8) if topic == LEDGER else None
                result = await producer.send(Message(topic, body.encode(), sharding_key=key), timeout_s=self.timeout_s)
        except SkyrouteError as error:
            self.failed.append(f"{number}: {type(error).__name__}: {error}")
        else:
            send.outcome = Outcome.ACKNOWLEDGED if result.ok else Outcome.UNSAFE
            send.queue = f"{result.queue.topic}/{result.queue.broker_name}/{result.queue.queue_id}"
            send.offset = result.queue_offset

    async def _check(self, message: StoredMessage) -> TransactionOutcome:
        return _outcome(self.history.sends[message.body.decode()])

    def _handler(self, group: str, consumer: str):  # type: ignore[no-untyped-def]  # a coroutine function
        async def handle(message: StoredMessage) -> None:
            queue = f"{message.topic}/{message.broker_name}/{message.queue_id}"
            body = message.body.decode()
            self.history.deliveries.append(
                Delivery(time.time(), group, consumer, body, message.topic, queue, message.queue_offset, True)
            )

        return handle

    async def _until_consumed(self, idle_s: float = 45.0) -> None:
        best, since = -1, time.monotonic()
        while lost := list(CHECKERS["no acknowledged message lost"](self.history)):
            if best < 0 or len(lost) < best:
                best, since = len(lost), time.monotonic()
            if time.monotonic() - since > idle_s:
                return
            await asyncio.sleep(0.5)


def _outcome(send: Send) -> TransactionOutcome:
    return TransactionOutcome.COMMIT if send.ending is Ending.COMMIT else TransactionOutcome.ROLLBACK
