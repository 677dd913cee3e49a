"""Clients ask the same again and again: the answer may be kept, but never longer than it is true."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from skyroute.wire.codes import ResponseCode
from tests.network.cluster import CLUSTER, MASTER, NEWER, OTHER, SLAVE, register
from tests.support.connections import AsyncConnection, connection_to
from tests.support.raw import Command, Request, Topic, encode, frame, mapping
from tests.support.servers import Running, running
from tests.support.waiting import eventually

QUESTION = Request(105, {"topic": "TopicA"})
SHORT = SLAVE.but(acting=True, heartbeat_ms=10_000)
Change = Callable[[Running, AsyncConnection], Awaitable[None]]


def telling(*requests: Request) -> Change:
    async def tell(_: Running, line: AsyncConnection) -> None:
        for request in requests:
            assert (await line.call(request)).code == ResponseCode.SUCCESS

    return tell


async def let_the_lease_run_out(here: Running, line: AsyncConnection) -> None:
    await line.call(904, MASTER.identity)
    here.pass_time(15)


async def close_the_slaves_connection(here: Running, line: AsyncConnection) -> None:
    async with connection_to(here.address) as own:
        await register(own, SHORT)
    await eventually(lambda: here.connections == 1)


CHANGES: dict[str, Change] = {
    "a broker of another group comes": telling(OTHER.request),
    "a broker of the same group comes": telling(SLAVE.but(broker_id=2, address="10.0.0.9:10911", acting=True).request),
    "a broker says goodbye": telling(SHORT.unregistration),
    "a connection closes": close_the_slaves_connection,
    "a lease runs out": let_the_lease_run_out,
    "an address is replaced": telling(SHORT.but(address="10.0.0.8:10911").request),
    "a slave becomes master": telling(SHORT.but(broker_id=0).request),
    "queues change": telling(MASTER.but(topics=(Topic("TopicA", 16, 16), Topic("B")), data_version=NEWER).request),
    "the zone changes, in the header alone": telling(MASTER.but(acting=True, zone="z9").request),
    "acting masters are given up": telling(MASTER.but(acting=False).request),
    "the cluster changes": telling(MASTER.but(cluster="Elsewhere", acting=True).request),
    "filter servers come": telling(MASTER.but(acting=True, data_version=NEWER, filter_servers=("f:1",)).request),
    "a mapping comes": telling(
        MASTER.but(acting=True, data_version=NEWER, mappings={"TopicA": mapping("TopicA", "broker-a", 2)}).request
    ),
    "writes are forbidden": telling(Request(205, {"brokerName": "broker-a"})),
    "the topic is announced anew": telling(
        Request(217, {"topic": "TopicA"}, b'{"queueDatas":[{"brokerName":"broker-a","readQueueNums":1}]}')
    ),
    "the topic is deleted": telling(Request(216, {"topic": "TopicA"})),
    "the topic is deleted in its cluster": telling(Request(216, {"topic": "TopicA", "clusterName": CLUSTER})),
    "order config is wanted": telling(Request(318, body=b"orderMessageEnable=true")),
    "acting masters are shown": telling(
        Request(318, body=b"supportActingMaster=true"), MASTER.but(acting=True).unregistration
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_no_cached_response_outlives_a_change(nameserver: Running, line: AsyncConnection, change: Change) -> None:
    await register(line, MASTER.but(acting=True), SHORT)
    await line.call(100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "TopicA", "value": "broker-a:8"})
    before = await ask_repeatedly(line)
    await change(nameserver, line)
    after = await ask_repeatedly(line)
    assert (after.code, after.body) != (before.code, before.body)
    # What was never asked before cannot have been kept: it must say the same.
    afresh = await line.call(Request(105, {"topic": "TopicA", "never": "asked"}))
    assert (after.code, after.remark, after.text) == (afresh.code, afresh.remark, afresh.text)


async def ask_repeatedly(line: AsyncConnection) -> Command:
    """The answer to a question asked several times over, which must be the same each time."""
    answers = [await line.call(QUESTION) for _ in range(4)]
    assert len({(answer.code, answer.remark, answer.body) for answer in answers}) == 1
    return answers[0]


async def test_a_cached_route_has_the_latest_order_config(tmp_path: Path) -> None:
    where = {"namespace": "ORDER_TOPIC_CONFIG", "key": "TopicA"}
    async with running(tmp_path, ordered_topics_enabled=True) as here, connection_to(here.address) as line:
        await register(line, MASTER)
        for value in ("broker-a:1", "broker-a:2", "broker-a:1"):
            await line.call(100, {**where, "value": value})
            assert (await ask_repeatedly(line)).value["orderTopicConf"] == value
        await line.call(102, where)
        assert "orderTopicConf" not in (await ask_repeatedly(line)).value


@pytest.mark.parametrize("known", [True, False])
async def test_every_response_has_the_id_of_its_request(line: AsyncConnection, known: bool) -> None:
    if known:
        await register(line, MASTER)
    numbers = [0, 1, 7, 9, 10, 42, 99, 100, 12_345, 99_999_999, 999_999_999, 1_000_000_000, 2**31 - 1, -1, -(2**31)]
    stream = [number for number in numbers for _ in range(3)]
    await line.write(b"".join(encode(QUESTION, number) for number in stream))
    answers = [await line.receive() for _ in stream]
    assert [answer.opaque for answer in answers] == stream
    assert {answer.code for answer in answers} == {0 if known else 17}


async def test_similar_requests_are_distinguished(line: AsyncConnection) -> None:
    other = OTHER.but(zone="z2", topics=(Topic("TopicA"), Topic("TopicC", 2, 2)))
    await register(line, MASTER.but(zone="z1"), other)
    alike = {
        (0, 479): {"topic": "TopicA"},
        (1, 399): {"topic": "TopicA"},
        (2, 479): {"topic": "TopicB"},
        (3, 479): {"topic": "TopicC"},
        (4, 479): {"topic": "TopicX"},
        (5, 479): {"topic": "TopicA", "__ZONE_MODE": "true", "__ZONE_NAME": "z1"},
        (6, 479): {"topic": "TopicA", "__ZONE_MODE": "true", "__ZONE_NAME": "z2"},
        (7, 399): {"topic": "TopicA", "acceptStandardJsonOnly": "true"},
    }
    told: list[set[tuple[int, bytes]]] = [set() for _ in alike]
    for _ in range(3):
        for (number, version), fields in alike.items():
            answer = await line.call(Request(105, fields, version=version))
            told[number].add((answer.code, answer.body))
    assert [len(answers) for answers in told] == [1] * 8
    assert told[0] == told[7]
    assert len({answer for answers in told[:7] for answer in answers}) == 7


HEADERS = {
    "as Java writes it": '{"code":105,"extFields":{"topic":"TopicA"},"flag":FLAG,"language":"JAVA","opaque":NUMBER,'
    '"serializeTypeCurrentRPC":"JSON","version":479}',
    "the number last": '{"code":105,"extFields":{"topic":"TopicA"},"flag":FLAG,"version":479,"opaque":NUMBER}',
    "the number first": '{"opaque":NUMBER,"code":105,"extFields":{"topic":"TopicA"},"flag":FLAG,"version":479}',
    "with blanks": '{ "code": 105, "extFields": {"topic": "TopicA"}, "flag": FLAG, "opaque": NUMBER , "version": 479}',
    "a field of that name": '{"code":105,"extFields":{"opaque":"5,","topic":"TopicA"},"flag":FLAG,"opaque":NUMBER}',
    "with escapes": '{"code":105,"extFields":{"topic":"Topic\\u0041"},"flag":FLAG,"opaque":NUMBER,"version":479}',
    "the number twice": '{"opaque":1,"code":105,"extFields":{"topic":"TopicA"},"flag":FLAG,"opaque":NUMBER,"v":9}',
}


def written(header: str, number: int, flag: int = 0) -> bytes:
    return frame(header.replace("NUMBER", str(number)).replace("FLAG", str(flag)).encode())


@pytest.mark.parametrize("header", HEADERS.values(), ids=HEADERS)
async def test_the_request_id_comes_back_in_any_form_of_header(line: AsyncConnection, header: str) -> None:
    await register(line, MASTER)
    numbers = [3, 4, 5, 55, 6]
    await line.write(b"".join(written(header, number) for number in numbers))
    answers = [await line.receive() for _ in numbers]
    assert [(answer.code, answer.opaque) for answer in answers] == [(0, number) for number in numbers]
    # The same words as a one-way request, or as a response, are not answered though the question is well known.
    for flag in (2, 1, 3):
        await line.write(written(header, 7, flag))
    assert (await line.call(206)).code == ResponseCode.SUCCESS
    assert line.strays == []


async def test_a_route_request_with_a_body_gets_its_response(line: AsyncConnection) -> None:
    await register(line, MASTER)
    for body in (b"", b"x", b'"opaque":9,', b""):
        answer = await line.call(105, {"topic": "TopicA"}, body)
        assert (answer.code, len(answer.value["brokerDatas"])) == (0, 1)


@pytest.mark.parametrize("number", [b"0x1", b"1.5", b"nul"])
async def test_a_malformed_request_id_is_refused_however_often_it_is_sent(nameserver: Running, number: bytes) -> None:
    async with connection_to(nameserver.address) as line:
        await register(line, MASTER)
        well = json.dumps({"code": 105, "extFields": {"topic": "TopicA"}, "opaque": 111, "version": 479}).encode()
        well = well.replace(b" ", b"")
        await line.write(frame(well) * 3)
        assert [(await line.receive()).opaque for _ in range(3)] == [111] * 3
        await line.write(frame(well.replace(b"111", number)))
        await line.until_closed()
        assert line.strays == []
