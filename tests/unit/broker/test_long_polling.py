"""Long polling: wake-ups, timeouts, and closed connections."""

import asyncio
from collections.abc import Callable

import pytest

from skyroute.broker.delivery import long_polling
from skyroute.broker.delivery.long_polling import LongPolling, SuspendedPull
from skyroute.remoting.dispatch import Peer
from skyroute.remoting.errors import RefusedError
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Response
from tests.support.clock import ManualClock


class Reader(SuspendedPull):
    """A suspended pull whose response the test sets."""

    def __init__(
        self,
        queue: tuple[str, int] = ("T", 0),
        *,
        connection: int = 1,
        deadline: float = 15.0,
        address: str = "10.0.0.9:1",
    ) -> None:
        super().__init__(Peer(connection, address), queue, deadline)
        self.finds: Callable[[], Response | None] = lambda: None
        self.looks = 0
        self.answers: list[Response] = []
        self.answer.then(self.answers.append)

    def retry(self) -> Response | None:
        self.looks += 1
        return self.finds()

    def time_out(self) -> Response:
        return self.finds() or Response(19)


def suspended(*readers: Reader, clock: ManualClock | None = None) -> LongPolling:
    pulls = LongPolling((clock or ManualClock()).monotonic)
    for reader in readers:
        assert pulls.suspend(reader) is reader.answer
    return pulls


async def turn() -> None:
    """Run all callbacks of this turn of the loop."""
    await asyncio.sleep(0)


async def test_messages_of_one_turn_wake_a_pull_once() -> None:
    reader, other = Reader(), Reader(("T", 1))
    pulls = suspended(reader, other)
    for _ in range(3):
        pulls.arrived("T", 0)
    pulls.arrived("Nobody", 0)
    assert reader.looks == 0
    await turn()
    assert (reader.looks, other.looks) == (1, 0)
    assert len(pulls) == 2
    reader.finds = Response
    pulls.arrived("T", 0)
    await turn()
    assert reader.answers == [Response()]
    assert len(pulls) == 1


async def test_each_suspended_pull_of_a_queue_reads_again() -> None:
    readers = [Reader() for _ in range(3)]
    readers[1].finds = Response
    pulls = suspended(*readers)
    pulls.arrived("T", 0)
    await turn()
    assert [reader.looks for reader in readers] == [1, 1, 1]
    assert [len(reader.answers) for reader in readers] == [0, 1, 0]


async def test_messages_before_a_flush_wake_no_pull() -> None:
    reader = Reader()
    pulls = suspended(reader)
    pulls.wake_after_flush = True
    pulls.arrived("T", 0)
    await turn()
    assert reader.looks == 0
    pulls.wake()
    assert reader.looks == 1
    pulls.wake()
    assert reader.looks == 1


def test_wake_queue_checks_the_pulls_of_one_queue() -> None:
    reader = Reader()
    reader.finds = lambda: Response(21)
    pulls = suspended(reader)
    pulls.wake_queue("T", 1)
    pulls.wake_queue("T", 0)
    assert reader.answers == [Response(21)]


def test_pulls_time_out_neither_early_nor_much_too_late() -> None:
    readers = [Reader(deadline=deadline) for deadline in (10.0, 10.1, 10.24, 10.25, 30.0)]
    pulls = suspended(*readers)
    given_up_at: dict[float, float] = {}
    for tick in range(8 * 4, 12 * 8):
        now = tick / 8
        pulls.expire(now)
        for reader, deadline in zip(readers, (10.0, 10.1, 10.24, 10.25, 30.0), strict=True):
            if reader.answers:
                given_up_at.setdefault(deadline, now)
    assert all(deadline <= now <= deadline + 0.25 for deadline, now in given_up_at.items())
    assert len(given_up_at) == 4
    assert len(pulls) == 1


def test_a_pull_that_times_out_gets_its_response() -> None:
    reader = Reader(deadline=1.0)
    reader.finds = lambda: Response(body=b"late")
    suspended(reader).expire(2.0)
    assert [answer.body for answer in reader.answers] == [b"late"]


def test_the_pulls_of_a_closed_connection_are_dropped() -> None:
    mine = [Reader(connection=1), Reader(("T", 1), connection=1)]
    other = Reader(connection=2)
    pulls = suspended(*mine, other)
    pulls.drop(1)
    pulls.drop(1)
    pulls.drop(7)
    assert len(pulls) == 1
    pulls.expire(100)
    assert [len(reader.answers) for reader in (*mine, other)] == [0, 0, 1]


def test_the_number_of_suspended_pulls_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_polling, "SUSPENDED_MAX", 2)
    pulls = suspended(Reader())
    before = pulls.has_room("10.0.0.9", 0)
    pulls.suspend(Reader())
    assert (before, pulls.has_room("10.0.0.9", 0)) == (True, False)
    assert repr(pulls) == "<LongPolling 2 on 1 queues>"


