"""Batches, as producers send them and as some topics store them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.message.batch import BatchItem, check_batch, decode_batch, encode_batch, unwrap_batches
from skyroute.message.errors import BatchError, InvalidMessageError
from skyroute.message.message import Message
from skyroute.message.properties import encode_properties
from skyroute.message.record import decode_records
from tests.unit.message.samples import FACTS, INT32, golden, stored

ITEMS = st.lists(st.builds(BatchItem, st.binary(max_size=20), st.binary(max_size=20), INT32), max_size=4)
APACHE = [
    BatchItem(b"m0", "TAGS\x01Tag0\x02k\x01值\x02".encode(), 7),
    BatchItem(b"m1", "TAGS\x01Tag1\x02k\x01值\x02".encode(), 8),
    BatchItem(b"", b"", 9),
]


def test_a_batch_of_apache() -> None:
    assert decode_batch(golden("batch")) == APACHE
    assert encode_batch(APACHE) == golden("batch")


def test_a_batch_of_an_older_client() -> None:
    assert decode_batch(golden("batch-4.9.7")) == [item._replace(raw_properties=item[1][:-1]) for item in APACHE]


@given(ITEMS)
def test_batches_are_decoded_as_encoded(items: list[BatchItem]) -> None:
    assert decode_batch(encode_batch(items)) == items


def test_a_batch_cut_anywhere_is_refused() -> None:
    batch = golden("batch")
    for length in set(range(1, len(batch))) - {40, 80}:
        with pytest.raises(BatchError):
            decode_batch(batch[:length])


@given(st.binary(max_size=80), st.integers(0, 102))
def test_any_bytes_are_a_batch_or_refused(noise: bytes, keep: int) -> None:
    body = golden("batch")[:keep] + noise
    try:
        items = decode_batch(body)
    except BatchError:
        return
    assert sum(22 + len(inside) + len(raw_properties) for inside, raw_properties, _ in items) == len(body)


def test_items_that_do_not_fit_are_refused() -> None:
    with pytest.raises(BatchError):
        encode_batch([BatchItem(b"", b"x" * 32768)])
    with pytest.raises(BatchError):
        encode_batch([BatchItem(b"", b"", 1 << 31)])


def test_a_batch_is_replaced_by_its_messages() -> None:
    messages = unwrap_batches([stored(), *decode_records(golden("record-inner-batch")), stored(flag=1)])
    assert messages[0] == stored()
    assert messages[-1] == stored(flag=1)
    inside = messages[1:-1]
    found = [[m.queue_offset, m.body.decode(), m.flag, m.log_position] for m in inside]
    assert found == [[offset, body, flag, position] for offset, body, flag, _, position, _ in FACTS["inner_batch"]]
    assert [message.tag for message in inside] == ["Tag0", "Tag1", None]
    assert unwrap_batches(inside) is inside


def test_an_invalid_batch_is_refused() -> None:
    with pytest.raises(BatchError):
        unwrap_batches([stored(sys_flag=0xC0)])


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([], "at least one"),
        ([Message("%RETRY%g", b"")], "Retry Group is not supported"),
        ([Message("a", b""), Message("a", b"", delay_level=1)], "TimeDelayLevel is not supported"),
        ([Message("a", b"", deliver_after_s=1)], "TimeDelayLevel is not supported"),
        ([Message("a", b""), Message("b", b"")], "topic of the messages"),
        ([Message("a", b""), Message("a", b"", wait_stored=False)], "waitStoreMsgOK"),
    ],
)
def test_messages_that_cannot_be_one_batch_are_refused(messages: list[Message], text: str) -> None:
    with pytest.raises(InvalidMessageError, match=text):
        check_batch(messages)


def test_messages_of_one_topic_may_be_sent_as_one_batch() -> None:
    messages = [Message("a", b""), Message("a", b"", tag="t")]
    check_batch(messages)
    body = encode_batch((message.body, encode_properties(message.to_properties()), 0) for message in messages)
    assert len(decode_batch(body)) == 2
