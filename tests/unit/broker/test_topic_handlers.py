import json
from itertools import zip_longest
from typing import Any

import msgspec
import pytest

from skyroute.message.queue_ref import QueueRef
from skyroute.remoting.dispatch import OrderedResponse
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.topics import (
    PAGE_MAX,
    QueueSpan,
    TopicConfig,
    decode_topic_config,
    decode_topic_list,
    decode_topic_page,
    decode_topic_readers,
    decode_topic_stats,
    encode_topic_config_query,
    encode_topic_deletion,
    encode_topic_page_query,
    encode_topic_readers_query,
    encode_topic_stats_query,
    encode_topic_update,
)
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request
from tests.unit.broker.state import BROKER, State, settings

ORDERS = TopicConfig("Orders", 4, 4)


def many(*configs: dict[str, Any]) -> Request:
    return Request(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=json.dumps({"topicConfigList": configs}).encode())


# ----------------------------------------------------------------------------------------------------------- changing


async def test_a_created_topic_is_saved_and_announced_before_the_response(state: State) -> None:
    response = await state.ask(state.on_topics.update, encode_topic_update(ORDERS, {"message.type": "FIFO"}))
    made = msgspec.structs.replace(ORDERS, attributes={"message.type": "FIFO"})
    assert response.code == ResponseCode.SUCCESS
    assert state.announced == [made]
    assert json.loads((state.folder / "config/topics.json").read_bytes())["topicConfigTable"]["Orders"]["perm"] == 6


async def test_an_update_without_changes_is_not_announced(state: State) -> None:
    request = encode_topic_update(ORDERS, {"message.type": "FIFO"})
    await state.ask(state.on_topics.update, request)
    assert (await state.ask(state.on_topics.update, request)).code == ResponseCode.SUCCESS
    assert len(state.announced) == 1
    assert state.topics.version.counter == 1


async def test_an_update_keeps_attributes_that_it_does_not_name(state: State) -> None:
    await state.ask(state.on_topics.update, encode_topic_update(ORDERS, {"message.type": "FIFO"}))
    await state.ask(state.on_topics.update, encode_topic_update(TopicConfig("Orders", 8, 8)))
    assert state.topics.get("Orders") == TopicConfig("Orders", 8, 8, attributes={"message.type": "FIFO"})
    await state.ask(state.on_topics.update, encode_topic_update(TopicConfig("Orders", 8, 8), {"message.type": None}))
    assert state.topics.get("Orders") == TopicConfig("Orders", 8, 8)


