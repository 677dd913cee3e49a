"""What a peer can fill, and how far: long frames, unread answers, tables."""

from __future__ import annotations

import json
import struct
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import cache, partial
from pathlib import Path

import pytest

from skyroute.wire.codes import ResponseCode
from tests.network.cluster import MASTER, NOWHERE, OTHER, addresses, register, topics, world
from tests.support.connections import AsyncConnection, connection_to
from tests.support.raw import Command, Form, Request, Topic, encode
from tests.support.servers import Running, running
from tests.support.waiting import eventually

SUCCESS, NO_TOPIC, ERROR = ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_ERROR
MIB = 1024 * 1024
FORMS: tuple[Form, ...] = ("json", "binary")


# Long frames


@cache
def big_registration(count: int = 100_000) -> Request:
    """A broker with very many topics, in a frame longer than any other may be."""
    topic = {"attributes": {}, "order": False, "perm": 6, "readQueueNums": 8, "topicFilterType": "SINGLE_TAG"}
    table = {
        name: {**topic, "topicName": name, "topicSysFlag": 0, "writeQueueNums": 8}
        for name in (f"topic-of-many-{number:06}" for number in range(count))
    }
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1_758_275_140_000}
    wrapper = {"dataVersion": version, "topicConfigTable": table}
    body = json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}, separators=(",", ":"))
    request = Request(103, {**MASTER.request.fields, "bodyCrc32": "0"}, body.encode())
    assert len(request.body) > 16 * MIB
    return request


@pytest.mark.parametrize("form", FORMS)
async def test_a_broker_may_register_a_hundred_thousand_topics(nameserver: Running, form: Form) -> None:
    async with connection_to(nameserver.address, form=form) as line:
        assert (await line.call(big_registration())).code == ResponseCode.SUCCESS
        assert len(nameserver.server.table.topics) == 100_000
        assert await addresses(line, "topic-of-many-099999") == {"broker-a": {"0": "10.0.0.1:10911"}}
        assert nameserver.buffered_bytes == 0


async def test_requests_after_a_long_registration_see_its_result(nameserver: Running) -> None:
    async with connection_to(nameserver.address) as line, connection_to(nameserver.address) as other:
        last = Request(105, {"topic": "topic-of-many-099999"})
        stream = [last, big_registration(), last, MASTER.unregistration, last]
        asked = [await line.send(request) for request in stream]
        assert (await other.call(206)).code == ResponseCode.SUCCESS
        assert [(await line.answer(opaque)).code for opaque in asked] == [NO_TOPIC, SUCCESS, SUCCESS, SUCCESS, NO_TOPIC]
        assert await world(other) == NOWHERE


async def test_the_topics_of_a_large_broker_go_at_once_and_their_index_later(nameserver: Running) -> None:
    table = nameserver.server.table
    async with connection_to(nameserver.address) as line, connection_to(nameserver.address) as other:
        assert (await line.call(big_registration())).code == ResponseCode.SUCCESS
        await line.close()
        await eventually(lambda: nameserver.connections == 1)
        assert await world(other) == NOWHERE
        assert (await other.call(105, {"topic": "topic-of-many-000000"})).code == ResponseCode.TOPIC_NOT_EXIST
        await eventually(lambda: table.is_swept)
        assert len(table.topics) == 0


async def test_a_peer_that_hangs_up_during_its_long_registration_leaves_nothing(nameserver: Running) -> None:
    table = nameserver.server.table
    async with connection_to(nameserver.address) as line, connection_to(nameserver.address) as other:
        await line.send(big_registration())
        await eventually(lambda: not table.is_swept)
        assert await world(other) == NOWHERE
        await line.close()
        await eventually(lambda: table.is_swept)
        assert await world(other) == NOWHERE
        assert len(table.topics) == 0


async def test_a_long_registration_may_be_one_way(line: AsyncConnection) -> None:
    await line.send_oneway(big_registration())
    assert await addresses(line, "topic-of-many-099999") == {"broker-a": {"0": "10.0.0.1:10911"}}
    assert line.strays == []


