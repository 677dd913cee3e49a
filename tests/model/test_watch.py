"""Watches against a slow and obvious model, with the guarantees that etcd gives for its watches.

The model keeps every change there ever was. After random changes, watches, ends of time, lost connections, resumptions,
compactions and restarts:

- ordered: what a watcher is told comes in the order of revisions, and nothing that is older than what came before;
- unique: a watcher is told of no change twice;
- reliable: of changes a < b < c, a watch that reports a and c also reports b; no watch stays open after a change;
- atomic: the changes of one revision come in one answer;
- resumable: a watch that goes on from its bookmark misses nothing, however long it was away; where the changes are not
  known any more it is told so, and only then;
- bookmarkable: an answer without changes, too, says from where to go on, and nothing before that is outstanding.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from skyroute.nameserver.route_history import CHANGE_CHARS, RouteHistory
from skyroute.nameserver.watch import WATCHES_A_CONNECTION_MAX, Watches
from skyroute.remoting.dispatch import DeferredResponse
from skyroute.wire.calls.watch import Bookmark, WatchAnswer, WatchQuery, decode_watch_answer
from skyroute.wire.command import Response

TOPICS = ("A", "B", "C", "D")
WATCHERS = range(4)
NAMES_MAX = 6
"""So few that compaction is a matter of a few changes."""
ANSWER_CHARS_MAX = 2 * CHANGE_CHARS + 3
"""So few that many responses are incomplete."""

some_topics = st.sets(st.sampled_from(TOPICS), min_size=1)
watchers = st.sampled_from(WATCHERS)


@dataclass
class Watcher:
    """A client: its topics, its bookmark, and all changes it received in this run of the server."""

    connection: int
    topics: tuple[str, ...] | None = None
    bookmark: Bookmark | None = None
    parked: bool = False
    told: list[tuple[int, str]] = field(default_factory=list)
    """Revision and topic, in the order in which they came."""


class WatchMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.now = 0.0
        self.lives = 0
        self.connections = iter(range(1_000_000))
        self.watchers = [Watcher(next(self.connections)) for _ in WATCHERS]
        self.begin_life(0)

    def begin_life(self, first_revision: int) -> None:
        self.lives += 1
        self.history = RouteHistory(
            f"life-{self.lives}", first_revision, names_max=NAMES_MAX, answer_chars_max=ANSWER_CHARS_MAX
        )
        self.watches = Watches(self.history)
        self.changes: list[tuple[int, frozenset[str] | None]] = []
        """All of this life; None: any topic."""
        self.first_revision = first_revision

    # What happens

    @rule(topics=some_topics)
    def change(self, topics: set[str]) -> None:
        self.changes.append((self.history.revision + 1, frozenset(topics)))
        self.watches.publish(topics, 5)

    @rule()
    def change_all(self) -> None:
        self.changes.append((self.history.revision + 1, None))
        self.watches.publish_all()

    @rule(at=watchers, topics=st.none() | some_topics)
    def begin(self, at: int, topics: set[str] | None) -> None:
        """Watch something else, knowing nothing yet."""
        watcher = self.watchers[at]
        self.hang_up(watcher)
        watcher.topics = None if topics is None else tuple(sorted(topics))
        watcher.bookmark = None
        self.ask(watcher)

    @rule(at=watchers, timeout_ms=st.sampled_from((0, 1_000, 30_000)))
    def resume(self, at: int, timeout_ms: int) -> None:
        """Go on after an answer, or after the connection was lost."""
        watcher = self.watchers[at]
        if not watcher.parked:
            self.ask(watcher, timeout_ms)

    @rule(at=watchers)
    def lose_connection(self, at: int) -> None:
        self.hang_up(self.watchers[at])

    @rule(seconds=st.sampled_from((0.5, 2.0, 31.0)))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.watches.expire(self.now)

    @rule(step=st.sampled_from((-3, 0, 2)))
    def restart(self, step: int) -> None:
        """The server begins another life, whose revisions may overlap, for the clock may have gone back."""
        for watcher in self.watchers:
            watcher.parked, watcher.told = False, []
        self.begin_life(max(0, self.history.revision + step))

    # How a watcher asks, and what must hold of every answer

    def hang_up(self, watcher: Watcher) -> None:
        self.watches.drop(watcher.connection)
        self.watches.work()
        watcher.connection, watcher.parked = next(self.connections), False

    def ask(self, watcher: Watcher, timeout_ms: int = 30_000) -> None:
        query = WatchQuery(watcher.topics, watcher.bookmark, timeout_ms)
        connection = watcher.connection
        answer = self.watches.watch(query, connection=connection, now=self.now)
        if not isinstance(answer, DeferredResponse):
            self.hear(watcher, answer)
            return
        assert timeout_ms > 0
        watcher.parked = True

        def receive(response: Response) -> None:
            assert watcher.connection == connection, "a connection that is gone is told nothing"
            watcher.parked = False
            self.hear(watcher, response)

        answer.then(receive)

    def hear(self, watcher: Watcher, response: Response) -> None:
        answer, before = decode_watch_answer(response), watcher.bookmark
        watcher.bookmark = answer.now
        assert answer.now.life == self.history.life
        if answer.compacted:
            assert answer.changes == ()
            assert before is None or self.is_out_of_reach(before, answer), "resumable: it could have been told"
            watcher.told = []
            return
        assert before is not None
        assert before.life == self.history.life
        told = [(change.revision, topic) for change in answer.changes for topic in change.topics]
        revisions = [change.revision for change in answer.changes]
        assert revisions == sorted(set(revisions)), "ordered, and atomic"
        assert all(before.revision < revision <= answer.now.revision for revision in revisions), "ordered"
        assert not set(told) & set(watcher.told), "unique"
        assert set(told) == self.expected(watcher, before.revision, answer.now.revision), "reliable"
        assert len(told) == len(set(told)), "unique"
        watcher.told += told
        assert watcher.told == sorted(watcher.told), "ordered"

    def is_out_of_reach(self, before: Bookmark, answer: WatchAnswer) -> bool:
        is_of_this_life = before.life == self.history.life
        return not is_of_this_life or before.revision < answer.floor

    def expected(self, watcher: Watcher, after: int, up_to: int) -> set[tuple[int, str]]:
        return {
            (revision, topic)
            for revision, topics in self.changes
            if after < revision <= up_to and topics is not None
            for topic in topics
            if watcher.topics is None or topic in watcher.topics
        }

    # What must hold at any time

    @invariant()
    def nobody_waits_who_should_know(self) -> None:
        for watcher in self.watchers:
            if watcher.parked:
                assert watcher.bookmark is not None
                assert self.expected(watcher, watcher.bookmark.revision, self.history.revision) == set(), "reliable"
                assert all(topics is not None for at, topics in self.changes if at > watcher.bookmark.revision)

    @invariant()
    def the_books_agree(self) -> None:
        parked = [watcher for watcher in self.watchers if watcher.parked]
        assert len(self.watches) == len(parked)
        assert set(self.watches._by_connection) == {watcher.connection for watcher in parked}
        assert self.watches._names == sum(len(watcher.topics or ()) for watcher in parked)
        assert set(self.watches._by_topic) == {topic for watcher in parked for topic in watcher.topics or ()}
        assert all(len(each) <= WATCHES_A_CONNECTION_MAX for each in self.watches._by_connection.values())

    @invariant()
    def the_history_is_bounded_and_whole(self) -> None:
        history = self.history
        assert self.first_revision <= history.floor <= history.revision == self.first_revision + len(self.changes)
        kept = [(change.revision, frozenset(change.topics)) for change in history._changes]
        assert kept == [change for change in self.changes if change[0] > history.floor]
        assert sum(len(topics) for _, topics in kept) == history._names <= NAMES_MAX
        assert {topic: [change.revision for change in each] for topic, each in history._by_topic.items()} == {
            topic: [revision for revision, topics in kept if topic in topics]
            for topic in {topic for _, topics in kept for topic in topics}
        }


TestWatch = WatchMachine.TestCase
TestWatch.settings = settings(max_examples=100, stateful_step_count=40)