@pytest.mark.parametrize(
    ("config", "changes", "code", "remark"),
    [
        (TopicConfig(""), {}, ResponseCode.INVALID_PARAMETER, "The specified topic is blank."),
        (
            TopicConfig("a.b"),
            {},
            ResponseCode.INVALID_PARAMETER,
            "The specified topic: a.b, contains illegal characters, allowing only",
        ),
        (TopicConfig("x" * 128), {}, ResponseCode.INVALID_PARAMETER, "is longer than topic max length: 127"),
        (TopicConfig("TBW102"), {}, ResponseCode.INVALID_PARAMETER, "The topic[TBW102] is conflict with system topic."),
        (TopicConfig(BROKER), {}, ResponseCode.INVALID_PARAMETER, "The topic[broker-a] is conflict with system topic."),
        (ORDERS, {"message.type": "MIXED"}, ResponseCode.INVALID_PARAMETER, "MIXED message type is not supported."),
        (TopicConfig("Orders", -1), {}, ResponseCode.INVALID_PARAMETER, "queue count"),
        (TopicConfig("Orders", 1, 1 << 20), {}, ResponseCode.INVALID_PARAMETER, "queue count"),
        (
            TopicConfig("Orders", permission=8),
            {},
            ResponseCode.INVALID_PARAMETER,
            "perm=8 is out of range (expected 0 to 7)",
        ),
        (ORDERS, {"colour": "red"}, ResponseCode.SYSTEM_ERROR, "unsupported key: colour"),
        (
            ORDERS,
            {"message.type": None},
            ResponseCode.SYSTEM_ERROR,
            "only add attribute is supported while creating topic. key: message.type",
        ),
        (ORDERS, {"message.type": "ODD"}, ResponseCode.SYSTEM_ERROR, "value is not in set: ["),
        (
            ORDERS,
            {"cleanup.policy": "COMPACTION"},
            ResponseCode.SYSTEM_ERROR,
            "cleanup.policy=COMPACTION is not supported by this broker",
        ),
        (ORDERS, {"reserve.time": "1"}, ResponseCode.SYSTEM_ERROR, "Update topic reserveTime not supported"),
        (
            TopicConfig("Orders", filter_type="ODD"),
            {},
            ResponseCode.SYSTEM_ERROR,
            "topicFilterType = [ODD] value invalid",
        ),
    ],
)
async def test_invalid_topics_are_refused_with_apaches_texts(
    state: State, config: TopicConfig, changes: dict[str, str | None], code: int, remark: str
) -> None:
    response = await state.ask(state.on_topics.update, encode_topic_update(config, changes))
    assert response.code == code
    assert response.remark is not None
    assert remark in response.remark
    assert state.topics.version.counter == 0


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"queue.type": "SimpleCQ"}, "attempt to update an unchangeable attribute. key: queue.type"),
        ({"message.type": None}, "attempt to delete a nonexistent key: message.type"),
    ],
)
async def test_some_attributes_of_an_existing_topic_cannot_change(
    state: State, changes: dict[str, str | None], remark: str
) -> None:
    state.topics.put(ORDERS)
    response = await state.ask(state.on_topics.update, encode_topic_update(ORDERS, changes))
    assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, remark)


async def test_several_topics_are_created_together_also_if_some_exist(state: State) -> None:
    state.topics.put(TopicConfig("Old", 4, 4))
    response = await state.ask(
        state.on_topics.update_many,
        many(
            {"topicName": "Old", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6},
            {"topicName": "New", "perm": 6, "attributes": {"+message.type": "DELAY"}},
        ),
    )
    assert response.code == ResponseCode.SUCCESS
    assert state.announced == [TopicConfig("New", attributes={"message.type": "DELAY"})]


@pytest.mark.parametrize("bad", [{"topicName": "TBW102"}, {"topicName": "B", "attributes": {"message.type": "X"}}])
async def test_of_several_topics_none_is_created_if_one_is_invalid(state: State, bad: dict[str, Any]) -> None:
    response = await state.ask(state.on_topics.update_many, many({"topicName": "A"}, bad))
    assert response.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER)
    assert state.topics.get("A") is None


async def test_a_deleted_topic_leaves_nothing_behind(state: State) -> None:
    for name in ("Orders", "%RETRY%readers_Orders", "%RETRY%readers+Orders", "Other"):
        state.topics.put(TopicConfig(name, 1, 1))
        state.write(name)
        state.offsets.commit("readers", name, 0, 1)
    response = await state.ask(state.on_topics.delete, encode_topic_deletion("Orders"))
    assert response.code == ResponseCode.SUCCESS
    assert state.store.topics() == {"Other"}
    assert state.offsets.topics_of("readers") == ["Other"]
    assert state.topics.get("%RETRY%readers_Orders") is None
    assert "Orders" not in json.loads((state.folder / "config/topics.json").read_bytes())["topicConfigTable"]
    assert "Orders@readers" not in (state.folder / "config/consumerOffset.json").read_text()


async def test_a_deleted_topic_takes_no_retry_topic_of_another_group_along(state: State) -> None:
    """The retry topic of group `readers_Orders` has the name of the POP retry topic of `readers` for this topic."""
    for name, group in (("Orders", "readers"), ("%RETRY%readers_Orders", "readers_Orders")):
        state.topics.put(TopicConfig(name, 1, 1))
        state.write(name)
        state.offsets.commit(group, name, 0, 1)
    assert (await state.ask(state.on_topics.delete, encode_topic_deletion("Orders"))).code == ResponseCode.SUCCESS
    assert state.store.topics() == {"%RETRY%readers_Orders"}


