"""Connections that wait to be answered: who is next, and for how long."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable

import pytest

from skyroute.remoting.fair_queue import CREDIT_S, FIRST_COST_S, LIGHT_S, SHARE_S, TURN_S, FairQueue, Share
from tests.support.clock import ManualClock


class Bench:
    """A queue, and what happened in which turn of the loop."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.queue = FairQueue(self.clock)
        self.answered: list[str] = []

    def connection(self, name: str, cost_s: float, turns: int = 1) -> Costly:
        return Costly(self, name, cost_s, turns)

    def greedy(self, count: int, source: str) -> None:
        """Queue connections of one client that always have requests."""
        for number in range(count):
            connection = Charged(self, f"greedy {number}", GREEDY_S, turns=1_000_000)
            self.queue.join(connection.share, source)
            self.queue.add(connection)

    async def turns_until(self, connection: Charged) -> int:
        """Queue a connection for one turn, and return how many turns of others come first."""
        connection.is_served.clear()
        connection.turns = 1
        before = len(self.answered)
        self.queue.add(connection)
        while not connection.is_served.is_set():
            await self.turn_s()
        return self.answered[before:].index(connection.name)

    async def turn_s(self) -> float:
        """Let the loop turn once, and return how long connections were answered."""
        began_at = self.clock.monotonic()
        await asyncio.sleep(0)
        return self.clock.monotonic() - began_at

    async def until_empty(self) -> None:
        async with asyncio.timeout(10):
            while len(self.queue):
                await self.turn_s()


class Costly:
    """Takes `cost_s` for each of its turns."""

    def __init__(self, bench: Bench, name: str, cost_s: float, turns: int) -> None:
        self._bench = bench
        self.name = name
        self.turns = turns
        self.share = Share()
        self.share.cost_s = cost_s

    def take_turn(self) -> None:
        self._bench.clock.advance(self.share.cost_s)
        self.share.virtual_s += self.share.cost_s
        self.share.client.time_s += self.share.cost_s
        self._bench.answered.append(self.name)
        self.turns -= 1
        if self.turns:
            self._bench.queue.add(self)


async def test_a_queued_connection_is_served_in_the_next_turn() -> None:
    bench = Bench()
    bench.queue.add(bench.connection("a", SHARE_S))
    assert bench.answered == []
    await bench.turn_s()
    assert bench.answered == ["a"]
    assert len(bench.queue) == 0


async def test_the_queue_yields_to_the_loop_after_turn_s() -> None:
    bench = Bench()
    for number in range(100):
        bench.queue.add(bench.connection(str(number), SHARE_S, turns=3))
    while len(bench.queue):
        assert 0 < await bench.turn_s() <= TURN_S + SHARE_S
    assert len(bench.answered) == 300


async def test_connections_of_equal_cost_take_turns() -> None:
    bench = Bench()
    for name in "abc":
        bench.queue.add(bench.connection(name, SHARE_S, turns=3))
    await bench.until_empty()
    assert bench.answered == list("abcabcabc")


async def test_a_cheap_connection_is_served_before_a_hundred_expensive_ones() -> None:
    bench = Bench()
    for number in range(100):
        bench.queue.add(bench.connection(f"dear {number}", 5 * SHARE_S, turns=10))
    for _ in range(20):
        bench.queue.add(bench.connection("cheap", 0.00005))
        before = len(bench.answered)
        while "cheap" not in bench.answered[before:]:
            await bench.turn_s()
        assert bench.answered[before:].index("cheap") <= 1


async def test_a_new_connection_is_served_before_most_expensive_ones() -> None:
    bench = Bench()
    for number in range(100):
        bench.queue.add(bench.connection(f"dear {number}", 5 * SHARE_S, turns=10))
    for _ in range(150):
        await bench.turn_s()
    bench.queue.add(bench.connection("new", FIRST_COST_S))
    before = len(bench.answered)
    while "new" not in bench.answered[before:]:
        await bench.turn_s()
    assert bench.answered[before:].index("new") < 10


async def test_an_expensive_connection_is_not_starved_by_cheap_ones() -> None:
    bench = Bench()
    bench.queue.add(bench.connection("dear", 10 * SHARE_S))
    for number in range(5):
        bench.queue.add(bench.connection(f"cheap {number}", SHARE_S / 10, turns=10_000))
    while "dear" not in bench.answered:
        await bench.turn_s()
    counts = Counter(bench.answered)
    assert max(counts.values()) <= 101, "none had more time meanwhile than it had itself"


