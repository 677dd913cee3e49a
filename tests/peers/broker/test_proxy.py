"""Apache's proxy in cluster mode on our name server and broker, with the official 5.x clients of Python, Go and Java.

Scenarios mostly wait, so they run side by side, each with a topic and a group of its own; each test checks one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

import pytest

from skyroute.client.admin import Admin
from skyroute.wire.calls.groups import GroupConfig
from tests.support.apache import PeerUnavailableError, SkyrouteNameServer
from tests.support.apache_proxy import OFFICIAL_CLIENTS, ApacheProxy, run_official_client
from tests.support.our_broker import SkyrouteBroker

Lines = list[dict[str, Any]]


class Client(Protocol):
    """One run of an official client, with these words."""

    def __call__(self, *words: str | int) -> Lines: ...


# Each scenario gets the name of its topic and of its group.


def failing(client: Client, name: str) -> Lines:
    client("send", name, 1)
    # The proxy moves it when it pops it for the third time.
    return client("consume", name, name, 3, "fail", 45)


def expiring(client: Client, name: str) -> tuple[Lines, Lines, Lines]:
    client("send", name, 2)
    first = client("receive", name, name, 2, 10, 1, 40)
    again = client("receive", name, name, 1, 10, 1, 40)
    return first, again, client("receive", name, name, 1, 10, 1, 12)


def normal(client: Client, name: str) -> tuple[Lines, Lines]:
    client("send", name, 10)
    received = client("receive", name, name, 10, 10, 10, 40)
    return received, client("receive", name, name, 1, 10, 0, 14)


def changed(client: Client, name: str) -> Lines:
    client("send", name, 1)
    return client("change", name, name, 60, 10, 50)


def delayed(client: Client, name: str) -> tuple[Lines, Lines]:
    sent = client("send", name, 1, "delay", 5)
    return sent, client("receive", name, name, 1, 10, 1, 40)


def transactional(client: Client, name: str) -> Lines:
    client("transactions", name)
    return client("receive", name, name, 2, 10, 2, 15)


def checked(client: Client, name: str) -> Lines:
    return client("check", name, name, 60)


def tagged(client: Client, name: str) -> Lines:
    client("send", name, 2, "tag", "a")
    client("send", name, 3, "tag", "b")
    return client("receive", name, name, 3, 10, 3, 40, "b")


def ordered(client: Client, name: str) -> Lines:
    client("send", name, 8, "fifo")
    return client("consume", name, name, 8, "succeed", 40)


def pushed(client: Client, name: str) -> Lines:
    client("send", name, 20)
    return client("consume", name, name, 20, "succeed", 40)


LONGEST_FIRST: dict[Callable[[Client, str], Any], str] = {
    failing: "NORMAL",
    expiring: "NORMAL",
    checked: "TRANSACTION",
    normal: "NORMAL",
    changed: "NORMAL",
    delayed: "DELAY",
    transactional: "TRANSACTION",
    tagged: "NORMAL",
    ordered: "FIFO",
    pushed: "NORMAL",
}
"""Scenarios, and the types of their topics."""

AT_ONCE = 9
"""Scenarios that run at the same time: more would delay each other on two cores."""

SETTINGS = {"transactionCheckInterval": "5000"}
"""Of the broker: 30 s would only make a test wait."""

HAVE_PUSH_CONSUMERS = ("python", "java")
"""The Go client 5.1.2 has none: it receives in a loop instead, and gives failed messages back after a second."""


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheProxy]:
    home = tmp_path_factory.mktemp("proxy")
    try:
        with (
            SkyrouteNameServer("ns", home / "ns") as name_server,
            SkyrouteBroker("broker-a", home / "broker", [name_server.address], config=SETTINGS) as broker,
        ):
            asyncio.run(_prepare(name_server.address, broker.address))
            with ApacheProxy(home / "proxy", name_server.address, "PeerCluster") as proxy:
                yield proxy
    except PeerUnavailableError as error:
        pytest.skip(str(error))


async def _prepare(name_server: str, broker: str) -> None:
    async with Admin(name_server) as admin:
        for language in OFFICIAL_CLIENTS:
            for scenario, kind in LONGEST_FIRST.items():
                name, attributes = f"{scenario.__name__}-{language}", {"message.type": kind}
                await admin.create_topic(name, broker=broker, read_queues=2, write_queues=2, attributes=attributes)
            await admin.create_group(GroupConfig(f"ordered-{language}", ordered=True), broker=broker)
            await admin.create_group(GroupConfig(f"failing-{language}", retry_times_max=1), broker=broker)


def named(test: pytest.Item) -> str:
    """The name of a test's scenario and client, such as `normal-go`. A test names its scenario as its first word."""
    assert isinstance(test, pytest.Function)
    return f"{test.name.removeprefix('test_').partition('_')[0]}-{test.callspec.params['language']}"


