"""Mappings of static topics lose what nobody needs to read messages, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from skyroute.broker.cluster import mapping_cleanup
from skyroute.broker.components import Components
from skyroute.clock import SystemClock
from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.offsets import decode_offset, encode_max_offset_query
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.network.broker.calls import found_bodies, place, pull, send
from tests.network.broker.clusters import Cluster
from tests.network.broker.test_static_topics import EPOCH, MOVED_TO, STEP, Items, mapping_of, put
from tests.support.connections import AsyncConnection
from tests.support.waiting import eventually

QUERY, UPDATE = RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET
CREATE_GROUP = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
FILLER = b"x" * (3 << 20)


class Brokers:
    """Brokers with a static topic. Its logical queue 0 is physical queue 0 of each broker that it moves to."""

    def __init__(self, cluster: Cluster, lines: Mapping[str, AsyncConnection]) -> None:
        self.cluster = cluster
        self.lines = lines
        self.epoch = EPOCH

    def components(self, name: str) -> Components:
        (found,) = (each.components for each in self.cluster.brokers if each.components.identity.name == name)
        return found

    def items(self, name: str) -> list[str] | None:
        """The brokers of the items of the queue, as one broker has them; None if it does not have the queue."""
        mapping = self.components(name).queue_mappings.get("S")
        assert mapping is not None
        items = mapping.hosted.get(0)
        return None if items is None else [item.broker_name for item in items]

    async def clean(self, *names: str) -> None:
        for name in names or self.lines:
            await self.components(name).mapping_cleanup.clean()

    async def put(self, name: str, items: Items | None, *, force: bool = False) -> None:
        own = {at: [(each, 1, 0)] for at, each in enumerate("abc", 1) if each == name}
        hosted = own if items is None else {0: items, **own}
        answer = await put(self.lines[name], mapping_of(name, hosted, epoch=self.epoch, total=4), force=force)
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def move(self, *path: str) -> None:
        """Give the queue to the last broker of a path, as mqadmin does: the one before learns of it, too."""
        items = [(name, 0, at * MOVED_TO) for at, name in enumerate(path)]
        self.epoch += STEP
        for name in self.lines:
            await self.put(name, items if name in path[-2:] else None)

    async def fill(self, name: str, *bodies: str) -> None:
        for body in bodies:
            answer = await self.lines[name].call(send("S", body.encode()))
            assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def expire(self, name: str) -> None:
        """Let all messages of a broker expire but the newest, which are of another topic."""
        for wait_s in (0, 0, 0, 73 * 3600):
            answer = await self.lines[name].call(send("Filler", FILLER))
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            self.cluster.clock.advance(wait_s)
        answer = await self.lines[name].call(send("Filler", FILLER))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        self.components(name).retention.clean_now()

    def empty(self, name: str) -> None:
        """Remove the files of the topic's queues."""
        for _ in self.components(name).store.remove_topic("S"):
            pass

    async def create_group(self, *names: str) -> None:
        for name in names:
            answer = await self.lines[name].call(CREATE_GROUP, body=b'{"groupName":"g"}')
            assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def commit(self, name: str, offset: int) -> None:
        names = {"topic": "S", "queueId": "0", "consumerGroup": "g", "commitOffset": str(offset)}
        assert (await self.lines[name].call(UPDATE, names)).code == ResponseCode.SUCCESS

    async def offset(self, name: str, code: RequestCode = QUERY) -> int:
        answer = await self.lines[name].call(code, {"topic": "S", "queueId": "0", "consumerGroup": "g"})
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return int(answer.fields["offset"])


async def brokers_of(cluster: Cluster, names: str, **settings: Any) -> Brokers:
    started = [await cluster.start(name, **settings) for name in names]
    brokers = Brokers(
        cluster, {each.components.identity.name: await cluster.line(address=each.address) for each in started}
    )
    await brokers.move(names[0])
    return brokers


@pytest.fixture
async def two(empty_cluster: Cluster) -> Brokers:
    return await brokers_of(empty_cluster, "ab")


@pytest.fixture
async def three(empty_cluster: Cluster) -> Brokers:
    return await brokers_of(empty_cluster, "abc")


# ------------------------------------------------------------------------------------------------------ items


