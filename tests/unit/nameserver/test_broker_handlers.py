import asyncio
import struct
import zlib
from collections.abc import Coroutine, Generator
from pathlib import Path
from typing import Any, cast

from skyroute.nameserver.config import NameServerConfig
from skyroute.nameserver.handlers.brokers import LARGE_BODY_BYTES, STEPS_AT_A_TIME, BrokerHandlers
from skyroute.nameserver.kv_config import KvConfig
from skyroute.remoting.busy_polling import BusyPolling
from skyroute.remoting.dispatch import OrderedResponse, Peer
from skyroute.remoting.stepwise import StepRunner
from skyroute.routing.registration import DataVersion, Registration, TopicTable
from skyroute.routing.table import RouteTable
from skyroute.routing.topology import QueueSettings
from skyroute.wire.calls.registration import encode_registration
from skyroute.wire.codes import OUR_VERSION, ResponseCode
from skyroute.wire.command import Request, Response
from tests.support.clock import ManualClock

LEASE_S = 3.0


def registration(topics: int) -> Request:
    table = TopicTable(DataVersion(counter=topics), {f"T{n}": QueueSettings(8, 8, 6) for n in range(topics)})
    request = encode_registration(Registration("c", "b", 0, "10.0.0.1:10911", lease_s=LEASE_S, table=table))
    request.version = OUR_VERSION
    return request


def make_handlers(folder: Path, clock: ManualClock, table: RouteTable) -> BrokerHandlers:
    return BrokerHandlers(
        table=table,
        kv=KvConfig(folder / "kv.json"),
        config=NameServerConfig(),
        clock=clock,
        publish=lambda _events: None,
        step_runner=StepRunner(BusyPolling(), clock),
    )


def test_a_broker_has_been_heard_from_while_its_long_registration_waits(tmp_path: Path) -> None:
    clock, table, peer = ManualClock(), RouteTable(), Peer(1, "10.0.0.1:1")
    handlers = make_handlers(tmp_path, clock, table)
    assert handlers.register(registration(2), peer) == Response(fields={})
    clock.advance(LEASE_S - 0.1)
    long = registration(1_000)
    assert len(long.body) > LARGE_BODY_BYTES
    waiting = handlers.register(long, peer)
    assert isinstance(waiting, OrderedResponse)
    clock.advance(LEASE_S - 0.1)
    assert table.evict_expired(clock.monotonic()) == ()
    cast("Coroutine[Any, Any, Response]", waiting.work).close()


async def test_a_short_body_that_inflates_to_much_is_read_in_steps(tmp_path: Path) -> None:
    line = b"T 1 1 6 SINGLE_TAG"
    pieces = [b"{}", *[line] * 100_000]
    stream = b"".join(struct.pack(">i", len(piece)) + piece for piece in pieces)
    stream = stream[:6] + struct.pack(">i", 100_000) + stream[6:] + struct.pack(">i2si", 2, b"[]", 0)
    request = registration(2)
    request.body, request.fields["bodyCrc32"], request.fields["compressed"] = zlib.compress(stream, 9), "0", "true"
    assert len(request.body) < LARGE_BODY_BYTES
    table = RouteTable()
    waiting = make_handlers(tmp_path, ManualClock(), table).register(request, Peer(1, "10.0.0.1:1"))
    assert isinstance(waiting, OrderedResponse)
    assert (await waiting.work).code == ResponseCode.SYSTEM_ERROR  # a single topic is no table
    assert not table.group_names


async def test_large_registrations_are_read_one_at_a_time(tmp_path: Path) -> None:
    handlers = make_handlers(tmp_path, ManualClock(), RouteTable())
    steps = [[0] for _ in range(3)]

    def work(taken: list[int]) -> Generator[None, None, Response]:
        for _ in range(10 * STEPS_AT_A_TIME):
            taken[0] += 1
            between = sorted(one for (one,) in steps if STEPS_AT_A_TIME < one < 10 * STEPS_AT_A_TIME)
            assert len(between) <= 1, steps
            yield
        return Response()

    await asyncio.gather(*(handlers._register_long(work(taken)) for taken in steps))
    assert not handlers.large.locked()
