"""Long work in steps: in one go, and sharing the loop with others."""

import asyncio
from collections.abc import Generator
from itertools import pairwise

import pytest

from skyroute.remoting import lane
from skyroute.remoting.busy_polling import BusyPolling
from skyroute.remoting.lane import CLIENT
from skyroute.remoting.stepwise import ROUND_S, StepRunner, run_through
from tests.support.clock import ManualClock

AN_HOUR = 3600.0
A_MOMENT = 0.05


class Bench:
    """A `StepRunner`, and what its work writes down."""

    def __init__(self) -> None:
        self.polling = BusyPolling()
        self.clock = ManualClock()
        self.step_runner = StepRunner(self.polling, self.clock)
        self.done: list[str] = []

    def work(self, name: str, steps: int, step_s: float = AN_HOUR) -> Generator[None, None, str]:
        """Steps that take as long as they say, by the clock that only they move."""
        for number in range(steps):
            self.clock.advance(step_s)
            self.done.append(f"{name}{number}")
            yield
        self.done.append(f"{name} ends")
        return f"result of {name}"

    def broken(self, steps: int) -> Generator[None, None, str]:
        yield from self.work("broken", steps, 0.0)
        raise RuntimeError("broken")

    def speak_once(self) -> None:
        """Something is read the next time the loop looks at its sockets."""
        asyncio.get_running_loop().call_soon(self._read)

    def _read(self) -> None:
        self.polling.reads += 1
        self.done.append("read")


# ------------------------------------------------------------------------------------------------- in one go


@pytest.mark.parametrize("steps", [0, 1, 1000])
def test_run_through_runs_all_steps_and_returns_the_result(steps: int) -> None:
    bench = Bench()
    assert run_through(bench.work("a", steps)) == "result of a"
    assert bench.done == [*(f"a{number}" for number in range(steps)), "a ends"]


def test_run_through_continues_a_started_generator() -> None:
    bench = Bench()
    steps = bench.work("a", 3)
    next(steps)
    assert run_through(steps) == "result of a"
    assert bench.done == ["a0", "a1", "a2", "a ends"]


def test_run_through_passes_exceptions_on() -> None:
    bench = Bench()
    with pytest.raises(RuntimeError, match="broken"):
        run_through(bench.broken(2))
    assert bench.done == ["broken0", "broken1", "broken ends"]


# ------------------------------------------------------------------------------------------- one after the other


@pytest.mark.parametrize("steps", [0, 1, 100])
async def test_a_step_runner_runs_all_steps_and_returns_the_result(steps: int) -> None:
    bench = Bench()
    async with asyncio.timeout(30):
        assert await bench.step_runner.run(bench.work("a", steps)) == "result of a"
    assert bench.done == [*(f"a{number}" for number in range(steps)), "a ends"]


async def test_works_run_one_at_a_time_in_order_of_arrival() -> None:
    bench = Bench()
    async with asyncio.timeout(30):
        results = await asyncio.gather(*(bench.step_runner.run(bench.work(name, 3, ROUND_S / 5)) for name in "abc"))
    assert results == ["result of a", "result of b", "result of c"]
    assert bench.done == [line for name in "abc" for line in (*(f"{name}{n}" for n in range(3)), f"{name} ends")]


async def test_works_longer_than_a_round_take_turns() -> None:
    bench = Bench()
    async with asyncio.timeout(30):
        works = [
            bench.work("long", 6, 0.6 * ROUND_S),
            bench.work("other", 4, 0.6 * ROUND_S),
            bench.work("short", 1, 0.0),
        ]
        await asyncio.gather(*map(bench.step_runner.run, works))
    rounds = "long0 long1 other0 other1 short0 short ends long2 long3 other2 other3 long4 long5 other ends long ends"
    assert " ".join(bench.done) == rounds


