import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from skyroute.broker.clients import queue_locks
from skyroute.broker.clients.queue_locks import LOCK_LIFE_S, QueueLocks
from skyroute.message.queue_ref import QueueRef

FIRST = QueueRef("Orders", "broker-a", 0)
SECOND = QueueRef("Orders", "broker-a", 1)


def test_one_client_of_a_group_holds_the_lock_of_a_queue() -> None:
    locks = QueueLocks()
    assert locks.lock("g", "one", [FIRST, SECOND], now=0.0) == [FIRST, SECOND]
    assert locks.lock("g", "two", [FIRST, SECOND], now=1.0) == []
    assert locks.lock("other", "two", [FIRST], now=1.0) == [FIRST]
    assert locks.is_locked_by("g", FIRST, "one", now=1.0)
    assert not locks.is_locked_by("g", FIRST, "two", now=1.0)


def test_a_lock_expires_a_minute_after_its_last_renewal() -> None:
    locks = QueueLocks()
    locks.lock("g", "one", [FIRST], now=0.0)
    locks.lock("g", "one", [FIRST], now=30.0)
    assert locks.lock("g", "two", [FIRST], now=30.0 + LOCK_LIFE_S) == []
    assert locks.lock("g", "two", [FIRST], now=30.1 + LOCK_LIFE_S) == [FIRST]
    assert locks.lock("g", "one", [FIRST], now=30.2 + LOCK_LIFE_S) == []


def test_only_the_holder_unlocks_a_queue() -> None:
    locks = QueueLocks()
    locks.lock("g", "one", [FIRST], now=0.0)
    locks.unlock("g", "two", [FIRST])
    assert locks.holds_any("g", now=1.0)
    locks.unlock("g", "one", [FIRST, SECOND])
    assert not locks.holds_any("g", now=1.0)
    assert locks.lock("g", "two", [FIRST], now=1.0) == [FIRST]


def test_a_group_with_expired_locks_only_holds_none() -> None:
    locks = QueueLocks()
    locks.lock("g", "one", [FIRST], now=0.0)
    assert locks.holds_any("g", now=LOCK_LIFE_S)
    assert not locks.holds_any("g", now=LOCK_LIFE_S + 0.1)
    assert not locks.holds_any("nobody", now=0.0)


def test_expired_locks_are_removed() -> None:
    locks = QueueLocks()
    locks.lock("g", "one", [FIRST], now=0.0)
    locks.lock("h", "one", [FIRST, SECOND], now=50.0)
    locks.expire(now=LOCK_LIFE_S + 1)
    assert len(locks) == 2
    locks.expire(now=LOCK_LIFE_S + 51)
    assert repr(locks) == "<QueueLocks 0 of 0 groups>"


def test_a_queue_listed_twice_is_locked_once() -> None:
    locks = QueueLocks()
    assert locks.lock("g", "one", [FIRST, FIRST], now=0.0) == [FIRST]
    assert len(locks) == 1


@pytest.mark.parametrize("bound", ["LOCKS_MAX", "GROUP_LOCKS_MAX"])
def test_a_lock_beyond_the_limit_is_not_granted(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    monkeypatch.setattr(queue_locks, bound, 2)
    locks = QueueLocks()
    queues = [QueueRef("Orders", "broker-a", number) for number in range(4)]
    assert locks.lock("g", "one", queues, now=0.0) == queues[:2]
    assert locks.lock("g", "one", queues, now=1.0) == queues[:2]
    locks.unlock("g", "one", queues[:1])
    assert locks.lock("g", "one", queues[2:], now=1.0) == queues[2:3]


class LocksAgainstAModel(RuleBasedStateMachine):
    """The model keeps the last client and time of each lock for ever."""

    groups = st.sampled_from(["g", "h"])
    clients = st.sampled_from(["one", "two", "three"])
    queues = st.lists(st.sampled_from([FIRST, SECOND]), unique=True)

    def __init__(self) -> None:
        super().__init__()
        self.locks = QueueLocks()
        self.model: dict[tuple[str, QueueRef], tuple[str, float]] = {}
        self.now = 0.0

    def owner(self, group: str, queue: QueueRef) -> str | None:
        client, at = self.model.get((group, queue), ("", -1000.0))
        return client if self.now - at <= LOCK_LIFE_S else None

    @rule(group=groups, client=clients, queues=queues)
    def lock(self, group: str, client: str, queues: list[QueueRef]) -> None:
        mine = [queue for queue in queues if self.owner(group, queue) in (None, client)]
        for queue in mine:
            self.model[group, queue] = (client, self.now)
        assert self.locks.lock(group, client, queues, self.now) == mine

    @rule(group=groups, client=clients, queues=queues)
    def unlock(self, group: str, client: str, queues: list[QueueRef]) -> None:
        for queue in queues:
            if self.model.get((group, queue), ("", 0.0))[0] == client:
                del self.model[group, queue]
        self.locks.unlock(group, client, queues)

    @rule(seconds=st.sampled_from([1.0, 20.0, LOCK_LIFE_S, LOCK_LIFE_S + 1]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def expire(self) -> None:
        self.locks.expire(self.now)

    @invariant()
    def both_agree(self) -> None:
        for group in ("g", "h"):
            for queue in (FIRST, SECOND):
                for client in ("one", "two", "three"):
                    held = self.owner(group, queue) == client
                    assert self.locks.is_locked_by(group, queue, client, self.now) == held
            owned = any(self.owner(group, queue) for queue in (FIRST, SECOND))
            assert self.locks.holds_any(group, self.now) == owned


LocksAgainstAModel.TestCase.settings = settings(max_examples=50, stateful_step_count=30)
TestLocksAgainstAModel = LocksAgainstAModel.TestCase
