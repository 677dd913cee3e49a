"""An event loop with its own host names, so that a name can have several addresses without DNS."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

_T = TypeVar("_T")


class _NamedHostsLoop(asyncio.SelectorEventLoop):
    def __init__(self, names: Mapping[str, Sequence[str]]) -> None:
        super().__init__()
        self._names = names

    async def getaddrinfo(self, host: Any, port: Any, **hints: Any) -> Any:
        found = []
        hints["flags"] = hints.get("flags", 0) | socket.AI_NUMERICHOST
        for ip in self._names.get(host, [host]):
            found += await super().getaddrinfo(ip, port, **hints)
        return found


def run_with_names(names: Mapping[str, Sequence[str]], test: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run a test to its end where each name has these addresses; `names` may be changed meanwhile."""
    with asyncio.Runner(loop_factory=lambda: _NamedHostsLoop(names)) as runner:
        return runner.run(test())
