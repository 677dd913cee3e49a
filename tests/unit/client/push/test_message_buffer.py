"""The message buffer of a queue: no offset behind an unfinished message is ever committed."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skyroute.client.consuming.push.message_buffer import BufferLimits, MessageBuffer
from skyroute.message.message import StoredMessage
from skyroute.message.positions import LogPosition, QueueOffset


def message(offset: int, *, record_bytes: int = 100, reconsume_times: int = 0) -> StoredMessage:
    return StoredMessage(
        topic="T",
        queue_id=0,
        queue_offset=QueueOffset(offset),
        log_position=LogPosition(offset * 1000),
        stored_body=b"body",
        raw_properties=b"",
        sys_flag=0,
        flag=0,
        born_at_ms=0,
        raw_born_host=bytes(8),
        stored_at_ms=0,
        raw_store_host=bytes(8),
        reconsume_times=reconsume_times,
        prepared_position=LogPosition(0),
        body_crc=0,
        record_bytes=record_bytes,
    )


def messages(*offsets: int) -> list[StoredMessage]:
    return [message(offset) for offset in offsets]


def offsets(found: list[StoredMessage]) -> list[int]:
    return [each.queue_offset for each in found]


def test_an_empty_one_commits_where_it_starts() -> None:
    buffer = MessageBuffer(7)
    assert (buffer.commit_offset, buffer.position, buffer.count) == (7, 7, 0)


def test_the_repr_tells_what_is_unfinished_and_where_it_stands() -> None:
    buffer = MessageBuffer(4)
    buffer.add(messages(4, 5, 6), 9)
    buffer.finish(buffer.take(1))
    buffer.take(1)
    assert repr(buffer) == "<MessageBuffer waiting=1 of 2 commit=5 next=9>"


def test_a_taken_message_is_not_committed_until_it_is_finished() -> None:
    buffer = MessageBuffer(0)
    buffer.add(messages(0, 1, 2), 3)
    first = buffer.take(1)
    assert offsets(first) == [0]
    assert buffer.commit_offset == 0
    buffer.finish(first)
    assert buffer.commit_offset == 1
    assert offsets(buffer.take(10)) == [1, 2]
    assert not buffer.has_waiting
    assert buffer.commit_offset == 1


def test_the_lowest_unfinished_holds_the_offset_back() -> None:
    buffer = MessageBuffer(0)
    buffer.add(messages(0, 1, 2, 3), 4)
    zero, one, two, three = buffer.take(4)
    buffer.finish([three, one])
    assert buffer.commit_offset == 0
    buffer.finish([zero])
    assert buffer.commit_offset == 2
    buffer.finish([two])
    assert buffer.commit_offset == 4


def test_filtered_messages_count_as_finished() -> None:
    buffer = MessageBuffer(0)
    buffer.add(messages(3), 9)
    assert buffer.commit_offset == 3
    buffer.finish(buffer.take(1))
    assert buffer.commit_offset == 9
    buffer.add([], 20)
    assert buffer.commit_offset == 20


def test_finishing_twice_changes_nothing() -> None:
    buffer = MessageBuffer(0)
    buffer.add(messages(0, 1), 2)
    zero, one = buffer.take(2)
    buffer.finish([zero])
    buffer.finish([zero])
    assert (buffer.count, buffer.bytes, buffer.commit_offset) == (1, 100, 1)
    buffer.finish([one])
    assert (buffer.count, buffer.bytes) == (0, 0)


def test_messages_that_are_put_back_come_first() -> None:
    buffer = MessageBuffer(0)
    buffer.add(messages(0, 1, 2), 3)
    taken = buffer.take(2)
    buffer.put_back([message(each.queue_offset, reconsume_times=1) for each in taken])
    again = buffer.take(3)
    assert [(each.queue_offset, each.reconsume_times) for each in again] == [(0, 1), (1, 1), (2, 0)]
    assert buffer.count == 3


def test_finished_messages_are_not_put_back() -> None:
    buffer = MessageBuffer(0)
    buffer.add(messages(0, 1), 2)
    taken = buffer.take(2)
    buffer.finish(taken[:1])
    buffer.put_back(taken)
    assert offsets(buffer.take(2)) == [1]


def test_messages_taken_together_have_one_topic() -> None:
    buffer = MessageBuffer(0)
    buffer.add([message(0), message(1), message(2).replace(topic="U"), message(3)], 4)
    assert [offsets(buffer.take(3)) for _ in range(4)] == [[0, 1], [2], [3], []]


def test_dropped_waiting_messages_are_not_committed() -> None:
    buffer = MessageBuffer(0)
    buffer.add(messages(0, 1, 2), 3)
    buffer.finish(buffer.take(1))
    buffer.drop_waiting()
    assert buffer.take(10) == []
    assert buffer.commit_offset == 1


def test_messages_of_a_batch_before_the_position_are_skipped() -> None:
    buffer = MessageBuffer(5)
    buffer.add(messages(3, 4, 5, 6), 7)
    assert offsets(buffer.take(10)) == [5, 6]


def test_messages_out_of_order_are_sorted() -> None:
    buffer = MessageBuffer(0)
    buffer.add(messages(2, 0, 1), 3)
    taken = buffer.take(3)
    assert offsets(taken) == [0, 1, 2]
    buffer.finish(taken[1:])
    assert buffer.commit_offset == 0


def test_a_next_offset_that_lags_behind_does_not_bring_messages_twice() -> None:
    buffer = MessageBuffer(0)
    buffer.add(messages(0, 1, 2), 1)
    assert buffer.position == 3
    buffer.add(messages(1, 2, 3), 4)
    assert offsets(buffer.take(10)) == [0, 1, 2, 3]


def test_it_is_full_beyond_any_of_its_limits() -> None:
    limits = BufferLimits(messages_max=2, bytes_max=250, span_max=10)
    buffer = MessageBuffer(0)
    buffer.add(messages(0, 1), 2)
    assert not buffer.is_full(limits)
    buffer.add([message(2, record_bytes=1)], 3)
    assert buffer.is_full(limits)
    buffer.finish(messages(0))
    assert not buffer.is_full(limits)
    buffer.add([message(3, record_bytes=150)], 4)
    buffer.finish(messages(2))
    assert buffer.bytes == limits.bytes_max
    assert not buffer.is_full(limits)
    buffer.finish([message(3)])
    buffer.add([message(4, record_bytes=151)], 5)
    assert buffer.is_full(limits)
    buffer.finish([message(4)])
    assert not buffer.is_full(limits)
    buffer.add(messages(11), 12)
    assert not buffer.is_full(limits)
    buffer.finish(messages(11))
    buffer.add(messages(12), 13)
    assert buffer.is_full(limits)
    assert not buffer.is_full(BufferLimits(messages_max=2, bytes_max=250, span_max=None))
    buffer.finish(messages(1))
    assert not buffer.is_full(limits)


def test_filtered_messages_do_not_fill_the_buffer() -> None:
    buffer = MessageBuffer(0)
    buffer.add(messages(0), 1)
    buffer.add([], 5_000)
    assert not buffer.is_full(BufferLimits())


def test_a_pull_without_messages_moves_the_position_only_forward() -> None:
    buffer = MessageBuffer(0)
    buffer.add([], 0)
    assert buffer.position == buffer.commit_offset == 0
    buffer.add([], 5)
    buffer.add([], 3)
    assert buffer.position == buffer.commit_offset == 5


def test_newest_offset_is_that_of_the_newest_unfinished() -> None:
    buffer = MessageBuffer(4)
    assert buffer.newest_offset == 3
    buffer.add(messages(4, 6), 8)
    assert buffer.newest_offset == 6
    buffer.finish(messages(6))
    assert buffer.newest_offset == 4


class AgainstAModel(RuleBasedStateMachine):
    """Whatever happens, the offset to commit is just behind what is surely done."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = MessageBuffer(100)
        self.waiting: list[int] = []
        self.in_hand: list[StoredMessage] = []
        self.unfinished: set[int] = set()
        self.position = 100

    @rule(gaps=st.lists(st.integers(0, 3), max_size=8), skipped=st.integers(0, 3))
    def fetch(self, gaps: list[int], skipped: int) -> None:
        found = []
        for gap in gaps:
            self.position += gap
            found.append(self.position)
            self.position += 1
        self.position += skipped
        self.buffer.add(messages(*found), self.position)
        self.waiting += found
        self.unfinished.update(found)

    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        taken = self.buffer.take(count)
        assert offsets(taken) == self.waiting[:count]
        del self.waiting[:count]
        self.in_hand += taken

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        done = self.in_hand.pop(data.draw(st.integers(0, len(self.in_hand) - 1)))
        self.buffer.finish([done])
        self.unfinished.discard(done.queue_offset)

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        back = self.in_hand.pop(data.draw(st.integers(0, len(self.in_hand) - 1)))
        self.buffer.put_back([back])
        self.waiting.insert(0, back.queue_offset)

    @invariant()
    def nothing_unfinished_is_committed(self) -> None:
        assert self.buffer.commit_offset == min(self.unfinished, default=self.position)
        assert self.buffer.count == len(self.unfinished)
        assert self.buffer.bytes == 100 * len(self.unfinished)
        assert self.buffer.has_waiting == bool(self.waiting)


TestAgainstAModel = AgainstAModel.TestCase


@settings(max_examples=50)
@given(st.lists(st.integers(0, 50), unique=True), st.randoms(use_true_random=False))
def test_finishing_in_any_order_ends_at_the_position(wanted: list[int], chance: object) -> None:
    buffer = MessageBuffer(0)
    buffer.add(messages(*sorted(wanted)), 51)
    taken = buffer.take(100)
    chance.shuffle(taken)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    left = set(wanted)
    for each in taken:
        buffer.finish([each])
        left.discard(each.queue_offset)
        assert buffer.commit_offset == min(left, default=51)


def test_two_messages_of_one_offset_count_once() -> None:
    buffer = MessageBuffer(0)
    buffer.add([*messages(0, 1), *messages(1, 2)], 3)
    assert buffer.bytes == 300
    taken = buffer.take(10)
    assert offsets(taken) == [0, 1, 2]
    buffer.finish(taken)
    assert (buffer.bytes, buffer.count, buffer.commit_offset) == (0, 0, 3)
