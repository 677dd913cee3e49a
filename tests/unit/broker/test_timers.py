import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.broker.scheduling import timers as timers_module
from skyroute.broker.scheduling.timer_check import TimerCheck, TimerProgress
from skyroute.broker.scheduling.timer_records import recall_key
from skyroute.broker.scheduling.timer_slots import Slots
from skyroute.broker.scheduling.timers import Timers, recall_handle
from skyroute.broker.store.draft import Draft
from skyroute.broker.store.errors import StoreDamagedError
from skyroute.message.reserved_topics import TIMER_TOPIC
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.send_back import RecallHandle, decode_recall_handle
from skyroute.wire.codes import ResponseCode
from tests.unit.broker.waiting import HOST, PRODUCER, START_MS, Waiting, draft

DAY_MS = 86_400_000
CHECK = struct.Struct(">7q")


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Waiting]:
    waiting = Waiting(tmp_path)
    yield waiting
    waiting.store.close()


def at(deliver_ms: int, body: bytes = b"coffee", **properties: str) -> Draft:
    return draft({"UNIQ_KEY": body.decode(), "TIMER_DELIVER_MS": str(deliver_ms), **properties}, body=body)


def mark(deliver_ms: int, unique_id: str, topic: str = "Orders") -> Draft:
    return at(deliver_ms, b"0", TIMER_DEL_UNIQKEY=recall_key(topic, unique_id))


# Scheduling


@pytest.mark.parametrize(
    ("properties", "slot_ms"),
    [
        ({"TIMER_DELAY_SEC": "5"}, START_MS + 4_000),
        ({"TIMER_DELAY_MS": "5001"}, START_MS + 5_000),
        ({"TIMER_DELIVER_MS": str(START_MS + 4_999)}, START_MS + 4_000),
        ({"TIMER_DELAY_SEC": "5", "TIMER_DELAY_MS": "1", "TIMER_DELIVER_MS": "1"}, START_MS + 4_000),
        ({"TIMER_DELAY_MS": "2000", "TIMER_DELIVER_MS": "1"}, START_MS + 1_000),
    ],
)
def test_a_message_with_a_time_is_redirected_to_the_timer_topic(
    waiting: Waiting, properties: dict[str, str], slot_ms: int
) -> None:
    scheduled = waiting.timers.schedule(draft(properties), START_MS)
    assert (scheduled.topic, scheduled.queue_id) == (TIMER_TOPIC, 0)
    assert scheduled.raw_properties.endswith(
        b"TIMER_OUT_MS\x01%d\x02REAL_TOPIC\x01Orders\x02REAL_QID\x012\x02" % slot_ms
    )


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"TIMER_DELIVER_MS": str(START_MS)},
        {"TIMER_DELAY_SEC": "0"},
        {"TIMER_DELAY_SEC": "5", "TIMER_OUT_MS": "1"},
        {"TIMER_DELAY_SEC": "5", "DELAY": "2"},
    ],
)
def test_a_message_that_is_due_or_has_no_time_is_not_changed(waiting: Waiting, properties: dict[str, str]) -> None:
    plain = draft(properties)
    assert waiting.timers.schedule(plain, START_MS) is plain


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELAY_SEC": "259201"},
        {"TIMER_DELIVER_MS": "soon"},
        {"TIMER_DELIVER_MS": str(START_MS), "TIMER_DEL_UNIQKEY": "Orders+x"},
    ],
)
def test_invalid_times_are_refused(waiting: Waiting, properties: dict[str, str]) -> None:
    with pytest.raises(RefusedError) as refused:
        waiting.timers.schedule(draft(properties), START_MS)
    assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL


def test_times_are_refused_if_timers_are_disabled(waiting: Waiting) -> None:
    check = TimerCheck(waiting.folder / "config" / "timercheck", 1_000)
    timers = Timers(waiting.store, waiting, check, enabled=False)
    with pytest.raises(RefusedError, match="timerWheelEnable") as refused:
        timers.schedule(draft({"TIMER_DELAY_SEC": "1"}), START_MS)
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    plain = draft({})
    assert timers.schedule(plain, START_MS) is plain


