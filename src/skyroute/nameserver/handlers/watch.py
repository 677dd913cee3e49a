"""Waiting for routes to change."""

from dataclasses import dataclass

import msgspec

from skyroute.clock import Clock
from skyroute.nameserver.watch import Watches
from skyroute.remoting.dispatch import DeferredResponse, Peer
from skyroute.wire.calls.watch import decode_watch
from skyroute.wire.command import Request, Response


@dataclass(frozen=True, slots=True)
class WatchHandlers:
    """The one request that is ours: Apache's name servers answer that they do not support it."""

    watches: Watches
    clock: Clock
    timeout_ms_max: int
    """A connection on which nothing is said for too long is closed, so a watch has to end sooner."""

    def watch(self, request: Request, peer: Peer) -> Response | DeferredResponse:
        if request.is_oneway:
            return Response()  # nobody would hear of it
        query = decode_watch(request)
        request.body = b""  # the request lives as long as the watch is parked, and is not read again
        if query.timeout_ms > self.timeout_ms_max:
            query = msgspec.structs.replace(query, timeout_ms=self.timeout_ms_max)
        return self.watches.watch(query, connection=peer.connection, now=self.clock.monotonic())
