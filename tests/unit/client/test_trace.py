"""Trace records in Apache's format, and a tracer that never delays or fails the application."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.client.trace.records import (
    ConsumeEnded,
    ConsumeStarted,
    Recalled,
    Sent,
    TracedKind,
    TracedReturn,
    TraceError,
    TraceRecord,
    TransactionEnded,
    decode_trace,
    encode_record,
    kind_of,
)
from skyroute.client.trace.tracer import RECORDS_MAX, Tracer
from skyroute.errors import SkyrouteError
from skyroute.message.errors import InvalidNameError
from skyroute.message.message import Message
from skyroute.message.reserved_topics import TRACE_TOPIC
from skyroute.wire.calls.transaction import TransactionOutcome
from tests.unit.message.samples import stored

GOLDEN: Final[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "golden" / "client" / "traces.json").read_text("utf-8")
)

AT_MS = 1700000000123
ID_1 = "7F000001ABCD18B4AAC2000000000001"
ID_2 = "7F000001ABCD18B4AAC2000000000002"
REQUEST_ID = "7F000001ABCD18B4AAC2000000000009"
OFFSET_ID = "0A00000200002A9F00000000075BCD15"
BROKER = "10.0.0.2:10911"
IN_GOOD_TIME_S = 10.0
NEVER_S = 3600.0


def sent(number: int = 1, **changes: Any) -> Sent:
    fields: dict[str, Any] = {
        "at_ms": AT_MS,
        "group": "group-1",
        "topic": "TopicTest",
        "message_id": f"7F000001ABCD18B4AAC2{number:012X}",
        "store_host": BROKER,
        "body_bytes": 1024,
        "cost_ms": 12,
    }
    return Sent(**fields | changes)


def started(message_id: str, keys: tuple[str, ...] = ()) -> ConsumeStarted:
    return ConsumeStarted(
        at_ms=AT_MS, group="group-1", request_id=REQUEST_ID, message_id=message_id, reconsume_times=3, keys=keys
    )


def ended(message_id: str, **changes: Any) -> ConsumeEnded:
    fields: dict[str, Any] = {"cost_ms": 12, "success": True, "at_ms": AT_MS, "group": "group-1"}
    return ConsumeEnded(request_id=REQUEST_ID, message_id=message_id, **fields | changes)


def transaction(outcome: TransactionOutcome, **changes: Any) -> TransactionEnded:
    return TransactionEnded(
        at_ms=AT_MS,
        group="group-1",
        topic="TopicTest",
        message_id=ID_1,
        store_host=BROKER,
        outcome=outcome,
        **changes,
    )


TWO_KEYS = ("k1", "k2")
KNOWN: Final[dict[str, list[TraceRecord]]] = {
    "sent": [sent(tag="TagA", keys=TWO_KEYS, offset_id=OFFSET_ID)],
    "sent-bare": [sent(kind=TracedKind.DELAYED, success=False)],
    "sent-half": [sent(tag="中😀", keys=("键",), offset_id=OFFSET_ID, kind=TracedKind.HALF)],
    "consume-started": [started(ID_1, TWO_KEYS), started(ID_2)],
    "consume-ended": [
        ended(ID_1, keys=TWO_KEYS, success=False, returned=TracedReturn.FAILED),
        ended(ID_2, success=False, returned=TracedReturn.FAILED),
    ],
    "consume-ended-ok": [ended(ID_1, keys=("k1",))],
    "transaction-COMMIT_MESSAGE": [
        transaction(TransactionOutcome.COMMIT, tag="TagA", keys=TWO_KEYS, transaction_id=ID_1)
    ],
    "transaction-ROLLBACK_MESSAGE": [
        transaction(TransactionOutcome.ROLLBACK, tag="TagA", keys=TWO_KEYS, transaction_id=ID_1, from_check=True)
    ],
    "transaction-UNKNOW": [transaction(TransactionOutcome.UNKNOWN)],
    "recalled": [Recalled(at_ms=AT_MS, group="group-1", topic="TopicTest", message_id=ID_1)],
}


@pytest.mark.parametrize("name", KNOWN)
def test_a_record_is_written_as_apaches_client_writes_it(name: str) -> None:
    assert "".join(map(encode_record, KNOWN[name])) == GOLDEN[name]["text"]


@pytest.mark.parametrize("name", KNOWN)
def test_traces_of_apaches_client_are_decoded(name: str) -> None:
    assert decode_trace(GOLDEN[name]["text"].encode()) == KNOWN[name]


def test_every_golden_text_is_looked_at() -> None:
    assert KNOWN.keys() | {"consume-ended-cloud"} == GOLDEN.keys()


def test_records_of_all_kinds_follow_each_other() -> None:
    body = "".join(GOLDEN[name]["text"] for name in KNOWN).encode()
    assert decode_trace(body) == [record for name in KNOWN for record in KNOWN[name]]


def test_consume_ended_may_lack_its_time_and_group() -> None:
    assert decode_trace(GOLDEN["consume-ended-cloud"]["text"].encode()) == [
        ended(ID_1, keys=("k1",), at_ms=0, group="")
    ]


def test_records_of_old_clients_lack_the_offset_id_and_the_return_kind() -> None:
    old_sent = GOLDEN["sent"]["text"].replace(f"{OFFSET_ID}\x01", "")
    old_ended = f"SubAfter\x01{REQUEST_ID}\x01{ID_1}\x0112\x01true\x01k1\x02"
    assert decode_trace(f"{old_sent}{old_ended}".encode()) == [
        sent(tag="TagA", keys=TWO_KEYS),
        ended(ID_1, keys=("k1",), at_ms=0, group=""),
    ]


def test_clients_that_say_more_are_understood() -> None:
    longer = GOLDEN["sent"]["text"].replace("true\x02", "true\x0110.0.0.1\x02")
    assert decode_trace(longer.encode()) == KNOWN["sent"]


def test_an_empty_last_field_is_an_empty_field() -> None:
    text = GOLDEN["consume-started"]["text"].replace("k1 k2\x02", "\x02")
    assert decode_trace(text.encode()) == [started(ID_1), started(ID_2)]


def test_unknown_types_of_records_are_skipped() -> None:
    assert decode_trace(b"Dreamt\x011\x02" + GOLDEN["sent"]["text"].encode() + b"\x02garbage") == KNOWN["sent"]
    assert decode_trace(b"") == []


@pytest.mark.parametrize(
    "text",
    [
        "Pub\x02",
        "Pub\x01soon\x01r\x01g\x01t\x01i\x01t\x01k\x01h\x011\x011\x010\x01o\x01true\x02",
        "Pub\x011\x01r\x01g\x01t\x01i\x01t\x01k\x01h\x011\x011\x0199\x01o\x01true\x02",
        "SubAfter\x01r\x01i\x011\x02",
        "EndTransaction\x011\x01r\x01g\x01t\x01i\x01t\x01k\x01h\x012\x01x\x01MAYBE\x01true\x02",
    ],
)
def test_a_broken_record_is_an_error_that_shows_it(text: str) -> None:
    with pytest.raises(TraceError, match="damaged trace record"):
        decode_trace(text.encode())


WORD = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=8)
NAMED = WORD.filter(lambda word: word != "null")
KEYS = st.lists(
    st.text(st.characters(exclude_characters="\x01\x02 ", exclude_categories=["Cs"]), min_size=1, max_size=5).filter(
        lambda key: key != "null"
    ),
    max_size=3,
).map(tuple)
NUMBER = st.integers(-(1 << 31), (1 << 31) - 1)
RECORDS: st.SearchStrategy[TraceRecord] = st.one_of(
    st.builds(
        Sent,
        at_ms=NUMBER,
        region=WORD,
        group=WORD,
        topic=WORD,
        message_id=WORD,
        tag=st.none() | NAMED,
        keys=KEYS,
        store_host=WORD,
        body_bytes=NUMBER,
        cost_ms=NUMBER,
        kind=st.sampled_from(TracedKind),
        offset_id=st.none() | NAMED,
        success=st.booleans(),
    ),
    st.builds(
        ConsumeStarted,
        at_ms=NUMBER,
        region=WORD,
        group=WORD,
        request_id=WORD,
        message_id=WORD,
        reconsume_times=NUMBER,
        keys=KEYS,
    ),
    st.builds(
        ConsumeEnded,
        request_id=WORD,
        message_id=WORD,
        cost_ms=NUMBER,
        success=st.booleans(),
        keys=KEYS,
        returned=st.sampled_from(TracedReturn),
        at_ms=NUMBER,
        group=WORD,
    ),
)


@given(st.lists(RECORDS, max_size=5))
def test_records_survive_being_written_and_read(records: list[TraceRecord]) -> None:
    assert decode_trace("".join(map(encode_record, records)).encode()) == records


@given(st.text(st.sampled_from("Pub\x01\x02SubAfterRecall019-."), max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        decode_trace(text.encode())
    except TraceError as error:
        assert "damaged trace record" in str(error)  # noqa: PT017 - most texts are fine


@pytest.mark.parametrize(
    ("message", "more", "kind"),
    [
        (Message("T", b""), {}, TracedKind.NORMAL),
        (Message("T", b"", sharding_key="k"), {}, TracedKind.NORMAL),
        (Message("T", b"", delay_level=3), {}, TracedKind.DELAYED),
        (Message("T", b"", deliver_after_s=5), {}, TracedKind.DELAYED),
        (Message("T", b""), {"TRAN_MSG": "true"}, TracedKind.HALF),
        (Message("T", b""), {"TRAN_MSG": "false"}, TracedKind.NORMAL),
    ],
)
def test_the_kind_of_a_message_is_seen_by_its_properties(
    message: Message, more: dict[str, str], kind: TracedKind
) -> None:
    assert kind_of(message.to_properties() | more) is kind


class Outbox:
    """Takes messages; with `broken`, refuses them; with a closed `gate`, keeps their sender waiting."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        self.gate = asyncio.Event()
        self.gate.set()
        self.knocked = asyncio.Event()
        self.broken: Exception | None = None

    async def send(self, message: Message) -> str:
        self.knocked.set()
        await self.gate.wait()
        if self.broken is not None:
            raise self.broken
        self.messages.put_nowait(message)
        return "an ignored result"

    async def next(self) -> tuple[Message, list[TraceRecord]]:
        async with asyncio.timeout(IN_GOOD_TIME_S):
            message = await self.messages.get()
        return message, decode_trace(message.body)

    def rest(self) -> list[TraceRecord]:
        found = []
        while not self.messages.empty():
            found += decode_trace(self.messages.get_nowait().body)
        return found


