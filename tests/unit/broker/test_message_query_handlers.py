"""Queries for single messages."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from skyroute.broker.handlers import message_queries
from skyroute.broker.handlers.message_queries import MessageQueryHandlers
from skyroute.broker.pop.pop_subscriptions import PopSubscriptions
from skyroute.broker.store.message_store import MessageStore
from skyroute.message.record import decode_records
from skyroute.message.tags import tag_code
from skyroute.wire.calls.query import UnitsQuery, encode_key_query, encode_units_query, encode_view
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import ResponseCode
from tests.support.disks import NOW_MS, NoSyncDisk, draft, small_store
from tests.unit.broker.clients import a_beat, a_consumer, a_peer
from tests.unit.broker.state import State


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    store = small_store(tmp_path / "messages", NoSyncDisk(), log_segment_bytes=1 << 20)
    yield store
    store.close()


@pytest.fixture
def on(state: State, store: MessageStore) -> MessageQueryHandlers:
    return MessageQueryHandlers(
        *(store, state.topics, state.clients, PopSubscriptions()),
        *(state.config, state.step_runner, state.clock.monotonic),
    )


def put(store: MessageStore, body: bytes, topic: str = "T", **properties: str) -> int:
    return store.append(draft(topic, 0, body, properties), NOW_MS).log_position


async def test_messages_are_found_by_key_and_by_id(state: State, store: MessageStore, on: MessageQueryHandlers) -> None:
    put(store, b"one", KEYS="red blue", UNIQ_KEY="ID1")
    put(store, b"two", KEYS="blue", UNIQ_KEY="ID2")
    put(store, b"three", "Other", KEYS="blue")
    answer = await state.ask(on.by_key, encode_key_query("T", "blue", count_max=10))
    assert [message.body for message in decode_records(answer.body)] == [b"one", b"two"]
    assert answer.fields is not None
    assert answer.fields["indexLastUpdateTimestamp"] == str(NOW_MS)
    assert int(answer.fields["indexLastUpdatePhyoffset"]) > 0
    answer = await state.ask(on.by_key, encode_key_query("T", "ID2", count_max=1, unique=True))
    assert [message.body for message in decode_records(answer.body)] == [b"two"]


async def test_a_query_without_matches_returns_query_not_found(
    state: State, store: MessageStore, on: MessageQueryHandlers
) -> None:
    put(store, b"one", KEYS="red")
    for query in (
        encode_key_query("T", "green", count_max=10),
        encode_key_query("T", "red", count_max=10, end_ms=NOW_MS - 86_400_000),
        encode_key_query("T", "red", count_max=0),
        encode_key_query("T", "red", count_max=-1),
    ):
        answer = await state.ask(on.by_key, query)
        assert answer.code == ResponseCode.QUERY_NOT_FOUND
        assert answer.fields is not None


async def test_keys_with_the_same_hash_are_distinguished(
    state: State, store: MessageStore, on: MessageQueryHandlers
) -> None:
    """`Aa` and `BB` have one hash in Java."""
    put(store, b"one", KEYS="Aa")
    put(store, b"two", KEYS="BB")
    answer = await state.ask(on.by_key, encode_key_query("T", "BB", count_max=10))
    assert [message.body for message in decode_records(answer.body)] == [b"two"]


async def test_a_query_response_has_at_least_one_message(
    state: State, store: MessageStore, on: MessageQueryHandlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        put(store, b"x" * 1000, KEYS="k")
    for room, count in ((1, 1), (2500, 2), (100_000, 5)):
        monkeypatch.setattr(message_queries, "FOUND_BYTES_MAX", room)
        answer = await state.ask(on.by_key, encode_key_query("T", "k", count_max=10))
        assert len(decode_records(answer.body)) == count


async def test_a_message_is_returned_by_log_position(
    state: State, store: MessageStore, on: MessageQueryHandlers
) -> None:
    put(store, b"one")
    position = put(store, b"two")
    answer = await state.ask(on.at_position, encode_view("T", position))
    assert [message.body for message in decode_records(answer.body)] == [b"two"]
    for wrong in (position + 1, 1 << 40, -5):
        answer = await state.ask(on.at_position, encode_view("T", wrong))
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            f"can not find message by the offset, {wrong}",
        )


async def test_units_of_a_queue_are_returned(state: State, store: MessageStore, on: MessageQueryHandlers) -> None:
    positions = [put(store, b"x", TAGS=tag) for tag in ("a", "b", "c")]
    answer = await state.ask(on.queue_units, encode_units_query(UnitsQuery("T", 0, 1, 10)))
    body = json.loads(answer.body)
    assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, 3)
    assert [(unit["physicOffset"], unit["tagsCode"], unit["eval"]) for unit in body["queueData"]] == [
        (positions[1], tag_code("b"), False),
        (positions[2], tag_code("c"), False),
    ]
    assert "filterData" not in body
    answer = await state.ask(on.queue_units, encode_units_query(UnitsQuery("T", 0, 0, 1)))
    assert len(json.loads(answer.body)["queueData"]) == 1


async def test_a_groups_subscription_is_returned_with_the_units(
    state: State, store: MessageStore, on: MessageQueryHandlers
) -> None:
    put(store, b"x")
    query = encode_units_query(UnitsQuery("T", 0, 0, 1, "g"))
    assert json.loads((await state.ask(on.queue_units, query)).body)["filterData"] == "g@T is not online!"
    state.clients.beat(a_peer(1)[0], a_beat("c1", a_consumer("g", "T")), "JAVA", 479, 0.0)
    body = json.loads((await state.ask(on.queue_units, query)).body)
    assert body["subscriptionData"]["topic"] == "T"
    assert body["filterData"] == "null"


async def test_missing_units_are_reported(state: State, store: MessageStore, on: MessageQueryHandlers) -> None:
    put(store, b"x")
    answer = await state.ask(on.queue_units, encode_units_query(UnitsQuery("T", 9, 0, 1)))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "9@T is not exist!")
    state.topics.put(TopicConfig("Empty", 1, 1))
    answer = await state.ask(on.queue_units, encode_units_query(UnitsQuery("Empty", 0, 0, 1)))
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, "Index 0 of 0@Empty is not exist!")
    answer = await state.ask(on.queue_units, encode_units_query(UnitsQuery("T", 0, 7, 1)))
    assert (answer.code, answer.remark, answer.body) == (ResponseCode.SUCCESS, "Index 7 of 0@T is not exist!", b"")