async def test_a_client_with_all_suspended_pulls_gives_way_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_polling, "SUSPENDED_MAX", 8)
    monkeypatch.setattr(long_polling, "GIVEN_UP_AT_ONCE", 2)
    greedy = [Reader(connection=1 + number % 2) for number in range(7)]
    polite = Reader(connection=3, address="10.0.0.1:1")
    pulls = suspended(*greedy, polite)
    assert not pulls.has_room("10.0.0.9", 0)
    assert pulls.has_room("10.0.0.1", 0)
    assert [len(reader.answers) for reader in greedy] == [1, 0, 1, 0, 0, 0, 0]
    for number in range(2):
        pulls.suspend(Reader(connection=4 + number, address="10.0.0.1:1"))
    assert not pulls.has_room("10.0.0.1", 0)  # they have about as many
    assert polite.answers == []


@pytest.mark.parametrize("expires", [False, True])
def test_a_failing_pull_gets_an_error_and_does_not_block_others(expires: bool) -> None:
    def refuse() -> Response:
        raise RefusedError(ResponseCode.SUBSCRIPTION_NOT_EXIST, "not subscribed")

    def fail() -> Response:
        raise ZeroDivisionError("a mistake of ours")

    refused, failed, served = Reader(deadline=1), Reader(deadline=1), Reader(deadline=1)
    refused.finds, failed.finds, served.finds = refuse, fail, Response
    pulls = suspended(refused, failed, served)
    if expires:
        pulls.expire(5)
    else:
        pulls.wake_queue("T", 0)
    assert refused.answers == [Response(ResponseCode.SUBSCRIPTION_NOT_EXIST, "not subscribed")]
    assert failed.answers == [Response(ResponseCode.SYSTEM_ERROR, "ZeroDivisionError: a mistake of ours")]
    assert served.answers == [Response()]
    assert len(pulls) == 0


async def test_the_background_task_times_pulls_out() -> None:
    reader = Reader(deadline=5.0)
    pulls = suspended(reader)
    running = asyncio.ensure_future(pulls.run())
    given: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    reader.answer.then(lambda _: given.set_result(None))
    async with asyncio.timeout(5):
        await given
    running.cancel()
    assert len(pulls) == 0


class Slow(Reader):
    """A pull that takes two milliseconds to read."""

    def __init__(self, clock: ManualClock, connection: int = 1, queue_id: int = 0) -> None:
        super().__init__(("T", queue_id), connection=connection, deadline=clock.monotonic() + 1)
        self._clock = clock

    def retry(self) -> Response | None:
        self._clock.advance(0.002)
        return super().retry()

    def time_out(self) -> Response:
        self._clock.advance(0.002)
        return super().time_out()


async def test_many_pulls_are_checked_in_steps_once_per_arrival() -> None:
    clock = ManualClock()
    readers = [Slow(clock) for _ in range(50)]
    pulls = suspended(*readers, clock=clock)
    pulls.arrived("T", 0)
    await turn()
    assert sum(reader.looks for reader in readers) == 3
    pulls.arrived("T", 0)
    for _ in range(40):
        before = sum(reader.looks for reader in readers)
        await turn()
        assert sum(reader.looks for reader in readers) - before <= 3
    assert [reader.looks for reader in readers] == [2] * 50


async def test_many_queues_are_checked_in_steps() -> None:
    clock = ManualClock()
    readers = [Slow(clock, queue_id=number) for number in range(30)]
    pulls = suspended(*readers, clock=clock)
    for number in range(30):
        pulls.arrived("T", number)
    for _ in range(20):
        before = sum(reader.looks for reader in readers)
        await turn()
        assert sum(reader.looks for reader in readers) - before <= 3
    assert [reader.looks for reader in readers] == [1] * 30


async def test_many_pulls_time_out_in_steps() -> None:
    clock = ManualClock()
    readers = [Slow(clock) for _ in range(50)]
    pulls = suspended(*readers, clock=clock)
    clock.advance(2)
    for _ in range(20):
        before = len(pulls)
        pulls.expire(clock.monotonic())
        await turn()
        assert before - len(pulls) <= 6
    assert [len(reader.answers) for reader in readers] == [1] * 50
    assert len(pulls) == 0


async def test_a_pull_that_is_dropped_between_steps_is_not_served() -> None:
    clock = ManualClock()
    readers = [Slow(clock, connection) for connection in range(20)]
    pulls = suspended(*readers, clock=clock)
    pulls.arrived("T", 0)
    await turn()
    for reader in readers:
        reader.peer.gone = True
        pulls.drop(reader.peer.connection)
    for _ in range(10):
        await turn()
    assert sum(reader.looks for reader in readers) == 3
    assert len(pulls) == 0
    assert repr(pulls) == "<LongPolling 0 on 0 queues>"


async def test_a_tick_without_pulls_left_is_skipped() -> None:
    clock = ManualClock()
    slow = [Slow(clock) for _ in range(5)]
    later, last = Reader(("T", 1), deadline=clock.monotonic() + 1.5), Reader(("T", 2), deadline=clock.monotonic() + 2)
    pulls = suspended(*slow, later, last, clock=clock)
    clock.advance(3)
    pulls.expire(clock.monotonic())  # some pulls of the first tick are completed, the others in the next turn
    assert len(pulls) > 2
    later.finds = Response
    pulls._remove(later)  # as an arrival does
    for _ in range(5):
        await turn()
    assert [len(reader.answers) for reader in (*slow, last)] == [1] * 6
    assert len(pulls) == 0
