"""Apache's proxy in cluster mode on our name server and broker, with the official 5.x Python client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skyroute.client.admin import Admin
from skyroute.wire.calls.groups import GroupConfig
from tests.support.apache import PeerUnavailableError, SkyrouteNameServer
from tests.support.apache_proxy import ApacheProxy, python_client, run_official_client
from tests.support.our_broker import SkyrouteBroker

TOPICS = {"Normal": "NORMAL", "Expiring": "NORMAL", "Tagged": "NORMAL", "Failing": "NORMAL", "Pushed": "NORMAL"}
TOPICS |= {"Changed": "NORMAL", "Ordered": "FIFO", "Delayed": "DELAY", "Transactional": "TRANSACTION"}


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheProxy]:
    home = tmp_path_factory.mktemp("proxy")
    try:
        python_client()
        with (
            SkyrouteNameServer("ns", home / "ns") as name_server,
            SkyrouteBroker("broker-a", home / "broker", [name_server.address]) as broker,
        ):
            asyncio.run(_prepare(name_server.address, broker.address))
            with ApacheProxy(home / "proxy", name_server.address, "PeerCluster") as proxy:
                yield proxy
    except PeerUnavailableError as error:
        pytest.skip(str(error))


async def _prepare(name_server: str, broker: str) -> None:
    async with Admin(name_server) as admin:
        for name, kind in TOPICS.items():
            attributes = {"message.type": kind}
            await admin.create_topic(name, broker=broker, read_queues=2, write_queues=2, attributes=attributes)
        await admin.create_group(GroupConfig("ordered", ordered=True), broker=broker)
        await admin.create_group(GroupConfig("failing", retry_times_max=1), broker=broker)


@pytest.fixture
def client(proxy: ApacheProxy, tmp_path: Path) -> Any:
    def run(*arguments: object) -> list[dict[str, Any]]:
        return run_official_client(tmp_path, proxy.address, *map(str, arguments))

    return run


def bodies(lines: list[dict[str, Any]]) -> list[str]:
    return [line["body"] for line in lines]


def test_normal_messages_are_received_and_acknowledged_once(client: Any) -> None:
    client("send", "Normal", 10)
    received = client("receive", "normal", "Normal", 10, 10, 10, 40)
    assert sorted(bodies(received)) == [f"Normal-{at}" for at in range(10)]
    assert {line["attempt"] for line in received} == {1}
    assert client("receive", "normal", "Normal", 1, 10, 0, 14) == []


def test_a_message_without_ack_comes_again(client: Any) -> None:
    client("send", "Expiring", 2)
    first = client("receive", "expiring", "Expiring", 2, 10, 1, 40)
    (again,) = client("receive", "expiring", "Expiring", 1, 10, 1, 40)
    assert (again["body"], again["attempt"]) == (first[1]["body"], 2)
    # It was popped some time before the client had it.
    assert 9 <= again["at"] - first[1]["at"] < 20
    assert client("receive", "expiring", "Expiring", 1, 10, 1, 12) == []


def test_the_invisible_time_can_be_changed(client: Any) -> None:
    client("send", "Changed", 1)
    first, again = client("change", "changed", "Changed", 60, 10, 50)
    assert (again["body"], again["attempt"]) == (first["body"], 2)
    assert 9 <= again["at"] - first["at"] < 30


def test_tags_select_messages(client: Any) -> None:
    client("send", "Tagged", 2, "tag", "a")
    client("send", "Tagged", 3, "tag", "b")
    received = client("receive", "tagged", "Tagged", 3, 10, 3, 40, "b")
    assert [line["tag"] for line in received] == ["b"] * 3


def test_fifo_messages_come_in_order(client: Any) -> None:
    client("send", "Ordered", 8, "fifo")
    received = client("push", "ordered", "Ordered", 8, "succeed", 40)
    assert bodies(received) == [f"Ordered-{at}" for at in range(8)]


def test_a_delayed_message_comes_in_time(client: Any) -> None:
    (sent,) = client("send", "Delayed", 1, "delay", 5)
    (received,) = client("receive", "delayed", "Delayed", 1, 10, 1, 40)
    assert 4 <= received["at"] - sent["at"] < 15


def test_only_committed_messages_of_transactions_come(client: Any) -> None:
    client("transactions", "Transactional")
    received = client("receive", "transactional", "Transactional", 2, 10, 2, 15)
    assert bodies(received) == ["commit"]


def test_a_push_consumer_acknowledges_its_messages(client: Any) -> None:
    client("send", "Pushed", 20)
    received = client("push", "pushed", "Pushed", 20, "succeed", 40)
    assert sorted(bodies(received)) == sorted(f"Pushed-{at}" for at in range(20))


def test_a_message_that_fails_becomes_a_dead_letter(client: Any, proxy: ApacheProxy) -> None:
    client("send", "Failing", 1)
    # The proxy moves it when it pops it for the third time.
    received = client("push", "failing", "Failing", 3, "fail", 45)
    assert [line["attempt"] for line in received] == [1, 2]
    assert asyncio.run(_dead_letters(proxy.name_server, "failing")) == 1


async def _dead_letters(name_server: str, group: str) -> int:
    async with Admin(name_server) as admin:
        status = await admin.topic_status(f"%DLQ%{group}")
        return sum(span.max_offset for span in status.queues.values())
