"""POP consumers in the simulated cluster, two invariants about their messages, and a planted bug for each."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final
from unittest import mock

from skyroute import SimpleConsumer, SkyrouteError, StoredMessage
from skyroute.broker.pop.acknowledging import Acknowledgements
from skyroute.broker.pop.in_flight import InFlight
from tests.simulation.planted import PlantedBug
from tests.simulation.scenario import ORDERS, Application, Plan, Scenario

INVISIBLE_S: Final = 10.0
NACK_S: Final = 2.0
FORGOTTEN, REJECTED = 0.1, 0.2
"""Shares of the messages that a consumer forgets, and that it makes visible soon."""

COMES_AGAIN: Final = "every message is acknowledged or comes again"
STAYS_AWAY: Final = "an acknowledged message does not come again without a crash"

CALM: Final = Plan(
    load_s=120.0,
    gap_s=2.0,
    fault_gap_s=30.0,
    faults=("replace_application",),
    sync_flush=True,
    handler_failures=0.0,
    settle_s=90.0,
)
"""Consumers are replaced, and no broker crashes."""

CRASHES: Final = replace(CALM, load_s=240.0, faults=("kill_broker", "kill_twice", "lose_power"), fault_gap_s=20.0)


@dataclass(eq=False)
class PopScenario(Scenario):
    """Two producers, and two consumers that acknowledge, reject or forget each message."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.applications = [
            *self.applications[:2],
            Application(self, "10.0.5.1", "pop-1", self._make_pop),
            Application(self, "10.0.5.2", "pop-2", self._make_pop),
        ]
        self.history.topics = {"pop": ORDERS}
        self.history.ordered_groups = set()
        self.history.had_faults = True  # forgotten messages come again
        self._acked: dict[str, float] = {}
        """Times of the acknowledgements that brokers accepted in time, by body."""
        self._again: list[str] = []

    async def _make_pop(self, application: Application) -> SimpleConsumer:
        consumer = SimpleConsumer("pop", **application.arguments())
        consumer.subscribe(ORDERS)
        while True:
            try:
                await consumer.start()
            except SkyrouteError:
                await asyncio.sleep(1.0)
            else:
                break
        application.spawn(self._consume(application, consumer))
        return consumer

    async def _consume(self, application: Application, consumer: SimpleConsumer) -> None:
        while True:
            try:
                messages = await consumer.receive(8, wait_s=10.0, invisible_s=INVISIBLE_S)
            except SkyrouteError:
                await asyncio.sleep(1.0)
                continue
            popped_at = self.world.now
            for message in messages:
                await asyncio.sleep(application.rng.uniform(0.001, 0.05))
                await self._decide(application, consumer, message, popped_at)

    async def _decide(
        self, application: Application, consumer: SimpleConsumer, message: StoredMessage, popped_at: float
    ) -> None:
        delivery = self._deliver("pop", application, message)
        body = delivery.body
        if body in self._acked:
            self._again.append(f"{body} came at {delivery.at:.3f} s, acknowledged at {self._acked[body]:.3f} s")
        chance = application.rng.random() if self._is_sending else 1.0
        try:
            if chance < FORGOTTEN:
                return
            if chance < REJECTED:
                await consumer.change_invisible_time(message, NACK_S)
                return
            delivery.is_consumed = True  # also if no response arrives
            await consumer.ack(message)
        except SkyrouteError as error:
            self.world.trace(f"ack {body} {type(error).__name__}")
        else:
            if self.world.now - popped_at < INVISIBLE_S / 2:
                self._acked[body] = self.world.now

    async def _record_end(self) -> None:
        """Record nothing: POP consumers own no queues."""

    def violations(self) -> dict[str, list[str]]:
        found = super().violations()
        lost = found.pop("no acknowledged message lost", None)
        if lost:
            found[COMES_AGAIN] = lost
        if self._again and self.plan.faults == CALM.faults:
            found[STAYS_AWAY] = self._again
        return found


def _commit_beyond_messages_in_memory() -> AbstractContextManager[Any]:
    def next_offset(self: InFlight, group: str, topic: str, queue_id: int) -> int:
        return self._queues[group, topic, queue_id].next_offset

    return mock.patch.object(InFlight, "committable", next_offset)


def _forget_acknowledgements() -> AbstractContextManager[Any]:
    ack_many, calls = Acknowledgements.ack_many, count(1)

    def forget_some(self: Acknowledgements, *arguments: Any) -> None:
        if next(calls) % 10:
            ack_many(self, *arguments)

    return mock.patch.object(Acknowledgements, "ack_many", forget_some)


PLANTED: Final = (
    PlantedBug(
        "commit beyond messages in memory", COMES_AGAIN, CRASHES, _commit_beyond_messages_in_memory, PopScenario
    ),
    PlantedBug("forget acknowledgements", STAYS_AWAY, CALM, _forget_acknowledgements, PopScenario),
)
