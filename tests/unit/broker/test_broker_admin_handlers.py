"""Requests of operators about the broker, with all its components and without sockets."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from skyroute.broker.components import Components
from skyroute.broker.config import BrokerConfig
from skyroute.broker.handlers.broker_admin import BrokerAdminHandlers
from skyroute.broker.identity import Identity
from skyroute.remoting.dispatch import Answer, OrderedResponse, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.settings.errors import StartOnlyError
from skyroute.wire.calls.settings import (
    decode_broker_state,
    decode_broker_stats,
    decode_settings,
    encode_broker_settings_query,
    encode_broker_settings_update,
    encode_broker_state_query,
    encode_broker_stats_query,
    encode_expired_log_deletion,
)
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response
from tests.support.clock import ManualClock
from tests.support.disks import HERE, draft

PEER = Peer(1, "10.0.0.1:4000")


class Room:
    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.config = BrokerConfig(
            store_path=str(folder),
            settings_file=str(folder / "broker.properties"),
            broker_name="broker-a",
            commit_log_file_bytes=1 << 20,
            index_slots=16,
            index_entries=64,
        )
        identity = Identity("DefaultCluster", "broker-a", 0, "127.0.0.1:10911", HERE)
        self.components = Components(self.config, identity, self.clock, lambda _connection: None)
        self.components.load()
        self.on = BrokerAdminHandlers(self.components)

    def state(self) -> dict[str, str]:
        return decode_broker_state(whole(self.on.runtime_info(encode_broker_state_query(), PEER)).body)


def whole(answer: Answer) -> Response:
    assert isinstance(answer, Response)
    return answer


async def update(room: Room, request: Request) -> Response:
    answer = room.on.update_settings(request, PEER)
    assert isinstance(answer, OrderedResponse)
    return await answer.work


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    room = Room(tmp_path)
    yield room
    await room.components.kill()


def test_settings_are_returned_with_their_data_version(room: Room) -> None:
    answer = room.on.settings(encode_broker_settings_query(), PEER)
    assert decode_settings(answer.body)["brokerName"] == "broker-a"
    assert answer.fields is not None
    assert re.fullmatch(r'\{"counter":0,"stateVersion":0,"timestamp":\d+\}', answer.fields["version"])


async def test_changed_settings_are_saved(room: Room) -> None:
    await update(room, encode_broker_settings_update({"transactionCheckMax": "3"}))
    assert room.config.transaction_checks_max == 3
    assert "transactionCheckMax=3" in room.config.settings_path.read_text()
    answer = room.on.settings(encode_broker_settings_query(), PEER)
    assert answer.fields is not None
    assert '"counter":1' in answer.fields["version"]


def test_secrets_are_masked(room: Room) -> None:
    room.config.extras |= {
        "innerClientAuthenticationCredentials": "geheim",
        "initAuthenticationUser": "geheim",
        "x": "y",
    }
    room.config.inert["metricsGrpcExporterHeader"] = "Authorization:geheim"
    told = decode_settings(room.on.settings(encode_broker_settings_query(), PEER).body)
    assert "geheim" not in told.values()
    assert [told[key] for key in ("innerClientAuthenticationCredentials", "initAuthenticationUser", "x")] == [
        "******"
    ] * 3
    assert told["metricsGrpcExporterHeader"] == "******"
    assert told["socksProxyConfig"] == "{}"


async def test_a_changed_retention_time_applies_at_once(room: Room) -> None:
    before = room.components.store.settings
    await update(room, encode_broker_settings_update({"fileReservedTime": "1", "diskMaxUsedSpaceRatio": "50"}))
    assert room.components.store.settings == replace(before, reserved_ms=3_600_000, disk_used_max=0.5)


async def test_start_only_settings_are_refused(room: Room) -> None:
    with pytest.raises(StartOnlyError, match="flushDiskType=SYNC_FLUSH is refused, it stays ASYNC_FLUSH"):
        await update(room, encode_broker_settings_update({"flushDiskType": "SYNC_FLUSH"}))
    assert not room.config.settings_path.exists()


async def test_a_changed_broker_permission_changes_the_data_version_of_topics(room: Room) -> None:
    before = room.components.topics.version
    await update(room, encode_broker_settings_update({"brokerPermission": "4"}))
    assert room.config.broker_permission == 4
    assert room.components.topics.version.counter == before.counter + 1


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"configBlackList=x\n", ResponseCode.NO_PERMISSION),
        (b"\xff\xfe", ResponseCode.SYSTEM_ERROR),
        (b"a=\\u00zz\n", ResponseCode.SYSTEM_ERROR),
    ],
)
async def test_invalid_settings_updates_are_refused(room: Room, body: bytes, code: int) -> None:
    with pytest.raises(RefusedError) as refused:
        await update(room, Request(25, body=body))
    assert refused.value.code == code


def test_runtime_info_has_the_keys_of_apaches_tools(room: Room) -> None:
    room.clock.advance(10)
    for _ in range(20):
        room.components.appender.put_plain(draft("T", 0, b"x" * 100))
    room.components.stats.fetched("g", "T", 10, 1000)
    room.clock.advance(90_061)
    state = room.state()
    assert state["brokerVersionDesc"] == "V5_3_3"
    assert state["brokerActive"] == "true"
    assert state["runtime"] == "[ 1 days, 1 hours, 1 minutes, 11 seconds ]"
    for key in ("putTps", "getTransferredTps", "getTotalTps", "getFoundTps", "getMissTps"):
        assert len([float(rate) for rate in state[key].split(" ")]) == 3
    for key in (
        *("earliestMessageTimeStamp", "commitLogMinOffset", "commitLogMaxOffset", "bootTimestamp"),
        *("sendThreadPoolQueueSize", "pullThreadPoolQueueSize", "ackThreadPoolQueueSize"),
        *("sendThreadPoolQueueHeadWaitTimeMills", "pageCacheLockTimeMills", "dispatchBehindBytes"),
        *("timerReadBehind", "timerOffsetBehind", "timerCongestNum"),
        *("msgPutTotalYesterdayMorning", "msgPutTotalTodayMorning", "msgGetTotalTodayNow"),
    ):
        assert int(state[key]) >= 0
    for key in ("commitLogDiskRatio", "consumeQueueDiskRatio"):
        assert 0 <= float(state[key]) <= 1
    assert (state["msgPutTotalTodayNow"], state["msgGetTotalTodayNow"]) == ("20", "10")
    assert int(state["earliestMessageTimeStamp"]) == int(state["bootTimestamp"]) + 10_000
    assert state["remainHowManyDataToFlush"].endswith("KiB")
    assert re.fullmatch(r"Total : [\d.]+ \w+, Free : [\d.]+ \w+\.", state["commitLogDirCapacity"])


def test_runtime_info_shows_delayed_messages(room: Room) -> None:
    for _ in range(2):
        room.components.appender.put(draft("T", 0, b"x", {"DELAY": "2"}))
        room.clock.advance(3)
    room.components.delays.deliver_due(int(room.clock.wall() * 1000))
    assert room.state()["scheduleMessageOffset_2"] == "1,2"


def test_statistics_have_the_names_of_apaches_broker(room: Room) -> None:
    stats = room.components.stats
    stats.stored("T", 2, 200)
    stats.fetched("g", "T", 1, 100)
    stats.sent_back("g", "T")
    for name, key, count in (
        ("TOPIC_PUT_NUMS", "T", 2),
        ("TOPIC_PUT_SIZE", "T", 200),
        ("GROUP_GET_NUMS", "T@g", 1),
        ("GROUP_GET_SIZE", "T@g", 100),
        ("SNDBCK_PUT_NUMS", "T@g", 1),
        ("BROKER_PUT_NUMS", "DefaultCluster", 2),
        ("BROKER_GET_NUMS", "DefaultCluster", 1),
    ):
        answer = room.on.stats(encode_broker_stats_query(name, key), PEER)
        assert decode_broker_stats(answer.body).minute.sum == count, name


@pytest.mark.parametrize(
    ("name", "key"), [("TOPIC_PUT_NUMS", "U"), ("GROUP_GET_NUMS", "T"), ("BROKER_PUT_NUMS", "x"), ("NOTHING", "T")]
)
def test_unknown_statistics_are_refused(room: Room, name: str, key: str) -> None:
    with pytest.raises(RefusedError, match=f"The stats <{name}> <{key}> not exist"):
        room.on.stats(encode_broker_stats_query(name, key), PEER)


def test_an_operator_deletes_expired_messages(room: Room) -> None:
    for _ in range(20):
        room.components.appender.put_plain(draft("T", 0, b"x" * 100_000))
    room.clock.advance(100 * 3600)
    room.on.delete_expired(encode_expired_log_deletion(), PEER)
    assert room.components.store.min_position > 0