async def test_a_client_with_many_works_gets_no_more_time_than_another() -> None:
    bench = Bench()

    async def run_for(client: str, name: str, steps: int) -> None:
        CLIENT.set(client)
        await bench.step_runner.run(bench.work(name, steps, ROUND_S))

    async with asyncio.timeout(30), asyncio.TaskGroup() as running:
        for number in range(100):
            running.create_task(run_for("many", "many", number % 3))
        running.create_task(run_for("one", "one", 5))
        running.create_task(run_for("other", "other", 5))
    ends = {name: bench.done.index(f"{name} ends") for name in ("one", "other")}
    for name, end in ends.items():
        turns = [line.rstrip("0123456789") for line in bench.done[:end] if not line.endswith("ends")]
        assert turns.count("many") <= 7, name
        assert turns.count(name) == 5


async def test_a_client_that_had_its_time_is_not_overtaken_for_ever() -> None:
    bench = Bench()

    async def run_for(client: str, works: int) -> None:
        CLIENT.set(client)
        for _ in range(works):
            await bench.step_runner.run(bench.work(client, 1, ROUND_S))

    async with asyncio.timeout(30), asyncio.TaskGroup() as running:
        for client, works in (("a", 20), ("b", 20), ("pair", 3), ("pair", 3)):
            running.create_task(run_for(client, works))
    lines = [line for line in bench.done if line.endswith("ends")]
    assert lines.index("pair ends") < 4
    assert lines[:18].count("pair ends") == 6


async def test_a_stream_of_new_clients_does_not_hold_up_one_that_had_its_time() -> None:
    bench = Bench()

    async def run_for(client: str, steps: int) -> None:
        CLIENT.set(client)
        await bench.step_runner.run(bench.work(client, steps, ROUND_S / 2))

    async def run_new(stream: str) -> None:
        for number in range(10):
            await asyncio.ensure_future(run_for(f"new {stream}{number}", 1))

    async with asyncio.timeout(30), asyncio.TaskGroup() as running:
        for _ in range(3):
            running.create_task(run_for("known", 2))
        for stream in "abcdef":
            running.create_task(run_new(stream))
    ends = [line for line in bench.done if line.endswith("ends")]
    assert ends[:30].count("known ends") == 3


async def test_clients_are_forgotten_once_they_lead_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "KNOWN", 10)
    bench = Bench()
    bench.step_runner = StepRunner(bench.polling, bench.clock)
    known: list[int] = []

    async def run_for(client: str) -> None:
        CLIENT.set(client)
        await bench.step_runner.run(bench.work(client, 1, ROUND_S / 10))
        known.append(len(bench.step_runner._lane._clients))

    async with asyncio.timeout(30):
        long = asyncio.ensure_future(bench.step_runner.run(bench.work("long", 1000, ROUND_S)))
        for number in range(300):
            await asyncio.ensure_future(run_for(f"client {number}"))
        await long
    assert max(known) <= 30
    assert not bench.step_runner._lane._clients


