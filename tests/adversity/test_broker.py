"""A broker with hostile and failing clients, a wall clock set back, and a failing disk."""

import asyncio
import itertools
import logging
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from skyroute.broker.broker import Broker
from skyroute.broker.config import BrokerConfig
from skyroute.broker.handlers.pull import SUSPEND_MS_MAX
from skyroute.broker.request_handlers import request_handlers
from skyroute.files.errors import StorageError
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.network.broker.calls import SUBSCRIPTION, SUSPEND, batch_body, found_bodies, heartbeat, place, pull, send
from tests.network.broker.clusters import Cluster, cluster_in
from tests.support.clock import ManualClock
from tests.support.connections import AsyncConnection, connection_to
from tests.support.disks import FailingDisk, NoSyncDisk, bodies
from tests.support.raw import Command, Request, compact
from tests.support.waiting import eventually

SANE = {
    **{"topic": "T", "queueId": "0", "group": "g", "consumerGroup": "g", "producerGroup": "p", "clientID": "c"},
    **{"clientId": "c", "commitOffset": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "0", "offset": "0"},
    **{"suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*", "expressionType": "TAG", "timestamp": "0"},
    **{"a": "p", "b": "T", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "0", "h": "0", "i": "", "j": "0"},
    **{"k": "false", "l": "1", "m": "false", "n": "broker-a", "defaultTopic": "TBW102", "defaultTopicQueueNums": "1"},
    **{"bornTimestamp": "0", "flag": "0", "properties": "", "reconsumeTimes": "0", "maxReconsumeTimes": "1"},
    **{"batch": "false", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG"},
    **{"topicSysFlag": "0", "order": "false", "attributes": "", "key": "k", "maxNum": "1", "beginTimestamp": "0"},
    **{"endTimestamp": "1", "index": "0", "count": "1", "delayLevel": "0", "srcGroup": "g", "destGroup": "h"},
    **{"isForce": "true", "tranStateTableOffset": "0", "commitLogOffset": "0", "commitOrRollback": "8", "msgId": "0"},
    **{"fromTransactionCheck": "false", "recallHandle": "x", "readable": "true", "boundaryType": "LOWER"},
    **{"groupName": "g", "cleanOffset": "false", "statsName": "TOPIC_PUT_NUMS", "statsKey": "T", "topicList": "T"},
    **{"clientAddr": "", "jstackEnable": "false", "setZeroIfNotFound": "true", "isOffline": "false"},
}
BAD_VALUES = ["", "x", "-1", "2147483648", "-9223372036854775808", "9" * 30, "1.5", "\x01\x02", "x" * 5000, "é\u2028"]
GARBAGE = [
    b"\xff\xfe\x00",
    b"{",
    b"[]",
    b"null",
    b"7",
    b"[" * 5000,
    b'{"clientID":7,"consumerDataSet":{},"producerDataSet":"x","mqSet":[[]],"topicConfigList":7,"groupConfigList":{}}',
    b'{"clientID":"c","consumerDataSet":[{"groupName":null,"subscriptionDataSet":[{}]}],"mqSet":[{"queueId":1e400}]}',
    b"a=b\nlistenPort=nowhere\nflushDiskType\n=\n",
    bytes(70_000),
]
QUEUES = {"clientId": "c", "consumerGroup": "g", "mqSet": [{"brokerName": "broker-a", "queueId": 0, "topic": "T"}]}
CHECKED = {
    "clientId": "c",
    "group": "g",
    "subscriptionData": {"topic": "T", "subString": "a>", "expressionType": "SQL92"},
}
SANE_BODIES = {
    **dict.fromkeys((10, 310, 324, 325), b"body"),
    **{320: batch_body([(b"1", "")]), 34: heartbeat().body, 46: compact(CHECKED).encode()},
    **dict.fromkeys((41, 42), compact(QUEUES).encode()),
    **{200: b'{"groupName":"g"}', 225: b'{"groupConfigList":[{"groupName":"g"}]}', 25: b"maxMessageSize=4194304\n"},
    **{18: b'{"topicConfigList":[{"topicName":"T"}]}', 401: b'{"topic":"T","consumerGroup":"g","mode":"PULL"}'},
}
EXCEPTION = re.compile(r"^[A-Z]\w+(Error|Exception): ")


OUTCOMES = {
    ResponseCode.SUCCESS,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE,
    ResponseCode.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
}
"""Codes that need no reason."""


def is_documented(answer: Command) -> bool:
    """Whether a response has a known code and, if it is an error, a reason that is not an exception of ours."""
    if answer.code not in set(ResponseCode):
        return False
    if answer.code in OUTCOMES:
        return True
    return bool(answer.remark) and EXCEPTION.match(answer.remark or "") is None


@pytest.fixture(autouse=True)
def no_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """ERROR in the log means that we did wrong."""
    caplog.set_level(logging.WARNING)
    yield
    assert [record.getMessage() for record in caplog.get_records("call") if record.levelno >= logging.ERROR] == []


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_in(tmp_path) as cluster:
        await cluster.start(name_server_list="")
        await cluster.add_topic("T")
        yield cluster


def bad_requests(code: int) -> Iterator[Request]:
    """Everything that may be wrong with the fields of a request, and with its body."""
    body = SANE_BODIES.get(code, b"")
    yield Request(code)
    yield Request(code, SANE, body)
    for value in BAD_VALUES:
        numbers = ("queueId", "e", "queueOffset", "offset", "commitOffset", "sysFlag", "f", "timestamp", "maxMsgNums")
        yield Request(code, dict.fromkeys(SANE, value), body)
        yield Request(code, {**SANE, **dict.fromkeys(numbers, value)}, body)
    for name in SANE:
        yield Request(code, {other: value for other, value in SANE.items() if other != name}, body)
        yield Request(code, {**SANE, name: BAD_VALUES[len(name) % len(BAD_VALUES)]}, body)
    for body in GARBAGE:
        yield Request(code, SANE, body)
        yield Request(code, {}, body)


async def answers_to(cluster: Cluster, line: AsyncConnection, requests: list[Request]) -> list[Command]:
    """Return the responses to many requests sent at once; suspended pulls are given up."""
    sent = [await line.send(request) for request in requests]
    answers = asyncio.ensure_future(_answers(line, sent))
    while not answers.done():
        cluster.broker.components.long_polling.expire(cluster.clock.monotonic() + SUSPEND_MS_MAX)
        await asyncio.wait({answers}, timeout=0.002)
    return await answers


async def _answers(line: AsyncConnection, sent: list[int]) -> list[Command]:
    return [await line.answer(opaque) for opaque in sent]


SILENT = {RequestCode.END_TRANSACTION}
"""Requests without a response in some cases: the end of an unknown transaction has none."""


async def test_invalid_requests_of_every_code_leave_the_broker_working(cluster: Cluster) -> None:
    line = await cluster.line()
    for code in sorted(request_handlers(cluster.broker.components)):
        # The test does not respond to requests that the broker forwards to members.
        is_forwarded = code == RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        first = RequestCode.UNREGISTER_CLIENT if is_forwarded else heartbeat()
        await line.call(first, {"clientID": "10.0.0.1@1#2", "consumerGroup": "g"})
        requests = list(bad_requests(code))
        if code in SILENT:
            requests = [request for request in requests if request.fields.get("commitOrRollback") != "0"]
        for request, answer in zip(requests, await answers_to(cluster, line, requests), strict=True):
            assert is_documented(answer), (request, answer)
        cluster.broker.components.topics.put(cluster.broker.components.topics.all()["TBW102"])
        await cluster.add_topic("T")
    other = await cluster.line()
    assert (await other.call(send(body=b"alive"))).code == ResponseCode.SUCCESS
    assert cluster.stored()[-1] == b"alive"


async def test_unknown_codes_are_refused(cluster: Cluster) -> None:
    line = await cluster.line()
    known = request_handlers(cluster.broker.components)
    for code in (-1, 0, 9, 904, 3011, 200_070, 2**31 - 1):
        assert code not in known
        answer = await line.call(Request(code, SANE))
        assert (answer.code, answer.remark) == (
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f" request type {code} not supported",
        )


async def test_invalid_one_way_requests_get_no_response(cluster: Cluster) -> None:
    line = await cluster.line()
    for code in sorted(request_handlers(cluster.broker.components)):
        await line.send_oneway(Request(code))
        await line.send_oneway(Request(code, dict.fromkeys(SANE, "x"), b"{"))
    assert (await line.call(send())).code == ResponseCode.SUCCESS
    assert line.strays == []


# ----------------------------------------------------------------------------------------------------------- consumers


async def test_a_consumer_that_does_not_read_costs_its_own_answers_only(cluster: Cluster) -> None:
    sender = await cluster.line()
    for _ in range(3):
        assert (await sender.call(send(body=bytes(1 << 20)))).code == ResponseCode.SUCCESS
    slow = await cluster.line(receive_buffer_bytes=4096)
    slow.pause_reading()
    for _ in range(100):
        await slow.send(pull(count=3))
    (server,) = cluster.broker._servers
    await eventually(lambda: server._context.unsent.total > 0)
    quick = await cluster.line()
    for number in range(50):
        assert (await quick.call(send(body=b"%d" % number))).code == ResponseCode.SUCCESS
    held = sum(each._transport.get_write_buffer_size() for each in server._connections.values())
    assert held < 16 << 20
    slow.abort()
    await eventually(lambda: server._context.unsent.total == 0)


async def test_closed_connections_leave_no_suspended_pull_and_no_member(cluster: Cluster) -> None:
    components = cluster.broker.components
    for _ in range(3):
        lines = [await cluster.line() for _ in range(40)]
        for number, line in enumerate(lines):
            await line.send(heartbeat(f"g{number % 5}"))
            for _ in range(5):
                await line.send(pull(flag=SUSPEND | SUBSCRIPTION, group=f"g{number % 5}"))
        await eventually(lambda: len(components.long_polling) == 200)
        for line in lines:
            line.abort()
        await eventually(lambda: len(components.long_polling) == 0)
    await eventually(lambda: all(components.clients.consumers(f"g{number}") is None for number in range(5)))
    assert (
        components.long_polling._by_queue,
        components.long_polling._by_tick,
        components.long_polling._by_connection,
    ) == ({}, {}, {})
    line = await cluster.line()
    assert (await line.call(send())).code == ResponseCode.SUCCESS


async def test_connections_closed_during_a_delivery_do_not_delay_other_pulls(cluster: Cluster) -> None:
    stays = await cluster.line()
    waiting = await stays.send(pull(flag=SUSPEND | SUBSCRIPTION))
    lines = [await cluster.line() for _ in range(10)]
    for line in lines:
        await line.send(pull(flag=SUSPEND | SUBSCRIPTION))
    await eventually(lambda: len(cluster.broker.components.long_polling) == 11)
    sender = await cluster.line()
    await sender.send(send(body=b"news"))
    for line in lines:
        line.abort()
    assert found_bodies(await stays.answer(waiting)) == [b"news"]
    await eventually(lambda: len(cluster.broker.components.long_polling) == 0)


# --------------------------------------------------------------------------------------------------------------- clock


async def test_a_wall_clock_set_back_loses_no_message_and_no_timer(cluster: Cluster) -> None:
    line, clock = await cluster.line(), cluster.clock
    for number in range(3):
        assert (await line.call(send(body=b"%d" % number))).code == ResponseCode.SUCCESS
        assert (await line.call(send("Later", b"d%d" % number, properties={"DELAY": "1"}))).code == ResponseCode.SUCCESS
        timed = send("Later", b"t%d" % number, properties={"TIMER_DELAY_SEC": "3"})
        assert (await line.call(timed)).code == ResponseCode.SUCCESS
        clock.set_back(3600)
    answer = await line.call(pull())
    assert (found_bodies(answer), place(answer)) == ([b"0", b"1", b"2"], [3, 0, 3, 0])
    for at_ms in (0, int(clock.wall() * 1000), int((clock.wall() + 20_000) * 1000)):
        found = await line.call(
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"topic": "T", "queueId": "0", "timestamp": str(at_ms)}
        )
        assert 0 <= int(found.fields["offset"]) <= 3
    await cluster.stop()
    await cluster.start(name_server_list="")
    assert cluster.stored() == [b"0", b"1", b"2"]
    clock.advance(3 * 3600 + 60)
    await cluster.stop()
    await cluster.start(name_server_list="")
    expected = {b"%c%d" % (kind, number) for kind, number in itertools.product(b"dt", range(3))}
    # Twice is allowed: how far timers have come is one place, and a clock that went back leaves several.
    await eventually(lambda: set(cluster.stored("Later")) == expected)


