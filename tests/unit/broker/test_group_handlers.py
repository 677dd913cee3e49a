import json
from typing import Any

import pytest

from skyroute.broker.handlers.groups import CHECKED_A_STEP
from skyroute.remoting.dispatch import Peer
from skyroute.wire.calls.groups import (
    GROUP_BYTES_MAX,
    POLICY_BYTES_MAX,
    GroupConfig,
    decode_group_config,
    decode_group_page,
    decode_group_updates,
    encode_group_config_query,
    encode_group_deletion,
    encode_group_page_query,
    encode_group_update,
)
from skyroute.wire.calls.topics import PAGE_MAX, TopicConfig, decode_topic_list
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request
from tests.unit.broker.state import State, settings


def stored(state: State) -> Any:
    return json.loads((state.folder / "config/subscriptionGroup.json").read_bytes())


def permit(readable: str | None = None) -> Request:
    fields = {"group": "g", "topic": "T"} | ({} if readable is None else {"readable": readable})
    return Request(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, fields)


def mode(**changes: Any) -> Request:
    body = {"topic": "T", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 2, **changes}
    return Request(RequestCode.SET_MESSAGE_REQUEST_MODE, body=json.dumps(body).encode())


async def test_a_created_group_is_saved_before_the_response(state: State) -> None:
    response = await state.ask(state.on_groups.update, encode_group_update(GroupConfig("g", retry_times_max=3)))
    assert response.code == ResponseCode.SUCCESS
    assert stored(state)["subscriptionGroupTable"]["g"]["retryMaxTimes"] == 3
    assert state.groups.get("g") == GroupConfig("g", retry_times_max=3)


@pytest.mark.parametrize(
    ("request_", "code", "remark"),
    [
        (encode_group_update(GroupConfig("")), ResponseCode.INVALID_PARAMETER, "The specified group is blank."),
        (Request(200, body=b"{}"), ResponseCode.INVALID_PARAMETER, "The specified group is blank."),
        (encode_group_update(GroupConfig("a b")), ResponseCode.INVALID_PARAMETER, "contains illegal characters"),
        (
            encode_group_update(GroupConfig("x" * 121)),
            ResponseCode.INVALID_PARAMETER,
            "is longer than group max length: 120",
        ),
        (
            encode_group_update(GroupConfig("g", retry_queues=2**31 - 1)),
            ResponseCode.INVALID_PARAMETER,
            "retryQueueNums=2147483647 (expected",
        ),
        (
            encode_group_update(GroupConfig("g"), {"colour": "red"}),
            ResponseCode.SYSTEM_ERROR,
            "unsupported key: colour",
        ),
        (
            encode_group_update(GroupConfig("g", retry_policy={"ratio": 0.5})),
            ResponseCode.SYSTEM_ERROR,
            "no JSON form",
        ),
        (
            encode_group_update(GroupConfig("g", retry_policy={"next": [1] * POLICY_BYTES_MAX})),
            ResponseCode.SYSTEM_ERROR,
            "groupRetryPolicy has",
        ),
        (
            encode_group_update(GroupConfig("g"), {"x" * GROUP_BYTES_MAX: "red"}),
            ResponseCode.SYSTEM_ERROR,
            f"expected at most {GROUP_BYTES_MAX}",
        ),
        (
            Request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b"{"),
            ResponseCode.SYSTEM_ERROR,
            "a group's settings",
        ),
    ],
)
async def test_invalid_groups_are_refused(state: State, request_: Request, code: int, remark: str) -> None:
    response = await state.ask(state.on_groups.update, request_)
    assert response.code == code
    assert remark in (response.remark or "")
    assert state.groups.version.counter == 0


def test_a_list_of_groups_is_checked_in_steps(state: State) -> None:
    body = {"groupConfigList": [{"groupName": f"g{number}"} for number in range(4 * CHECKED_A_STEP)]}
    request = Request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=json.dumps(body).encode())
    peer = Peer(1, "10.0.0.1:1")
    steps = state.on_groups._put_all(decode_group_updates(request.body), peer)
    assert len(list(steps)) == 4
    assert len(state.groups.all()) >= 4 * CHECKED_A_STEP


async def test_several_groups_are_created_together_or_not_at_all(state: State) -> None:
    def many(*names: str) -> Request:
        body = {"groupConfigList": [{"groupName": name} for name in names]}
        return Request(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body=json.dumps(body).encode())

    assert (
        await state.ask(state.on_groups.update_many, many("a", "not a name"))
    ).code == ResponseCode.INVALID_PARAMETER
    assert state.groups.get("a") is None
    assert (await state.ask(state.on_groups.update_many, many("a", "b"))).code == ResponseCode.SUCCESS
    assert {"a", "b"} <= stored(state)["subscriptionGroupTable"].keys()


