import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.message.flags import TransactionState
from skyroute.message.reserved_topics import HALF_TOPIC, SCHEDULE_TOPIC
from skyroute.remoting.errors import RefusedError
from skyroute.wire.codes import ResponseCode
from tests.unit.broker.waiting import HOST, PRODUCER, START_MS, Waiting, draft


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Waiting]:
    waiting = Waiting(tmp_path)
    yield waiting
    waiting.store.close()


def test_a_message_without_a_delay_level_is_not_scheduled(waiting: Waiting) -> None:
    for properties in ({}, {"DELAY": "0"}, {"DELAY": "-1"}, {"XDELAY": "3"}):
        plain = draft(properties)
        assert waiting.delays.schedule(plain) is plain


def test_a_message_with_a_delay_level_is_redirected_to_the_schedule_topic(waiting: Waiting) -> None:
    scheduled = waiting.delays.schedule(draft({"TAGS": "paid", "DELAY": "2"}))
    assert (scheduled.topic, scheduled.queue_id) == (SCHEDULE_TOPIC, 1)
    assert scheduled.raw_properties == b"TAGS\x01paid\x02DELAY\x012\x02REAL_TOPIC\x01Orders\x02REAL_QID\x012\x02"


def test_a_level_above_the_last_counts_as_the_last(waiting: Waiting) -> None:
    scheduled = waiting.delays.schedule(draft({"DELAY": "99"}))
    assert scheduled.queue_id == 2
    assert b"DELAY\x013\x02" in scheduled.raw_properties


def test_a_delay_level_takes_precedence_over_a_timer(waiting: Waiting) -> None:
    times = {"TIMER_DELAY_SEC": "9", "TIMER_DELAY_MS": "9", "TIMER_DELIVER_MS": "9"}
    scheduled = waiting.delays.schedule(draft({**times, "DELAY": "1"}))
    assert b"TIMER_" not in scheduled.raw_properties
    plain = draft({**times, "DELAY": "1"})
    assert waiting.timers.schedule(plain, START_MS) is plain


def test_a_level_that_is_not_a_number_is_refused(waiting: Waiting) -> None:
    with pytest.raises(RefusedError) as refused:
        waiting.delays.schedule(draft({"DELAY": "1_0"}))
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL


def test_half_messages_are_not_delayed(waiting: Waiting) -> None:
    half = draft({"DELAY": "1"}, sys_flag=int(TransactionState.PREPARED))
    assert waiting.delays.schedule(half) is half
    committed = draft({"DELAY": "1"}, sys_flag=int(TransactionState.COMMITTED))
    assert waiting.delays.schedule(committed).topic == SCHEDULE_TOPIC


def test_repeated_delays_do_not_grow_the_properties(waiting: Waiting) -> None:
    once = waiting.delays.schedule(draft({"DELAY": "1"}))
    again = waiting.delays.schedule(draft({}))
    again = waiting.delays.schedule(type(once)("Orders", 2, once.body, once.raw_properties, 0, PRODUCER, HOST))
    assert len(again.raw_properties) == len(once.raw_properties)


def test_a_message_is_delivered_when_it_is_due_and_not_before(waiting: Waiting) -> None:
    waiting.put(draft({"DELAY": "1", "TAGS": "paid"}, reconsume_times=4, flag=7))
    assert waiting.delays.deliver_due(START_MS) == START_MS + 1_000
    waiting.pass_ms(999)
    assert waiting.messages() == []
    waiting.pass_ms(1)
    (message,) = waiting.messages()
    assert (message.body, message.tag, message.flag, message.reconsume_times) == (b"coffee", "paid", 7, 4)
    assert (message.born_at_ms, message.raw_born_host, message.raw_store_host) == (17, PRODUCER, HOST)
    assert message.stored_at_ms == START_MS + 1_000
    assert message.properties["DELAY"] == "1"
    assert (message.properties["REAL_TOPIC"], message.properties["REAL_QID"]) == ("Orders", "2")
    assert waiting.delays.deliver_due(waiting.time_ms) is None


def test_messages_stored_while_the_clock_was_ahead_are_delivered(waiting: Waiting) -> None:
    waiting.time_ms += 3_600_000
    waiting.put(draft({"DELAY": "3"}))
    waiting.time_ms = START_MS
    waiting.deliver()
    assert waiting.bodies() == [b"coffee"]


