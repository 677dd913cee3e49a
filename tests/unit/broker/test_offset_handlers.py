from dataclasses import replace

import pytest

from skyroute.message.queue_ref import QueueRef
from skyroute.wire import fastjson
from skyroute.wire.calls.offsets import (
    decode_offset,
    decode_timestamp,
    encode_earliest_time_query,
    encode_max_offset_query,
    encode_min_offset_query,
    encode_offset_query,
    encode_offset_update,
    encode_time_search,
)
from skyroute.wire.calls.progress import CloneOrder, encode_clone_order
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request, Response
from tests.unit.broker.clients import a_beat, a_consumer
from tests.unit.broker.state import BROKER, State

QUEUE = QueueRef("Orders", BROKER, 0)


@pytest.fixture(autouse=True)
def orders(state: State) -> None:
    state.topics.put(TopicConfig("Orders", 2, 2))
    state.groups.find("g")


def corrections(response: Response) -> dict[str, int]:
    offsets: dict[str, int] = fastjson.loads(response.body)["correctionOffsets"]
    return offsets


async def test_corrections_are_the_least_offset_of_all_groups_unless_the_compared_group_is_behind(state: State) -> None:
    for group, *offsets in (("g", 5, 5), ("ahead", 7, 9), ("behind", 8, 3), ("left out", 1, 1)):
        for queue_id, offset in enumerate(offsets):
            state.offsets.commit(group, "Orders", queue_id, offset)
    state.offsets.commit("g", "Other", 0, 0)

    async def ask(group: str, left_out: str) -> Response:
        fields = {"topic": "Orders", "compareGroup": group, "filterGroups": left_out}
        return await state.ask(state.on_offsets.corrections, Request(308, fields))

    response = await ask("behind", "left out,nobody")
    assert (response.code, response.body) == (ResponseCode.SUCCESS, b'{"correctionOffsets":{0:5,1:3}}')
    assert corrections(await ask("behind", "")) == {"0": 1, "1": 1}
    assert corrections(await ask("g", "left out,g")) == {"0": (1 << 63) - 1, "1": 3}
    assert corrections(await ask("g", "g,ahead,behind,left out")) == {}
    response = await state.ask(state.on_offsets.corrections, Request(308, {"topic": "Orders"}))
    assert (response.code, response.remark) == (ResponseCode.SYSTEM_ERROR, "compareGroup is required")


async def test_offsets_of_deleted_messages_are_no_corrections(state: State) -> None:
    state.offsets.commit("g", "Orders", 0, 5)
    state.offsets.commit("gone", "Orders", 0, -1)
    fields = {"topic": "Orders", "compareGroup": "g"}
    assert corrections(await state.ask(state.on_offsets.corrections, Request(308, fields))) == {"0": 5}


# ------------------------------------------------------------------------------------------- where a group goes on (14)


async def test_a_committed_offset_is_returned(state: State) -> None:
    assert (await state.ask(state.on_offsets.update, encode_offset_update("g", QUEUE, 7))).code == ResponseCode.SUCCESS
    response = await state.ask(state.on_offsets.query, encode_offset_query("g", QUEUE))
    assert (response.code, decode_offset(response)) == (ResponseCode.SUCCESS, 7)


async def test_a_new_group_starts_at_the_first_message_if_it_is_in_memory(state: State) -> None:
    state.write("Orders")
    response = await state.ask(state.on_offsets.query, encode_offset_query("g", QUEUE))
    assert (response.code, decode_offset(response)) == (ResponseCode.SUCCESS, 0)


async def test_a_missing_offset_is_reported_if_the_request_wants_no_zero(state: State) -> None:
    state.write("Orders")
    response = await state.ask(state.on_offsets.query, encode_offset_query("g", QUEUE, zero_if_not_found=False))
    assert (response.code, response.remark) == (
        ResponseCode.QUERY_NOT_FOUND,
        "Not found, do not set to zero, maybe this group boot first",
    )


async def test_a_new_group_of_an_empty_queue_starts_at_its_first_message(state: State) -> None:
    response = await state.ask(state.on_offsets.query, encode_offset_query("g", QUEUE, zero_if_not_found=True))
    assert (response.code, decode_offset(response)) == (ResponseCode.SUCCESS, 0)
    state.write("Orders")
    state.write("Other", count=10)
    handlers = replace(state.on_offsets, young_bytes=500)
    assert (await state.ask(handlers.query, encode_offset_query("g", QUEUE))).code == ResponseCode.QUERY_NOT_FOUND


@pytest.mark.parametrize("topic", ["Unknown", "%RETRY%g"])
async def test_a_new_group_has_no_offset_in_an_unknown_topic_and_in_its_empty_retry_topic(
    state: State, topic: str
) -> None:
    state.topics.put(TopicConfig("%RETRY%g"))
    query = encode_offset_query("g", QueueRef(topic, BROKER, 0), zero_if_not_found=True)
    response = await state.ask(state.on_offsets.query, query)
    assert (response.code, response.remark) == (
        22,
        "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
    )


async def test_a_new_group_has_no_offset_if_the_first_message_is_no_longer_in_memory(state: State) -> None:
    state.write("Orders")
    state.write("Other", count=10)
    handlers = replace(state.on_offsets, young_bytes=500)
    assert (await state.ask(handlers.query, encode_offset_query("g", QUEUE))).code == ResponseCode.QUERY_NOT_FOUND


