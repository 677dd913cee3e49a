"""Bounded waits for a state that a test can see but is not notified of, such as that of another process."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

T = TypeVar("T")

TIMEOUT_S: Final = 30.0
"""How long a wait may take before the test fails, unless it says otherwise."""
POLL_S: Final = 0.02
"""Time between two looks at another process."""
LOOP_POLL_S: Final = 0.001
"""Time between two looks at an object of the test's own event loop."""


def wait_until(probe: Callable[[], T], what: str = "", *, timeout_s: float = TIMEOUT_S) -> T:
    """Call `probe` until its result is true, and return that result.

    Raises:
        TimeoutError: The result stayed false.
    """
    deadline = time.monotonic() + timeout_s
    while not (result := probe()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what or probe}; last result {result!r}")
        time.sleep(POLL_S)
    return result


async def eventually(
    condition: Callable[[], bool | Awaitable[bool]], what: str = "", *, timeout_s: float = TIMEOUT_S
) -> None:
    """Wait in an event loop until `condition`, which may be a coroutine function, returns true.

    Raises:
        TimeoutError: It stayed false.
    """
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                result = condition()
                if inspect.isawaitable(result):
                    result, pause_s = await result, POLL_S
                else:
                    pause_s = LOOP_POLL_S
                if result:
                    return
                await asyncio.sleep(pause_s)
    except TimeoutError:
        raise TimeoutError(f"not within {timeout_s:g} s: {what or condition}") from None
