"""Masters and slaves over loopback, and what their logs hold."""

from __future__ import annotations

import hashlib
import os
import socket
from typing import Any, Final

from skyroute.broker.broker import Broker
from skyroute.broker.replication.slave import HaSlave
from skyroute.broker.store.message_store import MessageStore
from skyroute.clock import SystemClock
from skyroute.wire.codes import ResponseCode
from tests.network.broker.calls import send
from tests.network.broker.clusters import Cluster
from tests.support.connections import AsyncConnection
from tests.support.waiting import eventually

FILE_BYTES: Final = 64 * 1024


async def start_master(cluster: Cluster, **settings: Any) -> Broker:
    return await cluster.start_live(commit_log_file_bytes=FILE_BYTES, **settings)


async def start_slave(cluster: Cluster, number: int = 1, **settings: Any) -> Broker:
    values: dict[str, Any] = {"broker_id": number, "broker_role": "SLAVE", "commit_log_file_bytes": FILE_BYTES}
    folder = str(cluster.folder / f"slave-{number}")
    return await cluster.start(clock=SystemClock(), store_path=folder, **(values | settings))


def store_of(broker: Broker) -> MessageStore:
    return broker.components.store


def slave_of(broker: Broker) -> HaSlave:
    assert broker.components.ha_slave is not None
    return broker.components.ha_slave


def checksum(store: MessageStore, start: int, end: int) -> str:
    found, position = hashlib.sha256(), start
    while position < end:
        piece = store.log_range(position, end - position)
        assert piece is not None, position
        found.update(os.pread(piece[0], piece[2], piece[1]))
        position += piece[2]
    return found.hexdigest()


async def caught_up(master: Broker, slave: Broker) -> None:
    """Wait until the slave has the master's whole log, and compare both."""
    theirs, ours = store_of(master), store_of(slave)
    await eventually(
        lambda: ours.max_position == ours.whole_end == theirs.max_position, f"slave has {theirs.max_position}"
    )
    start = max(theirs.min_position, ours.min_position)
    assert checksum(theirs, start, theirs.max_position) == checksum(ours, start, ours.max_position)


async def fill(line: AsyncConnection, messages: int, topic: str = "T", size: int = 1000) -> None:
    for number in range(messages):
        answer = await line.call(send(topic, b"%08d" % number * (size // 8), queue_id=number % 2))
        assert answer.code == ResponseCode.SUCCESS, answer


def connect_raw(master: Broker, host: str = "127.0.0.1") -> socket.socket:
    """Connect to the replication port from an address of this machine."""
    return socket.create_connection(("127.0.0.1", master.components.ha_master.port), 5, source_address=(host, 0))
