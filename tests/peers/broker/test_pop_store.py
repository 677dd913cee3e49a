"""POP messages in flight survive kill -9 of our broker, and a move of the store to Apache's broker and back."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyroute.wire.codes import RequestCode
from tests.network.broker.calls import send
from tests.network.broker.pops import Got, got, pop
from tests.support.apache import ApacheBroker, SkyrouteNameServer
from tests.support.our_broker import SkyrouteBroker
from tests.support.raw import RawConnection
from tests.support.waiting import wait_until

QUEUES = 4
INVISIBLE_MS = 30_000
LONG_MS = 600_000
"""An invisible time that does not end within a test."""
KILLS = int(os.environ.get("SKYROUTE_POP_KILLS", "10"))


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[SkyrouteNameServer]:
    with SkyrouteNameServer("ns", tmp_path / "ns") as server:
        yield server


def fill(broker: ApacheBroker, topic: str, count: int) -> set[bytes]:
    """Create a topic, and store messages in it."""
    fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES)}
    fields |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    bodies = {f"{topic}-{at}".encode() for at in range(count)}
    with RawConnection(broker.address) as line:
        assert line.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == 0
        group = b'{"groupName":"g","consumeEnable":true,"retryMaxTimes":16,"retryQueueNums":1}'
        assert line.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=group).code == 0
        for at, body in enumerate(sorted(bodies)):
            assert line.call(send(topic, body, queue_id=at % QUEUES, n=broker.broker_name)).code == 0
    return bodies


def take(
    broker: ApacheBroker, topic: str, wanted: int, timeout_s: float = 60, *, invisible_ms: int = 30_000
) -> list[Got]:
    """Pop until `wanted` messages came, or the time is over."""
    messages: list[Got] = []
    deadline = time.monotonic() + timeout_s
    with RawConnection(broker.address) as line:
        while len(messages) < wanted and time.monotonic() < deadline:
            found = got(line.call(pop(topic, invisibleTime=invisible_ms)), topic)
            messages += found
            if not found:
                time.sleep(0.1)
    return messages


def take_all(broker: ApacheBroker, topic: str, bodies: set[bytes]) -> list[Got]:
    """Pop until all of `bodies` came."""
    messages: list[Got] = []
    deadline = time.monotonic() + 180
    while missing := bodies - {message.body for message in messages}:
        assert time.monotonic() < deadline, f"{len(missing)} messages did not come: {sorted(missing)[:3]}"
        messages += take(broker, topic, len(missing), 5)
    return messages


def ack(broker: ApacheBroker, messages: list[Got]) -> None:
    with RawConnection(broker.address) as line:
        for message in messages:
            fields = message.fields(extraInfo=message.receipt.replace(" broker-a ", f" {broker.broker_name} "))
            assert line.call(RequestCode.ACK_MESSAGE, fields).code == 0


def bodies_of(messages: list[Got]) -> list[bytes]:
    return sorted(message.body for message in messages)


def kill_and_check(broker: SkyrouteBroker, topic: str, count: int, acks: int, wait_s: float, seed: int) -> None:
    """Pop messages, acknowledge some of them until a kill, and check that exactly the others come again."""
    fill(broker, topic, count)
    first = take(broker, topic, count, invisible_ms=INVISIBLE_MS)
    assert len(first) == count
    visible_at_ms = min(int(message.receipt.split(" ")[1]) for message in first) + INVISIBLE_MS
    random.Random(seed).shuffle(first)
    ack(broker, first[: acks // 2])
    time.sleep(wait_s)
    ack(broker, first[acks // 2 : acks])
    assert time.time() * 1000 < visible_at_ms, "the machine is too slow: some messages were visible before their ack"
    broker.kill()
    broker.start()
    again = take(broker, topic, count - acks, 120, invisible_ms=LONG_MS)
    assert bodies_of(again) == bodies_of(first[acks:])
    ack(broker, again)
    assert take(broker, topic, 1, 3) == []


@pytest.mark.parametrize("wait_s", [4.0])
def test_messages_in_flight_survive_kill_9(name_server: SkyrouteNameServer, tmp_path: Path, wait_s: float) -> None:
    with SkyrouteBroker("broker-a", tmp_path / "broker", [name_server.address]) as broker:
        kill_and_check(broker, "Killed", 2_000, 1_000, wait_s, 1)


@pytest.mark.long
def test_ten_kills_with_ten_thousand_in_flight_and_then_apaches_broker(
    name_server: SkyrouteNameServer, tmp_path: Path
) -> None:
    home = tmp_path / "broker"
    ours = SkyrouteBroker("broker-a", home, [name_server.address])
    apaches = ApacheBroker("broker-a", home, [name_server.address], port=ours.port)
    with ours:
        for kill in range(KILLS):
            # Check points are written after 3 s, and offsets every 5 s: kills come before, between and after.
            kill_and_check(ours, f"Killed-{kill}", 12_000, 2_000, kill * 0.7, kill)
        fill(ours, "Moved", 12_000)
        first = take(ours, "Moved", 12_000)
        ack(ours, first[:2_000])
        time.sleep(4)
        ours.kill()
    with apaches:
        # Apache's broker does not know which messages were acknowledged since the offsets were written.
        second = take_all(apaches, "Moved", set(bodies_of(first[2_000:])))
        acked = {message.body for message in second[:1_000]}
        ack(apaches, [message for message in second if message.body in acked])
        left = set(bodies_of(second)) - acked
        time.sleep(6)
        apaches.stop()
    with ours:
        take_all(ours, "Moved", left)


def test_messages_in_flight_move_to_apaches_broker_and_back(name_server: SkyrouteNameServer, tmp_path: Path) -> None:
    home = tmp_path / "broker"
    ours = SkyrouteBroker("broker-a", home, [name_server.address])
    apaches = ApacheBroker("broker-a", home, [name_server.address], port=ours.port)
    with ours:
        fill(ours, "Moved", 100)
        first = take(ours, "Moved", 100)
        ack(ours, first[:20])
        time.sleep(4)  # check points are written after 3 s
        ack(ours, first[20:40])
        ours.stop()
    with apaches:
        second = take(apaches, "Moved", 60, 90)
        assert set(bodies_of(second)) == set(bodies_of(first[40:]))
        ack(apaches, second[:30])
        left = set(bodies_of(second)) - set(bodies_of(second[:30]))
        time.sleep(6)
        apaches.stop()
    ours.start()
    try:
        third = take(ours, "Moved", len(left), 90)
        assert left <= set(bodies_of(third))
        assert wait_until(lambda: ours.is_running)
    finally:
        ours.kill()


def test_ten_thousand_messages_that_expire_at_once_come_back_within_15_s(
    name_server: SkyrouteNameServer, tmp_path: Path
) -> None:
    count = 10_000
    with SkyrouteBroker("broker-a", tmp_path / "broker", [name_server.address]) as broker:
        fill(broker, "Expiring", count)
        first = take(broker, "Expiring", count, invisible_ms=25_000)
        assert len(first) == count
        visible_at = max(int(message.receipt.split(" ")[1]) + 25_000 for message in first) / 1000
        time.sleep(max(0.0, visible_at - time.time()))
        again = take(broker, "Expiring", count, 60, invisible_ms=600_000)
        late_s = time.time() - visible_at
        assert bodies_of(again) == bodies_of(first)
        assert late_s < 15