async def test_time_spent_outside_the_queue_is_reset_by_its_turn() -> None:
    bench = Bench()
    bench.queue.spent_s = 2 * TURN_S
    bench.queue.add(bench.connection("a", SHARE_S))
    await bench.turn_s()
    assert bench.queue.spent_s == 0.0


async def test_time_of_an_earlier_turn_of_the_loop_makes_none_wait() -> None:
    bench = Bench()
    share = bench.connection("a", 2 * LIGHT_S).share
    bench.queue.charge(share, 2 * TURN_S)
    share.cost_s = 2 * LIGHT_S
    assert bench.queue.must_wait(share)
    bench.queue.end_turn()
    assert not bench.queue.must_wait(share)


async def test_the_end_of_a_turn_lets_none_overtake_those_that_wait() -> None:
    bench = Bench()
    bench.queue.spent_s = 2 * TURN_S
    bench.queue.add(bench.connection("a", SHARE_S))
    bench.queue.end_turn()
    assert bench.queue.must_wait(bench.connection("b", 2 * LIGHT_S).share)


async def test_a_turn_that_fails_does_not_stop_the_others() -> None:
    bench = Bench()
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["exception"]))

    class Broken(Costly):
        def take_turn(self) -> None:
            raise RuntimeError("broken")

    bench.queue.add(Broken(bench, "broken", 0.0, 1))
    bench.queue.add(bench.connection("a", SHARE_S))
    await bench.until_empty()
    assert bench.answered == ["a"]
    assert [str(each) for each in complaints] == ["broken"]


class Charged(Costly):
    """Takes `cost_s` for each of its turns, and is charged for what the turn took on the clock."""

    def __init__(self, bench: Bench, name: str, cost_s: float, turns: int = 1) -> None:
        super().__init__(bench, name, cost_s, turns)
        self.cost_s = cost_s
        self.is_served = asyncio.Event()
        self.interruption: Callable[[], object] = lambda: None
        """Happens in its next turn, and takes time that is not its own."""

    def take_turn(self) -> None:
        bench, began_at = self._bench, self._bench.clock.monotonic()
        bench.clock.advance(self.cost_s)
        self.interruption()
        self.interruption = lambda: None
        bench.queue.charge(self.share, bench.clock.monotonic() - began_at)
        bench.answered.append(self.name)
        self.is_served.set()
        self.turns -= 1
        if self.turns:
            bench.queue.add(self)


GREEDY_S, POLITE_S, PAUSE_S = 0.00024, 0.00015, 0.03


async def longest_wait_s(bench: Bench, interrupt: Callable[[], object]) -> float:
    """Return how long a polite connection waits for a turn beside 64 greedy ones; two of its turns are interrupted."""
    for number in range(64):
        bench.queue.add(Charged(bench, f"greedy {number}", GREEDY_S, turns=1_000_000))
    polite = Charged(bench, "polite", POLITE_S)
    waits = []
    for turn in range(10):
        polite.turns = 1
        polite.interruption = interrupt if turn in (2, 5) else lambda: None
        began_at, before = bench.clock.monotonic(), len(bench.answered)
        bench.queue.add(polite)
        while "polite" not in bench.answered[before:]:
            await bench.turn_s()
        waits.append(bench.clock.monotonic() - began_at)
    return max(waits)


def collected(bench: Bench) -> None:
    bench.queue.note_collection("start", {})
    bench.clock.advance(PAUSE_S)
    bench.queue.note_collection("stop", {})


@pytest.mark.parametrize("pause", ["a garbage collection", "no processor"])
async def test_a_pause_of_the_process_is_not_charged_to_the_connection_in_service(pause: str) -> None:
    bench = Bench()
    interrupt = (
        (lambda: collected(bench))
        if pause == "a garbage collection"
        else (lambda: bench.clock.wait_for_a_processor(PAUSE_S))
    )
    assert await longest_wait_s(bench, interrupt) < PAUSE_S + 64 * GREEDY_S + 2 * TURN_S


async def test_work_for_all_connections_is_charged_little_by_little() -> None:
    bench = Bench()
    assert await longest_wait_s(bench, lambda: bench.clock.advance(CREDIT_S / 2)) < 0.1


async def test_a_connection_that_was_cheap_does_not_wait_for_a_turn_that_is_not() -> None:
    bench = Bench()
    for number in range(64):
        bench.queue.add(Charged(bench, f"greedy {number}", GREEDY_S, turns=1_000_000))
    polite = Charged(bench, "polite", LIGHT_S / 2, turns=1_000)
    while polite.turns:  # as it is read, not from the queue
        polite.turns -= 1
        bench.queue.charge(polite.share, LIGHT_S / 2)
        await bench.turn_s()
    polite.share.cost_s = POLITE_S
    polite.turns, began_at = 1, bench.clock.monotonic()
    bench.queue.add(polite)
    while "polite" not in bench.answered:
        await bench.turn_s()
    assert bench.clock.monotonic() - began_at < 64 * GREEDY_S + TURN_S


