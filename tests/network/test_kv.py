"""Key-value config over the wire, and over a restart."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path

import pytest

from skyroute.wire.codes import ResponseCode
from tests.network.cluster import MASTER, register
from tests.support.connections import WAIT_S, AsyncConnection, connection_to
from tests.support.servers import running


async def put(line: AsyncConnection, namespace: str, key: str, value: str) -> int:
    return (await line.call(100, {"namespace": namespace, "key": key, "value": value})).code


async def test_a_value_can_be_put_got_listed_and_deleted(line: AsyncConnection) -> None:
    where = {"namespace": "ns", "key": "a"}
    missing = await line.call(101, where)
    assert (missing.code, missing.remark) == (ResponseCode.QUERY_NOT_FOUND, "No config item, Namespace: ns Key: a")
    missing = await line.call(219, {"namespace": "ns"})
    assert (missing.code, missing.remark) == (ResponseCode.QUERY_NOT_FOUND, "No config item, Namespace: ns")
    assert [await put(line, "ns", "a", "1"), await put(line, "ns", "b", "ü = 2\n")] == [0, 0]
    assert (await line.call(101, where)).fields == {"value": "1"}
    assert (await line.call(219, {"namespace": "ns"})).value == {"table": {"a": "1", "b": "ü = 2\n"}}
    assert [(await line.call(102, where)).code for _ in range(2)] == [0, 0]
    assert (await line.call(101, where)).code == ResponseCode.QUERY_NOT_FOUND


async def test_a_namespace_outlives_its_last_key(line: AsyncConnection) -> None:
    await put(line, "ns", "a", "1")
    await line.call(102, {"namespace": "ns", "key": "a"})
    answer = await line.call(219, {"namespace": "ns"})
    assert (answer.code, answer.text) == (ResponseCode.SUCCESS, '{"table":{}}')


async def test_an_empty_value_is_a_value(line: AsyncConnection) -> None:
    assert await put(line, "ns", "a", "") == 0
    answer = await line.call(101, {"namespace": "ns", "key": "a"})
    assert (answer.code, answer.fields) == (ResponseCode.SUCCESS, {"value": ""})


async def test_what_was_answered_is_on_disk_and_there_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as here, connection_to(here.address) as line:
        assert await put(line, "ORDER_TOPIC_CONFIG", "TopicA", "broker-a:4") == 0
        written = json.loads((tmp_path / "kvConfig.json").read_text())
        assert written == {"configTable": {"ORDER_TOPIC_CONFIG": {"TopicA": "broker-a:4"}}}
        assert await put(line, "ns", "gone", "1") == 0
        await line.call(102, {"namespace": "ns", "key": "gone"})
    async with running(tmp_path) as here, connection_to(here.address) as line:
        answer = await line.call(101, {"namespace": "ORDER_TOPIC_CONFIG", "key": "TopicA"})
        assert answer.fields == {"value": "broker-a:4"}
        assert (await line.call(101, {"namespace": "ns", "key": "gone"})).code == ResponseCode.QUERY_NOT_FOUND
        assert (await line.call(MASTER.request)).text == '{"table":{"TopicA":"broker-a:4"}}'


@pytest.mark.parametrize(
    ("code", "fields", "body"),
    [(100, {"namespace": "ns", "key": "a", "value": "1"}, b""), (318, {}, b"enableTopicList=false")],
)
async def test_nobody_else_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, fields: dict[str, str], body: bytes
) -> None:
    works = threading.Event()
    async with running(tmp_path) as here, connection_to(here.address) as line, connection_to(here.address) as other:
        monkeypatch.setattr(os, "fdatasync", lambda _: works.wait(WAIT_S))
        change = asyncio.ensure_future(line.call(code, fields, body))
        try:
            assert (await other.call(105, {"topic": "T"})).code == ResponseCode.TOPIC_NOT_EXIST
            assert not change.done()
        finally:
            works.set()
        assert (await change).code == ResponseCode.SUCCESS


async def test_a_restart_forgets_routes_and_nothing_else(tmp_path: Path) -> None:
    async with running(tmp_path) as here, connection_to(here.address) as line:
        await register(line, MASTER)
        await put(line, "ns", "a", "1")
    async with running(tmp_path) as here, connection_to(here.address) as line:
        assert (await line.call(206)).value == {"topicList": []}
        assert (await line.call(101, {"namespace": "ns", "key": "a"})).fields == {"value": "1"}


def block(path: Path) -> None:
    """Put a directory where the file is, which no write can replace."""
    path.unlink()
    path.mkdir()


def unblock(path: Path) -> None:
    path.rmdir()


async def test_a_write_that_fails_is_reported_and_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    async with running(tmp_path) as here, connection_to(here.address) as line:
        await put(line, "ns", "a", "1")
        block(tmp_path / "kvConfig.json")
        answer = await line.call(100, {"namespace": "ns", "key": "a", "value": "2"})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "kvConfig.json" in (answer.remark or "")
        assert (await line.call(101, {"namespace": "ns", "key": "a"})).fields == {"value": "1"}
        unblock(tmp_path / "kvConfig.json")
        assert await put(line, "ns", "a", "3") == 0
