"""Traces: Java's decoder reads ours, and ours reads Java's."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from skyroute import Message, Producer
from skyroute.client.trace.records import ConsumeEnded, ConsumeStarted, Sent, TracedKind, TracedReturn, decode_trace
from tests.peers.client.java_client import JavaClients, Place
from tests.peers.client.python_client import consuming
from tests.support.waiting import eventually

TRACES = "RMQ_SYS_TRACE_TOPIC"


async def test_java_reads_our_traces(java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "Traced")
    async with java.consumer(place, "reads-ours", TRACES) as traces:
        async with (
            consuming(place, "traced-python", topic, trace=True, failures=1) as inbox,
            Producer("traced-python", trace=True, **place.python) as producer,
        ):
            sent = await producer.send(Message(topic, b"traced", tag="t", keys="key-of-ours"))
            await inbox.take(2)
        told: dict[str, list[dict[str, Any]]] = {}

        async def is_all_told() -> bool:
            told.clear()
            for trace in traces.received:
                for context in await java.call("decodeTrace", {"text": trace.body.decode()}):
                    if [bean["msgId"] for bean in context["traceBeans"]] == [sent.message_id]:
                        assert "key-of-ours" in trace.keys
                        told.setdefault(context["traceType"], []).append(context)
            return {kind: len(contexts) for kind, contexts in told.items()} == {"Pub": 1, "SubBefore": 2, "SubAfter": 2}

        await eventually(is_all_told, what="a send and two attempts to consume are told")
    (pub,) = told["Pub"]
    (bean,) = pub["traceBeans"]
    assert (pub["groupName"], pub["success"]) == ("traced-python", True)
    assert (bean["topic"], bean["tags"], bean["keys"]) == (topic, "t", "key-of-ours")
    assert (bean["offsetMsgId"], bean["bodyLength"], bean["msgType"]) == (sent.offset_id, 6, "Normal_Msg")
    assert {each["groupName"] for each in told["SubBefore"]} == {"traced-python"}
    assert sorted(each["traceBeans"][0]["retryTimes"] for each in told["SubBefore"]) == [0, 1]
    assert Counter(each["success"] for each in told["SubAfter"]) == {False: 1, True: 1}
    assert {each["requestId"] for each in told["SubBefore"]} == {each["requestId"] for each in told["SubAfter"]}


async def test_we_read_java_s_traces(java: JavaClients, place: Place) -> None:
    topic = await java.create_topic(place, "TracedByJava")
    traced = replace(place, java=place.java | {"trace": True})
    async with consuming(place, "reads-java-s", TRACES) as traces:
        async with (
            java.consumer(traced, "traced-java", topic, failures=1) as consumer,
            java.producer(traced) as producer,
        ):
            sent = await producer.send(topic, b"traced", tag="t", keys=["key-of-java-s"])
            await consumer.take(2)
        records: list[Any] = []

        async def is_all_told() -> bool:
            told = [record for trace in traces.received for record in decode_trace(trace.body)]
            records[:] = [record for record in told if record.message_id == sent.message_id]
            return Counter(map(type, records)) == {Sent: 1, ConsumeStarted: 2, ConsumeEnded: 2}

        await eventually(is_all_told, what="a send and two attempts to consume are told")
    (pub,) = (record for record in records if isinstance(record, Sent))
    assert (pub.group, pub.topic, pub.tag, pub.keys) == ("java-producers", topic, "t", ("key-of-java-s",))
    assert (pub.kind, pub.body_bytes, pub.success) == (TracedKind.NORMAL, 6, True)
    started = {record.request_id for record in records if isinstance(record, ConsumeStarted)}
    ended = {record.request_id: record.returned for record in records if isinstance(record, ConsumeEnded)}
    assert started == set(ended)
    assert Counter(ended.values()) == {TracedReturn.FAILED: 1, TracedReturn.SUCCESS: 1}
