"""What the connections of one server share."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from skyroute.clock import Clock
from skyroute.remoting.busy_polling import BusyPolling, WriteBatch
from skyroute.remoting.client_meters import ClientMeters
from skyroute.remoting.dispatch import Dispatcher
from skyroute.remoting.fair_queue import FairQueue
from skyroute.remoting.limits import ByteBudget, CloseLog, Limits
from skyroute.remoting.tls import ServerTls


@dataclass(frozen=True, slots=True)
class ServerContext:
    """The parts of a server that its connections use. `Any` stands for a connection."""

    dispatcher: Dispatcher
    tls: ServerTls
    clock: Clock
    limits: Limits
    buffered: ByteBudget
    unsent: ByteBudget
    close_log: CloseLog
    polling: BusyPolling
    write_batch: WriteBatch
    queue: FairQueue
    on_made: Callable[[Any], None]
    on_lost: Callable[[Any, Exception | None], None]
    """Called exactly once for every connection that was made."""
    on_full: Callable[[int, ByteBudget], None]
    """Called with the number of a connection whose bytes have exceeded a budget."""
    spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    """Runs a coroutine until it ends or the server stops."""
    meters: ClientMeters | None = None
    """What each client address uses; None if there are no limits for that."""
