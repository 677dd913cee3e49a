"""The lease scan of many brokers that fail together."""

from __future__ import annotations

import asyncio

from skyroute.nameserver.housekeeping import LeaseScan
from skyroute.routing.events import BrokerLeft, RouteEvent
from skyroute.routing.table import LEASE_S, RouteTable
from skyroute.routing.table_writer import LEAVING_COST, TOPICS_A_STEP
from tests.support.clock import ManualClock
from tests.support.waiting import eventually
from tests.unit.routing.brokers import registration

COUNT = 3 * TOPICS_A_STEP // LEAVING_COST


async def test_many_brokers_are_evicted_in_steps() -> None:
    clock, table = ManualClock(), RouteTable()
    for at in range(COUNT):
        said = registration(address=f"10.9.0.{at}:1", name=f"many-{at}")
        table.register(said, connection=at, now=clock.monotonic())
    steps: list[int] = []
    closed: list[int] = []

    def publish(events: tuple[RouteEvent, ...]) -> None:
        steps.append(sum(isinstance(event, BrokerLeft) for event in events))

    clock.advance(LEASE_S + 1)
    scan = LeaseScan(table, publish, closed.append, 0.0, clock)  # type: ignore[arg-type]
    work = asyncio.create_task(scan.run())
    await eventually(lambda: len(closed) == COUNT)
    work.cancel()
    assert sum(steps) == COUNT
    assert max(steps) <= TOPICS_A_STEP // LEAVING_COST
    assert repr(table) == repr(RouteTable())