async def test_an_item_is_dropped_when_its_messages_have_expired(two: Brokers) -> None:
    await two.fill("a", "0", "1")
    await two.move("a", "b")
    await two.fill("b", "2")
    await two.clean()
    assert two.items("b") == ["a", "b"]
    assert found_bodies(await two.lines["b"].call(pull("S", 0))) == [b"0", b"1"]
    await two.expire("a")
    store = two.components("a").store
    assert store.min_offset("S", 0) == store.max_offset("S", 0) == 2
    await two.clean()
    assert two.items("b") == ["b"]
    assert two.items("a") == ["a", "b"]  # the queue has moved only once
    assert found_bodies(await two.lines["b"].call(pull("S", MOVED_TO))) == [b"2"]
    await two.fill("b", "3")
    assert await two.offset("b", RequestCode.GET_MIN_OFFSET) == MOVED_TO
    assert await two.offset("b", RequestCode.GET_MAX_OFFSET) == MOVED_TO + 2


async def test_offsets_before_the_first_item_become_its_start(two: Brokers) -> None:
    await two.move("a", "b")
    await two.fill("b", "0")
    await two.clean()
    assert two.items("b") == ["b"]  # the first broker never had a message
    answer = await two.lines["b"].call(pull("S", 7))
    assert (found_bodies(answer), place(answer)[0]) == ([b"0"], MOVED_TO + 1)
    await two.commit("b", 7)
    assert await two.offset("b") == MOVED_TO


async def test_no_item_is_dropped_before_the_one_in_front_of_it(three: Brokers) -> None:
    await three.fill("a", "0")
    await three.move("a", "b")
    await three.fill("b", "1")
    await three.move("a", "b", "c")
    three.empty("b")
    await three.clean("c")
    assert three.items("c") == ["a", "b", "c"]
    three.empty("a")
    await three.clean("c")
    assert three.items("c") == ["c"]


async def test_the_item_of_a_queue_that_is_still_moving_stays(two: Brokers) -> None:
    two.epoch += STEP
    for name in "ab":
        await two.put(name, [("a", 0, 0), ("b", 0, -1)])
    await two.clean()
    assert two.items("b") == ["a", "b"]


async def test_an_item_whose_end_its_broker_has_not_reached_stays(two: Brokers) -> None:
    await two.fill("a", "0")
    await two.move("a", "b")
    known = mapping_of("b", {0: [("a", 0, 0), ("b", 0, MOVED_TO)]}, epoch=two.epoch, total=4)
    known = known.replace('"endOffset": -1', '"endOffset": 2', 1)
    assert (await put(two.lines["b"], known, force=True)).code == ResponseCode.SUCCESS
    await two.expire("a")
    await two.clean()
    assert two.items("b") == ["a", "b"]
    two.empty("a")
    await two.clean()
    assert two.items("b") == ["b"]


async def test_a_queue_that_moved_back_is_cleaned_by_its_own_broker(two: Brokers) -> None:
    await two.move("a", "b")
    await two.fill("b", "0")
    two.epoch += STEP
    for name in "ab":
        await two.put(name, [("a", 0, 0), ("b", 0, MOVED_TO), ("a", 1, 2 * MOVED_TO)])
    await two.clean()
    assert two.items("a") == ["b", "a"]


async def test_a_group_goes_on_at_the_first_kept_item(two: Brokers) -> None:
    await two.fill("a", "0", "1")
    await two.create_group("a", "b")
    await two.commit("a", 1)
    await two.move("a", "b")
    await two.fill("b", "2", "3")
    await two.expire("a")
    await two.clean()
    assert two.items("b") == ["b"]
    assert await two.offset("b") == MOVED_TO


async def test_a_group_that_has_read_further_keeps_its_offset(two: Brokers) -> None:
    await two.fill("a", "0")
    await two.create_group("a", "b")
    await two.commit("a", 1)
    await two.move("a", "b")
    await two.fill("b", "1", "2")
    await two.commit("b", MOVED_TO + 1)
    await two.expire("a")
    await two.clean()
    assert two.items("b") == ["b"]
    assert await two.offset("b") == MOVED_TO + 1


