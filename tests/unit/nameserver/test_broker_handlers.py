from collections.abc import Coroutine
from pathlib import Path
from typing import Any, cast

from skyroute.nameserver.config import NameServerConfig
from skyroute.nameserver.handlers.brokers import LARGE_BODY_BYTES, BrokerHandlers
from skyroute.nameserver.kv_config import KvConfig
from skyroute.remoting.busy_polling import BusyPolling
from skyroute.remoting.dispatch import InTurn, Peer
from skyroute.remoting.stepwise import StepRunner
from skyroute.routing.registration import DataVersion, Registration, TopicTable
from skyroute.routing.table import RouteTable
from skyroute.routing.topology import QueueSettings
from skyroute.wire.calls.registration import encode_registration
from skyroute.wire.codes import OUR_VERSION
from skyroute.wire.command import Request, Response
from tests.support.clock import ManualClock

LEASE_S = 3.0


def registration(topics: int) -> Request:
    table = TopicTable(DataVersion(counter=topics), {f"T{n}": QueueSettings(8, 8, 6) for n in range(topics)})
    request = encode_registration(Registration("c", "b", 0, "10.0.0.1:10911", lease_s=LEASE_S, table=table))
    request.version = OUR_VERSION
    return request


def test_a_long_registration_renews_the_lease_before_it_runs(tmp_path: Path) -> None:
    clock, table, peer = ManualClock(), RouteTable(), Peer(1, "10.0.0.1:1")
    handlers = BrokerHandlers(
        table=table,
        kv=KvConfig(tmp_path / "kv.json"),
        config=NameServerConfig(),
        clock=clock,
        publish=lambda _events: None,
        step_runner=StepRunner(BusyPolling(), clock),
    )
    assert handlers.register(registration(2), peer) == Response(fields={})
    clock.advance(LEASE_S - 0.1)
    long = registration(1_000)
    assert len(long.body) > LARGE_BODY_BYTES
    waiting = handlers.register(long, peer)
    assert isinstance(waiting, InTurn)
    clock.advance(LEASE_S - 0.1)
    assert table.evict_expired(clock.monotonic()) == ()
    cast("Coroutine[Any, Any, Response]", waiting.work).close()