async def test_suspended_pulls_use_the_monotonic_clock(cluster: Cluster) -> None:
    line = await cluster.line()
    waiting = await line.send(pull(flag=SUSPEND | SUBSCRIPTION, suspend_ms=2_000))
    await eventually(lambda: len(cluster.broker.components.long_polling) == 1)
    cluster.clock.set_back(100_000)
    cluster.clock.advance(3)
    cluster.broker.components.long_polling.expire(cluster.clock.monotonic())
    assert (await line.answer(waiting)).code == ResponseCode.PULL_NOT_FOUND


# ---------------------------------------------------------------------------------------------------------------- disk


def lonely(folder: Path, **settings: Any) -> BrokerConfig:
    """A broker without a name server, all of whose files are small."""
    values: dict[str, Any] = {
        **{"broker_name": "broker-a", "advertised_host": "127.0.0.1", "bind_address": "127.0.0.1", "listen_port": 0},
        **{"store_path": str(folder), "settings_file": str(folder / "broker.properties")},
        **{"commit_log_file_bytes": 4096, "consume_queue_file_bytes": 20 * 4},
        **{"index_slots": 16, "index_entries": 32, "flush_interval_s": 60.0},
    }
    return BrokerConfig(**(values | settings))


async def live_through(folder: Path, disk: FailingDisk, **settings: Any) -> tuple[list[bytes], list[Command]]:
    """A short life on a disk: the bodies that were taken, and all answers."""
    broker = Broker(lonely(folder, **settings), clock=ManualClock(), disk=disk)
    taken: list[bytes] = []
    answers: list[Command] = []
    try:
        await broker.start()
    except StorageError:
        return taken, answers
    try:
        async with connection_to(broker.address) as line:
            for number in range(5):
                body = b"%d" % number + bytes(800)
                answers.append(await line.call(send("Made", body, properties={"KEYS": "k"}, d=1)))
                if answers[-1].code == ResponseCode.SUCCESS:
                    taken.append(body)
            answers.append(await line.call(send("Made", b"later", properties={"DELAY": "1"}, d=1)))
            answers.append(await line.call(heartbeat("g", "Made")))
            answers.append(await line.call(pull("Made")))
            answers.append(
                await line.call(RequestCode.UPDATE_CONSUMER_OFFSET, {**SANE, "topic": "Made", "commitOffset": "1"})
            )
            answers.append(
                await line.call(RequestCode.QUERY_MESSAGE, {**SANE, "topic": "Made", "endTimestamp": str(1 << 62)})
            )
            await broker.components.offsets.table_file.save()
    except StorageError:
        pass
    finally:
        try:
            await broker.stop()
        except StorageError:
            await broker.kill()
    return taken, answers


