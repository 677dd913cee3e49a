"""The slave of a master in controller mode."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from skyroute.broker.config import BrokerConfig
from skyroute.broker.replication.epoch_file import EpochFile
from skyroute.broker.replication.epochs import Epochs
from skyroute.broker.replication.log_follower import LogFollower
from skyroute.broker.store.message_store import MessageStore
from skyroute.remoting.errors import ConnectError
from skyroute.wire.auto_switch import (
    Epoch,
    FrameHeader,
    MasterHello,
    SlaveHello,
    encode_frame_header,
    encode_master_hello,
)
from tests.support.clock import ManualClock
from tests.support.disks import NoSyncDisk, draft, small_store
from tests.support.waiting import eventually


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


OWN = Epochs((Epoch(1, 0), Epoch(2, 200)))


@asynccontextmanager
async def following(
    folder: Path, said: bytes, own: Epochs = OWN
) -> AsyncIterator[tuple[LogFollower, MessageStore, EpochFile]]:
    """A slave with some records, whose master says this after the handshake and then nothing."""
    store, epochs = small_store(folder / "slave", NoSyncDisk()), EpochFile(folder / "epochs")
    for _ in range(4):
        store.append(draft(), 1)
    epochs.replace(own)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(16)
        writer.write(said)
        with suppress(ConnectionResetError):
            await reader.read()
        writer.close()

    async def find_address() -> str:
        return f"127.0.0.1:{port}"

    async def read_record(_position: int) -> bytes | None:
        return None

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    follower = LogFollower(
        *(store, epochs, BrokerConfig(), ManualClock(), SlaveHello(2)),
        find_address=find_address,
        read_record=read_record,
        on_arrived=lambda _: None,
        on_confirmed=lambda _: None,
        on_failed=lambda: None,
    )
    task = asyncio.create_task(follower.run())
    try:
        yield follower, store, epochs
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        server.close()
        store.close()


END = 384
"""Where the log of the slave ends."""


def beat(position: int, epoch: Epoch) -> bytes:
    return encode_frame_header(FrameHeader(position, 0, epoch, 0))


def transfer(position: int, body: bytes, epoch: Epoch) -> bytes:
    return encode_frame_header(FrameHeader(position, len(body), epoch, 0)) + body


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (encode_master_hello(MasterHello(END, (Epoch(1, 0), Epoch(2, 200), Epoch(3, 100)))), "not in order"),
        (encode_master_hello(MasterHello(END, (Epoch(2, 0), Epoch(1, 200)))), "not in order"),
        (encode_master_hello(MasterHello(END, (Epoch(1, -8), Epoch(2, 200)))), "not in order"),
        (encode_master_hello(MasterHello(-1, (Epoch(1, 0),))), "not in order"),
        (encode_master_hello(MasterHello(END, (Epoch(1, 8),))), "no common epoch"),
        (encode_master_hello(MasterHello(END, OWN.entries)) + beat(END + 50, Epoch(9, END + 50)), "this log ends at"),
        (encode_master_hello(MasterHello(END, OWN.entries)) + beat(0, Epoch(9, 0)), "this log ends at"),
        (encode_master_hello(MasterHello(END, OWN.entries)) + transfer(END + 4, b"x", OWN.entries[1]), "log ends at"),
        (encode_master_hello(MasterHello(END, OWN.entries)) + transfer(200, b"x", OWN.entries[1]), "log ends at"),
    ],
    ids=["regress", "order", "negative", "end", "foreign", "beat ahead", "beat behind", "ahead", "behind"],
)
async def test_a_master_that_lies_changes_neither_log_nor_epochs(tmp_path: Path, said: bytes, reason: str) -> None:
    async with following(tmp_path, said) as (follower, store, epochs):
        await eventually(lambda: reason in follower.failure, f"refused: {follower.failure}")
        assert store.max_position == END
        assert epochs.epochs == OWN


async def test_an_epoch_that_the_master_does_not_have_keeps_no_later_one_out(tmp_path: Path) -> None:
    """A broker that claimed to be master may have sent any number."""
    forged = Epochs((*OWN, Epoch(2_000_000_000, END)))
    said = encode_master_hello(MasterHello(END, OWN.entries)) + beat(END, Epoch(3, END))
    async with following(tmp_path, said, forged) as (_, store, epochs):
        await eventually(lambda: epochs.epochs == Epochs((*OWN, Epoch(3, END))))
        assert store.max_position == END
