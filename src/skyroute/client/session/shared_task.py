"""Work that several wait for, and that goes on when one of them gives up."""

import asyncio
from typing import TypeVar

from skyroute.client.errors import NotRunningError

_T = TypeVar("_T")


async def outcome_of(task: "asyncio.Task[_T]") -> _T:
    """Return what a task returns, or raise what it raises. Being cancelled ends the wait, not the task.

    Raises:
        NotRunningError: the task was cancelled, which only a session does that stops.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        waiting = asyncio.current_task()
        if task.cancelled() and waiting is not None and not waiting.cancelling():
            raise NotRunningError("the session was stopped meanwhile") from None
        raise