@pytest.mark.parametrize("with_offsets", [True, False])
async def test_a_deleted_group_keeps_its_offsets_unless_the_request_deletes_them(
    state: State, with_offsets: bool
) -> None:
    state.groups.find("g")
    state.offsets.commit("g", "T", 0, 1)
    response = await state.ask(state.on_groups.delete, encode_group_deletion("g", with_offsets=with_offsets))
    assert response.code == ResponseCode.SUCCESS
    assert state.groups.get("g") is None
    assert state.offsets.get("g", "T", 0) == (None if with_offsets else 1)
    assert (
        await state.ask(state.on_groups.delete, encode_group_deletion("g", with_offsets=True))
    ).code == ResponseCode.SUCCESS


async def test_groups_are_returned_whole_and_in_pages(state: State) -> None:
    for number in range(PAGE_MAX):
        state.groups.find(f"g{number:05}")
    state.groups.set_forbidden("TOOLS_CONSUMER", "T", forbidden=True)
    state.groups.set_forbidden("zzz", "T", forbidden=True)
    whole = await state.ask(state.on_groups.all, Request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG))
    assert decode_group_page(whole).groups == dict(state.groups.all())
    response = await state.ask(state.on_groups.all, encode_group_page_query())
    first = decode_group_page(response)
    assert (len(first.groups), first.total) == (PAGE_MAX, len(state.groups.all()))
    assert json.loads(response.body)["forbiddenTable"] == {"TOOLS_CONSUMER": {"T": 4}}
    rest = decode_group_page(
        await state.ask(state.on_groups.all, encode_group_page_query(len(first.groups), first.version))
    )
    assert first.groups | rest.groups == dict(state.groups.all())


async def test_getting_a_group_creates_it_where_that_is_allowed(state: State) -> None:
    response = await state.ask(state.on_groups.get, encode_group_config_query("g"))
    assert decode_group_config(response.body) == GroupConfig("g")
    state.config = settings(auto_create_groups=False)
    strict = State(state.folder / "strict", state.config)
    response = await strict.ask(strict.on_groups.get, encode_group_config_query("g"))
    strict.close()
    assert (response.code, response.remark) == (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "No group in this broker")


async def test_the_read_permission_of_a_group_is_set_and_returned(state: State) -> None:
    answers = [
        json.loads((await state.ask(state.on_groups.set_read_permission, permit(readable))).body)
        for readable in (None, "false", None, "true", None)
    ]
    assert [answer["readable"] for answer in answers] == [True, False, False, True, True]
    assert answers[0] == {"group": "g", "topic": "T", "readable": True}


async def test_the_topics_of_a_group_are_returned_with_the_brokers_address(state: State) -> None:
    state.offsets.commit("g", "B", 0, 1)
    state.offsets.commit("g", "A", 0, 1)
    response = await state.ask(state.on_groups.topics_of, Request(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "g"}))
    assert sorted(decode_topic_list(response.body)) == ["A", "B"]
    assert json.loads(response.body)["brokerAddr"] == "127.0.0.1:10911"


async def test_request_modes_are_saved_and_returned(state: State) -> None:
    state.topics.put(TopicConfig("T"))
    assert (await state.ask(state.on_groups.set_request_mode, mode())).code == ResponseCode.SUCCESS
    response = await state.ask(state.on_groups.all_request_modes, Request(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE))
    kept = {"topic": "T", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 2}
    assert json.loads(response.body) == {"messageRequestModeMap": {"T": {"g": kept}}}
    assert (state.folder / "config/messageRequestMode.json").read_bytes() == response.body
    state.modes.load()
    assert state.modes.all()["T", "g"].mode == "POP"


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"topic": "%RETRY%g"}, ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode"),
        ({"topic": "Unknown"}, ResponseCode.TOPIC_NOT_EXIST, "topic[Unknown] not exist"),
        ({"consumerGroup": "a b"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist"),
        ({"mode": "PUSH"}, ResponseCode.SYSTEM_ERROR, "not a request mode"),
    ],
)
async def test_a_request_mode_requires_an_existing_topic_and_group(
    state: State, changes: dict[str, str], code: int, remark: str
) -> None:
    state.topics.put(TopicConfig("T"))
    response = await state.ask(state.on_groups.set_request_mode, mode(**changes))
    assert response.code == code
    assert remark in (response.remark or "")
