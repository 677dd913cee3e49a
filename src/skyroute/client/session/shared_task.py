"""A task that several callers await, and that continues when one of them is cancelled."""

import asyncio
from typing import TypeVar

from skyroute.client.errors import NotRunningError

_T = TypeVar("_T")


async def outcome_of(task: "asyncio.Task[_T]") -> _T:
    """Return the result of a task, or raise its error. A cancellation of the caller does not cancel the task.

    Raises:
        NotRunningError: the session stopped, and cancelled the task.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        waiting = asyncio.current_task()
        if task.cancelled() and waiting is not None and not waiting.cancelling():
            raise NotRunningError("the session was stopped during the call") from None
        raise