async def test_long_registrations_over_two_connections_are_kept_apart(nameserver: Running) -> None:
    async with connection_to(nameserver.address) as first, connection_to(nameserver.address) as second:
        other = {**big_registration().fields, "brokerName": "broker-b", "brokerAddr": "10.0.0.3:10911"}
        asked = [await first.send(big_registration()), await second.send(103, other, big_registration().body)]
        assert [(await first.answer(asked[0])).code, (await second.answer(asked[1])).code] == [0, 0]
        both = {"broker-a": {"0": "10.0.0.1:10911"}, "broker-b": {"0": "10.0.0.3:10911"}}
        assert await addresses(first, "topic-of-many-050000") == both
        await second.close()
        await eventually(lambda: nameserver.connections == 1)
        assert set(await addresses(first, "topic-of-many-050000")) == {"broker-a"}


@pytest.mark.parametrize("end", ["close", "abort", "stop"])
async def test_a_long_registration_is_dropped_when_its_peer_hangs_up(nameserver: Running, end: str) -> None:
    async with connection_to(nameserver.address) as line:
        await line.send(big_registration())
        if end == "stop":
            await nameserver.server.stop()
            await line.until_closed()
            return
        if end == "abort":
            line.abort()
    await eventually(lambda: nameserver.connections == 0 and len(nameserver.remoting._tasks) == 1)
    async with connection_to(nameserver.address) as other:
        assert await world(other) == NOWHERE
    assert nameserver.buffered_bytes == 0


def announcement(length: int, request: Request, form: Form = "json", flag: int = 0) -> bytes:
    """The beginning of a frame that claims to be long: its header is there, its body never comes."""
    return struct.pack(">I", length - 4) + encode(request, 1, form=form, flag=flag)[4:]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("length", "code", "flag"),
    [
        (16 * MIB + 1, 105, 0),
        (16 * MIB + 1, 100, 0),
        (16 * MIB + 1, 318, 2),
        (16 * MIB + 1, 217, 0),
        (16 * MIB + 1, 103, 1),  # a response is no registration
        (64 * MIB + 1, 103, 0),
        (2**32 - 1, 103, 0),
    ],
)
async def test_a_frame_above_the_limit_is_refused_at_its_length_word(
    line: AsyncConnection, caplog: pytest.LogCaptureFixture, form: Form, length: int, code: int, flag: int
) -> None:
    await line.write(announcement(length, Request(code, {"topic": "TopicA"}), form, flag))
    await line.until_closed()
    assert line.strays == []
    assert "a frame announces" in caplog.text


@pytest.mark.parametrize("form", FORMS)
async def test_a_frame_of_the_maximum_length_is_accepted(line: AsyncConnection, form: Form) -> None:
    line.form = form
    empty = len(encode(Request(9999), 1, form=form))
    answer = await line.call(9999, body=bytes(16 * MIB - empty))
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


async def test_limits_on_frames_can_be_set(tmp_path: Path) -> None:
    async with running(tmp_path, frame_bytes_max=2048, registration_frame_bytes_max=4096) as here:
        async with connection_to(here.address) as line:
            assert (await line.call(9999, body=bytes(1800))).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            await line.write(announcement(2049, Request(9999)))
            await line.until_closed()
        async with connection_to(here.address) as line:
            long = MASTER.but(topics=[Topic(f"topic-{number}") for number in range(18)])
            assert 2048 < len(encode(long.request, 1)) <= 4096
            assert (await line.call(long.request)).code == ResponseCode.SUCCESS
            await line.write(announcement(4097, MASTER.request))
            await line.until_closed()


@pytest.mark.parametrize("flagged", [True, False])
async def test_a_body_that_inflates_above_the_limit_is_refused(tmp_path: Path, flagged: bool) -> None:
    bomb = MASTER.but(topics=[Topic("t" * 200_000), Topic("u")], deflate=True, flag_compressed=flagged)
    assert len(bomb.body) < 4096
    async with running(tmp_path, registration_frame_bytes_max=64 * 1024) as here, connection_to(here.address) as line:
        answer = await line.call(bomb.request)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "decompresses to more than 65536 bytes" in (answer.remark or "")
        assert await world(line) == NOWHERE


