"""The slave of a master in controller mode."""

import asyncio
from contextlib import suppress
from pathlib import Path

from skyroute.broker.config import BrokerConfig
from skyroute.broker.replication.epoch_file import EpochFile
from skyroute.broker.replication.log_follower import LogFollower
from skyroute.remoting.errors import ConnectError
from skyroute.wire.auto_switch import SlaveHello
from tests.support.clock import ManualClock
from tests.support.disks import NoSyncDisk, small_store


async def test_nothing_is_cut_while_the_master_is_away(tmp_path: Path) -> None:
    store = small_store(tmp_path / "slave", NoSyncDisk())
    store.append_raw(0, b"not a whole record, or a damaged one with others behind it")
    store.dispatch_raw()
    end = store.max_position
    assert store.whole_end == 0
    tried = asyncio.Event()

    async def find_address() -> str:
        raise ConnectError("the master is away")

    async def read_record(_position: int) -> bytes | None:
        return None

    follower = LogFollower(
        *(store, EpochFile(tmp_path / "epochs"), BrokerConfig(), ManualClock(), SlaveHello(2)),
        find_address=find_address,
        read_record=read_record,
        on_arrived=lambda _: None,
        on_confirmed=lambda _: None,
        on_failed=tried.set,
    )
    task = asyncio.create_task(follower.run())
    await tried.wait()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert store.max_position == end
    store.close()
