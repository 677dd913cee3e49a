"""`diffRoutes`: name servers that say the same, and every way in which they may not."""

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
from skyroute.client.admin import Admin, comparison
from tests.support.fake_broker import FakeCluster, Reply, fake_cluster
from tests.support.lines import AsyncLine, line_to
from tests.support.raw import Command, DataVersion, Registration, Topic, mapping
from tests.support.servers import Running, running

GONE = "127.0.0.1:1"


class Pair:
    """Two name servers, a broker that both know, and a way to compare them."""

    def __init__(self, first: Running, second: Running, lines: tuple[AsyncLine, AsyncLine], real: FakeCluster) -> None:
        self.first, self.second = sorted((first.address, second.address))
        self.lines = dict(zip((first.address, second.address), lines, strict=True))
        self.real = real
        self.broker = Registration(
            "c", "broker-a", real.broker().address, [Topic("T", read=4, write=4), Topic("U"), Topic("V")]
        )

    async def tell_both(self, registration: Registration) -> None:
        for address in self.lines:
            await self.tell(address, registration)

    async def tell(self, address: str, registration: Registration) -> None:
        assert (await self.lines[address].call(registration.request)).code == 0

    async def run(self, *words: str, name_servers: str | None = None) -> Result:
        where = name_servers or f"{self.first};{self.second}"
        return await asyncio.to_thread(CliRunner().invoke, admin, ["diffRoutes", "--settle", "0", *words, "-n", where])

    async def differences(self, *words: str) -> list[dict[str, Any]]:
        result = await self.run("--json", *words)
        value = json.loads(result.stdout)
        assert result.exit_code == (1 if value["differences"] else 0), result.stderr
        assert result.stderr == ""
        assert value["name_servers"] == [self.first, self.second]
        differences: list[dict[str, Any]] = value["differences"]
        return differences

    async def said(self, *words: str) -> list[tuple[str | None, str | None, str, list[str | None]]]:
        """What, and what the first and the second say of it."""
        return [
            (each["topic"], each["broker"], each["what"], [each["said"].get(self.first), each["said"].get(self.second)])
            for each in await self.differences("--no-brokers", *words)
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
        line_to(first.address) as line,
        line_to(second.address) as other,
        fake_cluster({"T": 4}) as real,
    ):
        pair = Pair(first, second, (line, other), real)
        tables = {"topicConfigTable": {topic.name: topic.config(5) for topic in pair.broker.topics}}
        real.on(21, lambda *_: Reply(body=json.dumps(tables).encode()))
        await pair.tell_both(pair.broker)
        yield pair


def newer(registration: Registration, *topics: Topic, **changes: Any) -> Registration:
    return registration.but(topics=topics or registration.topics, data_version=DataVersion(2), **changes)


async def test_name_servers_that_say_the_same(pair: Pair) -> None:
    result = await pair.run()
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "2 name servers, 3 topics: no difference\n"
    assert await pair.differences() == []


async def test_whoever_says_otherwise_than_the_broker_is_behind(pair: Pair) -> None:
    old = [Topic("T", read=2, write=4), *pair.broker.topics[1:]]
    await pair.tell(pair.second, newer(pair.broker, *old))
    (difference,) = await pair.differences()
    assert (difference["topic"], difference["broker"], difference["what"]) == ("T", "broker-a", "read queues")
    assert difference["said"] == {pair.first: "4", pair.second: "2"}
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
    await pair.tell(
        pair.first,
        newer(pair.broker, *changed, mappings=static, filter_servers=["10.0.0.1:7"], zone="north", acting=True),
    )
    address = pair.broker.address
    found = await pair.said()
    assert (None, "broker-a", "zone", ["north", None]) in found
    assert (None, "broker-a", "acting master", ["allowed", "no"]) in found
    assert ("T", "broker-a", "write queues", ["2", "4"]) in found
    assert ("T", "broker-a", "permission", ["4", "6"]) in found
    assert ("T", "broker-a", "flags", ["1", "0"]) in found
    assert ("T", None, "filter servers", [f"{address}: 10.0.0.1:7", None]) in found
    assert [each[3][1] for each in found if each[:3] == ("U", "broker-a", "static mapping")] == [None]


async def test_a_topic_that_one_has_not_heard_of(pair: Pair) -> None:
    await pair.tell(pair.first, newer(pair.broker, *pair.broker.topics, Topic("New")))
    await pair.lines[pair.second].call(216, {"topic": "U"})
    differences = await pair.differences()
    assert [(each["topic"], each["what"], each["behind"]) for each in differences] == [
        ("New", "queues", [pair.first]),  # the broker itself says that there is no such topic
        ("U", "queues", [pair.second]),
    ]
    assert differences[1]["said"] == {pair.first: "8 read, 8 write, perm 6", pair.second: None}