def test_a_timer_message_has_a_recall_handle(waiting: Waiting) -> None:
    scheduled = waiting.timers.schedule(at(START_MS + 5_000), START_MS)
    handle = recall_handle(scheduled, "broker-a")
    assert handle is not None
    assert decode_recall_handle(handle) == RecallHandle("Orders", "broker-a", START_MS + 4_001, "coffee")
    retried = waiting.timers.schedule(
        Draft("%RETRY%CG", 0, b"x", scheduled.raw_properties.split(b"TIMER_OUT")[0], 0, PRODUCER, HOST), START_MS
    )
    assert recall_handle(retried, "broker-a") is None


# Delivering


def test_a_message_is_delivered_when_it_is_due_and_not_before(waiting: Waiting) -> None:
    waiting.time_ms = START_MS + 300
    waiting.put(at(START_MS + 2_500, TAGS="paid"))
    waiting.deliver()
    assert waiting.timers.step(waiting.time_ms) == START_MS + 3_000
    waiting.pass_ms(2_699)
    assert waiting.messages() == []
    waiting.pass_ms(1)
    (message,) = waiting.messages()
    assert (message.body, message.tag, message.born_at_ms) == (b"coffee", "paid", 17)
    assert (message.raw_born_host, message.raw_store_host) == (PRODUCER, HOST)
    properties = message.properties
    assert properties["TIMER_ENQUEUE_MS"] == str(START_MS)
    assert properties["TIMER_DEQUEUE_MS"] == str(START_MS + 3_000)
    assert properties["TIMER_OUT_MS"] == str(START_MS + 2_000)
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("Orders", "2")
    assert waiting.timers.step(waiting.time_ms) is None
    assert len(waiting.timers) == 0


def test_messages_are_delivered_in_the_order_of_their_times(waiting: Waiting) -> None:
    for delay_ms in (9_000, 3_000, 6_000, 2_999):
        waiting.put(at(START_MS + delay_ms, str(delay_ms).encode()))
    waiting.pass_ms(20_000)
    assert waiting.bodies() == [b"3000", b"2999", b"6000", b"9000"]


def test_a_mark_recalls_a_message_of_its_topic(waiting: Waiting) -> None:
    due_ms = START_MS + 5_000
    waiting.put(at(due_ms, b"one"))
    waiting.put(at(due_ms, b"two"))
    waiting.put(mark(due_ms - 999, "one"))
    waiting.put(mark(due_ms - 999, "two", topic="Invoices"))
    waiting.pass_ms(5_000)
    assert waiting.bodies() == [b"two"]


def test_a_late_mark_recalls_nothing_and_is_not_delivered(waiting: Waiting) -> None:
    waiting.put(at(START_MS + 5_000, b"one"))
    waiting.pass_ms(5_000)
    waiting.put(mark(START_MS + 7_000, "one"))
    waiting.pass_ms(9_000)
    assert waiting.bodies() == [b"one"]
    assert waiting.bodies(queue_id=0) == []


def test_many_recall_marks_are_read_in_steps_before_the_first_delivery(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timers_module, "MARKS_READ_MAX", 10)
    due_ms = START_MS + 5_000
    waiting.put(at(due_ms, b"one"))
    waiting.put(at(due_ms, b"two"))
    for number in range(95):
        waiting.put(mark(due_ms - 999, f"unknown-{number}"))
    waiting.put(mark(due_ms - 999, "one"))
    while waiting.timers.step(START_MS) == START_MS:
        pass  # the topic is read
    waiting.time_ms += 5_000
    for _ in range(10):
        assert waiting.timers.step(waiting.time_ms) == waiting.time_ms
        assert waiting.bodies() == []
    waiting.deliver()
    assert waiting.bodies() == [b"two"]


