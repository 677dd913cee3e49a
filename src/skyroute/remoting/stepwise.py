"""Long work in steps, so that other requests are processed in between.

A handler writes long work as a generator that yields between its steps and returns its `Response`, and returns
`OrderedResponse(step_runner.run(steps))`. Rules for such a generator:

- A step takes at most a few milliseconds. Shared state may have changed after each `yield`.
- If the peer hangs up, the generator of a request in `wire.codes.CANCELLABLE_CODES` is closed at its next `yield`.
  Other requests change something, so their work is finished.
- Later requests of the same connection wait for it, so each connection has at most one.

`run_through` runs all steps at once, for work that is known to be short.
"""

import asyncio
from collections.abc import Generator
from typing import Final, TypeVar

from skyroute.clock import Clock
from skyroute.remoting.busy_polling import BusyPolling
from skyroute.remoting.dispatch import OrderedResponse
from skyroute.remoting.lane import Lane
from skyroute.wire.command import Response

T = TypeVar("T")

ROUND_S: Final = 0.1
"""Time after which work lets other waiting work run first. A registration rarely takes as long."""
Steps = Generator[None, None, Response]
"""A response that is made in steps, each of which takes a few milliseconds at most."""


def run_through(steps: Generator[None, None, T]) -> T:
    """Run all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


class StepRunner:
    """Runs one long work at a time, with a pause after each step.

    The pause is one turn of the loop. If other peers send something in that turn, it is as long as the step took. Works
    that take longer than `ROUND_S` take turns: those of one client in order of arrival, and each client gets as much
    time as another, however many works it has.
    """

    def __init__(self, polling: BusyPolling, clock: Clock) -> None:
        self._polling = polling
        self._clock = clock
        self._lane = Lane()

    def answer(self, steps: Steps) -> Response | OrderedResponse:
        """Return the response if one step is enough for it; else one that is given after the last step."""
        try:
            next(steps)
        except StopIteration as end:
            response: Response = end.value
            return response
        return OrderedResponse(self.run(steps))

    async def run(self, steps: Generator[None, None, T]) -> T:
        """Run all steps and return the result. If this is cancelled, the generator is closed."""
        try:
            while True:
                async with self._lane.turn() as turn:
                    while turn.spent_s < ROUND_S:
                        began_at = self._clock.monotonic()
                        try:
                            next(steps)
                        except StopIteration as end:
                            result: T = end.value
                            return result
                        step_s = self._clock.monotonic() - began_at
                        turn.spent_s += step_s
                        await self._pause(step_s)
        finally:
            steps.close()

    async def _pause(self, step_s: float) -> None:
        reads_before = self._polling.reads
        await asyncio.sleep(0)  # the loop polls the sockets once
        if self._polling.reads != reads_before:
            await asyncio.sleep(step_s)
