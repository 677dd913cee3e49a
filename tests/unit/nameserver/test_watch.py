"""Completion of watches, and their bounds."""

from __future__ import annotations

import asyncio
import sys
import tracemalloc

import pytest

from skyroute.nameserver import watch
from skyroute.nameserver.route_history import (
    ANSWER_CHARS_MAX,
    CHANGE_CHARS,
    CHANGE_NAMES_MAX,
    RouteHistory,
    first_revision,
)
from skyroute.nameserver.watch import TURN_COST, WATCH_COST, WATCHES_A_CONNECTION_MAX, Watches
from skyroute.remoting.dispatch import DeferredResponse
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.watch import Bookmark, WatchAnswer, WatchQuery, decode_watch_answer
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Response
from tests.support.clock import ManualClock
from tests.support.waiting import eventually

LIFE = "this-life"


class Asker:
    """A client on one connection, with the responses it received."""

    def __init__(self, watches: Watches, connection: int = 1) -> None:
        self.watches = watches
        self.connection = connection
        self.responses: list[Response] = []

    def watch(self, *topics: str, after: int | None = 0, life: str = LIFE, timeout_ms: int = 30_000) -> None:
        bookmark = None if after is None else Bookmark(life, after)
        query = WatchQuery(topics or None, bookmark, timeout_ms)
        answer = self.watches.watch(query, connection=self.connection, now=0.0)
        if isinstance(answer, DeferredResponse):
            answer.then(self.responses.append)
        else:
            self.responses.append(answer)

    @property
    def answers(self) -> list[WatchAnswer]:
        return [decode_watch_answer(response) for response in self.responses]

    @property
    def heard(self) -> list[tuple[int, tuple[str, ...]]]:
        return [(change.revision, change.topics) for answer in self.answers for change in answer.changes]


@pytest.fixture
def watches() -> Watches:
    return Watches(RouteHistory(LIFE, 0))


def test_a_change_completes_only_the_watches_of_its_topics(watches: Watches) -> None:
    of_a, of_b, of_both, of_any = (Asker(watches, number) for number in range(4))
    of_a.watch("A")
    of_b.watch("B")
    of_both.watch("A", "B")
    of_any.watch()
    watches.publish({"A", "C"}, 5)
    assert of_a.heard == of_both.heard == [(1, ("A",))]
    assert of_any.heard == [(1, ("A", "C"))]
    assert of_b.responses == []
    assert len(watches) == 1
    watches.publish({"B"}, 6)
    assert of_b.heard == [(2, ("B",))]
    assert of_both.heard == [(1, ("A",))]
    assert len(watches) == 0
    assert [watches._by_topic, watches._by_tick, watches._by_connection, watches._any] == [{}] * 4


def test_a_watch_without_a_bookmark_is_compacted_at_once(watches: Watches) -> None:
    watches.publish({"A"}, 5)
    asker = Asker(watches)
    asker.watch("A", after=None)
    asker.watch("A", after=1, life="another life")
    asker.watch("A", after=2)  # a future revision belongs to another run, too
    assert asker.answers == [WatchAnswer(Bookmark(LIFE, 1), 0, compacted=True)] * 3


def test_a_timed_out_watch_returns_a_bookmark(watches: Watches) -> None:
    asker = Asker(watches)
    asker.watch("A", timeout_ms=2_000)
    watches.publish({"B"}, 5)
    watches.expire(1.9)
    assert asker.responses == []
    watches.expire(2.3)
    assert asker.answers == [WatchAnswer(Bookmark(LIFE, 1), 0)]
    asker.watch("A", timeout_ms=0)
    assert asker.answers[1:] == [WatchAnswer(Bookmark(LIFE, 1), 0)]


def test_a_watch_continues_from_a_bookmark(watches: Watches) -> None:
    for topic in "ABAC":
        watches.publish({topic}, 5)
    asker = Asker(watches)
    asker.watch("A", "C", after=1)
    asker.watch(after=2)
    assert asker.heard == [(3, ("A",)), (4, ("C",))] * 2
    assert [answer.now.revision for answer in asker.answers] == [4, 4]