async def test_an_item_stays_for_a_group_that_the_next_broker_does_not_know(
    two: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    await two.fill("a", "0")
    await two.create_group("a")
    await two.commit("a", 1)
    await two.move("a", "b")
    await two.expire("a")
    await two.clean()
    assert two.items("b") == ["a", "b"]
    assert "mapping not shortened, request refused broker=b" in caplog.text
    assert await two.offset("b") == 1
    await two.create_group("b")
    await two.clean()
    assert two.items("b") == ["b"]


async def test_an_item_stays_while_its_broker_does_not_answer(two: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    await two.move("a", "b")
    await two.cluster.stop(two.cluster.brokers[0])
    await two.clean("b")
    assert two.items("b") == ["a", "b"]
    assert caplog.text.count("mappings not shortened, broker did not answer broker=a") == 1
    await two.cluster.start("a")
    two.cluster.clock.advance(2)  # addresses of brokers are read again
    await two.clean("b")
    assert two.items("b") == ["b"]


async def test_a_slave_that_lacks_the_messages_does_not_count(two: Brokers) -> None:
    await two.fill("a", "0")
    await two.move("a", "b")
    cluster = two.cluster
    await cluster.stop(cluster.brokers[0])
    path = str(cluster.folder / "slave")
    await cluster.start("a", clock=SystemClock(), store_path=path, broker_id=1, broker_role="SLAVE")
    cluster.clock.advance(2)
    answer = await two.components("b").peers.call("a", encode_max_offset_query(QueueRef("S", "a", 0)))
    assert decode_offset(answer) == 0
    await two.clean("b")
    assert two.items("b") == ["a", "b"]


async def test_dropped_items_stay_dropped_after_a_kill(two: Brokers) -> None:
    await two.move("a", "b")
    await two.clean("b")
    await two.cluster.kill(two.cluster.brokers[1])
    await two.cluster.start("b")
    assert two.items("b") == ["b"]


# ----------------------------------------------------------------------------------------- queues that moved twice


async def test_a_broker_drops_a_queue_that_moved_twice(three: Brokers) -> None:
    await three.fill("a", "0")
    await three.move("a", "b")
    await three.fill("b", "1")
    await three.clean()
    assert three.items("a") == ["a", "b"]
    await three.move("a", "b", "c")
    await three.clean()
    assert three.items("a") is None
    assert three.items("b") == three.items("c") == ["a", "b", "c"]
    assert (await three.lines["a"].call(send("S"))).code == ResponseCode.NOT_LEADER_FOR_QUEUE
    assert found_bodies(await three.lines["c"].call(pull("S", 0))) == [b"0"]
    assert found_bodies(await three.lines["c"].call(pull("S", MOVED_TO))) == [b"1"]
    await three.move("a", "b", "c", "a")
    assert found_bodies(await three.lines["a"].call(pull("S", MOVED_TO))) == [b"1"]


async def test_a_queue_stays_while_its_leader_has_another_epoch(three: Brokers) -> None:
    await three.move("a", "b")
    await three.move("a", "b", "c")
    three.epoch += STEP
    items = [("a", 0, 0), ("b", 0, MOVED_TO), ("c", 0, 2 * MOVED_TO)]
    await three.put("c", items)
    await three.clean()
    assert three.items("a") == ["a", "b"]
    await three.put("a", None)
    await three.clean()
    assert three.items("a") is None


async def test_a_queue_stays_while_its_leader_does_not_answer(three: Brokers) -> None:
    await three.move("a", "b")
    await three.move("a", "b", "c")
    await three.cluster.kill(three.cluster.brokers[2])
    await three.clean("a")
    assert three.items("a") == ["a", "b"]


async def test_a_queue_stays_while_its_leader_does_not_read_its_messages(three: Brokers) -> None:
    await three.fill("a", "0")
    await three.move("a", "b")
    await three.move("a", "b", "c")
    answer = await put(
        three.lines["c"],
        mapping_of("c", {0: [("c", 0, 2 * MOVED_TO)]}, epoch=three.epoch, total=4).replace('"gen": 0', '"gen": 2'),
        force=True,
    )
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    await three.clean("a")
    assert three.items("a") == ["a", "b"]
    await three.expire("a")
    await three.clean("a")
    assert three.items("a") is None


# ------------------------------------------------------------------------------------------------------------ rounds


async def test_mappings_are_cleaned_at_an_interval(empty_cluster: Cluster) -> None:
    brokers = await brokers_of(empty_cluster, "ab", mapping_cleanup_interval_s=0.01)
    await brokers.move("a", "b")
    await eventually(lambda: brokers.items("b") == ["b"])


async def test_a_long_mapping_is_cleaned_in_turns(two: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapping_cleanup, "QUEUES_A_TURN", 10)
    hosted = {queue_id: [("a", 0, 0)] for queue_id in range(1_000)}
    answer = await put(two.lines["a"], mapping_of("a", hosted, epoch=two.epoch, total=1_000), force=True)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    turns = 0
    work = asyncio.ensure_future(two.clean("a"))
    while not work.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 100
