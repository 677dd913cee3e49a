"""Apache's proxy in cluster mode on our name server and broker, with the official 5.x Python client.

Scenarios mostly wait, so they run side by side, each with a topic and a group of its own; each test checks one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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


Lines = list[dict[str, Any]]
Client = Callable[..., Lines]

AT_ONCE = 4
"""Scenarios that run at the same time: more would delay each other on two cores."""


def failing(client: Client) -> Lines:
    client("send", "Failing", 1)
    # The proxy moves it when it pops it for the third time.
    return client("push", "failing", "Failing", 3, "fail", 45)


def expiring(client: Client) -> tuple[Lines, Lines, Lines]:
    client("send", "Expiring", 2)
    first = client("receive", "expiring", "Expiring", 2, 10, 1, 40)
    again = client("receive", "expiring", "Expiring", 1, 10, 1, 40)
    return first, again, client("receive", "expiring", "Expiring", 1, 10, 1, 12)


def normal(client: Client) -> tuple[Lines, Lines]:
    client("send", "Normal", 10)
    received = client("receive", "normal", "Normal", 10, 10, 10, 40)
    return received, client("receive", "normal", "Normal", 1, 10, 0, 14)


def changed(client: Client) -> Lines:
    client("send", "Changed", 1)
    return client("change", "changed", "Changed", 60, 10, 50)


def delayed(client: Client) -> tuple[Lines, Lines]:
    sent = client("send", "Delayed", 1, "delay", 5)
    return sent, client("receive", "delayed", "Delayed", 1, 10, 1, 40)


def transactional(client: Client) -> Lines:
    client("transactions", "Transactional")
    return client("receive", "transactional", "Transactional", 2, 10, 2, 15)


def tagged(client: Client) -> Lines:
    client("send", "Tagged", 2, "tag", "a")
    client("send", "Tagged", 3, "tag", "b")
    return client("receive", "tagged", "Tagged", 3, 10, 3, 40, "b")


def ordered(client: Client) -> Lines:
    client("send", "Ordered", 8, "fifo")
    return client("push", "ordered", "Ordered", 8, "succeed", 40)


def pushed(client: Client) -> Lines:
    client("send", "Pushed", 20)
    return client("push", "pushed", "Pushed", 20, "succeed", 40)


LONGEST_FIRST = (failing, expiring, normal, changed, delayed, transactional, tagged, ordered, pushed)


@pytest.fixture(scope="module")
def scenarios(
    request: pytest.FixtureRequest, proxy: ApacheProxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Any]]]:
    """The results of the scenarios of the selected tests. A test names its scenario as its first word."""
    home = tmp_path_factory.mktemp("clients")
    selected = [item.name.removeprefix("test_").partition("_")[0] for item in request.session.items]

    def run(scenario: Callable[[Client], Any]) -> Any:
        return scenario(lambda *words: run_official_client(home / scenario.__name__, proxy.address, *map(str, words)))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {each.__name__: pool.submit(run, each) for each in LONGEST_FIRST if each.__name__ in selected}


@pytest.fixture
def result(request: pytest.FixtureRequest, scenarios: dict[str, Future[Any]]) -> Any:
    """The result of the scenario that the test names."""
    return scenarios[request.node.name.removeprefix("test_").partition("_")[0]].result()


def bodies(lines: Lines) -> list[str]:
    return [line["body"] for line in lines]


def test_normal_messages_are_received_and_acknowledged_once(result: tuple[Lines, Lines]) -> None:
    received, again = result
    assert sorted(bodies(received)) == [f"Normal-{at}" for at in range(10)]
    assert {line["attempt"] for line in received} == {1}
    assert again == []


def test_expiring_messages_without_ack_come_again(result: tuple[Lines, Lines, Lines]) -> None:
    first, (again,), third = result
    assert (again["body"], again["attempt"]) == (first[1]["body"], 2)
    # It was popped some time before the client had it.
    assert 9 <= again["at"] - first[1]["at"] < 20
    assert third == []


def test_changed_invisible_times_are_kept(result: Lines) -> None:
    first, again = result
    assert (again["body"], again["attempt"]) == (first["body"], 2)
    assert 9 <= again["at"] - first["at"] < 30


def test_tagged_messages_are_selected(result: Lines) -> None:
    assert [line["tag"] for line in result] == ["b"] * 3


def test_ordered_messages_come_in_order(result: Lines) -> None:
    assert bodies(result) == [f"Ordered-{at}" for at in range(8)]


def test_delayed_messages_come_in_time(result: tuple[Lines, Lines]) -> None:
    (sent,), (received,) = result
    assert 4 <= received["at"] - sent["at"] < 15


def test_transactional_messages_come_if_committed(result: Lines) -> None:
    assert bodies(result) == ["commit"]


def test_pushed_messages_are_acknowledged(result: Lines) -> None:
    assert sorted(bodies(result)) == sorted(f"Pushed-{at}" for at in range(20))


def test_failing_messages_become_dead_letters(result: Lines, proxy: ApacheProxy) -> None:
    assert [line["attempt"] for line in result] == [1, 2]
    assert asyncio.run(_dead_letters(proxy.name_server, "failing")) == 1


async def _dead_letters(name_server: str, group: str) -> int:
    async with Admin(name_server) as admin:
        status = await admin.topic_status(f"%DLQ%{group}")
        return sum(span.max_offset for span in status.queues.values())