async def test_a_topic_is_not_created_again_before_its_queues_are_removed(state: State) -> None:
    state.topics.put(ORDERS)
    state.write("Orders")
    answer = state.on_topics.delete(encode_topic_deletion("Orders"), state.peer)
    with pytest.raises(RefusedError, match="being deleted"):
        state.topics.put(ORDERS)
    assert isinstance(answer, OrderedResponse)
    await answer.work
    assert state.topics.put(ORDERS)
    assert state.store.topics() == set()


async def test_two_requests_can_delete_one_topic(state: State) -> None:
    state.topics.put(ORDERS)
    for queue_id in range(4):
        state.write("Orders", queue_id)
    first, second = state.store.remove_topic("Orders"), state.store.remove_topic("Orders")
    for steps in zip_longest(first, second):
        assert len(steps) == 2
    assert state.store.topics() == set()


@pytest.mark.parametrize(("topic", "remark"), [(" ", "The specified topic is blank."), ("TBW102", "conflict with")])
async def test_blank_names_and_system_topics_cannot_be_deleted(state: State, topic: str, remark: str) -> None:
    response = await state.ask(state.on_topics.delete, encode_topic_deletion(topic))
    assert response.code == ResponseCode.INVALID_PARAMETER
    assert remark in (response.remark or "")


@pytest.mark.parametrize("outside", ["../beside", "..", ".", "/", "a/../../beside", "beside\0", "\ud800"])
async def test_no_topic_name_reaches_a_folder_outside_the_queues(state: State, outside: str) -> None:
    beside = state.folder / "beside"
    beside.mkdir()
    for name in (outside, str(beside)):
        response = await state.ask(state.on_topics.delete, Request(215, {"topic": name}))
        assert response.code == ResponseCode.INVALID_PARAMETER
        assert "contains illegal characters" in (response.remark or "")
    assert beside.is_dir()


async def test_deleting_a_missing_topic_succeeds(state: State) -> None:
    assert (await state.ask(state.on_topics.delete, encode_topic_deletion("Unknown"))).code == ResponseCode.SUCCESS


async def test_system_topics_can_be_changed_if_the_settings_allow_it(state: State) -> None:
    state.config = settings(protect_system_topics=False)
    response = await state.ask(state.on_topics.update, encode_topic_update(TopicConfig("TBW102", 2, 2, 7)))
    assert response.code == ResponseCode.SUCCESS
    assert state.topics.get("TBW102") == TopicConfig("TBW102", 2, 2, 7)


# ------------------------------------------------------------------------------------------------------------ looking


async def test_all_topics_are_returned_whole_without_paging(state: State) -> None:
    response = await state.ask(state.on_topics.all, Request(RequestCode.GET_ALL_TOPIC_CONFIG))
    page = decode_topic_page(response)
    assert page.topics == dict(state.topics.all())
    assert page.total == len(page.topics)
    assert set(json.loads(response.body)) == {
        "dataVersion",
        "mappingDataVersion",
        "topicConfigTable",
        "topicQueueMappingDetailMap",
    }


async def test_pages_return_each_topic_once_and_restart_after_a_change(state: State) -> None:
    for number in range(PAGE_MAX + 10):
        state.topics.put(TopicConfig(f"T{number:05}"))
    first = decode_topic_page(await state.ask(state.on_topics.all, encode_topic_page_query()))
    assert (len(first.topics), first.total) == (PAGE_MAX, len(state.topics.all()))
    second = decode_topic_page(
        await state.ask(state.on_topics.all, encode_topic_page_query(len(first.topics), first.version))
    )
    assert first.topics | second.topics == dict(state.topics.all())
    assert not first.topics.keys() & second.topics.keys()
    state.topics.put(TopicConfig("A"))
    again = decode_topic_page(
        await state.ask(state.on_topics.all, encode_topic_page_query(len(first.topics), first.version))
    )
    assert again.topics.keys() == first.topics.keys()  # from the first page again
    assert again.version != first.version
    beyond = decode_topic_page(await state.ask(state.on_topics.all, encode_topic_page_query(10_000, again.version)))
    assert beyond.topics == {}