async def test_ten_records_go_out_at_once_in_one_message_under_all_their_keys() -> None:
    outbox = Outbox()
    tracer = Tracer(outbox.send, flush_interval_s=NEVER_S)
    tracer.start()
    records = [sent(number, keys=("shared", f"k{number}")) for number in range(10)]
    for record in records:
        tracer.add(record)
    message, found = await outbox.next()
    assert message.topic == TRACE_TOPIC
    assert found == records
    assert message.keys[:3] == (records[0].message_id, "shared", "k0")
    assert set(message.keys) == {"shared"} | {f"k{n}" for n in range(10)} | {record.message_id for record in records}
    assert len(message.keys) == 21
    await tracer.stop()


async def test_fewer_records_go_out_after_a_while() -> None:
    outbox = Outbox()
    tracer = Tracer(outbox.send, flush_interval_s=0.01)
    tracer.start()
    for number in range(2):
        tracer.add(sent(number))
        assert (await outbox.next())[1] == [sent(number)]
    await tracer.stop()
    assert tracer.lost == 0


@pytest.mark.parametrize("name", ["consume-started", "consume-ended", "recalled", "transaction-UNKNOW"])
async def test_the_keys_of_a_trace_message_equal_those_of_apaches_client(name: str) -> None:
    outbox = Outbox()
    tracer = Tracer(outbox.send)
    for record in KNOWN[name]:
        tracer._add(record)
    tracer.start()
    await tracer.stop()
    assert sorted((await outbox.next())[0].keys) == GOLDEN[name]["keys"]