async def test_a_connection_ahead_of_those_that_wait_is_not_served_as_it_is_read() -> None:
    bench = Bench()
    for name in "abc":
        bench.queue.add(Charged(bench, name, SHARE_S, turns=3))
    share = Share()
    assert not bench.queue.must_wait(share)
    bench.queue.charge(share, FIRST_COST_S)
    assert bench.queue.must_wait(share)
    await bench.until_empty()
    assert not bench.queue.must_wait(share), "nobody waits"


@pytest.mark.parametrize("between", [0, 1, 5])
async def test_expensive_requests_between_cheap_ones_are_charged_in_the_end(between: int) -> None:
    bench = Bench()
    for name in "abcd":
        bench.queue.add(Charged(bench, name, SHARE_S, turns=1_000_000))
    used_s = 0.0
    sly = Charged(bench, "sly", 0.0)
    for turn in range(40 * (between + 1)):
        sly.cost_s = 0.00015 if turn % (between + 1) else 4 * SHARE_S
        used_s += sly.cost_s
        sly.turns = 1
        before = len(bench.answered)
        bench.queue.add(sly)
        while "sly" not in bench.answered[before:]:
            await bench.turn_s()
    each_s = bench.answered.count("a") * SHARE_S
    assert used_s < 1.5 * each_s + 2 * CREDIT_S


async def test_what_a_connection_really_takes_is_charged() -> None:
    bench = Bench()
    assert await longest_wait_s(bench, lambda: bench.clock.advance(PAUSE_S)) > 0.1


async def test_a_pause_before_a_turn_does_not_make_the_turn_free() -> None:
    bench = Bench()
    for name in ("first", "second", "third"):
        bench.queue.add(bench.connection(name, SHARE_S))
    bench.clock.wait_for_a_processor(PAUSE_S)
    dear = Charged(bench, "dear", 10 * SHARE_S, turns=3)
    bench.queue.add(dear)
    await bench.until_empty()
    assert dear.share.virtual_s == pytest.approx(30 * SHARE_S)


async def test_a_queue_counts_real_collections_while_it_is_attached() -> None:
    queue = FairQueue(ManualClock())
    queue.attach()
    assert queue.note_collection in gc.callbacks
    queue.detach()
    queue.detach()
    assert queue.note_collection not in gc.callbacks


@pytest.mark.parametrize("greedy", [1, 64, 1_000])
@pytest.mark.parametrize("cost_s", [LIGHT_S / 2, GREEDY_S, 3 * GREEDY_S])
async def test_a_client_waits_for_few_turns_of_one_with_many_connections(greedy: int, cost_s: float) -> None:
    bench = Bench()
    bench.greedy(greedy, "10.0.0.1")
    polite = Charged(bench, "polite", cost_s)
    bench.queue.join(polite.share, "10.0.0.2")
    turns = [await bench.turns_until(polite) for _ in range(100)]
    assert max(turns[3:]) <= 2 * cost_s / GREEDY_S, "until the other client had as much as this one"


async def test_clients_get_the_same_time_whatever_their_connections() -> None:
    bench = Bench()
    bench.greedy(100, "10.0.0.1")
    for number in range(3):
        other = Charged(bench, f"other {number}", 2 * GREEDY_S, turns=1_000_000)
        bench.queue.join(other.share, "10.0.0.2")
        bench.queue.add(other)
    while len(bench.answered) < 3_000:
        await bench.turn_s()
    counts = Counter(bench.answered)
    others_s = 2 * GREEDY_S * sum(counts[f"other {number}"] for number in range(3))
    assert others_s == pytest.approx(GREEDY_S * sum(counts[f"greedy {number}"] for number in range(100)), rel=0.02)
    assert max(counts[f"greedy {number}"] for number in range(100)) <= min(counts.values()) + 2


async def test_a_client_without_connections_is_forgotten() -> None:
    queue = FairQueue(ManualClock())
    shares = [Share() for _ in range(4)]
    queue.join(shares[0], "10.0.0.1")
    queue.join(shares[1], "10.0.0.1")
    queue.leave(shares[0])
    queue.join(shares[2], "10.0.0.1")
    assert shares[2].client is shares[1].client
    queue.leave(shares[1])
    queue.leave(shares[2])
    queue.join(shares[3], "10.0.0.1")
    assert shares[3].client is not shares[1].client
