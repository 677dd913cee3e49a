"""What of one queue is not finished: nothing may ever be committed beyond it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skyroute.client.consuming.push.backlog import Backlog, BacklogLimits
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
    backlog = Backlog(7)
    assert (backlog.commit_offset, backlog.position, backlog.count) == (7, 7, 0)


def test_what_is_taken_stays_unfinished_until_it_is_finished() -> None:
    backlog = Backlog(0)
    backlog.add(messages(0, 1, 2), 3)
    first = backlog.take(1)
    assert offsets(first) == [0]
    assert backlog.commit_offset == 0
    backlog.finish(first)
    assert backlog.commit_offset == 1
    assert offsets(backlog.take(10)) == [1, 2]
    assert not backlog.has_waiting
    assert backlog.commit_offset == 1


def test_the_lowest_unfinished_holds_the_offset_back() -> None:
    backlog = Backlog(0)
    backlog.add(messages(0, 1, 2, 3), 4)
    zero, one, two, three = backlog.take(4)
    backlog.finish([three, one])
    assert backlog.commit_offset == 0
    backlog.finish([zero])
    assert backlog.commit_offset == 2
    backlog.finish([two])
    assert backlog.commit_offset == 4


def test_messages_that_were_not_wanted_count_as_finished() -> None:
    backlog = Backlog(0)
    backlog.add(messages(3), 9)
    assert backlog.commit_offset == 3
    backlog.finish(backlog.take(1))
    assert backlog.commit_offset == 9
    backlog.add([], 20)
    assert backlog.commit_offset == 20


def test_finishing_twice_changes_nothing() -> None:
    backlog = Backlog(0)
    backlog.add(messages(0, 1), 2)
    zero, one = backlog.take(2)
    backlog.finish([zero])
    backlog.finish([zero])
    assert (backlog.count, backlog.bytes, backlog.commit_offset) == (1, 100, 1)
    backlog.finish([one])
    assert (backlog.count, backlog.bytes) == (0, 0)


def test_what_is_put_back_comes_first_again() -> None:
    backlog = Backlog(0)
    backlog.add(messages(0, 1, 2), 3)
    taken = backlog.take(2)
    backlog.put_back([message(each.queue_offset, reconsume_times=1) for each in taken])
    again = backlog.take(3)
    assert [(each.queue_offset, each.reconsume_times) for each in again] == [(0, 1), (1, 1), (2, 0)]
    assert backlog.count == 3


def test_what_was_finished_meanwhile_is_not_put_back() -> None:
    backlog = Backlog(0)
    backlog.add(messages(0, 1), 2)
    taken = backlog.take(2)
    backlog.finish(taken[:1])
    backlog.put_back(taken)
    assert offsets(backlog.take(2)) == [1]


def test_what_is_taken_together_has_one_topic() -> None:
    backlog = Backlog(0)
    backlog.add([message(0), message(1), message(2).replace(topic="U"), message(3)], 4)
    assert [offsets(backlog.take(3)) for _ in range(4)] == [[0, 1], [2], [3], []]


def test_dropping_what_waits_leaves_it_uncommitted() -> None:
    backlog = Backlog(0)
    backlog.add(messages(0, 1, 2), 3)
    backlog.finish(backlog.take(1))
    backlog.drop_waiting()
    assert backlog.take(10) == []
    assert backlog.commit_offset == 1


def test_a_batch_brought_whole_is_taken_from_where_it_was_asked_for() -> None:
    backlog = Backlog(5)
    backlog.add(messages(3, 4, 5, 6), 7)
    assert offsets(backlog.take(10)) == [5, 6]


def test_what_comes_out_of_order_is_put_in_order() -> None:
    backlog = Backlog(0)
    backlog.add(messages(2, 0, 1), 3)
    taken = backlog.take(3)
    assert offsets(taken) == [0, 1, 2]
    backlog.finish(taken[1:])
    assert backlog.commit_offset == 0


def test_a_next_offset_that_lags_behind_does_not_bring_messages_twice() -> None:
    backlog = Backlog(0)
    backlog.add(messages(0, 1, 2), 1)
    assert backlog.position == 3
    backlog.add(messages(1, 2, 3), 4)
    assert offsets(backlog.take(10)) == [0, 1, 2, 3]


def test_it_is_full_beyond_any_of_its_limits() -> None:
    limits = BacklogLimits(messages_max=2, bytes_max=250, span_max=10)
    backlog = Backlog(0)
    backlog.add(messages(0, 1), 2)
    assert not backlog.is_full(limits)
    backlog.add([message(2, record_bytes=1)], 3)
    assert backlog.is_full(limits)
    backlog.finish(messages(0))
    assert not backlog.is_full(limits)
    backlog.add([message(3, record_bytes=200)], 4)
    backlog.finish(messages(2))
    assert backlog.is_full(limits)
    backlog.finish([message(3, record_bytes=200)])
    assert not backlog.is_full(limits)
    backlog.add(messages(11), 12)
    assert not backlog.is_full(limits)
    backlog.finish(messages(11))
    backlog.add(messages(12), 13)
    assert backlog.is_full(limits)
    assert not backlog.is_full(BacklogLimits(messages_max=2, bytes_max=250, span_max=None))
    backlog.finish(messages(1))
    assert not backlog.is_full(limits)


def test_what_is_not_wanted_fills_nothing_up() -> None:
    backlog = Backlog(0)
    backlog.add(messages(0), 1)
    backlog.add([], 5_000)
    assert not backlog.is_full(BacklogLimits())


def test_newest_offset_is_that_of_the_newest_unfinished() -> None:
    backlog = Backlog(4)
    assert backlog.newest_offset == 3
    backlog.add(messages(4, 6), 8)
    assert backlog.newest_offset == 6
    backlog.finish(messages(6))
    assert backlog.newest_offset == 4


class AgainstAModel(RuleBasedStateMachine):
    """Whatever happens, the offset to commit is just behind what is surely done."""

    def __init__(self) -> None:
        super().__init__()
        self.backlog = Backlog(100)
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
        self.backlog.add(messages(*found), self.position)
        self.waiting += found
        self.unfinished.update(found)

    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        taken = self.backlog.take(count)
        assert offsets(taken) == self.waiting[:count]
        del self.waiting[:count]
        self.in_hand += taken

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        done = self.in_hand.pop(data.draw(st.integers(0, len(self.in_hand) - 1)))
        self.backlog.finish([done])
        self.unfinished.discard(done.queue_offset)

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        back = self.in_hand.pop(data.draw(st.integers(0, len(self.in_hand) - 1)))
        self.backlog.put_back([back])
        self.waiting.insert(0, back.queue_offset)

    @invariant()
    def nothing_unfinished_is_committed(self) -> None:
        assert self.backlog.commit_offset == min(self.unfinished, default=self.position)
        assert self.backlog.count == len(self.unfinished)
        assert self.backlog.bytes == 100 * len(self.unfinished)
        assert self.backlog.has_waiting == bool(self.waiting)


TestAgainstAModel = AgainstAModel.TestCase


@settings(max_examples=50)
@given(st.lists(st.integers(0, 50), unique=True), st.randoms(use_true_random=False))
def test_finishing_in_any_order_ends_at_the_position(wanted: list[int], chance: object) -> None:
    backlog = Backlog(0)
    backlog.add(messages(*sorted(wanted)), 51)
    taken = backlog.take(100)
    chance.shuffle(taken)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    left = set(wanted)
    for each in taken:
        backlog.finish([each])
        left.discard(each.queue_offset)
        assert backlog.commit_offset == min(left, default=51)
