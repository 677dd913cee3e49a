"""How a peer is answered, whatever it asks: unknown, one-way, incomplete, or all at once."""

from __future__ import annotations

import logging

import pytest

from skyroute.wire.codes import ResponseCode
from tests.network.cluster import CLUSTER, MASTER, NOWHERE, OTHER, SLAVE, addresses, register, topics, world
from tests.support.connections import AsyncConnection, connection_to
from tests.support.raw import VERSION_4, VERSION_5, Form, Request, encode, frame
from tests.support.servers import Running

SUCCESS, NO_TOPIC = ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST
FORMS: tuple[Form, ...] = ("json", "binary")


# Unknown requests, and requests without a response


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("version", [VERSION_4, VERSION_5])
async def test_an_unknown_code_gets_apaches_text_with_its_leading_blank(
    nameserver: Running, form: Form, version: int
) -> None:
    async with connection_to(nameserver.address, form=form) as line:
        answer = await line.call(Request(9999, {"topic": "TopicA"}, b"body", version))
        assert (answer.code, answer.remark, answer.form) == (3, " request type 9999 not supported", form)
        assert (answer.fields, answer.body) == ({}, b"")
        assert (await line.call(206)).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("form", FORMS)
async def test_a_one_way_request_is_processed_without_a_response(nameserver: Running, form: Form) -> None:
    async with connection_to(nameserver.address, form=form) as line:
        await line.send_oneway(MASTER.request)
        await line.send_oneway(9999)
        await line.send_oneway(103, {"brokerName": "broker-b"})
        await line.send_oneway(105, {"topic": "TopicA"})
        await line.send_oneway(318, body=b"listenPort=none")
        assert await addresses(line) == {"broker-a": {"0": "10.0.0.1:10911"}}
        assert line.strays == []


async def test_a_response_from_a_peer_is_dropped(line: AsyncConnection) -> None:
    await register(line, MASTER)
    for flag in (1, 3):
        await line.send(MASTER.unregistration, flag=flag)
    assert await topics(line) == ["TopicA", "TopicB"]
    assert line.strays == []


# Order


async def test_pipelined_requests_take_effect_in_order(line: AsyncConnection) -> None:
    question = Request(105, {"topic": "TopicA"})
    conversation = [
        question,
        MASTER.request,
        question,
        SLAVE.request,
        question,
        MASTER.unregistration,
        question,
        SLAVE.unregistration,
        question,
    ]
    await line.write(b"".join(encode(request, 100 + at) for at, request in enumerate(conversation)))
    answers = [await line.receive() for _ in conversation]
    assert [answer.opaque for answer in answers] == list(range(100, 109))
    assert [answer.code for answer in answers] == [
        NO_TOPIC,
        SUCCESS,
        SUCCESS,
        SUCCESS,
        SUCCESS,
        SUCCESS,
        SUCCESS,
        SUCCESS,
        NO_TOPIC,
    ]
    seen = [answers[at].value["brokerDatas"][0]["brokerAddrs"] for at in (2, 4, 6)]
    master, slave = {"0": "10.0.0.1:10911"}, {"1": "10.0.0.2:10911"}
    assert seen == [master, {**master, **slave}, slave]


async def test_requests_may_be_cut_anywhere_and_glued_together(line: AsyncConnection) -> None:
    stream = b"".join(encode(request, at) for at, request in enumerate([MASTER.request, OTHER.request] * 4))
    for at in range(0, len(stream), 7):
        await line.write(stream[at : at + 7])
    assert [(await line.receive()).opaque for _ in range(8)] == list(range(8))
    assert await addresses(line) == {"broker-a": {"0": "10.0.0.1:10911"}, "broker-b": {"0": "10.0.0.3:10911"}}


async def test_both_header_forms_may_be_mixed_on_one_connection(line: AsyncConnection) -> None:
    await line.write(encode(Request(206), 1, form="binary") + encode(Request(206), 2) + encode(Request(206), 3))
    assert [((answer := await line.receive()).opaque, answer.form) for _ in range(3)] == [
        (1, "binary"),
        (2, "json"),
        (3, "json"),
    ]


async def test_two_connections_may_use_the_same_request_ids(nameserver: Running, line: AsyncConnection) -> None:
    async with connection_to(nameserver.address) as other:
        for at in range(3):
            assert await line.send(Request(206)) == await other.send(Request(304)) == at + 1
        for at in range(3):
            assert "brokerAddr" not in (await line.answer(at + 1)).value
            assert (await other.answer(at + 1)).value == {"topicList": []}


async def test_a_request_in_two_reads_gets_its_response_after_the_second(line: AsyncConnection) -> None:
    whole = encode(MASTER.request, 1)
    await line.write(encode(Request(206), 0) + whole[:-1])
    assert (await line.receive()).opaque == 0
    await line.write(whole[-1:])
    assert (await line.receive()).opaque == 1