def test_a_long_history_is_sent_in_pieces_of_whole_changes() -> None:
    watches = Watches(RouteHistory(LIFE, 0, answer_chars_max=2 * CHANGE_CHARS + 4))
    for topics in ({"aa", "bb"}, {"ccccccc"}, {"d"}, {"e"}):
        watches.publish(topics, 5)
    asker = Asker(watches)
    for after in (0, 1, 2, 4):
        asker.watch(after=after, timeout_ms=0)
    assert [[change.topics for change in answer.changes] for answer in asker.answers] == [
        [("aa", "bb")],
        [("ccccccc",)],
        [("d",), ("e",)],
        [],
    ]
    assert [answer.now.revision for answer in asker.answers] == [1, 2, 4, 4]


@pytest.mark.parametrize("topics", [(), ("A",), ("A", *(f"other-{at}" for at in range(100)))])
def test_a_history_of_many_changes_is_sent_in_responses_of_bounded_size(
    watches: Watches, topics: tuple[str, ...]
) -> None:
    changes = 2 * ANSWER_CHARS_MAX // CHANGE_CHARS
    for _ in range(changes):
        watches.publish({"A"}, 1_758_275_140_000)
    asker, after, seen = Asker(watches), 0, 0
    while after < changes:
        asker.watch(*topics, after=after)
        assert len(asker.responses[-1].body) < 1.2 * ANSWER_CHARS_MAX
        seen += len(asker.answers[-1].changes)
        assert after < asker.answers[-1].now.revision
        after = asker.answers[-1].now.revision
    assert seen == changes


def test_a_change_of_many_topics_completes_watches_and_is_not_kept(watches: Watches) -> None:
    named, of_any, late = Asker(watches, 1), Asker(watches, 2), Asker(watches, 3)
    named.watch("t7", "other")
    of_any.watch()
    watches.publish({f"t{number}" for number in range(CHANGE_NAMES_MAX + 1)}, 5)
    assert named.heard == [(1, ("t7",))]
    late.watch("other", after=0)
    assert of_any.answers == late.answers == [WatchAnswer(Bookmark(LIFE, 1), 1, compacted=True)]


def test_old_changes_are_dropped_for_new_ones() -> None:
    watches = Watches(RouteHistory(LIFE, 0, names_max=3))
    for topics in ({"A", "B"}, {"A"}, {"C"}):
        watches.publish(topics, 5)
    asker = Asker(watches)
    asker.watch("A", after=0)
    asker.watch("A", after=1, timeout_ms=0)
    first, second = asker.answers
    assert first.compacted
    assert (second.compacted, second.floor, len(second.changes)) == (False, 1, 1)


def test_all_may_change_at_once(watches: Watches) -> None:
    asker = Asker(watches)
    asker.watch("A")
    watches.publish_all()
    assert asker.answers == [WatchAnswer(Bookmark(LIFE, 1), 1, compacted=True)]


def test_a_connection_that_watches_too_often_has_its_oldest_watch_ended(watches: Watches) -> None:
    asker, other = Asker(watches), Asker(watches, 2)
    other.watch("A")
    for number in range(WATCHES_A_CONNECTION_MAX):
        asker.watch(f"T{number}")
    assert asker.responses == []
    asker.watch("more")
    assert asker.answers == [WatchAnswer(Bookmark(LIFE, 0), 0)]
    watches.publish({"T0"}, 5)
    assert len(asker.responses) == 1
    watches.publish({"T1", "more", "A"}, 5)
    assert asker.heard == [(2, ("T1",)), (2, ("more",))]
    assert other.heard == [(2, ("A",))]


def test_waiting_watches_are_bounded() -> None:
    watches = Watches(RouteHistory(LIFE, 0), watches_max=2, names_max=3)
    first, second, third = Asker(watches, 1), Asker(watches, 2), Asker(watches, 3)
    first.watch("A", "B")
    with pytest.raises(RefusedError, match="watches name 2 topics already, 2 more exceed the maximum of 3"):
        second.watch("A", "B")
    second.watch("A")
    with pytest.raises(RefusedError, match="2 watches wait already") as caught:
        third.watch()
    assert caught.value.code == ResponseCode.SYSTEM_BUSY
    third.watch("A", timeout_ms=0)  # a watch without a timeout does not wait and takes no room
    assert third.answers == [WatchAnswer(Bookmark(LIFE, 0), 0)]
    watches.drop(1)
    watches.drop(1)
    watches.work()
    third.watch()
    assert len(watches) == 2


