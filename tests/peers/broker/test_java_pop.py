"""Java's push consumer in POP mode (request 401) on our broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.peers.client.java_client import JavaClients, Place
from tests.support.apache import ApacheBroker, NameServerProcess
from tests.support.raw import RawConnection
from tests.support.waiting import eventually

SET_MODE, UPDATE_GROUP = 401, 200


def use_pop(broker: ApacheBroker, group: str, topic: str, *, ordered: bool = False, shared: int = 0) -> None:
    config = {"groupName": group, "consumeEnable": True, "retryMaxTimes": 16, "retryQueueNums": 1}
    config["consumeMessageOrderly"] = ordered
    mode = {"topic": topic, "consumerGroup": group, "mode": "POP", "popShareQueueNum": shared}
    with RawConnection(broker.address) as line:
        assert line.call(UPDATE_GROUP, body=json.dumps(config).encode()).code == 0
        assert line.call(SET_MODE, body=json.dumps(mode).encode()).code == 0


@pytest.mark.parametrize("ordered", [False, True])
async def test_members_share_messages_and_failed_ones_come_again(
    java: JavaClients, name_server: NameServerProcess, first_broker: ApacheBroker, ordered: bool
) -> None:
    place = Place.at(name_server.address, first_broker.address)
    topic = await java.create_topic(place, f"Popped-{ordered}")
    group = f"popping-{ordered}".lower()
    use_pop(first_broker, group, topic, ordered=ordered)
    failures = 0 if ordered else 1
    options: dict[str, Any] = {"is_server_rebalance": True, "is_orderly": ordered, "failures": failures}
    async with (
        java.consumer(place, group, topic, **options) as first,
        java.consumer(place, group, topic, **options) as second,
        java.producer(place, f"p-{group}") as producer,
    ):
        bodies = [f"m-{at}".encode() for at in range(60)]
        for body in bodies:
            await producer.send(topic, body)

        def finished() -> set[bytes]:
            got = [*first.received, *second.received]
            return {one.body for one in got if one.reconsume_times == failures}

        await eventually(lambda: finished() == set(bodies), "all messages came", timeout_s=90)


@pytest.mark.parametrize("shared", [0, 1])
async def test_members_share_queues_and_take_over_those_of_a_killed_one(
    java: JavaClients,
    name_server: NameServerProcess,
    first_broker: ApacheBroker,
    lib: Path,
    java_classes: Path,
    tmp_path: Path,
    shared: int,
) -> None:
    place = Place.at(name_server.address, first_broker.address)
    topic, group = await java.create_topic(place, f"Shared-{shared}"), f"sharing-{shared}"
    use_pop(first_broker, group, topic, shared=shared)
    bodies = [f"m-{at}".encode() for at in range(120)]
    with JavaClients("killed", tmp_path, lib, java_classes) as killed:
        async with (
            java.consumer(place, group, topic, is_server_rebalance=True) as first,
            java.consumer(place, group, topic, is_server_rebalance=True) as second,
            killed.consumer(place, group, topic, is_server_rebalance=True) as third,
            java.producer(place, f"p-{group}") as producer,
        ):
            members = (first, second, third)
            for body in bodies[:60]:
                await producer.send(topic, body)
            await eventually(lambda: sum(len(one.received) for one in members) >= 10, "some messages came")
            killed.kill()
            for body in bodies[60:]:
                await producer.send(topic, body)

            def received() -> set[bytes]:
                return {message.body for one in members for message in one.received}

            # Messages of the killed member come again after a minute, the default of `popInvisibleTime`.
            await eventually(lambda: received() == set(bodies), "all messages came", timeout_s=100)