async def number_of_calls(folder: Path, **settings: Any) -> int:
    disk = FailingDisk()
    taken, answers = await live_through(folder, disk, **settings)
    assert len(taken) == 5
    assert {answer.code for answer in answers} == {0}
    return disk.calls


@pytest.mark.parametrize(("flush", "full"), [("ASYNC_FLUSH", True), ("SYNC_FLUSH", False)])
async def test_no_acknowledged_message_is_lost_whichever_write_fails(
    tmp_path: Path, flush: str, full: bool, caplog: pytest.LogCaptureFixture
) -> None:
    calls = await number_of_calls(tmp_path / "whole", flush_disk_type=flush)
    assert calls > 40
    failures: set[str] = set()
    for number in range(1, calls + 1):
        folder = tmp_path / str(number)
        disk = FailingDisk(number, full=full, half=number % 2 == 0)
        taken, answers = await live_through(folder, disk, flush_disk_type=flush)
        failures.add(disk.failed)
        assert all(is_documented(answer) for answer in answers), (number, disk.failed, answers)
        again = Broker(lonely(folder), clock=ManualClock(), disk=NoSyncDisk())
        await again.start()
        try:
            stored = bodies(again.components.store, "Made")
            assert [body for body in stored if body in taken] == taken, (number, disk.failed)
            async with connection_to(again.address) as line:
                assert (await line.call(send("Made", b"next", d=1))).code == ResponseCode.SUCCESS, (number, disk.failed)
        finally:
            await again.stop()
    assert {"open", "write", "sync", "replace", "remove"} <= failures
    unexpected = [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.ERROR and not record.getMessage().startswith("flush failed reason=")
    ]
    assert unexpected == []
    caplog.clear()


async def test_invalid_settings_leave_the_file_unchanged(cluster: Cluster) -> None:
    line = await cluster.line()
    assert (
        await line.call(RequestCode.UPDATE_BROKER_CONFIG, body=b"maxMessageSize=1000\n")
    ).code == ResponseCode.SUCCESS
    path = cluster.broker.config.settings_path
    before = path.read_bytes()
    for body in (b"maxMessageSize=-1\n", b"maxMessageSize=x\n", b"listenPort=70000\n", b"\xff\xfe"):
        answer = await line.call(RequestCode.UPDATE_BROKER_CONFIG, body=body)
        assert answer.code != ResponseCode.SUCCESS
        assert answer.remark
    assert path.read_bytes() == before
    assert (await line.call(send(body=bytes(1001)))).code == ResponseCode.MESSAGE_ILLEGAL
    assert cluster.stored() == []
