"""Waiting for routes to change, over real connections and with the independent codec."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from skyroute.wire.codes import ResponseCode
from tests.network.cluster import MASTER, register
from tests.support.connections import AsyncConnection, connection_to
from tests.support.raw import Command, DataVersion, Form, Registration, Request, Topic
from tests.support.servers import Running, running
from tests.support.waiting import eventually

WATCH = 21001
FORMS: tuple[Form, ...] = ("json", "binary")


def watch(*topics: str, after: Command | None = None, timeout_ms: int = 30_000) -> Request:
    """Wait for these topics, or any, from where an earlier answer ended."""
    fields = {"timeoutMillis": str(timeout_ms)}
    if after is not None:
        fields |= {"life": after.fields["life"], "revision": after.fields["revision"]}
    if not topics:
        return Request(WATCH, fields | {"anyTopic": "true"})
    return Request(WATCH, fields, json.dumps({"topics": topics}).encode())


def changed(answer: Command) -> list[list[str]]:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert "compacted" not in answer.fields
    return [change["topics"] for change in answer.value["changes"]] if answer.body else []


def parked(server: Running) -> int:
    watches = server.server._watches
    assert watches is not None
    return len(watches)


def broker(*topics: str, edition: int = 1, **changes: Any) -> Registration:
    return Registration(
        "c", "b", "10.0.0.7:1", [Topic(name) for name in topics], data_version=DataVersion(edition)
    ).but(**changes)


@pytest.mark.parametrize("form", FORMS)
async def test_a_change_completes_a_watch_and_the_next_continues_from_there(nameserver: Running, form: Form) -> None:
    async with connection_to(nameserver.address, form=form) as line, connection_to(nameserver.address) as brokers:
        first = await line.call(watch("A"))
        assert (first.code, first.fields["compacted"], first.body) == (ResponseCode.SUCCESS, "true", b"")
        asked = await line.send(watch("A", after=first))
        await eventually(lambda: parked(nameserver) == 1)
        assert (await brokers.call(broker("B", "C").request)).code == ResponseCode.SUCCESS
        assert parked(nameserver) == 1
        assert (await brokers.call(broker("A", "B", edition=2).request)).code == ResponseCode.SUCCESS
        second = await line.answer(asked)
        assert changed(second) == [["A"]]
        (change,) = second.value["changes"]
        assert change["time"] == int(nameserver.clock.wall() * 1000)
        assert (await brokers.call(broker("A", "B", edition=2).unregistration)).code == ResponseCode.SUCCESS
        # No watch was waiting meanwhile, and no change is lost.
        assert changed(await line.call(watch("A", after=second))) == [["A"]]
        assert changed(await line.call(watch(after=first))) == [["B", "C"], ["A"], ["A", "B", "C"]]


async def test_everything_that_shows_in_a_route_is_news(tmp_path: Path) -> None:
    async with running(tmp_path, ordered_topics_enabled=True) as server, connection_to(server.address) as line:
        await line.call(broker("T", "U").request)
        heard = await line.call(watch("T"))

        async def is_news(request: Request, *, compacted: bool = False) -> None:
            nonlocal heard
            assert (await line.call(request)).code == ResponseCode.SUCCESS
            answer = await line.call(watch("T", after=heard, timeout_ms=0))
            heard = answer
            if compacted:
                assert answer.fields.get("compacted") == "true"
            else:
                assert changed(answer) == [["T"]]

        await is_news(broker("T", "U", edition=2, topics=[Topic("T", read=4), Topic("U")]).request)
        await is_news(broker("T", "U", broker_id=1, address="10.0.0.8:1").request)
        await is_news(Request(205, {"brokerName": "b"}))
        await is_news(Request(327, {"brokerName": "b"}))
        await is_news(Request(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "b:4"}))
        await is_news(Request(102, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"}))
        await is_news(broker("T", "U", edition=2, zone="north", topics=[Topic("T", read=4), Topic("U")]).request)
        await is_news(Request(318, body=b"supportActingMaster=true"), compacted=True)
        await is_news(Request(216, {"topic": "T"}))
        assert changed(await line.call(watch("T", after=heard, timeout_ms=0))) == []
        # Without a change of the route, no watch completes: the same registration again, and a heartbeat.
        await line.call(broker("T", "U", broker_id=1, address="10.0.0.8:1").request)
        await line.call(Request(904, {"brokerName": "b", "brokerAddr": "10.0.0.7:1", "clusterName": "c"}))
        await line.call(Request(100, {"namespace": "elsewhere", "key": "T", "value": "x"}))
        assert changed(await line.call(watch("T", after=heard, timeout_ms=0))) == []


async def test_a_broker_that_leaves_completes_a_watch(nameserver: Running) -> None:
    async with connection_to(nameserver.address) as line, connection_to(nameserver.address) as brokers:
        await register(brokers, MASTER)
        topic = MASTER.topics[0].name
        heard = await line.call(watch(topic))
        asked = await line.send(watch(topic, after=heard))
        await eventually(lambda: parked(nameserver) == 1)
        brokers.abort()
        assert changed(await line.answer(asked)) == [[topic]]


async def test_a_timed_out_watch_returns_a_bookmark(nameserver: Running) -> None:
    async with connection_to(nameserver.address) as line:
        first = await line.call(watch("A"))
        asked = await line.send(watch("A", after=first, timeout_ms=1_500))
        await eventually(lambda: parked(nameserver) == 1)
        await line.call(broker("B", "C").request)
        nameserver.clock.advance(2.0)
        answer = await line.answer(asked)
        assert changed(answer) == []
        assert int(answer.fields["revision"]) == int(first.fields["revision"]) + 1
        assert changed(await line.call(watch(after=answer, timeout_ms=0))) == []


async def test_a_watch_from_an_earlier_run_of_the_server_is_compacted(tmp_path: Path) -> None:
    async with running(tmp_path) as server, connection_to(server.address) as line:
        heard = await line.call(watch("A"))
        await line.call(broker("A", "B").request)
        heard = await line.call(watch("A", after=heard))
    # With a clock that stands still, the revisions of both lives are the same.
    async with running(tmp_path) as server, connection_to(server.address) as line:
        await line.call(broker("A", "B").request)
        answer = await line.call(watch("A", after=heard))
        assert answer.fields["compacted"] == "true"
        assert answer.fields["revision"] == heard.fields["revision"]
        assert answer.fields["life"] != heard.fields["life"]


async def test_a_closed_connection_has_no_watches(nameserver: Running) -> None:
    async with connection_to(nameserver.address) as line:
        first = await line.call(watch("A"))
        await line.send(watch("A", after=first))
        await eventually(lambda: parked(nameserver) == 1)
    await eventually(lambda: parked(nameserver) == 0)


async def test_a_second_watch_of_a_connection_does_not_wait_for_the_first(
    line: AsyncConnection, nameserver: Running
) -> None:
    first = await line.call(watch("A"))
    asked = [await line.send(watch(f"T{number}", after=first)) for number in range(6)]
    assert [changed(await line.answer(opaque)) for opaque in asked[:2]] == [[], []]
    assert parked(nameserver) == 4
    await line.call(broker("T5", "T3").request)
    assert changed(await line.answer(asked[5])) == [["T5"]]
    assert changed(await line.answer(asked[3])) == [["T3"]]
    assert (await line.call(106)).code == ResponseCode.SUCCESS


async def test_a_stopping_server_completes_watches_with_go_away(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"graceful_shutdown": True, "shutdown_wait_s": 20}
    async with running(tmp_path, **settings) as server, connection_to(server.address) as line:
        first = await line.call(watch("A"))
        asked = await line.send(watch("A", after=first))
        await eventually(lambda: parked(server) == 1)
        stopping = asyncio.create_task(server.server.stop())
        assert (await line.answer(asked)).code == ResponseCode.GO_AWAY
        assert (await line.call(watch("A"))).code == ResponseCode.GO_AWAY
        await line.close()
        await stopping


async def test_a_server_without_watches_is_as_apaches(tmp_path: Path) -> None:
    async with running(tmp_path, watch_enabled=False) as server, connection_to(server.address) as line:
        answer = await line.call(watch("A"))
        assert (answer.code, answer.remark) == (
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            " request type 21001 not supported",
        )
        await line.call(broker("A", "B").request)
        await line.call(318, body=b"supportActingMaster=true")


async def test_a_oneway_watch_does_not_wait(line: AsyncConnection, nameserver: Running) -> None:
    first = await line.call(watch("A"))
    await line.send_oneway(watch("A", after=first))
    assert (await line.call(106)).code == ResponseCode.SUCCESS
    assert parked(nameserver) == 0


async def test_a_connection_that_only_watches_is_not_idle(tmp_path: Path) -> None:
    async with running(tmp_path, idle_timeout_s=10) as server, connection_to(server.address) as line:
        heard = await line.call(watch("A"))
        for _ in range(5):
            asked = await line.send(watch("A", after=heard, timeout_ms=60_000))
            await eventually(lambda: parked(server) == 1)
            server.pass_time(5.5)
            heard = await line.answer(asked)
        assert server.connections == 1


async def test_watches_beyond_the_bound_are_refused(nameserver: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    watches = nameserver.server._watches
    assert watches is not None
    monkeypatch.setattr(watches, "_watches_max", 1)
    async with connection_to(nameserver.address) as line, connection_to(nameserver.address) as other:
        first = await line.call(watch("A"))
        await line.send(watch("A", after=first))
        await eventually(lambda: parked(nameserver) == 1)
        answer = await other.call(watch("A", after=first))
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert answer.remark is not None
        assert "1 watches wait already" in answer.remark