def test_a_stopping_server_completes_all_watches(watches: Watches) -> None:
    asker = Asker(watches)
    asker.watch("A")
    watches.close()
    asker.watch("A")
    assert [response.code for response in asker.responses] == [ResponseCode.GO_AWAY] * 2
    assert len(watches) == 0


MANY = 3 * TURN_COST // WATCH_COST


def many(watches: Watches, *topics: str) -> list[Asker]:
    """More clients than are answered in one turn."""
    askers = [Asker(watches, connection) for connection in range(MANY)]
    for asker in askers:
        asker.watch(*topics)
    return askers


def test_many_watches_are_completed_in_turns_and_miss_no_change(watches: Watches) -> None:
    askers = many(watches, "A")
    watches.publish({"A"}, 5)
    assert 0 < sum(bool(asker.responses) for asker in askers) < MANY / 2
    assert watches.woken == MANY
    watches.publish({"A"}, 6)
    watches.expire(100.0)
    watches.publish_all()
    while watches._due:
        watches.work()
    assert all(asker.heard == [(1, ("A",))] for asker in askers)
    assert all(asker.answers[0].now.revision == 1 for asker in askers)
    assert len(watches) == 0
    assert watches.woken == MANY


def test_a_connection_that_ends_while_its_watch_is_due_gets_no_response(watches: Watches) -> None:
    askers = many(watches)
    watches.publish({"A"}, 5)
    watches.drop(MANY - 1)
    askers[-2].watch("A", after=1)
    while watches._due:
        watches.work()
    assert askers[-1].responses == []
    assert askers[-2].heard == [(1, ("A",))]
    assert len(watches) == 1


def test_a_connection_with_too_many_due_watches_gets_the_response_of_the_oldest_first(watches: Watches) -> None:
    askers = many(watches, "A")
    for _ in range(WATCHES_A_CONNECTION_MAX - 1):
        askers[-1].watch("B")
    watches.publish({"A"}, 5)
    assert askers[-1].responses == []
    askers[-1].watch("C", after=1)
    assert askers[-1].heard == [(1, ("A",))]
    watches.close()
    assert len(askers[-1].responses) == WATCHES_A_CONNECTION_MAX + 1


async def test_the_rest_of_many_watches_is_completed_while_the_server_runs(watches: Watches) -> None:
    askers = many(watches, "A")
    finishing = asyncio.create_task(watches.finish())
    watches.publish({"A"}, 5)
    await eventually(lambda: len(watches) == 0)
    assert all(asker.responses for asker in askers)
    for asker in many(watches):
        watches.drop(asker.connection)
    await eventually(lambda: len(watches) == 0)
    finishing.cancel()


def test_a_change_of_many_topics_ends_all_watches_if_they_name_many(
    watches: Watches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "NAMES_COMPARED_MAX", 1)
    named, other = Asker(watches, 1), Asker(watches, 2)
    named.watch("t7")
    other.watch("other")
    watches.publish({f"t{number}" for number in range(CHANGE_NAMES_MAX + 1)}, 5)
    assert named.answers == other.answers == [WatchAnswer(Bookmark(LIFE, 1), 1, compacted=True)]


def test_names_are_kept_once_and_no_longer_than_their_watches(watches: Watches) -> None:
    for connection in range(2):
        Asker(watches, connection).watch("".join(("watched", "-topic")))
    first, second = (next(iter(each)) for each in watches._by_connection.values())
    assert first.topics is not None
    assert second.topics is not None
    assert first.topics[0] is second.topics[0]
    other = "".join(("watched", "-topic"))
    assert sys.intern(other) is other  # Python 3.12 keeps interned names for ever
    watches.publish({"watched-topic"}, 5)
    assert watches._own == {}


def test_revisions_of_a_later_run_are_larger() -> None:
    clock = ManualClock()
    history = RouteHistory("first", first_revision(clock))
    for _ in range(100):
        history.append({"A"}, 5)
    clock.advance(0.01)
    assert first_revision(clock) > history.revision
    assert first_revision(clock) < 1 << 62


def test_ten_thousand_watches_take_little_memory() -> None:
    watches = Watches(RouteHistory(LIFE, 0))
    tracemalloc.start()
    for number in range(10_000):
        query = WatchQuery((f"topic-{number}", "shared"), Bookmark(LIFE, 0), 30_000)
        watches.watch(query, connection=number, now=number / 1_000)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 20_000_000
    watches.publish({"topic-77"}, 5)
    assert len(watches) == 9_999
