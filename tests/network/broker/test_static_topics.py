"""Static topics: logical queues that keep their offsets while they move from broker to broker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from skyroute import Message, Producer, PullConsumer, QueueRef, StoredMessage, TransactionOutcome
from skyroute.broker.broker import Broker
from skyroute.broker.tables import queue_mappings
from skyroute.clock import SystemClock
from skyroute.wire.calls.static_topics import MAPPING_BYTES_MAX
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.network.broker.calls import COMMIT, SUBSCRIPTION, SUSPEND, found_bodies, place, pull, send
from tests.network.broker.clusters import Cluster
from tests.network.broker.pops import ack, popped
from tests.support.connections import AsyncConnection
from tests.support.raw import Command, Form
from tests.support.waiting import eventually

EPOCH = 1_758_275_140_000
STEP = 1_000
MOVED_TO = 10_000
"""Logical offset at which a moved queue goes on, as mqadmin chooses it for short queues."""

Items = Sequence[tuple[str, int, int]]
"""Broker, physical queue and logical start of each item of a logical queue."""


def mapping_of(broker: str, hosted: Mapping[int, Items], *, epoch: int = EPOCH, total: int = 2, **more: Any) -> str:
    """A mapping as Java writes it, with unquoted numbers as keys."""
    queues = ",".join(
        f"{queue_id}:"
        + json.dumps(
            [
                {
                    **{"bname": name, "endOffset": -1, "gen": generation, "logicOffset": logical, "queueId": physical},
                    **{"startOffset": 0, "timeOfEnd": -1, "timeOfStart": -1},
                }
                for generation, (name, physical, logical) in enumerate(items)
            ]
        )
        for queue_id, items in hosted.items()
    )
    rest = {"dirty": False, "epoch": epoch, "scope": "__global__", "topic": "S", "totalQueues": total, **more}
    return f'{{"bname":"{broker}","currIdMap":{{}},"hostedQueues":{{{queues}}},{json.dumps(rest)[1:]}'


async def put(
    line: AsyncConnection, mapping: str, queues: int = 2, *, force: bool = False, topic: str = "S"
) -> Command:
    fields = {
        **{"topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues)},
        **{"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "attributes": ""},
        "force": "true" if force else "false",
    }
    return await line.call(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, fields, mapping.encode())


class Pair:
    """Two brokers, and a connection to each. Logical queue 0 starts on the first one, as physical queue 1."""

    def __init__(self, cluster: Cluster, brokers: list[Broker], lines: list[AsyncConnection]) -> None:
        self.cluster = cluster
        self.brokers = brokers
        self.first, self.second = lines

    async def create(self) -> None:
        assert (await put(self.first, mapping_of("a", {0: [("a", 1, 0)]}))).code == ResponseCode.SUCCESS
        assert (await put(self.second, mapping_of("b", {1: [("b", 0, 0)]}))).code == ResponseCode.SUCCESS

    async def begin_move(self) -> None:
        """The first half of a move to the second broker: it takes sends, and its logical offset is not decided."""
        items = [("a", 1, 0), ("b", 1, -1)]
        for line, name, others in ((self.second, "b", {1: [("b", 0, 0)]}), (self.first, "a", {})):
            answer = await put(line, mapping_of(name, {0: items, **others}, epoch=EPOCH + STEP))
            assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def end_move(self) -> None:
        items = [("a", 1, 0), ("b", 1, MOVED_TO)]
        answer = await put(self.second, mapping_of("b", {0: items, 1: [("b", 0, 0)]}, epoch=EPOCH + STEP))
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def move_back(self) -> None:
        """Move logical queue 1 from the second broker to the first one."""
        for logical in (-1, MOVED_TO):
            items = [("b", 0, 0), ("a", 0, logical)]
            for line, name, others in ((self.first, "a", {0: [("a", 1, 0)]}), (self.second, "b", {})):
                answer = await put(line, mapping_of(name, {1: items, **others}, epoch=EPOCH + STEP))
                assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def move(self) -> None:
        await self.begin_move()
        await self.end_move()


@pytest.fixture
async def pair(empty_cluster: Cluster) -> Pair:
    brokers = [await empty_cluster.start(name) for name in "ab"]
    pair = Pair(empty_cluster, brokers, [await empty_cluster.line(address=each.address) for each in brokers])
    await pair.create()
    return pair


async def fill(line: AsyncConnection, *bodies: str, queue_id: int = 0) -> list[tuple[int, int]]:
    """Store messages; return logical queue and offset of each, as the receipts have them."""
    receipts = [await line.call(send("S", body.encode(), queue_id=queue_id)) for body in bodies]
    assert [each.code for each in receipts] == [ResponseCode.SUCCESS] * len(bodies), receipts
    return [(int(each.fields["queueId"]), int(each.fields["queueOffset"])) for each in receipts]


async def offset(line: AsyncConnection, code: RequestCode, **fields: Any) -> int:
    names = {"topic": "S", "queueId": "0", "consumerGroup": "g", **{name: str(each) for name, each in fields.items()}}
    answer = await line.call(code, names)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return int(answer.fields.get("offset", answer.fields.get("timestamp", "0")))


@pytest.mark.parametrize("form", ["json", "binary"])
async def test_sends_and_pulls_go_through_the_mapping(pair: Pair, form: Form) -> None:
    line = await pair.cluster.line(address=pair.brokers[0].address, form=form)
    assert await fill(line, "0", "1") == [(0, 0), (0, 1)]
    assert pair.brokers[0].components.store.max_offset("S", 1) == 2
    answer = await line.call(pull("S", 1))
    assert found_bodies(answer) == [b"1"]
    assert place(answer)[:3] == [2, 0, 2]


async def test_a_queue_of_another_broker_is_refused(pair: Pair) -> None:
    for request in (send("S", queue_id=1), pull("S", queue_id=1)):
        assert (await pair.first.call(request)).code == ResponseCode.NOT_LEADER_FOR_QUEUE
    fields = {"topic": "S", "queueId": "1", "consumerGroup": "g", "commitOffset": "3", "timestamp": "0"}
    for code in (14, 15, 29, 30, 31, 32):
        assert (await pair.first.call(code, fields)).code == ResponseCode.NOT_LEADER_FOR_QUEUE


async def test_a_send_without_a_queue_gets_one_that_the_broker_leads(pair: Pair) -> None:
    assert await fill(pair.first, "x", queue_id=-1) == [(0, 0)]


async def test_name_servers_learn_who_leads_each_queue(pair: Pair) -> None:
    await pair.move()
    line = await pair.cluster.line(address=pair.cluster.name_server_address)
    body = json.loads((await line.call(105, {"topic": "S", "acceptStandardJsonOnly": "true"})).body)
    by_broker = body["topicQueueMappingByBroker"]
    assert {name: each["currIdMap"] for name, each in by_broker.items()} == {"a": {}, "b": {"0": 1, "1": 0}}
    assert {each["epoch"] for each in by_broker.values()} == {EPOCH + STEP}


async def test_a_moved_queue_is_read_from_both_brokers_in_order(pair: Pair) -> None:
    await fill(pair.first, "0", "1", "2")
    await pair.begin_move()
    assert (await pair.first.call(send("S"))).code == ResponseCode.NOT_LEADER_FOR_QUEUE
    assert await fill(pair.second, "3") == [(0, -1)]  # it has no logical offset yet
    answer = await pair.second.call(pull("S", 3))
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert place(answer)[0] == 3
    await pair.end_move()
    assert await fill(pair.second, "4") == [(0, MOVED_TO + 1)]
    bodies, at = [], 0
    for _ in range(4):
        answer = await pair.second.call(pull("S", at, count=2, flag=SUBSCRIPTION | SUSPEND))
        if answer.code == ResponseCode.SUCCESS:
            bodies += found_bodies(answer)
        else:
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        at = place(answer)[0]
    assert bodies == [b"0", b"1", b"2", b"3", b"4"]
    assert at == MOVED_TO + 2


async def test_records_say_what_to_add_to_their_offsets(pair: Pair) -> None:
    await fill(pair.first, "0")
    await pair.move()
    await fill(pair.second, "1")
    answer = await pair.second.call(pull("S", MOVED_TO))
    assert found_bodies(answer) == [b"1"]
    assert answer.fields["offsetDelta"] == str(MOVED_TO)


async def test_offsets_of_a_moved_queue_are_logical(pair: Pair) -> None:
    await fill(pair.first, "0", "1", "2")
    pair.cluster.clock.advance(10)
    between_ms = int(pair.cluster.clock.wall() * 1000)
    pair.cluster.clock.advance(10)
    await pair.move()
    await fill(pair.second, "3")
    line = pair.second
    assert await offset(line, RequestCode.GET_MAX_OFFSET) == MOVED_TO + 1
    assert await offset(line, RequestCode.GET_MIN_OFFSET) == 0
    early = await offset(line, RequestCode.GET_EARLIEST_MSG_STORETIME)
    assert 0 < early < between_ms
    search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    assert await offset(line, search, timestamp=early) == 0
    assert await offset(line, search, timestamp=between_ms) == MOVED_TO
    assert await offset(line, search, timestamp=between_ms, boundaryType="UPPER") == 2
    assert await offset(line, search, timestamp=between_ms + 60_000, boundaryType="UPPER") == MOVED_TO


async def test_a_group_goes_on_at_its_offset_after_a_move(pair: Pair) -> None:
    await fill(pair.first, "0", "1", "2")
    for queue_id, line in enumerate((pair.first, pair.second)):
        await line.call(pull("S", 0, queue_id=queue_id))  # creates the group
    query, update = RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET
    await offset(pair.first, update, commitOffset=2)
    await pair.move()
    assert await offset(pair.second, query) == 2
    await offset(pair.second, update, commitOffset=3)  # still in the part on the first broker
    assert pair.brokers[0].components.offsets.get("g", "S", 1) == 3
    await offset(pair.second, update, commitOffset=MOVED_TO + 1)
    assert pair.brokers[1].components.offsets.get("g", "S", 1) == 1
    assert await offset(pair.second, query) == MOVED_TO + 1


async def test_a_pull_commits_the_offset_of_its_own_part_only(pair: Pair) -> None:
    await fill(pair.first, "0", "1")
    await pair.move()
    await fill(pair.second, "2")
    flag = SUBSCRIPTION | COMMIT
    await pair.second.call(pull("S", MOVED_TO, commit=2, flag=flag))
    assert pair.brokers[1].components.offsets.get("g", "S", 1) is None
    await pair.second.call(pull("S", MOVED_TO, commit=MOVED_TO, flag=flag))
    assert pair.brokers[1].components.offsets.get("g", "S", 1) == 0


async def test_a_suspended_pull_of_a_logical_queue_gets_the_next_message(pair: Pair) -> None:
    await pair.move()
    waiting = await pair.second.send(pull("S", MOVED_TO, flag=SUBSCRIPTION | SUSPEND))
    long_polling = pair.brokers[1].components.long_polling
    await eventually(lambda: len(long_polling) == 1)
    other = await pair.cluster.line(address=pair.brokers[1].address)
    await fill(other, "new")
    answer = await pair.second.answer(waiting)
    assert (answer.code, found_bodies(answer), place(answer)[0]) == (ResponseCode.SUCCESS, [b"new"], MOVED_TO + 1)


async def test_a_move_ends_the_long_polls_of_the_old_leader(pair: Pair) -> None:
    waiting = await pair.first.send(pull("S", 0, flag=SUBSCRIPTION | SUSPEND))
    await eventually(lambda: len(pair.brokers[0].components.long_polling) == 1)
    pair.first, line = await pair.cluster.line(address=pair.brokers[0].address), pair.first
    await pair.move()
    assert (await line.answer(waiting)).code == ResponseCode.PULL_NOT_FOUND
    assert (await line.call(pull("S", 0))).code == ResponseCode.NOT_LEADER_FOR_QUEUE


async def test_a_pull_from_a_part_whose_broker_is_away_fails_and_loses_nothing(pair: Pair) -> None:
    await fill(pair.first, "0")
    await pair.move()
    await pair.cluster.stop(pair.brokers[0])
    assert (await pair.second.call(pull("S", 0))).code == ResponseCode.SYSTEM_ERROR
    assert await fill(pair.second, "1") == [(0, MOVED_TO)]
    again = await pair.cluster.start("a")
    assert again.components.store.max_offset("S", 1) == 1
    pair.cluster.clock.advance(2)  # addresses of brokers are read again
    assert found_bodies(await pair.second.call(pull("S", 0))) == [b"0"]


async def test_mappings_survive_a_restart(pair: Pair) -> None:
    await fill(pair.first, "0")
    await pair.move()
    await pair.cluster.kill(pair.brokers[1])
    broker = await pair.cluster.start("b")
    line = await pair.cluster.line(address=broker.address)
    assert await fill(line, "1") == [(0, MOVED_TO)]


async def test_the_settings_of_a_static_topic_have_its_mapping(pair: Pair) -> None:
    config = json.loads((await pair.first.call(351, {"topic": "S", "lo": "true"})).body)
    assert config["mappingDetail"]["hostedQueues"]["0"][0]["bname"] == "a"
    assert (config["topicName"], config["writeQueueNums"]) == ("S", 2)
    assert "mappingDetail" not in json.loads((await pair.first.call(351, {"topic": "S"})).body)
    for fields in ({}, {"topicSeq": "0", "maxTopicNum": "1000", "dataVersion": ""}):
        table = json.loads((await pair.first.call(21, fields)).body)
        assert table["topicQueueMappingDetailMap"]["S"]["totalQueues"] == 2
        assert table["mappingDataVersion"]["counter"] >= 1


async def test_a_deleted_topic_has_no_mapping(pair: Pair) -> None:
    await pair.first.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "S"})
    assert pair.brokers[0].components.queue_mappings.get("S") is None


@pytest.mark.parametrize(
    ("mapping", "reason"),
    [
        (mapping_of("a", {0: [("a", 1, 0)]}, epoch=EPOCH - 1), "small epoch"),
        (mapping_of("a", {0: [("a", 0, 0)]}, epoch=EPOCH + 1), "would change"),
        (mapping_of("a", {0: [("a", 1, 5)]}, epoch=EPOCH + 1), "would change"),
        (mapping_of("a", {0: [("a", 1, 0), ("b", 1, -1)]}), "leader is different"),
        (mapping_of("a", {}), "equal epoch"),
        (mapping_of("a", {0: [("a", 1, 0)]}, scope="other", epoch=EPOCH + 1), "scope"),
        (mapping_of("b", {0: [("a", 1, 0)]}, epoch=EPOCH + 1), "for broker b"),
        (mapping_of("a", {0: [("a", 1, -1), ("b", 1, 5)]}, epoch=EPOCH + 1), "no logical offset"),
        (mapping_of("a", {0: [("a", 1, 9), ("b", 1, 5)]}, epoch=EPOCH + 1), "do not increase"),
        (mapping_of("a", {0: [("a", 1, 0)]}, topic="T", epoch=EPOCH + 1), "expected 'S'"),
        (mapping_of("a", {7: [("a", 1, 0)]}, epoch=EPOCH + 1), "logical queue 7"),
        (mapping_of("a", {0: [("a", 1 << 20, 0)]}, epoch=EPOCH + 1), "out of range"),
        (mapping_of("a", {0: [("a", 1, 0)]}, total=1 << 30, epoch=EPOCH + 1), "totalQueues"),
        ("{", "not a mapping"),
        ("[" * 100_000, "not a mapping"),
        (" " * (MAPPING_BYTES_MAX + 1), "bytes"),
    ],
)
async def test_a_wrong_mapping_is_refused_and_changes_nothing(pair: Pair, mapping: str, reason: str) -> None:
    before = pair.brokers[0].components.queue_mappings.get("S")
    answer = await put(pair.first, mapping)
    assert answer.code != ResponseCode.SUCCESS
    assert reason in (answer.remark or "")
    assert pair.brokers[0].components.queue_mappings.get("S") is before


async def test_force_replaces_a_mapping(pair: Pair) -> None:
    assert (
        await put(pair.first, mapping_of("a", {0: [("a", 0, 0)]}, epoch=1), force=True)
    ).code == ResponseCode.SUCCESS
    assert await fill(pair.first, "0") == [(0, 0)]
    assert pair.brokers[0].components.store.max_offset("S", 0) == 1


async def test_the_items_of_all_static_topics_are_bounded(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_mappings, "ITEMS_MAX", 1)
    answer = await put(pair.first, mapping_of("a", {0: [("a", 1, 0)], 1: [("a", 0, 0)]}, epoch=EPOCH + 1))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "at most 1" in (answer.remark or "")


async def test_our_clients_follow_a_queue_to_its_new_broker_in_order(pair: Pair) -> None:
    received: list[StoredMessage] = []

    async def handle(message: StoredMessage) -> None:
        received.append(message)

    consumer = pair.cluster.consumer("g", ordered=True)
    consumer.subscribe("S", handler=handle)
    async with pair.cluster.producer() as producer, consumer:
        sent = [await producer.send(Message("S", str(number).encode(), sharding_key="k")) for number in range(3)]
        queue = sent[0].queue
        assert queue.broker_name == "__syslo__global__"
        await eventually(lambda: len(received) == 3)
        moved = {0: pair.move, 1: pair.move_back}[queue.queue_id]
        await moved()
        sent += [await producer.send(Message("S", str(number).encode(), sharding_key="k")) for number in range(3, 6)]
        await eventually(lambda: len(received) == 6)
    assert [message.body for message in received] == [str(number).encode() for number in range(6)]
    assert {result.queue for result in sent} == {queue}
    offsets = [0, 1, 2, MOVED_TO, MOVED_TO + 1, MOVED_TO + 2]
    assert [result.queue_offset for result in sent] == offsets
    assert [message.queue_offset for message in received] == offsets
    assert {(message.broker_name, message.queue_id) for message in received} == {(queue.broker_name, queue.queue_id)}


async def test_a_transaction_on_a_moved_queue_is_committed(pair: Pair) -> None:
    await pair.move()
    received: list[bytes] = []

    async def handle(message: StoredMessage) -> None:
        received.append(message.body)

    consumer = pair.cluster.consumer("g")
    consumer.subscribe("S", handler=handle)
    producer = Producer("p", pair.cluster.name_server_address, check=lambda _message: TransactionOutcome.UNKNOWN)
    async with producer, consumer:
        await producer.send_in_transaction(Message("S", b"t"), lambda _message, _result: TransactionOutcome.COMMIT)
        await eventually(lambda: received == [b"t"])


async def test_a_pull_consumer_reads_both_parts_of_a_moved_queue(pair: Pair) -> None:
    await fill(pair.first, "0", "1")
    await pair.move()
    await fill(pair.second, "2")
    async with PullConsumer("g", pair.cluster.name_server_address) as consumer:
        queue = QueueRef("S", "__syslo__global__", 0)
        assert queue in await consumer.queues("S")
        consumer.assign([queue])
        consumer.seek(queue, 0)
        found: list[bytes] = []
        while len(found) < 3:
            found += [message.body for message in await consumer.poll(5.0)]
    assert found == [b"0", b"1", b"2"]


async def test_a_slave_reads_logical_queues_as_its_master_does(empty_cluster: Cluster) -> None:
    master = await empty_cluster.start("a", clock=SystemClock())
    line = await empty_cluster.line(address=master.address)
    assert (await put(line, mapping_of("a", {0: [("a", 1, 0)], 1: [("a", 0, 0)]}))).code == ResponseCode.SUCCESS
    slave = await empty_cluster.start(
        "a",
        clock=SystemClock(),
        store_path=str(empty_cluster.folder / "slave"),
        broker_id=1,
        broker_role="SLAVE",
        slave_read_enabled=True,
    )
    await eventually(lambda: slave.components.queue_mappings.get("S") is not None)
    await fill(line, "0", "1")
    await eventually(lambda: slave.components.store.max_offset("S", 1) == 2)
    await eventually(lambda: slave.components.topics.get("S") is not None)
    answer = await (await empty_cluster.line(address=slave.address)).call(pull("S", 0, queue_id=0))
    assert found_bodies(answer) == [b"0", b"1"]
    assert (empty_cluster.folder / "slave" / "config" / "topicQueueMapping.json").exists()


async def test_pops_get_the_messages_of_a_moved_queue_from_both_brokers(pair: Pair) -> None:
    await fill(pair.first, "0", "1", "2")
    await pair.move()
    await fill(pair.second, "3", "4")
    bodies = []
    for name, line in (("a", pair.first), ("b", pair.second)):
        messages = await popped(line, "S")
        bodies.append([message.body for message in messages])
        for message in messages:
            await ack(line, message, extraInfo=message.receipt.replace("broker-a", name))
        assert await popped(line, "S") == []
    assert bodies == [[b"0", b"1", b"2"], [b"3", b"4"]]
    assert [broker.components.in_flight.message_count for broker in pair.brokers] == [0, 0]