@pytest.fixture(scope="module")
def scenarios(
    request: pytest.FixtureRequest, proxy: ApacheProxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Any]]]:
    """The results of the scenarios of the selected tests."""
    home = tmp_path_factory.mktemp("clients")
    selected = {named(item) for item in request.session.items if item.path == request.path}

    def run(scenario: Callable[[Client, str], Any], language: str, name: str) -> Any:
        client = partial(run_official_client, language, home / name, proxy.address)
        return scenario(lambda *words: client(*map(str, words)), name)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {
            name: pool.submit(run, scenario, language, name)
            for scenario in LONGEST_FIRST
            for language in OFFICIAL_CLIENTS
            if (name := f"{scenario.__name__}-{language}") in selected
        }


@pytest.fixture(params=OFFICIAL_CLIENTS)
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def result(request: pytest.FixtureRequest, language: str, scenarios: dict[str, Future[Any]]) -> Any:
    """The result of the scenario that the test names."""
    try:
        return scenarios[named(request.node)].result()
    except PeerUnavailableError as error:
        pytest.skip(str(error))


def bodies(lines: Lines) -> list[str]:
    return [line["body"] for line in lines]


def test_normal_messages_are_received_and_acknowledged_once(result: tuple[Lines, Lines], language: str) -> None:
    received, again = result
    assert sorted(bodies(received)) == [f"normal-{language}-{at}" for at in range(10)]
    assert {line["attempt"] for line in received} == {1}
    assert again == []


def test_expiring_messages_without_ack_come_again(result: tuple[Lines, Lines, Lines]) -> None:
    first, (again,), third = result
    assert (again["body"], again["attempt"]) == (first[1]["body"], 2)
    # It was popped after the client asked for it, and before the client had it.
    assert again["at"] - first[1]["asked"] >= 10
    assert again["at"] - max(first[1]["at"] + 10, again["asked"]) < 10
    assert third == []


def test_changed_invisible_times_are_kept(result: Lines) -> None:
    first, again = result
    assert (again["body"], again["attempt"]) == (first["body"], 2)
    assert 9 <= again["at"] - first["at"] < 30


def test_tagged_messages_are_selected(result: Lines) -> None:
    assert [line["tag"] for line in result] == ["b"] * 3


def test_ordered_messages_come_in_order(result: Lines, language: str) -> None:
    assert bodies(result) == [f"ordered-{language}-{at}" for at in range(8)]


def test_delayed_messages_come_in_time(result: tuple[Lines, Lines]) -> None:
    (sent,), (received,) = result
    assert received["at"] - sent["asked"] >= 4  # Python's client rounds times to seconds
    assert received["at"] - max(sent["asked"] + 5, received["asked"]) < 10


def test_transactional_messages_come_if_committed(result: Lines) -> None:
    assert bodies(result) == ["commit"]


def test_checked_transactions_come_if_committed_by_the_checker(result: Lines) -> None:
    assert bodies(result) == ["checked"]


@pytest.mark.parametrize("language", HAVE_PUSH_CONSUMERS, indirect=True)
def test_pushed_messages_are_acknowledged(result: Lines, language: str) -> None:
    assert sorted(bodies(result)) == sorted(f"pushed-{language}-{at}" for at in range(20))


def test_failing_messages_become_dead_letters(result: Lines, language: str, proxy: ApacheProxy) -> None:
    assert [line["attempt"] for line in result] == [1, 2]
    assert asyncio.run(_dead_letters(proxy.name_server, f"failing-{language}")) == 1


async def _dead_letters(name_server: str, group: str) -> int:
    async with Admin(name_server) as admin:
        status = await admin.topic_status(f"%DLQ%{group}")
        return sum(span.max_offset for span in status.queues.values())