def test_recall_marks_of_one_slot_are_bounded(waiting: Waiting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers_module, "MARKS_MAX", 3)
    for number in range(3):
        waiting.put(mark(START_MS + 5_000, f"id-{number}"))
    while waiting.timers.step(START_MS) == START_MS:
        pass
    with pytest.raises(RefusedError, match="under flow control"):
        waiting.put(mark(START_MS + 5_000, "id-3"))
    waiting.put(mark(START_MS + 6_000, "id-3"))
    waiting.put(at(START_MS + 5_000))


def test_damaged_records_in_the_topic_do_not_stop_delivery(waiting: Waiting) -> None:
    waiting.put_plain(draft({}, topic=TIMER_TOPIC, queue_id=0))
    waiting.put_plain(draft({"TIMER_OUT_MS": "x", "REAL_TOPIC": "Orders"}, topic=TIMER_TOPIC, queue_id=0))
    waiting.put(at(START_MS + 1_000))
    waiting.pass_ms(1_000)
    assert waiting.bodies() == [b"coffee"]


def test_a_failed_delivery_is_retried(waiting: Waiting) -> None:
    for body in (b"one", b"two"):
        waiting.put(at(START_MS + 1_000, body))
    waiting.failures = 2
    waiting.pass_ms(1_000)
    assert waiting.bodies() == []
    waiting.pass_ms(100)
    waiting.pass_ms(199)
    assert waiting.bodies() == []
    waiting.pass_ms(1)
    assert waiting.bodies() == [b"one", b"two"]


def test_a_clock_that_is_set_back_loses_no_message_and_delivers_none_early(waiting: Waiting) -> None:
    waiting.pass_ms(3_600_000)
    waiting.time_ms = START_MS
    waiting.put(at(START_MS + 5_000))
    waiting.pass_ms(4_999)
    waiting.restart()
    assert waiting.bodies() == []
    waiting.pass_ms(1)
    assert waiting.bodies() == [b"coffee"]


def test_a_message_with_a_delay_of_days_is_rolled_before_the_log_expires(waiting: Waiting) -> None:
    due_ms = START_MS + 3 * DAY_MS
    waiting.put(at(due_ms))
    waiting.put(at(due_ms, b"withdrawn"))
    waiting.put(mark(due_ms - 999, "withdrawn"))
    waiting.pass_ms(DAY_MS)
    assert len(waiting.messages(TIMER_TOPIC, 0)) == 3
    waiting.pass_ms(DAY_MS + 1_000)
    assert len(waiting.messages(TIMER_TOPIC, 0)) == 6
    assert waiting.messages(TIMER_TOPIC, 0)[-1].properties["TIMER_ROLL_TIMES"] == "1"
    waiting.restart()
    waiting.pass_ms(DAY_MS - 1_001)
    assert waiting.bodies() == []
    waiting.pass_ms(1)
    assert waiting.bodies() == [b"coffee"]


# Progress


def test_a_stop_within_a_slot_delivers_nothing_twice(waiting: Waiting) -> None:
    for number in range(100):
        waiting.put(at(START_MS + 1_000, str(number).encode()))
    waiting.time_ms += 1_000
    while len(waiting.messages()) < 50:
        waiting.timers.step(waiting.time_ms)
    waiting.restart()
    waiting.deliver()
    assert waiting.bodies() == [str(number).encode() for number in range(100)]


def test_only_flushed_deliveries_are_saved(waiting: Waiting) -> None:
    waiting.put(at(START_MS + 1_000))
    waiting.pass_ms(1_000)
    waiting.timers.note(waiting.time_ms)
    assert not waiting.timers.note(waiting.time_ms)
    waiting.store.flush()
    assert waiting.timers.note(waiting.time_ms)


