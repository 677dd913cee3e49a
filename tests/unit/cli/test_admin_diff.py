"""`diffRoutes`: name servers with the same routes, and every kind of difference."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from skyroute.cli.admin.commands import admin
from skyroute.client.admin import Admin, name_server_comparison
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.support.connections import AsyncConnection, connection_to
from tests.support.fake_broker import FakeCluster, Reply, fake_cluster
from tests.support.raw import Command, DataVersion, Registration, Topic, mapping
from tests.support.servers import Running, running

GONE = "127.0.0.1:1"


class Pair:
    """Two name servers with the same broker, and how to compare them."""

    def __init__(
        self, first: Running, second: Running, lines: tuple[AsyncConnection, AsyncConnection], real: FakeCluster
    ) -> None:
        self.first, self.second = sorted((first.address, second.address))
        self.lines = dict(zip((first.address, second.address), lines, strict=True))
        self.real = real
        self.broker = Registration(
            "c", "broker-a", real.broker().address, [Topic("T", read=4, write=4), Topic("U"), Topic("V")]
        )

    async def register_with_both(self, registration: Registration) -> None:
        for address in self.lines:
            await self.register(address, registration)

    async def register(self, address: str, registration: Registration) -> None:
        assert (await self.lines[address].call(registration.request)).code == ResponseCode.SUCCESS

    async def run(self, *arguments: str, name_servers: str | None = None) -> Result:
        where = name_servers or f"{self.first};{self.second}"
        return await asyncio.to_thread(
            CliRunner().invoke, admin, ["diffRoutes", "--recheck", "0", *arguments, "-n", where]
        )

    async def differences(self, *arguments: str) -> list[dict[str, Any]]:
        result = await self.run("--json", *arguments)
        value = json.loads(result.stdout)
        assert result.exit_code == (1 if value["differences"] else 0), result.stderr
        assert result.stderr == ""
        assert value["name_servers"] == [self.first, self.second]
        differences: list[dict[str, Any]] = value["differences"]
        return differences

    async def values(self, *arguments: str) -> list[tuple[str | None, str | None, str, list[str | None]]]:
        """Return topic, broker and kind of each difference, with the values of both name servers."""
        return [
            (
                each["topic"],
                each["broker"],
                each["what"],
                [each["values"].get(self.first), each["values"].get(self.second)],
            )
            for each in await self.differences("--no-brokers", *arguments)
        ]


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with two_servers(tmp_path) as pair:
        yield pair


@asynccontextmanager
async def two_servers(folder: Path, **settings: Any) -> AsyncIterator[Pair]:
    async with (
        running(folder / "a", **settings) as first,
        running(folder / "b", **settings) as second,
        connection_to(first.address) as line,
        connection_to(second.address) as other,
        fake_cluster({"T": 4}) as real,
    ):
        pair = Pair(first, second, (line, other), real)
        tables = {"topicConfigTable": {topic.name: topic.config(5) for topic in pair.broker.topics}}
        real.on(RequestCode.GET_ALL_TOPIC_CONFIG, lambda *_: Reply(body=json.dumps(tables).encode()))
        await pair.register_with_both(pair.broker)
        yield pair


def newer(registration: Registration, *topics: Topic, **changes: Any) -> Registration:
    return registration.but(topics=topics or registration.topics, data_version=DataVersion(2), **changes)


async def test_equal_name_servers_have_no_difference(pair: Pair) -> None:
    result = await pair.run()
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "2 name servers, 3 topics: no difference\n"
    assert await pair.differences() == []


async def test_a_name_server_that_contradicts_the_broker_is_behind(pair: Pair) -> None:
    old = [Topic("T", read=2, write=4), *pair.broker.topics[1:]]
    await pair.register(pair.second, newer(pair.broker, *old))
    (difference,) = await pair.differences()
    assert (difference["topic"], difference["broker"], difference["what"]) == ("T", "broker-a", "read queues")
    assert difference["values"] == {pair.first: "4", pair.second: "2"}
    assert difference["behind"] == [pair.second]
    assert difference["since_ms"] == 1_758_275_140_000
    head, *rows, summary = (await pair.run()).stdout.splitlines()
    assert head.split("  ")[0] == "#Topic"
    assert [row.split()[:7] for row in rows] == [
        ["T", "broker-a", "read", "queues", pair.first, "4", "no"],
        ["T", "broker-a", "read", "queues", pair.second, "2", "yes"],
    ]
    assert summary == "2 name servers, 3 topics: 1 difference"


async def test_every_part_of_a_route_is_compared(pair: Pair) -> None:
    changed = [Topic("T", read=4, write=2, perm=4, sys_flag=1), *pair.broker.topics[1:]]
    static = {"U": mapping("U", "broker-a", 2)}
    await pair.register(
        pair.first,
        newer(pair.broker, *changed, mappings=static, filter_servers=["10.0.0.1:7"], zone="north", acting=True),
    )
    address = pair.broker.address
    found = await pair.values()
    assert (None, "broker-a", "zone", ["north", None]) in found
    assert (None, "broker-a", "acting master", ["allowed", "no"]) in found
    assert ("T", "broker-a", "write queues", ["2", "4"]) in found
    assert ("T", "broker-a", "permission", ["4", "6"]) in found
    assert ("T", "broker-a", "flags", ["1", "0"]) in found
    assert ("T", None, "filter servers", [f"{address}: 10.0.0.1:7", None]) in found
    assert [each[3][1] for each in found if each[:3] == ("U", "broker-a", "static mapping")] == [None]


async def test_a_topic_that_one_name_server_does_not_have(pair: Pair) -> None:
    await pair.register(pair.first, newer(pair.broker, *pair.broker.topics, Topic("New")))
    await pair.lines[pair.second].call(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "U"})
    differences = await pair.differences()
    assert [(each["topic"], each["what"], each["behind"]) for each in differences] == [
        ("New", "queues", [pair.first]),  # the broker does not have the topic
        ("U", "queues", [pair.second]),
    ]
    assert differences[1]["values"] == {pair.first: "8 read, 8 write, perm 6", pair.second: None}


async def test_a_broker_that_one_name_server_does_not_have_is_listed_once_with_its_topic_count(pair: Pair) -> None:
    other = pair.broker.but(broker="broker-b", address=GONE)
    await pair.register(pair.first, other)
    (difference,) = await pair.differences()
    assert (difference["topic"], difference["broker"], difference["what"]) == (None, "broker-b", "broker")
    assert difference["values"] == {pair.first: f"0={GONE}", pair.second: None}
    assert difference["topics"] == 3
    assert difference["behind"] == [pair.first], "no broker listens there"
    assert f"0={GONE} (3 topics)" in (await pair.run()).stdout
    await pair.lines[pair.first].call(other.unregistration)
    await pair.register(pair.first, other.but(address=pair.real.broker().address, cluster="another"))
    behind = [(each["broker"], each["behind"]) for each in await pair.differences() if each["what"] == "broker"]
    assert behind == [("broker-b", [pair.second])], "the broker responds"


async def test_an_address_that_changed(pair: Pair) -> None:
    await pair.register(pair.first, newer(pair.broker, address=GONE))
    (difference,) = (each for each in await pair.differences() if each["what"] == "address of 0")
    assert difference["values"] == {pair.first: GONE, pair.second: pair.broker.address}
    assert difference["behind"] == [pair.first]


async def test_a_removed_write_permission_does_not_count_as_behind(pair: Pair) -> None:
    await pair.lines[pair.second].call(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    differences = await pair.differences()
    assert [(each["topic"], each["what"], each["behind"]) for each in differences] == [
        (topic, "permission", None) for topic in "TUV"
    ]


async def test_the_order_config_of_a_topic_is_compared(tmp_path: Path) -> None:
    async with two_servers(tmp_path, ordered_topics_enabled=True) as pair:
        fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"}
        await pair.lines[pair.first].call(RequestCode.PUT_KV_CONFIG, fields)
        assert await pair.values() == [("T", None, "order config", ["broker-a:4", None])]


async def test_a_name_server_that_fails_is_reported_and_the_others_are_compared(pair: Pair) -> None:
    await pair.lines[pair.second].call(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "U"})
    result = await pair.run("--no-brokers", name_servers=f"{pair.first};{GONE};{pair.second}")
    assert result.exit_code == 2
    assert result.stdout.endswith("2 name servers, 3 topics: 1 difference\n")
    assert result.stderr.startswith(f"skyroute admin diffRoutes: {GONE}: ")


async def test_a_name_server_that_refuses_to_list_topics_counts_as_failed(pair: Pair) -> None:
    pair.real.refuse(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, ResponseCode.SYSTEM_ERROR, "disable")
    result = await pair.run(name_servers=f"{pair.first};{pair.second};{pair.real.address}")
    assert result.exit_code == 2
    assert f"{pair.real.address}: " in result.stderr
    assert "2 name servers, 3 topics: no difference" in result.stdout


async def test_at_least_two_name_servers_are_needed(pair: Pair) -> None:
    alone = await pair.run(name_servers=pair.first)
    assert (alone.exit_code, alone.stdout) == (2, "")
    assert "two or more" in alone.stderr
    failed = await pair.run(name_servers=f"{pair.first};{GONE}")
    assert (failed.exit_code, failed.stdout) == (2, "")
    assert "1 of 2 failed" in failed.stderr


async def test_a_difference_that_is_gone_at_the_second_comparison_is_not_reported(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = newer(pair.broker, *pair.broker.topics, Topic("New"))
    await pair.register(pair.first, changed)
    await pair.lines[pair.second].call(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "U"})
    look = name_server_comparison._RouteReader.read
    looks: list[Any] = []

    async def read_and_change(self: name_server_comparison._RouteReader, *args: Any) -> Any:
        looks.append(args)
        found = await look(self, *args)
        await pair.register(pair.second, changed)
        await pair.register(pair.second, pair.broker.but(broker="broker-late", address=GONE))
        await pair.lines[pair.second].call(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "V"})
        return found

    monkeypatch.setattr(name_server_comparison._RouteReader, "read", read_and_change)
    async with Admin([pair.first, pair.second]) as admin_calls:
        found = await name_server_comparison.compare_name_servers(admin_calls, recheck_s=0.001, ask_brokers=False)
    assert found.differences == ()
    assert looks == [(), (["New", "U"],)]


async def test_without_route_history_the_time_of_the_change_is_unknown(tmp_path: Path) -> None:
    async with two_servers(tmp_path, watch_enabled=False) as pair:
        await pair.lines[pair.second].call(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "U"})
        (difference,) = await pair.differences()
        assert difference["since_ms"] is None
        assert difference["behind"] == [pair.second]


async def test_reading_the_route_history_ends_if_its_revision_does_not_advance(pair: Pair) -> None:
    def repeat_revision(command: Command, _peer: object) -> Reply:
        return Reply(fields={"life": "x", "floor": "1", "revision": "1" if "life" in command.fields else "2"})

    pair.real.on(
        RequestCode.GET_BROKER_CLUSTER_INFO, lambda *_: Reply(body=b'{"brokerAddrTable":{},"clusterAddrTable":{}}')
    )
    pair.real.on(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, lambda *_: Reply(body=b'{"topicList":["T"]}'))
    pair.real.on(RequestCode.WATCH_ROUTES, repeat_revision)
    result = await pair.run("--json", "--no-brokers", name_servers=f"{pair.first};{pair.real.address}")
    assert result.exit_code == 1
    assert len(pair.real.seen(RequestCode.WATCH_ROUTES)) == 2


async def test_help_explains_behind() -> None:
    result = CliRunner().invoke(admin, ["diffRoutes", "--help"])
    assert "contradicts the broker itself" in " ".join(result.output.split())