async def test_cancelled_work_closes_its_generator() -> None:
    bench = Bench()
    closed: list[str] = []

    def work(name: str) -> Generator[None, None, None]:
        try:
            while True:
                yield
        finally:
            closed.append(name)

    running, waiting = work("running"), work("waiting")
    next(waiting)
    tasks = [asyncio.ensure_future(bench.step_runner.run(steps)) for steps in (running, waiting)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert closed == ["running", "waiting"]


async def test_step_runners_do_not_wait_for_each_other() -> None:
    first, second = Bench(), Bench()
    second.done = first.done
    async with asyncio.timeout(30):
        await asyncio.gather(first.step_runner.run(first.work("a", 2)), second.step_runner.run(second.work("b", 2)))
    assert first.done.index("b0") < first.done.index("a ends")


async def test_an_exception_is_passed_on_and_the_next_work_runs() -> None:
    bench = Bench()
    async with asyncio.timeout(30):
        broken, good = await asyncio.gather(
            bench.step_runner.run(bench.broken(1)), bench.step_runner.run(bench.work("a", 1)), return_exceptions=True
        )
    assert isinstance(broken, RuntimeError)
    assert good == "result of a"
    assert bench.done == ["broken0", "broken ends", "a0", "a ends"]


async def test_cancelled_work_stops_and_the_next_work_runs() -> None:
    bench = Bench()
    async with asyncio.timeout(30):
        endless = asyncio.ensure_future(bench.step_runner.run(bench.work("endless", 1_000_000_000)))
        after = asyncio.ensure_future(bench.step_runner.run(bench.work("a", 1)))
        asyncio.get_running_loop().call_soon(endless.cancel)
        with pytest.raises(asyncio.CancelledError):
            await endless
        assert await after == "result of a"
    assert bench.done[-2:] == ["a0", "a ends"]
    assert "endless ends" not in bench.done


async def test_work_cancelled_in_its_pause_stops_and_the_next_work_runs() -> None:
    bench = Bench()
    async with asyncio.timeout(30):
        resting = asyncio.ensure_future(bench.step_runner.run(bench.work("resting", 2)))
        after = asyncio.ensure_future(bench.step_runner.run(bench.work("a", 1)))
        bench.speak_once()
        loop = asyncio.get_running_loop()
        loop.call_later(A_MOMENT, resting.cancel)
        with pytest.raises(asyncio.CancelledError):
            await resting
        assert await after == "result of a"
    assert bench.done == ["resting0", "read", "a0", "a ends"]


# ------------------------------------------------------------------------------------------------- turns and rests


async def test_other_tasks_run_between_two_steps() -> None:
    bench = Bench()
    loop = asyncio.get_running_loop()

    def turn() -> None:
        bench.done.append("turn")
        loop.call_soon(turn)

    async with asyncio.timeout(30):
        running = asyncio.ensure_future(bench.step_runner.run(bench.work("a", 3)))
        turn()
        await running
    steps_at = [at for at, line in enumerate(bench.done) if line.startswith("a")]
    assert all("turn" in bench.done[before:after] for before, after in pairwise(steps_at))


async def test_work_does_not_pause_without_reads() -> None:
    bench = Bench()
    # By their own clock these steps take forty hours, so a single rest would outlast the test.
    async with asyncio.timeout(30):
        await bench.step_runner.run(bench.work("a", 40))
    assert bench.clock.monotonic() - ManualClock().monotonic() == 40 * AN_HOUR


async def test_reads_before_or_during_a_step_cause_no_pause() -> None:
    bench = Bench()

    def busy() -> Generator[None, None, str]:
        for _ in range(3):
            bench.clock.advance(AN_HOUR)
            bench.polling.reads += 1
            yield
        return "done"

    bench.polling.reads = 1000
    async with asyncio.timeout(30):
        assert await bench.step_runner.run(busy()) == "done"


async def test_after_a_read_work_pauses_as_long_as_its_step_took() -> None:
    bench = Bench()
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(30):
        running = asyncio.ensure_future(bench.step_runner.run(bench.work("a", 2, A_MOMENT)))
        bench.speak_once()
        began_at = loop.time()
        await running
        rested_s = loop.time() - began_at
    assert bench.done == ["a0", "read", "a1", "a ends"]
    # One rest, after the first step: nothing was read after the second. A timer may be a trifle early.
    assert rested_s >= 0.9 * A_MOMENT


async def test_a_pause_may_be_as_long_as_an_hour() -> None:
    bench = Bench()
    running = asyncio.ensure_future(bench.step_runner.run(bench.work("a", 2)))
    bench.speak_once()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(A_MOMENT):
            await running
    assert bench.done == ["a0", "read"]


async def test_a_step_that_took_no_time_needs_no_pause() -> None:
    bench = Bench()
    loop = asyncio.get_running_loop()

    def chatter() -> None:
        bench.polling.reads += 1
        loop.call_soon(chatter)

    async with asyncio.timeout(30):
        running = asyncio.ensure_future(bench.step_runner.run(bench.work("a", 50, 0.0)))
        chatter()
        assert await running == "result of a"