async def test_stopping_sends_all_that_waits_in_batches_of_twenty_at_most() -> None:
    outbox = Outbox()
    tracer = Tracer(outbox.send, flush_interval_s=NEVER_S, batch_records=1000)
    records = [sent(number) for number in range(45)]
    for record in records:
        tracer.add(record)
    tracer.start()
    await tracer.stop()
    batches = [(await outbox.next())[1] for _ in range(3)]
    assert [len(batch) for batch in batches] == [20, 20, 5]
    assert [record for batch in batches for record in batch] == records
    assert outbox.messages.empty()


async def test_a_batch_has_an_end_by_bytes_and_by_the_bytes_of_its_keys() -> None:
    outbox = Outbox()
    tracer = Tracer(outbox.send)
    wide = [sent(number, store_host="h" * 50_000) for number in range(3)]
    keyed = [sent(number, keys=("k" * 9_000,)) for number in range(2)]
    huge = sent(7, store_host="h" * 200_000)
    for record in [*wide, *keyed, huge]:
        tracer.add(record)
    tracer.start()
    await tracer.stop()
    assert [(await outbox.next())[1] for _ in range(4)] == [wide[:2], [wide[2], keyed[0]], [keyed[1]], [huge]]


async def test_traces_are_not_traced() -> None:
    outbox = Outbox()
    tracer = Tracer(outbox.send, topic="MyTraces")
    assert not tracer.is_traced("MyTraces")
    tracer.add(sent(topic="MyTraces"))
    about_traces = [stored(topic="MyTraces")]
    assert tracer.consume_started("g", about_traces, request_id=REQUEST_ID, at_ms=AT_MS) == []
    tracer.add(sent(topic="MyTraces2"))
    tracer.start()
    await tracer.stop()
    message, found = await outbox.next()
    assert message.topic == "MyTraces"
    assert found == [sent(topic="MyTraces2")]


