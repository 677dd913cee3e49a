"""Brokers that listen, brokers that hang, and what a notice to them must say."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.network.cluster import CLUSTER, MASTER
from tests.support.connections import ListeningBroker, listening_broker
from tests.support.raw import Command, Registration


def at(address: str, broker_id: int, *, broker: str = "broker-a", acting: bool = True) -> Registration:
    """A broker of a group, which listens at `address`."""
    return Registration(
        CLUSTER, broker, address, MASTER.topics, broker_id=broker_id, ha_address=f"ha-of-{address}", acting=acting
    )


@asynccontextmanager
async def listening_brokers(count: int) -> AsyncIterator[list[ListeningBroker]]:
    if count == 0:
        yield []
        return
    async with listening_broker() as one, listening_brokers(count - 1) as others:
        yield [one, *others]


def contents(notice: Command) -> dict[str, str]:
    """The fields of a notice that is in all else as the protocol wants it."""
    assert (notice.code, notice.is_one_way, notice.is_reply, notice.body) == (905, True, False, b"")
    return notice.fields


def gained(new: Registration) -> dict[str, str]:
    return {
        "minBrokerId": str(new.broker_id),
        "minBrokerAddr": new.address,
        "haBrokerAddr": f"ha-of-{new.address}",
    }


def lost(gone: Registration, smallest: Registration) -> dict[str, str]:
    return {
        "minBrokerId": str(smallest.broker_id),
        "minBrokerAddr": smallest.address,
        "offlineBrokerAddr": gone.address,
    }


@asynccontextmanager
async def full_queue() -> AsyncIterator[str]:
    """A listening socket whose queue is full lets connections hang, as a machine that hangs does."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening:
        address = listening.getsockname()
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(address)
            fillers.append(filler)
        try:
            yield f"{address[0]}:{address[1]}"
        finally:
            for filler in fillers:
                filler.close()
