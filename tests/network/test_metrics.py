"""Metrics and health pages of a name server, and how they handle invalid and slow clients."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from skyroute.nameserver.config import NameServerConfig
from skyroute.nameserver.server import NameServer
from skyroute.observing import pages as pages_module
from skyroute.observing.pages import CONNECTIONS_MAX, REQUEST_BYTES_MAX
from skyroute.remoting.dispatch import Dispatcher
from skyroute.remoting.errors import BindError
from skyroute.settings.errors import ConfigError
from skyroute.wire.codes import ResponseCode
from tests.network.cluster import MASTER, OTHER, SLAVE, addresses, register
from tests.network.test_watch import broker, parked, watch
from tests.support.apache import free_port
from tests.support.connections import connection_to
from tests.support.raw import Request, Topic, split_address
from tests.support.scraping import Scrape, exchange, listed, page, scrape, told
from tests.support.servers import Running, own_files, running
from tests.support.shown import ROOT
from tests.support.waiting import eventually

ROUTE, REGISTER = "GET_ROUTEINFO_BY_TOPIC", "REGISTER_BROKER"
GOOD = b"GET /livez HTTP/1.1\r\n\r\n"
MANY = MASTER.but(topics=tuple(Topic(f"a-topic-of-many-{number}") for number in range(2_000)))
"""Its body is so long that it is decoded in steps."""


def pages_of(here: Running) -> str:
    assert here.server._pages is not None
    return here.server._pages.address


@asynccontextmanager
async def watched(folder: Path, **settings: Any) -> AsyncIterator[tuple[Running, str]]:
    """A name server, and the address of its pages."""
    async with running(folder, metrics_port=free_port(), **settings) as here:
        yield here, pages_of(here)


def requests(seen: Scrape) -> dict[tuple[str, str], float]:
    samples = seen.families["rocketmq_namesrv_requests"].samples
    found = {(each.labels["request_code"], each.labels["response_code"]): each.value for each in samples}
    return {codes: count for codes, count in found.items() if count}


# ---------------------------------------------------------------------------------------------------------- requests


async def test_requests_are_counted_by_request_and_response_code(tmp_path: Path) -> None:
    async with watched(tmp_path) as (here, pages), connection_to(here.address) as line:
        await register(line, MASTER, OTHER)
        await line.send_oneway(SLAVE.request)
        for _ in range(5):  # the first is looked up, the others are known by their bytes
            await addresses(line)
        assert (await line.call(105, {"topic": "Nowhere"})).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await line.call(105)).code == ResponseCode.SYSTEM_ERROR
        for unknown in (9999, 9998, 12, -7):
            assert (await line.call(unknown)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        seen = await scrape(pages)
        assert requests(seen) == {
            (REGISTER, "SUCCESS"): 3,
            (ROUTE, "SUCCESS"): 5,
            (ROUTE, "TOPIC_NOT_EXIST"): 1,
            (ROUTE, "SYSTEM_ERROR"): 1,
            ("QUERY_MESSAGE", "REQUEST_CODE_NOT_SUPPORTED"): 1,
            ("OTHER", "REQUEST_CODE_NOT_SUPPORTED"): 3,
        }
        assert here.server._routes.fast_path.found == 4
        assert seen("rocketmq_namesrv_request_seconds_count", request_code=ROUTE, response_code="SUCCESS") == 1
        assert seen("rocketmq_namesrv_connections") == 1


async def test_a_deferred_response_is_counted_when_it_is_sent(tmp_path: Path) -> None:
    async with watched(tmp_path) as (here, pages), connection_to(here.address) as line:
        assert len(MANY.request.body) > 64 * 1024
        assert (await line.call(MANY.request)).code == ResponseCode.SUCCESS
        broken = Request(103, MANY.request.fields, MANY.request.body[:-1000])
        assert (await line.call(broken)).code == ResponseCode.SYSTEM_ERROR
        assert requests(await scrape(pages)) == {(REGISTER, "SUCCESS"): 1, (REGISTER, "SYSTEM_ERROR"): 1}


async def test_latency_is_in_seconds(tmp_path: Path) -> None:
    async with watched(tmp_path) as (here, pages), connection_to(here.address) as line:
        first = await line.call(watch("A"))
        asked = await line.send(watch("A", after=first))
        await eventually(lambda: parked(here) == 1)
        assert requests(await scrape(pages)) == {("WATCH_ROUTES", "SUCCESS"): 1}
        here.clock.advance(2.0)
        await register(line, broker("A", "C"))
        await line.answer(asked)
        seen = await scrape(pages)
        assert requests(seen)["WATCH_ROUTES", "SUCCESS"] == 2
        of_watches = {"request_code": "WATCH_ROUTES"}
        assert seen("rocketmq_namesrv_request_seconds_sum", **of_watches) == 2.0
        assert seen("rocketmq_namesrv_request_seconds_bucket", le="1", **of_watches) == 1
        assert seen("rocketmq_namesrv_request_seconds_bucket", le="5", **of_watches) == 2
        assert seen("rocketmq_namesrv_request_seconds_bucket", le="+Inf", **of_watches) == 2


async def test_without_metrics_the_plain_dispatcher_is_used(nameserver: Running) -> None:
    assert nameserver.server._pages is None
    assert type(nameserver.remoting._context.dispatcher) is Dispatcher


# ------------------------------------------------------------------------------------------------------------ routes


async def test_route_table_sizes_and_changes(tmp_path: Path) -> None:
    async with (
        watched(tmp_path) as (here, pages),
        connection_to(here.address) as line,
        connection_to(here.address) as gone,
    ):
        await register(line, MASTER, SLAVE)
        await register(gone, OTHER)
        assert (await line.call(100, {"namespace": "n", "key": "k", "value": "v"})).code == ResponseCode.SUCCESS
        here.clock.advance(30)
        await register(line, MASTER)
        here.clock.advance(10)
        seen = await scrape(pages)
        told = {
            **{"clusters": 1, "broker_groups": 2, "brokers": 3, "topics": 3, "topic_entries": 4, "kv_entries": 1},
            **{"lease_age_max_seconds": 40, "lease_left_min_seconds": 80, "brokers_held": 0, "brokers_unconfirmed": 0},
        }
        for name, value in told.items():
            assert seen(f"rocketmq_namesrv_{name}") == value, name
        await gone.close()
        await eventually(lambda: here.connections == 1)
        here.pass_time(85, sweeps=False)
        seen = await scrape(pages)
        assert seen("rocketmq_namesrv_brokers") == 1
        for event, cause, count in (
            ("broker_joined", "registered", 3),
            ("broker_left", "connection_closed", 1),
            ("broker_left", "lease_expired", 1),
            ("group_changed", "group_gone", 1),
        ):
            assert seen("rocketmq_namesrv_route_events_total", event=event, cause=cause) == count, event


async def test_without_brokers_there_are_no_lease_metrics(tmp_path: Path) -> None:
    async with watched(tmp_path) as (_, pages):
        seen = await scrape(pages)
        assert seen("rocketmq_namesrv_brokers") == 0
        assert not seen.has("rocketmq_namesrv_lease_left_min_seconds")


async def test_the_mass_expiry_guard_counts_the_brokers_it_keeps(tmp_path: Path) -> None:
    async with watched(tmp_path, mass_expiry_share=0.3) as (here, pages), connection_to(here.address) as line:
        await register(line, MASTER, OTHER)
        here.pass_time(125, sweeps=False)
        seen = await scrape(pages)
        assert seen("rocketmq_namesrv_brokers_held") == seen("rocketmq_namesrv_brokers") == 2
        assert seen("rocketmq_namesrv_mass_expiry_holds_total") == 1
        assert seen("rocketmq_namesrv_route_events_total", event="lease_held", cause="mass_expiry") == 2
        await register(line, MASTER)
        here.pass_time(125, sweeps=False)
        seen = await scrape(pages)
        assert (seen("rocketmq_namesrv_brokers_held"), seen("rocketmq_namesrv_mass_expiry_holds_total")) == (1, 2)
        assert seen("rocketmq_namesrv_route_events_total", event="broker_left", cause="lease_expired") == 1


async def test_a_late_scan_is_counted(tmp_path: Path) -> None:
    async with watched(tmp_path) as (here, pages):
        here.clock.advance(60)
        here.scan()
        assert (await scrape(pages))("rocketmq_namesrv_late_scans_total") == 1


async def test_routes_with_unconfirmed_brokers_are_counted_until_they_register(tmp_path: Path) -> None:
    memory: dict[str, Any] = {"memory_path": str(tmp_path / "memory")}
    async with running(tmp_path, **memory) as here, connection_to(here.address) as line:
        await register(line, MASTER, OTHER)
    async with watched(tmp_path, **memory) as (here, pages), connection_to(here.address) as line:
        for _ in range(3):
            await addresses(line)
        seen = await scrape(pages)
        assert seen("rocketmq_namesrv_unconfirmed_routes_total") == 3
        assert seen("rocketmq_namesrv_brokers_unconfirmed") == 2
        await register(line, MASTER, OTHER)
        await addresses(line)
        seen = await scrape(pages)
        assert seen("rocketmq_namesrv_unconfirmed_routes_total") == 3
        assert seen("rocketmq_namesrv_brokers_unconfirmed") == 0


async def test_a_change_answers_and_counts_only_its_watches(tmp_path: Path) -> None:
    async with watched(tmp_path) as (here, pages), connection_to(here.address) as line:
        first = await line.call(watch("A"))
        for topics in (("A",), ("B",), ()):
            await line.send(watch(*topics, after=first))
        await eventually(lambda: parked(here) == 3)
        assert (await scrape(pages))("rocketmq_namesrv_watches") == 3
        await register(line, broker("A", "C"))
        seen = await scrape(pages)
        assert (seen("rocketmq_namesrv_watches"), seen("rocketmq_namesrv_watches_woken_total")) == (1, 2)


async def test_journal_and_snapshot_metrics(tmp_path: Path) -> None:
    async with (
        watched(tmp_path, memory_path=str(tmp_path / "memory"), snapshot_interval_s=1000) as (here, pages),
        connection_to(here.address) as line,
    ):
        await register(line, MASTER)
        persistence = here.server._publisher.persistence
        assert persistence is not None
        journal = persistence.journal
        assert journal is not None
        await eventually(lambda: journal.caught_up)
        await persistence._save(here.server.table)
        here.clock.advance(7)
        seen = await scrape(pages)
        on_disk = sum(path.stat().st_size for path in (tmp_path / "memory" / "journal").glob("*.jsonl*"))
        told = {
            **{"journal_records_total": 4, "journal_sequence": 4, "journal_lost_total": 0, "journal_waiting": 0},
            **{"journal_failing": 0, "journal_bytes": on_disk, "snapshot_age_seconds": 7},
            **{"snapshots_total": 1, "snapshot_failures_total": 0},
        }
        for name, value in told.items():
            assert seen(f"rocketmq_namesrv_{name}") == value, name


async def test_a_failed_snapshot_is_counted(tmp_path: Path) -> None:
    async with (
        watched(tmp_path, memory_path=str(tmp_path / "memory")) as (here, pages),
        connection_to(here.address) as line,
    ):
        await register(line, MASTER)
        persistence = here.server._publisher.persistence
        assert persistence is not None
        persistence.folder.snapshot.mkdir()
        (persistence.folder.snapshot / "in the way").touch()
        await persistence._save(here.server.table)
        seen = await scrape(pages)
        assert (seen("rocketmq_namesrv_snapshots_total"), seen("rocketmq_namesrv_snapshot_failures_total")) == (0, 1)
        assert not seen.has("rocketmq_namesrv_snapshot_age_seconds")


# ------------------------------------------------------------------------------------------------------------ health


async def test_a_server_is_alive_and_ready(tmp_path: Path) -> None:
    async with watched(tmp_path) as (_, pages):
        assert await page(pages, "/livez") == (200, "alive\n")
        assert await page(pages, "/readyz") == (200, "ready\n")


async def test_a_server_that_waits_for_registrations_is_alive_and_not_ready(tmp_path: Path) -> None:
    async with watched(tmp_path, wait_for_brokers=True) as (here, pages):
        status, reason = await page(pages, "/readyz")
        assert (status, "waitSecondsForService=45" in reason, reason.count("\n")) == (503, True, 1)
        assert (await page(pages, "/livez"))[0] == 200
        here.clock.advance(45)
        assert (await page(pages, "/readyz"))[0] == 200


async def test_a_stopping_server_is_not_ready(tmp_path: Path) -> None:
    settings = {"graceful_shutdown": True, "shutdown_wait_s": 600}
    async with watched(tmp_path, **settings) as (here, pages):
        async with connection_to(here.address) as line:
            await register(line, MASTER)
            stopping = asyncio.create_task(here.server.stop())
            await asyncio.sleep(0)
            assert await page(pages, "/readyz") == (503, "the name server is stopping\n")
            assert (await page(pages, "/livez"))[0] == 200
            assert requests(await scrape(pages)) == {(REGISTER, "SUCCESS"): 1}
        async with asyncio.timeout(5):
            await stopping
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*split_address(pages))


# ------------------------------------------------------------------------------------------------ misbehaving clients


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /metrics/../livez HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /livez\r\n\r\n", b"400"),
        (b"GET /livez HTTP/2\r\n\r\n", b"400"),
        (b"\r\n\r\n", b"400"),
        (b"\xff\x00\x01\r\n\r\n", b"400"),
        (b"GET /livez HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /livez?verbose=1 HTTP/1.1\r\nConnection: keep-alive\r\n\r\n", b"200"),
        (b"\x16\x03\x01" + b"\x00" * REQUEST_BYTES_MAX * 4, b""),
        (b"GET /livez HTTP/1.1\r\nX: " + b"x" * REQUEST_BYTES_MAX * 4, b""),
    ],
)
async def test_invalid_http_requests_are_refused(tmp_path: Path, request_bytes: bytes, status: bytes) -> None:
    async with watched(tmp_path) as (_, pages):
        try:
            answer = await exchange(pages, request_bytes)
        except ConnectionResetError:  # it was closed before all was taken
            answer = b""
        assert answer.partition(b"\r\n")[0].split(b" ")[1:2] == ([status] if status else [])
        assert answer.count(b"Connection: close") == bool(status)
        assert await page(pages, "/livez") == (200, "alive\n")


async def test_an_incomplete_request_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_module, "EXCHANGE_S", 0.05)
    async with watched(tmp_path) as (_, pages):
        assert await exchange(pages, b"GET /livez HTTP/1.1\r\n") == b""
        assert await page(pages, "/livez") == (200, "alive\n")


async def test_a_client_that_does_not_wait_for_its_response_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with watched(tmp_path) as (here, pages):
        served = here.server._pages
        assert served is not None
        asked = asyncio.Event()

        async def late() -> bytes:
            (transport,) = served._transports.values()
            asked.set()
            await eventually(transport.is_closing)
            for _ in range(10):  # until uvloop has closed its handle
                await asyncio.sleep(0)
            return b"x"

        served._metrics = late
        _, writer = await asyncio.open_connection(*split_address(pages))
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        await asked.wait()
        reset_at_close = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset_at_close)
        writer.transport.abort()
        await eventually(lambda: not served._transports)
    assert "Unhandled" not in caplog.text


async def test_a_response_that_is_not_read_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages_module, "EXCHANGE_S", 0.2)
    async with watched(tmp_path) as (here, pages):
        served = here.server._pages
        assert served is not None

        async def endless() -> bytes:
            return b"x" * 64 * 1024 * 1024

        served._metrics = endless
        _, writer = await asyncio.open_connection(*split_address(pages), limit=1)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        await eventually(lambda: len(served._transports) == 1)
        await eventually(lambda: not served._transports)
        assert await page(pages, "/livez") == (200, "alive\n")
        writer.transport.abort()


async def test_a_new_connection_replaces_the_oldest_one_without_a_request(tmp_path: Path) -> None:
    async with watched(tmp_path) as (here, pages), AsyncExitStack() as ends:
        served = here.server._pages
        assert served is not None
        there = []
        for _ in range(CONNECTIONS_MAX):
            there.append(await asyncio.open_connection(*split_address(pages)))
            there[-1][1].write(b"GET /met")
            ends.callback(there[-1][1].close)
        await eventually(lambda: len(served._transports) == CONNECTIONS_MAX)
        assert await page(pages, "/livez") == (200, "alive\n")
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await there[0][0].readexactly(1)
        reader, writer = there[1]
        writer.write(b"rics HTTP/1.1\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_new_connection_replaces_the_oldest_one_that_does_not_read(tmp_path: Path) -> None:
    async with watched(tmp_path) as (here, pages), AsyncExitStack() as ends:
        served = here.server._pages
        assert served is not None

        async def endless() -> bytes:
            return b"x" * 16 * 1024 * 1024

        served._metrics = endless
        there = [await asyncio.open_connection(*split_address(pages), limit=1) for _ in range(CONNECTIONS_MAX)]
        for _, writer in there:
            ends.callback(writer.transport.abort)
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        await eventually(lambda: len(served._transports) == CONNECTIONS_MAX and not served._idle)
        assert await page(pages, "/livez") == (200, "alive\n")


async def test_open_connections_do_not_block_a_stop(tmp_path: Path) -> None:
    async with watched(tmp_path) as (here, pages):
        reader, writer = await asyncio.open_connection(*split_address(pages))
        writer.write(b"GET /met")
        assert here.server._pages is not None
        await eventually(lambda: len(here.server._pages._transports) == 1)  # type: ignore[union-attr]  # it was there
        async with asyncio.timeout(5):
            await here.server.stop()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()


# ------------------------------------------------------------------------------------------------------- what cannot be


async def test_a_port_in_use_is_an_error_that_names_the_setting(tmp_path: Path) -> None:
    async with watched(tmp_path) as (here, pages):
        port = split_address(pages)[1]
        memory = tmp_path / "other" / "memory"
        config = NameServerConfig(
            listen_port=0,
            bind_address="127.0.0.1",
            metrics_port=port,
            memory_path=str(memory),
            **own_files(tmp_path / "other"),
        )
        (tmp_path / "other").mkdir()
        with pytest.raises(BindError, match=rf"127\.0\.0\.1:{port}.*in use.*Set metricsPort or metricsHost"):
            await NameServer(config).start()
        assert not memory.exists()
        assert (await page(pages, "/readyz"))[0] == 200
        assert here.connections == 0


async def test_a_missing_package_is_an_error_that_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError, match=r"pip install 'skyroute\[metrics\]'"):
        async with watched(tmp_path):
            pass


# --------------------------------------------------------------------------------------------------------- documents


async def test_the_documented_metrics_are_those_served(tmp_path: Path) -> None:
    async with (
        watched(tmp_path, memory_path=str(tmp_path / "memory")) as (here, pages),
        connection_to(here.address) as line,
    ):
        await register(line, MASTER)
        memory = here.server._publisher.persistence
        assert memory is not None
        await memory._save(here.server.table)
        assert told(await scrape(pages)) == listed("Name server metrics") | listed("Process metrics")


def test_the_dashboard_uses_only_documented_metrics() -> None:
    known = listed("Name server metrics") | listed("Broker metrics") | listed("Process metrics")
    names = set(known) | {f"{name}_bucket" for name, (kind, _) in known.items() if kind == "histogram"}
    dashboard = json.loads((ROOT / "docs" / "grafana" / "skyroute.json").read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(expressions) > 30
    for expression in expressions:
        used = re.findall(r"\b(?:rocketmq|skyroute|process)_\w+", expression)
        assert used, expression
        assert set(used) <= names, expression
        family = known[used[0].removesuffix("_bucket")]
        labels = re.findall(r"(\w+)!?=", expression) + [
            label for group in re.findall(r"by \(([^)]*)\)", expression) for label in group.split(", ")
        ]
        assert set(labels) <= family[1] | {"instance", "le", "cluster", "node_id", "node_type"}, expression


async def test_clients_that_ask_at_the_same_time_share_a_page() -> None:
    rendered, may_end = 0, asyncio.Event()

    async def metrics() -> bytes:
        nonlocal rendered
        rendered += 1
        await may_end.wait()
        return b"page %d" % rendered

    pages = pages_module.Pages(metrics, lambda: None)
    await pages.start("127.0.0.1", 0)
    try:
        asked = [asyncio.create_task(exchange(pages.address, b"GET /metrics HTTP/1.1\r\n\r\n")) for _ in range(10)]
        await eventually(lambda: len(pages._transports) == 10 and not pages._idle, "all have asked")
        may_end.set()
        assert all(answer.endswith(b"page 1") for answer in await asyncio.gather(*asked))
        assert (await exchange(pages.address, b"GET /metrics HTTP/1.1\r\n\r\n")).endswith(b"page 2")
    finally:
        await pages.stop()