async def test_incomplete_frames_of_all_connections_have_a_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, buffered_bytes_max=100_000) as here, connection_to(here.address) as good:
        half = encode(Request(9999, body=bytes(80_000)), 1)[:60_000]
        async with connection_to(here.address) as first, connection_to(here.address) as second:
            await first.write(half)
            await eventually(lambda: here.buffered_bytes >= len(half))
            held = here.buffered_bytes
            assert held < 1.2 * len(half), "what the buffer takes, which is a little more than it needs"
            await second.write(half)
            await second.until_closed()
            assert await topics(good) == []
            assert here.buffered_bytes == held
            await first.write(encode(Request(9999, body=bytes(80_000)), 1)[60_000:])
            assert (await first.receive()).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert here.buffered_bytes == 0
    assert "too many incomplete frames in all" in caplog.text


def holds(here: Running, *, buffered: int = 0, unsent: int = 0) -> bool:
    """Whether a server holds at least this many bytes."""
    return here.buffered_bytes >= buffered and here.unsent_bytes >= unsent


async def test_a_client_that_fills_the_buffers_has_its_own_connections_closed(tmp_path: Path) -> None:
    half = encode(Request(9999, body=bytes(80_000)), 1)[:60_000]
    async with running(tmp_path, buffered_bytes_max=200_000) as here, AsyncExitStack() as stack:
        greedy = [await stack.enter_async_context(connection_to(here.address, source="127.0.0.2")) for _ in range(3)]
        for count, line in enumerate(greedy, 1):
            await line.write(half)
            await eventually(partial(holds, here, buffered=count * len(half)))
        good = await stack.enter_async_context(connection_to(here.address))
        await good.write(half)
        await eventually(lambda: here.connections == 3)
        await good.write(encode(Request(9999, body=bytes(80_000)), 1)[60_000:])
        assert (await good.receive()).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert 2 * len(half) <= here.buffered_bytes <= 200_000


# Responses that the peer does not read

LONG_LIST = MASTER.but(topics=[Topic(f"topic-with-a-long-name-{number:06}") for number in range(4_000)])


def slow_to_send(folder: Path) -> AbstractAsyncContextManager[Running]:
    return running(folder, send_buffer_bytes=16_384)


def slow_to_read(here: Running) -> AbstractAsyncContextManager[AsyncConnection]:
    return connection_to(here.address, receive_buffer_bytes=16_384)


async def test_reading_pauses_while_a_peer_does_not_read_its_responses(tmp_path: Path) -> None:
    async with slow_to_send(tmp_path) as here, slow_to_read(here) as slow:
        await register(slow, LONG_LIST)
        one_answer = len((await slow.call(206)).body)
        assert one_answer > 100_000
        slow.pause_reading()
        asked = [await slow.send(206) for _ in range(100)]
        await eventually(lambda: here.unsent_bytes > 0)
        assert here.unsent_bytes < 3 * one_answer  # of a hundred
        async with connection_to(here.address) as other:  # no other client waits
            assert await addresses(other, "topic-with-a-long-name-000001") == {"broker-a": {"0": "10.0.0.1:10911"}}
        slow.resume_reading()
        answers = [await slow.answer(opaque) for opaque in asked]
        assert {len(answer.body) for answer in answers} == {one_answer}
        await eventually(lambda: here.unsent_bytes == here.buffered_bytes == 0)
        assert (await slow.call(206)).code == ResponseCode.SUCCESS


async def test_waiting_requests_keep_their_order(tmp_path: Path) -> None:
    async with slow_to_send(tmp_path) as here, slow_to_read(here) as slow:
        await register(slow, LONG_LIST)
        stream = [*([Request(206)] * 30), OTHER.request, Request(105, {"topic": "TopicC"}), OTHER.unregistration]
        stream += [*([Request(206)] * 30), Request(105, {"topic": "TopicC"})]
        slow.pause_reading()
        await slow.write(b"".join(encode(request, at) for at, request in enumerate(stream)))
        await eventually(lambda: here.unsent_bytes > 0)
        slow.resume_reading()
        answers = [await slow.receive() for _ in stream]
        assert [answer.opaque for answer in answers] == list(range(len(stream)))
        assert [answer.code for answer in answers if len(answer.body) < 100_000] == [
            SUCCESS,
            SUCCESS,
            SUCCESS,
            NO_TOPIC,
        ]


