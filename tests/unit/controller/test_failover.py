"""Dead masters and the elections that replace them, with a time that only the test moves."""

import asyncio
from pathlib import Path

from skyroute.controller.config import ControllerConfig
from skyroute.controller.events import Cause
from skyroute.controller.failover import DEAD_A_TURN, Failover
from skyroute.controller.file_store import FileStore
from skyroute.controller.groups import Groups
from skyroute.controller.heartbeats import Heartbeats, ReplicaKey
from skyroute.controller.leadership import SoleController
from skyroute.controller.state import GroupState, Progress, Replica
from tests.support.clock import ManualClock


async def test_the_masters_of_a_closed_connection_are_replaced_in_several_turns(tmp_path: Path) -> None:
    clock = ManualClock()
    names = [f"g{number:03}" for number in range(2 * DEAD_A_TURN + 50)]
    store = FileStore(tmp_path / "state.json")
    await store.open()
    master = {1: Replica("h:1", "h:1;5")}
    groups = (GroupState("C", name, 2, master, 1, 1, frozenset({1}), 1, had_master=True) for name in names)
    await asyncio.gather(*(store.replace(group, 0) for group in groups))
    heartbeats = Heartbeats(clock.monotonic(), settle_s=0.0)
    for name in names:
        heartbeats.beat(ReplicaKey("C", name, 1), Progress(1, 5), holder=7, now=clock.monotonic())
    begun: list[tuple[str, Cause, int | None]] = []
    failover = Failover(
        Groups(store, lambda events, group: None),
        heartbeats,
        SoleController("g", "n0", "10.0.0.1:9878"),
        ControllerConfig(),
        clock,
        lambda *election: begun.append(election),
    )
    failover.on_disconnect(7)
    failover.on_disconnect(8)
    for turns in (1, 2):
        assert len(begun) == turns * DEAD_A_TURN
        await asyncio.sleep(0)
    assert begun == [(name, Cause.MASTER_DISCONNECTED, 1) for name in names]
    await store.close()