def test_a_crash_loses_nothing(waiting: Waiting) -> None:
    waiting.put(at(START_MS + 1_000, b"one"))
    waiting.put(at(START_MS + 9_000, b"two"))
    waiting.pass_ms(1_000)
    waiting.crash()
    waiting.deliver()
    assert waiting.bodies() == [b"one", b"one"]
    waiting.pass_ms(9_000)
    assert waiting.bodies() == [b"one", b"one", b"two"]


def test_the_timercheck_file_is_in_the_format_of_apache(waiting: Waiting) -> None:
    waiting.put(at(START_MS + 1_000, b"one"))
    waiting.put(at(START_MS + 9_000, b"two"))
    waiting.put(at(START_MS + 2_000, b"three"))
    waiting.pass_ms(2_500)
    waiting.stop()
    page = (waiting.folder / "config" / "timercheck").read_bytes()
    assert len(page) == 4096
    # Apache's broker has no timer log here, and reads from the oldest message that is not due.
    assert CHECK.unpack_from(page) == (START_MS + 2_000, 0, 1, 3, 0, START_MS + 2_500, 1)
    waiting.start()


def test_messages_in_the_timer_wheel_of_apaches_broker_are_delivered(waiting: Waiting) -> None:
    for delay_s in (1, 60, 2):
        waiting.put(at(START_MS + delay_s * 1_000, str(delay_s).encode()))
    waiting.put(at(START_MS + 90_000, b"not read there"))
    waiting.store.flush()
    waiting.store.close()
    check = waiting.folder / "config" / "timercheck"
    check.parent.mkdir(exist_ok=True)
    check.write_bytes(CHECK.pack(START_MS + 2_000, 156, 3, 3, 0, START_MS, 1).ljust(4096, b"\0"))
    waiting.start()
    waiting.pass_ms(100_000)
    assert waiting.bodies() == [b"60", b"not read there"]