def test_messages_without_a_real_topic_are_discarded(waiting: Waiting) -> None:
    waiting.put(draft({"DELAY": "1"}, topic=HALF_TOPIC))
    waiting.put_plain(draft({"DELAY": "1"}, topic=SCHEDULE_TOPIC, queue_id=0))
    waiting.put_plain(draft({"DELAY": "1", "REAL_TOPIC": "Orders", "REAL_QID": "x"}, topic=SCHEDULE_TOPIC, queue_id=0))
    waiting.put_plain(draft({"DELAY": "1", "REAL_TOPIC": "../up", "REAL_QID": "0"}, topic=SCHEDULE_TOPIC, queue_id=0))
    waiting.put(draft({"DELAY": "1"}, body=b"the last"))
    waiting.pass_ms(1_000)
    assert waiting.bodies() == [b"the last"]
    assert waiting.messages(HALF_TOPIC) == []


def test_failed_deliveries_are_retried_with_backoff(waiting: Waiting) -> None:
    waiting.put(draft({"DELAY": "1"}))
    waiting.failures = 3
    now_ms = waiting.time_ms = START_MS + 1_000
    for pause_ms in (100, 200, 400):
        due_ms = waiting.delays.deliver_due(now_ms)
        assert due_ms == now_ms + pause_ms
        assert waiting.delays.deliver_due(due_ms - 1) == due_ms
        now_ms = due_ms
    waiting.delays.deliver_due(now_ms)
    assert waiting.bodies() == [b"coffee"]


def test_delivery_yields_after_a_batch_of_messages(waiting: Waiting) -> None:
    for _ in range(40):
        waiting.put(draft({"DELAY": "1"}))
    waiting.time_ms += 1_000
    assert waiting.delays.deliver_due(waiting.time_ms) == waiting.time_ms
    assert 0 < len(waiting.messages()) < 40
    waiting.deliver()
    assert len(waiting.messages()) == 40


def test_offsets_are_saved_in_the_format_of_apache(waiting: Waiting) -> None:
    waiting.put(draft({"DELAY": "1"}))
    waiting.put(draft({"DELAY": "3"}))
    waiting.pass_ms(1_000)
    waiting.restart()
    text = (waiting.folder / "config" / "delayOffset.json").read_text()
    assert text.endswith('"offsetTable":{1:1}}')
    assert json.loads(text.replace("{1:", '{"1":'))["dataVersion"]["counter"] == 1
    assert waiting.delays.offsets() == {1: (1, 1)}


def test_offsets_outside_the_queue_are_corrected(waiting: Waiting) -> None:
    waiting.put(draft({"DELAY": "1"}))
    waiting.pass_ms(1_000)
    waiting.stop()
    (waiting.folder / "config" / "delayOffset.json").write_text('{"offsetTable":{1:17,2:5}}')
    waiting.start()
    assert waiting.delays.offsets() == {1: (1, 1), 2: (0, 0)}


def test_only_flushed_deliveries_are_saved(waiting: Waiting) -> None:
    waiting.put(draft({"DELAY": "1"}))
    waiting.pass_ms(1_000)
    waiting.delays.note(waiting.time_ms)
    waiting.delays.note(waiting.time_ms)
    assert waiting.delays.render()["offsetTable"] == {}  # type: ignore[index]  # a parsed file has no type
    waiting.store.flush()
    waiting.delays.note(waiting.time_ms)
    assert waiting.delays.render()["offsetTable"] == {1: 1}  # type: ignore[index]  # as above


STEPS = st.lists(
    st.one_of(st.tuples(st.just("put"), st.integers(1, 4)), st.tuples(st.just("pass"), st.integers(0, 12_000)),
              st.tuples(st.just("restart"), st.just(0))),
    max_size=25,
)  # fmt: skip


@given(steps=STEPS)
def test_each_message_is_delivered_once_and_never_early(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    waiting = Waiting(tmp_path_factory.mktemp("store"))
    due: dict[bytes, int] = {}
    for number, (step, value) in enumerate(steps):
        if step == "put":
            body = str(number).encode()
            due[body] = waiting.time_ms + waiting.settings.delays_ms[min(value, 3) - 1]
            waiting.put(draft({"DELAY": str(value)}, body=body))
        elif step == "pass":
            waiting.pass_ms(value)
        else:
            waiting.restart()
        expected = {body for body, due_ms in due.items() if due_ms <= waiting.time_ms}
        waiting.deliver()
        assert sorted(waiting.bodies()) == sorted(expected)
    waiting.pass_ms(30_000)
    assert sorted(waiting.bodies()) == sorted(due)
    assert all(message.stored_at_ms >= due[message.body] for message in waiting.messages())
    waiting.store.close()