async def test_a_broker_that_one_does_not_know_is_named_once_with_its_topics_counted(pair: Pair) -> None:
    other = pair.broker.but(broker="broker-b", address=GONE)
    await pair.tell(pair.first, other)
    (difference,) = await pair.differences()
    assert (difference["topic"], difference["broker"], difference["what"]) == (None, "broker-b", "broker")
    assert difference["said"] == {pair.first: f"0={GONE}", pair.second: None}
    assert difference["topics"] == 3
    assert difference["behind"] == [pair.first], "nobody answers there"
    assert f"0={GONE} (3 topics)" in (await pair.run()).stdout
    await pair.lines[pair.first].call(other.unregistration)
    await pair.tell(pair.first, other.but(address=pair.real.broker().address, cluster="another"))
    behind = [(each["broker"], each["behind"]) for each in await pair.differences() if each["what"] == "broker"]
    assert behind == [("broker-b", [pair.second])], "it is there"


async def test_an_address_that_moved(pair: Pair) -> None:
    await pair.tell(pair.first, newer(pair.broker, address=GONE))
    (difference,) = (each for each in await pair.differences() if each["what"] == "address of 0")
    assert difference["said"] == {pair.first: GONE, pair.second: pair.broker.address}
    assert difference["behind"] == [pair.first]


async def test_nobody_is_behind_for_an_operators_word(pair: Pair) -> None:
    await pair.lines[pair.second].call(205, {"brokerName": "broker-a"})
    differences = await pair.differences()
    assert [(each["topic"], each["what"], each["behind"]) for each in differences] == [
        (topic, "permission", None) for topic in "TUV"
    ]


async def test_the_order_of_a_topic_is_compared(tmp_path: Path) -> None:
    async with two_servers(tmp_path, ordered_topics_enabled=True) as pair:
        fields = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"}
        await pair.lines[pair.first].call(100, fields)
        assert await pair.said() == [("T", None, "order config", ["broker-a:4", None])]


async def test_who_cannot_be_asked_is_named_and_the_others_are_compared(pair: Pair) -> None:
    await pair.lines[pair.second].call(216, {"topic": "U"})
    result = await pair.run("--no-brokers", name_servers=f"{pair.first};{GONE};{pair.second}")
    assert result.exit_code == 2
    assert result.stdout.endswith("2 name servers, 3 topics: 1 difference\n")
    assert result.stderr.startswith(f"skyroute admin diffRoutes: {GONE}: ")


async def test_who_tells_routes_and_does_not_list_topics_could_not_be_asked(pair: Pair) -> None:
    pair.real.refuse(206, 1, "disable")
    result = await pair.run(name_servers=f"{pair.first};{pair.second};{pair.real.address}")
    assert result.exit_code == 2
    assert f"{pair.real.address}: " in result.stderr
    assert "2 name servers, 3 topics: no difference" in result.stdout


async def test_there_must_be_two_to_compare(pair: Pair) -> None:
    alone = await pair.run(name_servers=pair.first)
    assert (alone.exit_code, alone.stdout) == (2, "")
    assert "is the only name server given" in alone.stderr
    nobody = await pair.run(name_servers=f"{pair.first};{GONE}")
    assert (nobody.exit_code, nobody.stdout) == (2, "")
    assert "1 of 2 failed" in nobody.stderr


async def test_a_difference_that_passes_is_none(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = newer(pair.broker, *pair.broker.topics, Topic("New"))
    await pair.tell(pair.first, changed)
    await pair.lines[pair.second].call(216, {"topic": "U"})
    look = comparison._Look.take
    looks: list[Any] = []

    async def look_and_let_go_on(self: comparison._Look, *args: Any) -> Any:
        looks.append(args)
        found = await look(self, *args)
        await pair.tell(pair.second, changed)
        await pair.tell(pair.second, pair.broker.but(broker="broker-late", address=GONE))
        await pair.lines[pair.second].call(216, {"topic": "V"})
        return found

    monkeypatch.setattr(comparison._Look, "take", look_and_let_go_on)
    async with Admin([pair.first, pair.second]) as admin_calls:
        found = await comparison.compare_name_servers(admin_calls, settle_s=0.001, ask_brokers=False)
    assert found.differences == ()
    assert looks == [(), (["New", "U"],)]


async def test_apaches_name_servers_remember_nothing(tmp_path: Path) -> None:
    async with two_servers(tmp_path, watch_enabled=False) as pair:
        await pair.lines[pair.second].call(216, {"topic": "U"})
        (difference,) = await pair.differences()
        assert difference["since_ms"] is None
        assert difference["behind"] == [pair.second]


async def test_a_name_server_whose_history_does_not_go_on_is_not_asked_for_ever(pair: Pair) -> None:
    def stand_still(command: Command, _peer: object) -> Reply:
        return Reply(fields={"life": "x", "floor": "1", "revision": "1" if "life" in command.fields else "2"})

    pair.real.on(106, lambda *_: Reply(body=b'{"brokerAddrTable":{},"clusterAddrTable":{}}'))
    pair.real.on(206, lambda *_: Reply(body=b'{"topicList":["T"]}'))
    pair.real.on(21001, stand_still)
    result = await pair.run("--json", "--no-brokers", name_servers=f"{pair.first};{pair.real.address}")
    assert result.exit_code == 1
    assert len(pair.real.seen(21001)) == 2


async def test_help_says_what_behind_means() -> None:
    result = CliRunner().invoke(admin, ["diffRoutes", "--help"])
    assert "otherwise than the broker itself" in " ".join(result.output.split())