async def test_a_peer_that_closes_its_sending_side_gets_its_responses(nameserver: Running) -> None:
    async with connection_to(nameserver.address) as line:
        question = await line.send(Request(206))
        line.write_eof()
        assert (await line.answer(question)).code == ResponseCode.SUCCESS
        await line.until_closed()


# What is missing or malformed

BROKER = dict(MASTER.identity)
REQUIRED = {
    100: {"namespace": "n", "key": "k", "value": "v"},
    101: {"namespace": "n", "key": "k"},
    102: {"namespace": "n", "key": "k"},
    103: BROKER,
    104: BROKER,
    105: {"topic": "TopicA"},
    205: {"brokerName": "broker-a"},
    216: {"topic": "TopicA"},
    217: {"topic": "TopicA"},
    219: {"namespace": "n"},
    224: {"cluster": CLUSTER},
    322: {"clusterName": CLUSTER, "brokerAddr": "10.0.0.1:10911"},
    327: {"brokerName": "broker-a"},
    901: {"clusterName": CLUSTER, "brokerName": "broker-a"},
    904: {"clusterName": CLUSTER, "brokerAddr": "10.0.0.1:10911"},
}


def refusals(code: int, missing: str) -> set[str]:
    """What may be said of a missing field; for keys of the key-value table it is the protocol's own word."""
    if code in (100, 101, 102) and missing != "value":
        return {"namespace or key is null"}
    return {f"{missing} is required"}


@pytest.mark.parametrize(
    ("code", "missing"), [(code, name) for code, fields in REQUIRED.items() for name in fields], ids=str
)
async def test_a_missing_field_is_named_and_nothing_changes(line: AsyncConnection, code: int, missing: str) -> None:
    fields = {name: value for name, value in REQUIRED[code].items() if name != missing}
    answer = await line.call(code, fields, MASTER.body if code == 103 else b"")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark in refusals(code, missing)
    assert await world(line) == NOWHERE
    assert (await line.call(219, {"namespace": "n"})).code == ResponseCode.QUERY_NOT_FOUND


@pytest.mark.parametrize("code", REQUIRED)
async def test_a_request_without_fields_is_refused_with_a_reason(line: AsyncConnection, code: int) -> None:
    for header in (f'{{"code":{code},"version":479}}', f'{{"code":{code},"extFields":null,"version":479}}'):
        await line.write(frame(header.encode()))
        answer = await line.receive()
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark in set().union(*(refusals(code, name) for name in REQUIRED[code]))


@pytest.mark.parametrize(
    ("code", "field", "value"),
    [
        (103, "brokerId", "one"),
        (103, "brokerId", "1_0"),
        (103, "brokerId", str(1 << 63)),
        (103, "heartbeatTimeoutMillis", "soon"),
        (103, "bodyCrc32", "0x10"),
        (104, "brokerId", ""),
    ],
)
async def test_a_malformed_number_is_refused_with_the_name_of_its_field(
    line: AsyncConnection, code: int, field: str, value: str
) -> None:
    fields = {**MASTER.request.fields, field: value}
    answer = await line.call(code, fields, MASTER.body if code == 103 else b"")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert field in (answer.remark or "")
    assert await world(line) == NOWHERE


@pytest.mark.parametrize(
    ("code", "field"),
    [
        *((103, field) for field in ("brokerName", "brokerAddr", "clusterName", "haServerAddr", "__ZONE_NAME")),
        (205, "brokerName"),
        (216, "topic"),
        (216, "clusterName"),
        (224, "cluster"),
    ],
)
async def test_a_name_that_could_forge_a_log_line_is_refused(
    line: AsyncConnection, caplog: pytest.LogCaptureFixture, code: int, field: str
) -> None:
    forged = "x\nERROR all is lost\x1b[2J"
    fields = {**MASTER.request.fields, "topic": "TopicA", "cluster": CLUSTER, field: forged}
    answer = await line.call(code, fields, MASTER.body if code == 103 else b"")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert field in (answer.remark or "")
    assert await world(line) == NOWHERE
    assert not [record for record in caplog.records if "\n" in record.getMessage() or "\x1b" in record.getMessage()]


async def test_repeated_errors_of_a_peer_do_not_flood_the_log(
    line: AsyncConnection, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        assert (await line.call(105)).code == ResponseCode.SYSTEM_ERROR
    warned = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage().startswith("request refused") for record in warned] == [True] * 5  # 1, 2, 4, 8, 16


async def test_log_limits_are_per_peer(
    nameserver: Running, line: AsyncConnection, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        await line.call(105)
    caplog.clear()
    async with connection_to(nameserver.address) as other:
        assert (await other.call(105)).code == ResponseCode.SYSTEM_ERROR
        assert f"peer={other.local_address}" in caplog.text


async def test_a_connection_stays_open_after_a_refusal(line: AsyncConnection) -> None:
    assert (await line.call(105)).remark == "topic is required"
    await register(line, MASTER)
    assert await topics(line) == ["TopicA", "TopicB"]
    assert line.strays == []
