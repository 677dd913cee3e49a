"""The event loop of servers."""

import asyncio
import os
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of the fastest installed event loop. `SKYROUTE_LOOP=asyncio` selects asyncio's."""
    if os.environ.get("SKYROUTE_LOOP") == "asyncio":
        return None
    try:
        import uvloop  # noqa: PLC0415 - an optional dependency
    except ImportError:
        return None
    return uvloop.new_event_loop
