"""Which event loop servers run on."""

import asyncio
import os
from collections.abc import Callable


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the fastest loop there is; `SKYROUTE_LOOP=asyncio` asks for Python's own."""
    if os.environ.get("SKYROUTE_LOOP") == "asyncio":
        return None
    try:
        import uvloop  # noqa: PLC0415 - an optional part, and not for everybody who imports this
    except ImportError:
        return None
    return uvloop.new_event_loop