def test_messages_rolled_by_apaches_broker_are_delivered_once(waiting: Waiting) -> None:
    due_ms = START_MS + 3 * DAY_MS
    renewed = waiting.timers.schedule(at(due_ms, b"renewed"), START_MS)
    waiting.put_plain(renewed)
    waiting.put(at(due_ms, b"not yet"))
    waiting.time_ms += DAY_MS
    more = renewed.raw_properties + b"TIMER_ROLL_TIMES\x011\x02"
    waiting.put_plain(Draft(TIMER_TOPIC, 0, renewed.body, more, 17, PRODUCER, HOST))
    waiting.store.close()
    check = waiting.folder / "config" / "timercheck"
    check.parent.mkdir(exist_ok=True)
    check.write_bytes(CHECK.pack(waiting.time_ms, 156, 3, 3, 0, START_MS, 1).ljust(4096, b"\0"))
    waiting.start()
    waiting.pass_ms(DAY_MS // 2)
    waiting.restart()
    for _ in range(4):
        waiting.pass_ms(DAY_MS // 2)
    assert sorted(waiting.bodies()) == [b"not yet", b"renewed"]


def test_progress_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    check = TimerCheck(tmp_path / "config" / "timercheck", 1_000)
    assert check.load() == TimerProgress()
    progress = TimerProgress(START_MS + 1, 7, 12, 3)
    check.save(progress, START_MS)
    assert check.load() == progress
    with check.path.open("r+b") as file:  # as Apache's broker does
        file.write(CHECK.pack(START_MS + 4_000, 0, 15, 15, 0, 0, 2))
    assert check.load() == TimerProgress(START_MS + 4_000, 0, 15, 15, is_ours=False)


@pytest.mark.parametrize("at", range(88))
def test_a_damaged_number_is_replaced_by_its_copy(tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture) -> None:
    check = TimerCheck(tmp_path / "timercheck", 1_000)
    check.save(TimerProgress(START_MS, 7, 12, 3), START_MS)
    progress = TimerProgress(START_MS + 1_001, 7, 15, 3)
    check.save(progress, START_MS)
    page = bytearray(check.path.read_bytes())
    page[at] ^= 0x80
    check.path.write_bytes(page)
    assert TimerCheck(check.path, 1_000).load() == progress
    assert ("its copy is used" in caplog.text) == (not 48 <= at < 56 or at == 48), "a later edition counts"


def test_a_damaged_copy_is_ignored(tmp_path: Path) -> None:
    check = TimerCheck(tmp_path / "timercheck", 1_000)
    progress = TimerProgress(START_MS, 7, 12, 3)
    check.save(progress, START_MS)
    page = bytearray(check.path.read_bytes())
    page[2050] ^= 1
    check.path.write_bytes(page)
    assert check.load() == progress


def test_without_a_copy_negative_numbers_are_refused(tmp_path: Path) -> None:
    check = TimerCheck(tmp_path / "timercheck", 1_000)
    check.path.write_bytes(CHECK.pack(START_MS, 0, 15, -15, 0, 0, 2).ljust(4096, b"\0"))
    with pytest.raises(StoreDamagedError, match=r"timercheck is damaged: a number is negative: -15\. .* or remove it"):
        check.load()


# More messages than fit into memory


def test_slots_beyond_the_horizon_are_only_counted() -> None:
    slots = Slots(8)
    for offset in range(20):
        slots.add(offset % 5 * 1_000, offset)
    assert len(slots) == 20
    assert [slots.count(slot_ms) for slot_ms in range(0, 5_000, 1_000)] == [4] * 5
    assert slots.oldest() == 0
    nearest = slots.nearest()
    assert nearest is not None
    assert nearest[0] == 0
    assert list(nearest[1].offsets) == [0, 5, 10, 15]
    slots.remove_nearest()
    assert not slots.needs_refill()
    slots.remove_nearest()
    assert slots.needs_refill()
    assert slots.begin_refill() == (2_000, 2)
    assert slots.oldest() == 2
    slots.add(2_000, 22)
    for offset in range(20):
        if offset % 5 >= 2:
            slots.add(offset % 5 * 1_000, offset)
    slots.end_refill(2_000)
    assert slots.horizon == 3_000
    nearest = slots.nearest()
    assert nearest is not None
    assert list(nearest[1].offsets) == [2, 7, 12, 17, 22]
    assert len(slots) == 13


def test_more_messages_than_fit_into_memory_are_delivered_in_order(tmp_path: Path) -> None:
    waiting = Waiting(tmp_path, near_max=10)
    bodies = [f"{number * 37 % 101:03}".encode() for number in range(101)]
    for body in bodies:
        waiting.put(at(START_MS + 1_000 + int(body) * 500, body))
    for _ in range(120):
        waiting.pass_ms(500)
    assert sorted(waiting.bodies()) == sorted(bodies)
    assert [(int(body) + 1) // 2 for body in waiting.bodies()] == sorted((int(body) + 1) // 2 for body in bodies)
    waiting.store.close()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 9_000)),
        st.tuples(st.just("pass"), st.integers(0, 5_000)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("some"), st.integers(1, 3)),
    ),
    max_size=30,
)


@given(steps=STEPS, near_max=st.sampled_from([2, 5, 1000]))
def test_each_message_is_delivered_once_and_never_early(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], near_max: int
) -> None:
    waiting = Waiting(tmp_path_factory.mktemp("store"), near_max=near_max)
    due: dict[bytes, int] = {}
    for number, (step, value) in enumerate(steps):
        if step == "put":
            body = str(number).encode()
            due[body] = waiting.time_ms + value
            waiting.put(at(due[body], body))
        elif step == "pass":
            waiting.pass_ms(value)
            expected = {body for body, due_ms in due.items() if -(-due_ms // 1000) * 1000 <= waiting.time_ms}
            assert sorted(waiting.bodies()) == sorted(expected)
        elif step == "some":
            for _ in range(value):
                waiting.timers.step(waiting.time_ms)
        else:
            waiting.restart()
    waiting.restart()
    waiting.pass_ms(10_000)
    assert sorted(waiting.bodies()) == sorted(due)
    assert all(message.stored_at_ms >= due[message.body] for message in waiting.messages())
    assert len(waiting.timers) == 0
    waiting.store.close()


CRASHES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 9_000)),
        st.tuples(st.just("pass"), st.integers(0, 5_000)),
        st.tuples(st.just("note"), st.just(0)),
        st.tuples(st.just("crash"), st.just(0)),
    ),
    max_size=30,
)