async def test_a_reset_offset_overrides_commits_until_the_group_pulls(state: State) -> None:
    state.offsets.commit("g", "Orders", 0, 7)
    state.offsets.reset("g", "Orders", 0, 2)
    response = await state.ask(state.on_offsets.update, encode_offset_update("g", QUEUE, 8))
    assert (response.code, response.remark) == (ResponseCode.SUCCESS, "Offset has been previously reset")
    assert decode_offset(await state.ask(state.on_offsets.query, encode_offset_query("g", QUEUE))) == 2


async def test_a_commit_requires_an_existing_group_and_topic(state: State) -> None:
    response = await state.ask(state.on_offsets.update, encode_offset_update("unknown", QUEUE, 7))
    assert (response.code, response.remark) == (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "Group unknown not exist!")
    response = await state.ask(state.on_offsets.update, encode_offset_update("g", QueueRef("Unknown", BROKER, 0), 7))
    assert (response.code, response.remark) == (ResponseCode.TOPIC_NOT_EXIST, "Topic Unknown not exist!")


# ---------------------------------------------------------------------------------------------------------- of queues


async def test_the_offsets_and_times_of_a_queue_are_returned(state: State) -> None:
    began_ms = state.now_ms()
    state.write("Orders", count=3)
    on = state.on_offsets
    assert decode_offset(await state.ask(on.max_offset, encode_max_offset_query(QUEUE))) == 3
    assert decode_offset(await state.ask(on.min_offset, encode_min_offset_query(QUEUE))) == 0
    assert decode_offset(await state.ask(on.offset_at_time, encode_time_search(QUEUE, began_ms + 1))) == 1
    assert decode_offset(await state.ask(on.offset_at_time, encode_time_search(QUEUE, began_ms + 1, upper=True))) == 0
    assert decode_timestamp(await state.ask(on.earliest_time, encode_earliest_time_query(QUEUE))) == began_ms


async def test_an_empty_queue_has_zero_offsets_and_no_times(state: State) -> None:
    nowhere, on = QueueRef("Unknown", BROKER, 9), state.on_offsets
    assert decode_offset(await state.ask(on.max_offset, encode_max_offset_query(nowhere))) == 0
    assert decode_offset(await state.ask(on.min_offset, encode_min_offset_query(nowhere))) == 0
    assert decode_offset(await state.ask(on.offset_at_time, encode_time_search(nowhere, 1))) == 0
    assert decode_timestamp(await state.ask(on.earliest_time, encode_earliest_time_query(nowhere))) == -1


# ------------------------------------------------------------------------------------------------------ whole tables


async def test_offsets_are_copied_to_another_group(state: State) -> None:
    for topic in ("Orders", "Gone"):
        state.offsets.commit("g", topic, 0, 5)
    response = await state.ask(state.on_offsets.clone, encode_clone_order(CloneOrder("g", "h", None, offline=True)))
    assert response.code == ResponseCode.SUCCESS
    assert set(state.offsets.topics_of("h")) == {"Orders"}
    assert "Orders@h" in (state.folder / "config/consumerOffset.json").read_text()


async def test_unsubscribed_topics_are_not_copied_while_members_are_online(state: State) -> None:
    state.topics.put(TopicConfig("Old"))
    for topic in ("Orders", "Old"):
        state.offsets.commit("g", topic, 0, 5)
    state.clients.beat(state.peer, a_beat("c", a_consumer("g", "Orders")), "JAVA", 479, 0)
    await state.ask(state.on_offsets.clone, encode_clone_order(CloneOrder("g", "h", None, offline=False)))
    assert set(state.offsets.topics_of("h")) == {"Orders"}
    await state.ask(state.on_offsets.clone, encode_clone_order(CloneOrder("g", "h", "Old", offline=True)))
    assert set(state.offsets.topics_of("h")) == {"Orders", "Old"}


async def test_offsets_are_not_copied_to_an_invalid_group_name(state: State) -> None:
    state.offsets.commit("g", "Orders", 0, 5)
    response = await state.ask(state.on_offsets.clone, encode_clone_order(CloneOrder("g", "a@b", None, offline=True)))
    assert response.code == ResponseCode.INVALID_PARAMETER


async def test_offset_tables_are_returned_in_the_form_of_their_files(state: State) -> None:
    state.offsets.commit("g", "Orders", 0, 5)
    state.offsets.table_file.save_now()
    response = await state.ask(state.on_offsets.all, Request(RequestCode.GET_ALL_CONSUMER_OFFSET))
    assert response.body == (state.folder / "config/consumerOffset.json").read_bytes()
    response = await state.ask(state.on_offsets.all_delays, Request(RequestCode.GET_ALL_DELAY_OFFSET))
    assert response.body == b'{"offsetTable":{1:5}}'


@pytest.mark.parametrize("fields", [{}, *({"topic": "Orders", "queueId": text} for text in ("", "x", "2147483648"))])
async def test_an_offset_query_without_a_queue_is_refused(state: State, fields: dict[str, str]) -> None:
    response = await state.ask(state.on_offsets.max_offset, Request(RequestCode.GET_MAX_OFFSET, fields))
    assert response.code == ResponseCode.SYSTEM_ERROR
