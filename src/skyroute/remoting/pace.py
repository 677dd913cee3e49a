"""How long work shares the loop with everybody else.

Long work is written as a generator that yields between its steps and returns its result. `run_through` does it in one
go, `Pace` lets others have their turn in between.
"""

import asyncio
from collections.abc import Generator
from typing import TypeVar

from skyroute.clock import Clock
from skyroute.remoting.dispatch import Answer, InTurn, Peer
from skyroute.remoting.traffic import Traffic
from skyroute.wire.command import Response

T = TypeVar("T")

Steps = Generator[None, None, Response]
"""An answer that is made in steps, each of which takes a few milliseconds at most."""


def run_through(steps: Generator[None, None, T]) -> T:
    """Do all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def _until_gone(steps: Steps, peer: Peer) -> Steps:
    """Do the steps of an answer for as long as its peer is there."""
    while not peer.gone:
        try:
            next(steps)
        except StopIteration as end:
            response: Response = end.value
            return response
        yield
    steps.close()
    return Response.error(f"{peer.address} is gone")


class Pace:
    """Rests between the steps of long work: as long as the step took, but only while others have something to say."""

    def __init__(self, traffic: Traffic, clock: Clock) -> None:
        self._traffic = traffic
        self._clock = clock
        self._lane = asyncio.Lock()

    def answer(self, steps: Steps, peer: Peer | None = None) -> Answer:
        """Return the answer if one step is enough for it; else one that is given when all steps are done.

        With `peer`, the steps end early if it hangs up: for what changes nothing.
        """
        try:
            next(steps)
        except StopIteration as end:
            response: Response = end.value
            return response
        return InTurn(self.run(steps if peer is None else _until_gone(steps, peer)))

    async def run(self, steps: Generator[None, None, T]) -> T:
        """Do the steps with rests in between, after the long work that came before has ended."""
        async with self._lane:
            while True:
                began_at = self._clock.monotonic()
                try:
                    next(steps)
                except StopIteration as end:
                    result: T = end.value
                    return result
                await self._rest(self._clock.monotonic() - began_at)

    async def _rest(self, worked_s: float) -> None:
        reads_before = self._traffic.reads
        await asyncio.sleep(0)  # the loop looks at every socket once
        if self._traffic.reads != reads_before:
            await asyncio.sleep(worked_s)