@pytest.mark.parametrize("text", ["x", "[]", '{"counter":"x"}'])
async def test_an_invalid_data_version_is_refused(state: State, text: str) -> None:
    request = Request(RequestCode.GET_ALL_TOPIC_CONFIG, {"topicSeq": "0", "dataVersion": text})
    assert (await state.ask(state.on_topics.all, request)).code == ResponseCode.SYSTEM_ERROR


async def test_the_settings_of_one_topic_are_returned(state: State) -> None:
    state.topics.put(ORDERS)
    response = await state.ask(state.on_topics.get, encode_topic_config_query("Orders"))
    assert decode_topic_config(response.body) == ORDERS
    response = await state.ask(state.on_topics.get, encode_topic_config_query("Unknown"))
    assert (response.code, response.remark) == (ResponseCode.TOPIC_NOT_EXIST, "No topic in this broker. topic: Unknown")


async def test_topic_status_covers_read_and_write_queues(state: State) -> None:
    state.topics.put(TopicConfig("Orders", 1, 2))
    state.write("Orders", 0, 3)
    at_ms = state.now_ms() - 1000
    state.stats.stored("Orders", 3, 100)
    response = await state.ask(state.on_topics.status, encode_topic_stats_query("Orders"))
    stats = decode_topic_stats(response.body)
    assert stats.queues == {
        QueueRef("Orders", BROKER, 0): QueueSpan(0, 3, at_ms),
        QueueRef("Orders", BROKER, 1): QueueSpan(0, 0, 0),
    }
    response = await state.ask(state.on_topics.status, encode_topic_stats_query("Unknown"))
    assert (response.code, response.remark) == (ResponseCode.TOPIC_NOT_EXIST, "topic[Unknown] not exist")


async def test_the_groups_of_a_topic_are_returned_even_if_they_are_offline(state: State) -> None:
    state.offsets.commit("b", "Orders", 0, 1)
    state.offsets.commit("a", "Orders", 0, 1)
    response = await state.ask(state.on_topics.consuming_groups, encode_topic_readers_query("Orders"))
    assert decode_topic_readers(response.body) == ["a", "b"]


async def test_system_topics_are_returned(state: State) -> None:
    response = await state.ask(state.on_topics.system_topics, Request(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER))
    assert {"TBW102", BROKER, "rmq_sys_wheel_timer"} <= set(decode_topic_list(response.body))


# ----------------------------------------------------------------------------------------------------------- cleaning


async def test_queues_of_deleted_topics_are_removed(state: State) -> None:
    state.topics.put(ORDERS)
    for topic in ("Orders", "Gone", "rmq_sys_x", "%LMQ%x"):
        state.write(topic)
    response = await state.ask(state.on_topics.clean_unused_topics, Request(RequestCode.CLEAN_UNUSED_TOPIC))
    assert response.code == ResponseCode.SUCCESS
    assert state.store.topics() == {"Orders", "rmq_sys_x", "%LMQ%x"}


async def test_cleaning_keeps_a_topic_that_is_created_during_it(state: State) -> None:
    for topic in ("Gone", "Orders"):
        state.write(topic)

    def create() -> None:
        if state.topics.get("Orders") is None:
            state.topics.put(ORDERS)
            state.write("Orders")

    state.step_runner.on_step = create
    response = await state.ask(state.on_topics.clean_unused_topics, Request(RequestCode.CLEAN_UNUSED_TOPIC))
    assert response.code == ResponseCode.SUCCESS
    assert (state.store.topics(), state.store.max_offset("Orders", 0)) == ({"Orders"}, 2)


async def test_cleaning_removes_no_queue_with_messages_in_the_log(state: State) -> None:
    state.write("Orders", count=3)
    response = await state.ask(state.on_topics.clean_expired_queues, Request(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE))
    assert response.code == ResponseCode.SUCCESS
    assert (state.store.min_offset("Orders", 0), state.store.max_offset("Orders", 0)) == (0, 3)
