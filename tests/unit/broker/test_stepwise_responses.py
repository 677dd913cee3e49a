"""Responses about large tables are written in steps, each over a bounded number of entries."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from skyroute.broker.handlers import stepwise_responses
from skyroute.broker.handlers import topics as topics_module
from skyroute.broker.handlers.stepwise_responses import STEP_PARTS, ResponseCache, join_parts, write_body
from skyroute.broker.tables import table_format
from skyroute.broker.tables.consumer_offsets import OFFSETS_A_STEP
from skyroute.broker.tables.table_format import ENTRIES_A_STEP
from skyroute.remoting.dispatch import OrderedResponse
from skyroute.remoting.errors import RefusedError
from skyroute.remoting.stepwise import run_through
from skyroute.routing.topology import QUEUES_MAX
from skyroute.wire import fastjson
from skyroute.wire.calls.groups import GroupConfig, PopProgress, RequestMode, decode_consume_stats, decode_reset_offsets
from skyroute.wire.calls.topics import TopicConfig, decode_topic_page, decode_topic_stats
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.queue_maps import quote_object_keys
from tests.unit.broker.clients import a_beat, a_consumer
from tests.unit.broker.state import State

WIDE = 20 * STEP_PARTS
"""Queues of the topic of these tests."""
PARTS_MAX = 3 * STEP_PARTS
"""Bytes of a step: more than those of a few queues."""

Counts = list[int]


@pytest.fixture
def wide(state: State) -> State:
    state.topics.put(TopicConfig("Wide", WIDE, WIDE))
    state.groups.put(GroupConfig("g"))
    for queue_id in range(WIDE):
        state.offsets.commit("g", "Wide", queue_id, queue_id)
    return state


def counted(monkeypatch: pytest.MonkeyPatch, state: State, owner: type, name: str) -> Callable[[], int]:
    """Return a function with the maximum number of calls of a method between two steps."""
    calls = [0]
    plain: Callable[..., Any] = getattr(owner, name)

    def counting(*args: Any, **named: Any) -> Any:
        calls[-1] += 1
        return plain(*args, **named)

    def next_step() -> None:
        calls.append(0)

    state.step_runner.on_step = next_step
    monkeypatch.setattr(owner, name, counting)
    return lambda: max(calls)


@pytest.mark.parametrize(
    ("code", "fields", "looks"),
    [
        (RequestCode.GET_TOPIC_STATS_INFO, {"topic": "Wide"}, "max_offset"),
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"}, "max_offset"),
        (RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}, "max_offset"),
        (RequestCode.QUERY_CONSUME_TIME_SPAN, {"group": "g", "topic": "Wide"}, "earliest_ms"),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"group": "g", "topic": "Wide", "timestamp": "5"}, "offset_at"),
        (RequestCode.QUERY_CORRECTION_OFFSET, {"topic": "Wide", "compareGroup": "h"}, "min_offset"),
    ],
)
async def test_the_status_of_a_topic_with_many_queues_is_written_in_steps(
    wide: State, monkeypatch: pytest.MonkeyPatch, code: RequestCode, fields: dict[str, str], looks: str
) -> None:
    longest = counted(monkeypatch, wide, type(wide.store), looks)
    on = {
        RequestCode.GET_TOPIC_STATS_INFO: wide.on_topics.status,
        RequestCode.GET_CONSUME_STATS: wide.on_consume_status.group_status,
        RequestCode.GET_BROKER_CONSUME_STATS: wide.on_consume_status.broker_status,
        RequestCode.QUERY_CONSUME_TIME_SPAN: wide.on_consume_status.time_spans,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: wide.on_consume_status.reset,
        RequestCode.QUERY_CORRECTION_OFFSET: wide.on_offsets.corrections,
    }
    response = await wide.ask(on[code], Request(code, fields))
    assert response.code == ResponseCode.SUCCESS
    assert response.body.count(b":") >= WIDE
    assert wide.step_runner.steps >= WIDE // PARTS_MAX
    assert longest() <= 4 * PARTS_MAX


async def test_the_status_of_a_small_topic_is_written_in_one_step(state: State) -> None:
    state.topics.put(TopicConfig("Small", 8, 8))
    answer = state.on_topics.status(Request(fields={"topic": "Small"}), state.peer)
    assert isinstance(answer, Response)
    assert len(decode_topic_stats(answer.body).queues) == 8


def with_many_topics(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepwise_responses, "STEP_PARTS", 10)
    state.groups.put(GroupConfig("g"))
    for number in range(1_000):
        state.topics.put(TopicConfig(f"T{number}", 1, 1))
        state.offsets.commit("g", f"T{number}", 0, 1)


async def test_topics_without_order_are_passed_over_in_steps(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    with_many_topics(state, monkeypatch)
    for name in ("T5", "T500"):
        state.topics.put(TopicConfig(name, 1, 1, ordered=True))
    response = await state.ask(state.on_consume_status.broker_status, Request(317, {"isOrder": "true"}))
    listed = json.loads(quote_object_keys(response.body))["consumeStatsList"]
    (topics,) = [group["g"] for group in listed if "g" in group]
    assert [json.loads(key)["topic"] for topic in topics for key in topic["offsetTable"]] == ["T5", "T500"]
    assert state.step_runner.steps >= 4


async def test_topics_without_popped_messages_are_passed_over_in_steps(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_many_topics(state, monkeypatch)
    calls = [0]

    def pop_progress(_group: str, topic: str) -> PopProgress | None:
        calls[-1] += 1
        return PopProgress(7, 0) if topic in ("T5", "T500") else None

    state.step_runner.on_step = lambda: calls.append(0)
    on = replace(state.on_consume_status, pop_progress=pop_progress)
    response = await state.ask(on.group_status, Request(208, {"consumerGroup": "g"}))
    assert sum(calls) == 1_000
    assert max(calls) <= 300
    assert response.body.count(b'"inFlight":7') == 2


async def test_groups_that_do_not_read_a_topic_are_passed_over_in_steps(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepwise_responses, "STEP_PARTS", 10)
    for number in range(1_000):
        state.groups.put(GroupConfig(f"g{number}"))
        state.clients.beat(state.peer, a_beat("c", a_consumer(f"g{number}", "T")), "JAVA", 479, 0.0)
    response = await state.ask(state.on_topics.consuming_groups, Request(300, {"topic": "other"}))
    assert response.body == b'{"groupList":[]}'
    assert state.step_runner.steps >= 4


async def test_retry_topics_of_a_deleted_topic_are_looked_for_in_steps(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics_module, "STEP_PARTS", 10)
    state.topics.put(TopicConfig("T"))
    for number in range(200):
        state.offsets.commit(f"g{number}", "T", 0, 1)
    state.topics.put(TopicConfig("%RETRY%g150_T"))
    state.offsets.commit("g150", "%RETRY%g150_T", 0, 1)
    assert (await state.ask(state.on_topics.delete, Request(215, {"topic": "T"}))).code == ResponseCode.SUCCESS
    assert "%RETRY%g150_T" not in state.topics.all()
    assert state.step_runner.steps >= 20


async def test_a_response_written_in_steps_is_complete(wide: State) -> None:
    spans = decode_topic_stats((await wide.ask(wide.on_topics.status, Request(fields={"topic": "Wide"}))).body)
    assert sorted(queue.queue_id for queue in spans.queues) == list(range(WIDE))
    stats = decode_consume_stats(
        (await wide.ask(wide.on_consume_status.group_status, Request(fields={"consumerGroup": "g"}))).body
    )
    assert {queue.queue_id: progress.consumer_offset for queue, progress in stats.queues.items()} == {
        queue_id: queue_id for queue_id in range(WIDE)
    }
    order = Request(fields={"group": "g", "topic": "Wide", "timestamp": "-1"})
    moved = decode_reset_offsets((await wide.ask(wide.on_consume_status.reset, order)).body)
    assert len(moved) == WIDE
    assert wide.offsets.get("g", "Wide", WIDE - 1) == 0


async def test_all_topics_are_written_in_steps_once_per_data_version(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10 * ENTRIES_A_STEP):
        state.topics.put(TopicConfig(f"T{number}"))
    handlers = state.on_topics
    told = decode_topic_page(await state.ask(handlers.all, Request()))
    assert told.topics == dict(state.topics.all())
    assert told.total == len(state.topics.all())
    assert state.step_runner.steps >= 9
    steps = state.step_runner.steps
    assert isinstance(handlers.all(Request(), state.peer), Response)
    assert state.step_runner.steps == steps
    state.topics.put(TopicConfig("New"))
    assert "New" in decode_topic_page(await state.ask(handlers.all, Request())).topics
    monkeypatch.setattr(stepwise_responses, "CACHED_BYTES_MAX", 1000)
    state.topics.put(TopicConfig("Newer"))
    await state.ask(handlers.all, Request())
    steps = state.step_runner.steps
    await state.ask(handlers.all, Request())
    assert state.step_runner.steps > steps


async def test_a_change_between_two_steps_is_not_in_the_response(state: State) -> None:
    for number in range(3 * ENTRIES_A_STEP):
        state.groups.put(GroupConfig(f"G{number}"))
    before = dict(state.groups.all())
    pieces = state.groups.pieces()
    written = [next(pieces)]
    state.groups.put(GroupConfig("later"))
    state.groups.delete("G7")
    kept = fastjson.loads(b"".join([*written, *pieces]))
    assert kept["subscriptionGroupTable"].keys() == before.keys()
    assert kept["dataVersion"]["counter"] == state.groups.version.counter - 2


async def test_all_offsets_are_written_in_steps(state: State) -> None:
    for queue_id in range(QUEUES_MAX):
        state.offsets.commit("g", "Wide", queue_id, 7)
    for number in range(2 * OFFSETS_A_STEP):
        state.offsets.commit(f"g{number}", "T", 0, number)
    pieces = list(state.offsets.pieces())
    assert max(piece.count(b":") for piece in pieces) <= QUEUES_MAX + OFFSETS_A_STEP
    response = await state.ask(state.on_offsets.all, Request())
    assert response.body == b"".join(pieces)
    assert state.step_runner.steps >= 3
    told = fastjson.loads(response.body)
    assert told["offsetTable"]["Wide@g"] == {str(queue_id): 7 for queue_id in range(QUEUES_MAX)}
    assert told["offsetTable"]["T@g42"] == {"0": 42}
    assert told["groupTopicMap"]["g42"] == ["T"]
    state.offsets.table_file.save_now()
    assert (state.folder / "config/consumerOffset.json").read_bytes() == response.body


async def test_an_empty_offset_table_is_written(state: State) -> None:
    told = fastjson.loads((await state.ask(state.on_offsets.all, Request())).body)
    assert (told["offsetTable"], told["groupTopicMap"]) == ({}, {})


async def test_all_request_modes_are_written_in_steps(state: State) -> None:
    for number in range(3 * ENTRIES_A_STEP):
        state.modes.put(RequestMode(f"T{number % 10}", f"g{number}"))
    told = fastjson.loads((await state.ask(state.on_groups.all_request_modes, Request())).body)
    assert sum(map(len, told["messageRequestModeMap"].values())) == 3 * ENTRIES_A_STEP
    assert told["messageRequestModeMap"]["T3"]["g13"]["mode"] == "PULL"


async def test_offsets_of_a_group_with_many_topics_are_deleted_in_steps(state: State) -> None:
    state.groups.put(GroupConfig("g"))
    for number in range(3 * OFFSETS_A_STEP):
        state.offsets.commit("g", f"T{number}", 0, 1)
    request = Request(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g", "cleanOffset": "true"})
    assert (await state.ask(state.on_groups.delete, request)).code == ResponseCode.SUCCESS
    assert state.step_runner.steps >= 3
    assert state.offsets.topics_of("g") == []
    assert repr(state.offsets).startswith("<ConsumerOffsets 0 ")


async def test_a_topic_with_many_queues_is_deleted_in_steps_and_not_created_during_it(state: State) -> None:
    state.topics.put(TopicConfig("Wide", 300, 300))
    for queue_id in range(300):
        state.write("Wide", queue_id)
    refused: list[RefusedError] = []

    def make_again() -> None:
        try:
            state.topics.put(TopicConfig("Wide"))
        except RefusedError as error:
            refused.append(error)

    state.step_runner.on_step = make_again
    answer = state.on_topics.delete(Request(fields={"topic": "Wide"}), state.peer)
    assert isinstance(answer, OrderedResponse)
    await answer.work
    assert state.step_runner.steps >= 6
    assert len(refused) == state.step_runner.steps
    assert "is being deleted" in str(refused[0])
    assert state.store.topics() == set()
    state.topics.put(TopicConfig("Wide"))


@pytest.mark.parametrize("what", ["topicConfigList", "groupConfigList"])
async def test_a_list_of_topics_is_bounded_and_processed_in_steps(state: State, what: str) -> None:
    handler = state.on_topics.update_many if what == "topicConfigList" else state.on_groups.update_many
    name = "topicName" if what == "topicConfigList" else "groupName"
    entries = ",".join(f'{{"{name}":"N{number}"}}' for number in range(2000))
    body = f'{{"{what}":[{entries}]}}'.encode()
    assert (await state.ask(handler, Request(body=body))).code == ResponseCode.SUCCESS
    assert state.step_runner.steps >= 2 * 2000 // STEP_PARTS
    assert (state.topics.get("N1999") is not None) or (state.groups.get("N1999") is not None)
    response = await state.ask(handler, Request(body=body.ljust(stepwise_responses.LIST_BYTES_MAX + 1)))
    assert (response.code, "send it in several parts" in (response.remark or "")) == (
        ResponseCode.INVALID_PARAMETER,
        True,
    )


def test_a_response_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepwise_responses, "RESPONSE_BYTES_MAX", 100_000)
    looked_at = 0

    def parts() -> Iterator[str]:
        nonlocal looked_at
        while True:
            looked_at += 1
            yield "x" * 100

    with pytest.raises(RefusedError, match="request fewer topics or groups"):
        run_through(write_body(join_parts(parts())))
    assert looked_at <= 1000 + STEP_PARTS


def test_pieces_are_joined_into_steps() -> None:
    def pieces() -> Iterable[bytes]:
        return [b"x"] * 10 + [b"y" * stepwise_responses.STEP_BYTES] * 2 + [b"z"]

    gathered = run_through(write_body(pieces()))
    assert list(map(len, gathered)) == [stepwise_responses.STEP_BYTES + 10, stepwise_responses.STEP_BYTES, 1]
    assert run_through(ResponseCache().find(1, pieces)) == gathered


def test_entries_keep_unknown_fields() -> None:
    table = {"a": TopicConfig("a"), "b": TopicConfig("b")}
    pieces = table_format.object_pieces({"x": 1}, {"t": table_format.entry_pieces(table, {"b": {"odd": [1]}})})
    kept = fastjson.loads(b"".join(pieces))
    assert kept["x"] == 1
    assert ("odd" in kept["t"]["a"], kept["t"]["b"]["odd"]) == (False, [1])