def test_a_trace_topic_needs_a_name_that_topics_have() -> None:
    with pytest.raises(InvalidNameError):
        Tracer(Outbox().send, topic="no such name")


async def test_a_consumption_is_traced_before_and_after() -> None:
    outbox = Outbox()
    tracer = Tracer(outbox.send)
    properties = {"UNIQ_KEY": ID_1, "KEYS": "k1 k2", "MSG_REGION": "north"}
    messages = [
        stored(reconsume_times=2).with_properties(properties),
        stored(reconsume_times=0).with_properties({"UNIQ_KEY": ID_2, "TRACE_ON": "true"}),
        stored().with_properties({"UNIQ_KEY": "untraced", "TRACE_ON": "false"}),
    ]
    began = tracer.consume_started("g", messages, request_id=REQUEST_ID, at_ms=AT_MS)
    tracer.consume_ended(began, at_ms=AT_MS + 31, success=False, returned=TracedReturn.RAISED)
    tracer.start()
    await tracer.stop()
    common: dict[str, Any] = {"group": "g", "request_id": REQUEST_ID}
    outcome: dict[str, Any] = {"cost_ms": 15, "success": False, "returned": TracedReturn.RAISED, "at_ms": AT_MS + 31}
    assert outbox.rest() == [
        ConsumeStarted(at_ms=AT_MS, region="north", message_id=ID_1, reconsume_times=2, keys=TWO_KEYS, **common),
        ConsumeStarted(at_ms=AT_MS, region="DefaultRegion", message_id=ID_2, reconsume_times=0, **common),
        ConsumeEnded(message_id=ID_1, keys=TWO_KEYS, **common, **outcome),
        ConsumeEnded(message_id=ID_2, **common, **outcome),
    ]


