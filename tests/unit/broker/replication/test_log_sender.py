"""What a master in controller mode sends to a slave."""

import asyncio
from pathlib import Path

from skyroute.broker.config import BrokerConfig
from skyroute.broker.replication.epoch_file import EpochFile
from skyroute.broker.replication.epochs import Epochs
from skyroute.broker.replication.log_sender import LogSender, SlaveConnection
from skyroute.wire.auto_switch import Epoch, MasterHello, MasterStream, encode_master_hello
from tests.support.clock import ManualClock
from tests.unit.broker.state import State


class Collected(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.data = b""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data

    def is_closing(self) -> bool:
        return False

    def abort(self) -> None: ...


async def test_a_heartbeat_has_the_epoch_of_the_position(tmp_path: Path, state: State) -> None:
    """A slave that lags would take records of an older epoch for records of the newest one."""
    epochs = EpochFile(tmp_path / "epochs")
    epochs.replace(Epochs((Epoch(1, 0), Epoch(2, 500))))
    sender = LogSender(state.store, epochs, BrokerConfig(), ManualClock(), lambda: None)
    connection, transport = SlaveConnection(sender, 0.0), Collected()
    connection.connection_made(transport)
    sent = []
    for position in (499, 500):
        transport.data, connection.position = b"", position
        connection.beat()
        stream = MasterStream()
        found = list(stream.feed(encode_master_hello(MasterHello(500, ())) + transport.data))
        sent += [each[0].epoch.number for each in found if isinstance(each, tuple)]
    assert sent == [1, 2]
