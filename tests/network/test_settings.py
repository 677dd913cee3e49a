"""Settings asked and changed from afar, and what each flag does the moment it is set."""

from __future__ import annotations

from pathlib import Path

import pytest

from skyroute.wire.codes import ResponseCode
from tests.network.cluster import MASTER, NEWER, SLAVE, addresses, permissions, register, route, topics
from tests.support.connections import AsyncConnection, connection_to
from tests.support.raw import Command, Topic
from tests.support.servers import Running, running


async def settings(line: AsyncConnection) -> dict[str, str]:
    return dict(entry.split("=", 1) for entry in (await line.call(319)).text.splitlines())


async def update(line: AsyncConnection, text: str) -> Command:
    return await line.call(318, body=text.encode())


# Asking and changing


async def test_the_port_chosen_by_the_system_is_in_the_settings(nameserver: Running, line: AsyncConnection) -> None:
    assert (await settings(line))["listenPort"] == nameserver.address.rpartition(":")[2]


async def test_an_update_is_seen_at_once_and_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as here, connection_to(here.address) as line:
        assert (await update(line, "enableTopicList=false\nmassExpiryPercent=77\n")).code == ResponseCode.SUCCESS
        now = await settings(line)
        assert (now["enableTopicList"], now["massExpiryPercent"]) == ("false", "77")
    written = (tmp_path / "namesrv.properties").read_text()
    assert "enableTopicList=false" in written
    assert "massExpiryPercent=77" in written


@pytest.mark.parametrize(
    "key", ["configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome", "tls.server.mode", "listenPort"]
)
async def test_one_black_listed_key_spoils_the_update(tmp_path: Path, key: str) -> None:
    black_list = "listenPort; enableAllTopicList"
    async with running(tmp_path, config_black_list=black_list) as here, connection_to(here.address) as line:
        before = await settings(line)
        answer = await update(line, f"orderMessageEnable=true\n{key}=/tmp/elsewhere\n")
        assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        assert await settings(line) == before
    assert not (tmp_path / "namesrv.properties").exists()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("serverSocketBacklog=many", "serverSocketBacklog"),
        ("orderMessageEnable=yes", "orderMessageEnable"),
        ("enableControllerInNamesrv=true", "takes effect only at the start"),
        ("orderMessageEnable=\\u12", "string2Properties error"),
    ],
)
async def test_a_wrong_value_is_refused_by_name_and_nothing_is_applied(
    line: AsyncConnection, text: str, said: str
) -> None:
    before = await settings(line)
    answer = await update(line, f"enableTopicList=false\n{text}\n")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert said in (answer.remark or "")
    assert await settings(line) == before


async def test_bytes_that_are_no_text_are_refused(line: AsyncConnection) -> None:
    answer = await line.call(318, body=b"orderMessageEnable=\xff\xfe")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith("string2Properties error")


async def test_an_empty_or_unknown_update_changes_nothing(line: AsyncConnection) -> None:
    before = await settings(line)
    for text in ("", "# a comment\n", "favouriteColour=blue\n"):
        assert (await update(line, text)).code == ResponseCode.SUCCESS
    assert await settings(line) == before


# Each flag, the moment it is set


async def test_topic_lists_are_closed_and_opened_again(line: AsyncConnection) -> None:
    await register(line, MASTER)
    await update(line, "enableTopicList=false")
    refused = [await line.call(code, {"cluster": "DefaultCluster"}) for code in (224, 311, 312, 313)]
    assert [(answer.code, answer.remark) for answer in refused] == [(ResponseCode.SYSTEM_ERROR, "disable")] * 4
    assert await topics(line) == ["TopicA", "TopicB"]
    await update(line, "enableTopicList=true\nenableAllTopicList=false")
    answer = await line.call(206)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "disable")
    assert (await line.call(224, {"cluster": "DefaultCluster"})).value == {"topicList": ["TopicA", "TopicB"]}
    assert (await line.call(304)).code == ResponseCode.SUCCESS


async def test_order_config_appears_in_cached_routes(line: AsyncConnection) -> None:
    await register(line, MASTER)
    await line.call(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "TopicA", "value": "broker-a:4"})
    assert "orderTopicConf" not in (await route(line)).value
    await update(line, "orderMessageEnable=true")
    assert (await route(line)).value["orderTopicConf"] == "broker-a:4"
    await line.call(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "TopicA", "value": "broker-a:8"})
    assert (await route(line)).value["orderTopicConf"] == "broker-a:8"
    await line.call(102, {"namespace": "ORDER_TOPIC_CONFIG", "key": "TopicA"})
    assert "orderTopicConf" not in (await route(line)).value


async def test_order_config_in_the_answer_to_a_broker_can_be_turned_off(line: AsyncConnection) -> None:
    await line.call(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "TopicA", "value": "broker-a:4"})
    assert (await line.call(MASTER.request)).text == '{"table":{"TopicA":"broker-a:4"}}'
    await update(line, "returnOrderTopicConfigToBroker=false")
    assert (await line.call(MASTER.request)).text == ""


async def test_acting_masters_are_shown_as_soon_as_the_setting_is_on(line: AsyncConnection) -> None:
    await register(line, MASTER.but(acting=True), SLAVE.but(acting=True))
    await line.call(MASTER.unregistration)
    assert await addresses(line) == {"broker-a": {"1": "10.0.0.2:10911"}}
    await update(line, "supportActingMaster=true")
    assert await addresses(line) == {"broker-a": {"0": "10.0.0.2:10911"}}
    assert await permissions(line) == {"broker-a": 4}
    await update(line, "supportActingMaster=false")
    assert await addresses(line) == {"broker-a": {"1": "10.0.0.2:10911"}}


async def test_missing_topics_are_removed_once_the_setting_is_on(line: AsyncConnection) -> None:
    await register(line, MASTER)
    less = MASTER.but(topics=(Topic("TopicB"), Topic("TopicC")), data_version=NEWER)
    await register(line, less)
    assert await topics(line) == ["TopicA", "TopicB", "TopicC"]
    await update(line, "deleteTopicWithBrokerRegistration=true")
    await register(line, less)  # the very same bytes
    assert await topics(line) == ["TopicB", "TopicC"]


# Readiness


async def test_routes_are_not_told_before_brokers_had_time_to_register(tmp_path: Path) -> None:
    async with running(tmp_path, wait_for_brokers=True) as here, connection_to(here.address) as line:
        answer = await route(line)
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "name server not ready")
        await register(line, MASTER)
        assert (await line.call(106)).code == ResponseCode.SUCCESS
        here.clock.advance(44.9)
        assert (await route(line)).remark == "name server not ready"
        here.clock.advance(0.1)
        assert [(await route(line)).code for _ in range(3)] == [0, 0, 0]
        assert (await route(line, "Unknown")).code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("text", ["needWaitForService=true\n", "waitSecondsForService=2147483647\n", "listenPort=1\n"])
async def test_need_wait_for_service_cannot_be_set_by_a_request(
    nameserver: Running, line: AsyncConnection, text: str
) -> None:
    await register(line, MASTER)
    answer = await update(line, "orderMessageEnable=true\n" + text)
    key = text.partition("=")[0]
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith(f"{key}=")
    assert "takes effect only at the start" in (answer.remark or "")
    assert (await route(line)).code == ResponseCode.SUCCESS
    assert (await settings(line))["orderMessageEnable"] == "false"