async def test_a_clock_that_steps_back_costs_nothing() -> None:
    outbox = Outbox()
    tracer = Tracer(outbox.send)
    began = tracer.consume_started("g", [stored()], request_id=REQUEST_ID, at_ms=AT_MS)
    tracer.consume_ended(began, at_ms=AT_MS - 5000, success=True, returned=TracedReturn.SUCCESS)
    tracer.start()
    await tracer.stop()
    last = outbox.rest()[-1]
    assert isinstance(last, ConsumeEnded)
    assert last.cost_ms == 0


async def test_keys_that_no_message_may_have_do_not_stop_a_trace() -> None:
    outbox = Outbox()
    tracer = Tracer(outbox.send)
    tracer.consume_started(
        "g", [stored().with_properties({"UNIQ_KEY": ID_1, "KEYS": "a \t b"})], request_id=REQUEST_ID, at_ms=AT_MS
    )
    tracer.start()
    await tracer.stop()
    assert (await outbox.next())[0].keys == (ID_1, "a", "b")


async def test_beyond_the_bound_the_oldest_records_are_dropped_and_some_drops_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outbox = Outbox()
    tracer = Tracer(outbox.send)
    with caplog.at_level(logging.WARNING, logger="skyroute.client.trace.tracer"):
        for number in range(RECORDS_MAX + 1500):
            tracer.add(sent(number))
    assert tracer.lost == 1500
    assert [record.getMessage().partition(" topic=")[0] for record in caplog.records] == [
        "trace records lost count=1",
        "trace records lost count=1000",
    ]
    assert repr(tracer) == "Tracer(topic='RMQ_SYS_TRACE_TOPIC', waiting=2048, lost=1500)"
    tracer.start()
    await tracer.stop()
    assert outbox.rest() == [sent(number) for number in range(1500, RECORDS_MAX + 1500)]


@pytest.mark.parametrize("error", [SkyrouteError("no route"), OSError("cut"), RuntimeError("a mistake of ours")])
async def test_a_send_that_fails_loses_its_records_and_the_next_ones_are_sent(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = Outbox()
    outbox.broken = error
    tracer = Tracer(outbox.send, flush_interval_s=NEVER_S, batch_records=2)
    tracer.start()
    for number in range(2):
        tracer.add(sent(number))
    async with asyncio.timeout(IN_GOOD_TIME_S):
        await outbox.knocked.wait()
    outbox.broken = None
    for number in range(2, 4):
        tracer.add(sent(number))
    assert (await outbox.next())[1] == [sent(2), sent(3)]
    await tracer.stop()
    assert tracer.lost == 2
    assert f"reason={type(error).__name__}: {error}" in caplog.text


async def test_stopping_ends_even_if_sending_does_not(caplog: pytest.LogCaptureFixture) -> None:
    outbox = Outbox()
    outbox.gate.clear()
    tracer = Tracer(outbox.send)
    for number in range(25):
        tracer.add(sent(number))
    tracer.start()
    async with asyncio.timeout(IN_GOOD_TIME_S):
        await outbox.knocked.wait()
        await tracer.stop(timeout_s=0.01)
    assert tracer.lost == 25
    assert "reason=stopped before they were sent" in caplog.text
    assert outbox.messages.empty()


async def test_a_stop_that_is_cancelled_leaves_no_task_behind() -> None:
    outbox = Outbox()
    outbox.gate.clear()
    tracer = Tracer(outbox.send, batch_records=1)
    tracer.start()
    tracer.add(sent())
    async with asyncio.timeout(IN_GOOD_TIME_S):
        await outbox.knocked.wait()
    before = asyncio.all_tasks()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await tracer.stop(timeout_s=NEVER_S)
    async with asyncio.timeout(IN_GOOD_TIME_S):
        await asyncio.wait(before - {asyncio.current_task()})
    assert tracer.lost == 1


async def test_stop_may_be_called_twice_and_start_after_it() -> None:
    outbox = Outbox()
    tracer = Tracer(outbox.send, batch_records=1)
    await tracer.stop()
    for number in range(2):
        tracer.start()
        tracer.start()
        tracer.add(sent(number))
        assert (await outbox.next())[1] == [sent(number)]
        await tracer.stop()
        await tracer.stop()
    assert outbox.messages.empty()