@given(steps=CRASHES, near_max=st.sampled_from([2, 1000]))
def test_crashes_lose_no_message_and_repeat_only_unsaved_deliveries(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], near_max: int
) -> None:
    waiting = Waiting(tmp_path_factory.mktemp("store"), near_max=near_max)
    due: dict[bytes, int] = {}
    fresh: set[bytes] = set()
    repeatable: set[bytes] = set()
    for number, (step, value) in enumerate(steps):
        before = set(waiting.bodies())
        if step == "put":
            body = str(number).encode()
            due[body] = waiting.time_ms + value
            waiting.put(at(due[body], body))
        elif step == "pass":
            waiting.pass_ms(value)
            fresh |= set(waiting.bodies()) - before
        elif step == "note":
            waiting.save()
            fresh = set()
        else:
            waiting.store.flush()
            waiting.crash()
            repeatable |= fresh
    waiting.pass_ms(10_000)
    bodies = waiting.bodies()
    assert set(bodies) == set(due)
    assert {body for body in bodies if bodies.count(body) > 1} <= repeatable
    assert all(message.stored_at_ms >= due[message.body] for message in waiting.messages())
    waiting.store.close()


def test_an_invalid_copy_with_a_valid_checksum_is_not_used(tmp_path: Path) -> None:
    check = TimerCheck(tmp_path / "timercheck", 1_000)
    check.save(TimerProgress(-1, 0, 12, 3), START_MS)
    with pytest.raises(StoreDamagedError, match="a number is negative"):
        check.load()


def test_numbers_that_leave_no_room_for_the_next_are_refused(tmp_path: Path) -> None:
    check = TimerCheck(tmp_path / "timercheck", 1_000)
    check.path.write_bytes(CHECK.pack(START_MS, 0, 15, 15, 0, 0, (1 << 63) - 1).ljust(4096, b"\0"))
    with pytest.raises(StoreDamagedError, match="a number is too large"):
        check.load()


# The check point for other brokers of the group


def slot_of(waiting: Waiting) -> int:
    """The time up to which another broker takes messages for delivered."""
    return int(CHECK.unpack_from(waiting.timers.check_point)[0])


def test_the_check_point_has_the_present_time_while_nothing_is_due(waiting: Waiting) -> None:
    waiting.pass_ms(5_500)
    assert slot_of(waiting) == START_MS + 5_000
    waiting.put(at(START_MS + 9_999))
    waiting.pass_ms(1_000)
    waiting.timers.note(waiting.time_ms)
    waiting.save()
    waiting.pass_ms(1_000)
    assert START_MS + 5_000 <= slot_of(waiting) <= START_MS + 9_000, "the message is not delivered yet"


def test_the_check_point_waits_until_deliveries_are_saved(waiting: Waiting) -> None:
    waiting.pass_ms(1_000)
    before = slot_of(waiting)
    waiting.put(at(START_MS + 3_000))
    waiting.pass_ms(10_000)
    assert waiting.timers.progress().slot_ms > before
    assert slot_of(waiting) <= before, "delivered, and perhaps on no disk"
    waiting.restart()
    waiting.pass_ms(1_000)
    assert slot_of(waiting) >= START_MS + 3_000
    copied = TimerCheck(waiting.folder / "copied", 1_000)
    copied.take_over(waiting.timers.check_point)
    assert copied.load().is_ours
