"""Long polling for route changes."""

from dataclasses import dataclass

import msgspec

from skyroute.clock import Clock
from skyroute.nameserver.watch import Watches
from skyroute.remoting.dispatch import DeferredResponse, Peer
from skyroute.wire.calls.watch import decode_watch
from skyroute.wire.command import Request, Response


@dataclass(frozen=True, slots=True)
class WatchHandlers:
    """Handles WATCH_ROUTES, an extension: Apache's name servers respond that they do not support it."""

    watches: Watches
    clock: Clock
    timeout_ms_max: int
    """Less than the idle time after which a connection is closed."""

    def watch(self, request: Request, peer: Peer) -> Response | DeferredResponse:
        if request.is_oneway:
            return Response()  # a one-way request has no response
        query = decode_watch(request)
        request.body = b""  # the request lives as long as the watch waits, and is not read again
        if query.timeout_ms > self.timeout_ms_max:
            query = msgspec.structs.replace(query, timeout_ms=self.timeout_ms_max)
        return self.watches.watch(query, connection=peer.connection, now=self.clock.monotonic())