async def test_a_peer_that_does_not_read_is_closed(tmp_path: Path) -> None:
    async with slow_to_send(tmp_path) as here, slow_to_read(here) as stuck:
        await register(stuck, LONG_LIST)
        stuck.pause_reading()
        for _ in range(10):
            await stuck.send(206)
        await eventually(lambda: here.unsent_bytes > 0)
        here.pass_time(122, scans=False)
        await eventually(lambda: here.connections == 0)
        assert here.unsent_bytes == here.buffered_bytes == 0
        assert await is_forgotten(here)


async def test_a_client_that_reads_nothing_does_not_have_others_closed(tmp_path: Path) -> None:
    async with slow_to_send(tmp_path) as here, AsyncExitStack() as stack:
        broker = await stack.enter_async_context(connection_to(here.address))
        await register(broker, LONG_LIST)
        size = len((await broker.call(206)).body)
        for count in range(1, 4):
            greedy = connection_to(here.address, receive_buffer_bytes=16_384, source="127.0.0.2")
            line = await stack.enter_async_context(greedy)
            line.pause_reading()
            unsent = here.unsent_bytes
            await line.send(206)
            await eventually(partial(holds, here, unsent=unsent + 1))
            assert here.connections == count + 1
        here.remoting._context.unsent.limit = here.unsent_bytes + 40_000
        good = await stack.enter_async_context(slow_to_read(here))
        good.pause_reading()
        opaque = await good.send(206)
        await eventually(lambda: here.connections == 4)  # one of the greedy client's is closed
        good.resume_reading()
        assert len((await good.answer(opaque)).body) == size


async def is_forgotten(here: Running) -> bool:
    async with connection_to(here.address) as line:
        return await world(line) == NOWHERE


async def test_water_marks_can_be_set(tmp_path: Path) -> None:
    marked = running(tmp_path, write_high_bytes=1024, write_low_bytes=512)
    async with marked as here, connection_to(here.address) as line:
        await topics(line)
        (connection,) = here.remoting._connections.values()
        assert connection._transport.get_write_buffer_limits() == (512, 1024)


# Full tables


async def test_a_full_table_refuses_new_brokers_and_accepts_heartbeats(tmp_path: Path) -> None:
    async with running(tmp_path, brokers_max=1) as here, connection_to(here.address) as line:
        await register(line, MASTER)
        answer = await line.call(OTHER.request)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "brokersMax" in (answer.remark or "")
        await register(line, MASTER)
        assert await topics(line) == ["TopicA", "TopicB"]


async def test_a_registration_with_topics_above_the_limit_is_refused_whole(tmp_path: Path) -> None:
    async with running(tmp_path, topic_entries_max=3) as here, connection_to(here.address) as line:
        await register(line, MASTER)
        before = await world(line)
        answer = await line.call(OTHER.request)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "topicEntriesMax" in (answer.remark or "")
        assert await world(line) == before


async def test_registrations_have_a_limit_in_bytes(tmp_path: Path) -> None:
    """Compressed they are small: a few hundred kilobytes of frames become gigabytes of names."""
    long_names = tuple(Topic(f"{'x' * 190}{number:06}") for number in range(5_000))
    async with running(tmp_path, registration_bytes_max=4 * MIB) as here, connection_to(here.address) as line:
        sizes, answers = list[int](), list[Command]()
        for number in range(5):
            broker = MASTER.but(broker=f"b{number}", address=f"10.0.0.{number}:1", topics=long_names, deflate=True)
            sizes.append(len(broker.request.body))
            answers.append(await line.call(broker.request))
        assert max(sizes) < 60_000
        assert [answer.code for answer in answers] == [SUCCESS, SUCCESS, ERROR, ERROR, ERROR]
        assert "registrationBytesMax" in (answers[-1].remark or "")
        assert here.server.table.stats(0.0).registration_bytes <= 4 * MIB


async def test_the_key_value_table_has_a_limit(tmp_path: Path) -> None:
    async with running(tmp_path, kv_config_bytes_max=1024) as here, connection_to(here.address) as line:
        answer = await line.call(100, {"namespace": "n", "key": "k", "value": "x" * 2000})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (await line.call(101, {"namespace": "n", "key": "k"})).code == ResponseCode.QUERY_NOT_FOUND
