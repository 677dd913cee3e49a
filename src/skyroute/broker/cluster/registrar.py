"""Registers a broker and its topics with each of its name servers. A dead name server does not delay the others."""

import asyncio
import logging
import math
import ssl
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from skyroute.broker.cluster.own_registration import OwnRegistration
from skyroute.broker.config import BrokerConfig
from skyroute.broker.identity import Identity
from skyroute.broker.tables.queue_mappings import QueueMappings
from skyroute.broker.tables.topics import Topics
from skyroute.clock import Clock
from skyroute.errors import SkyrouteError
from skyroute.remoting.client import Channel, connect
from skyroute.remoting.errors import RefusedError, RemotingError
from skyroute.remoting.signing import Signer
from skyroute.wire.calls.registration import (
    RegistrationReply,
    decode_registration_reply,
    decode_version_reply,
)
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
START_WAIT_S: Final = 3.0
START_GRACE_S: Final = 0.5
"""The start waits `START_WAIT_S` for all name servers, and `START_GRACE_S` after the first registration."""
ANNOUNCE_WAIT_S: Final = 1.0
"""An announcement waits this long for slow name servers, because a producer waits for it, usually three seconds."""
UNREGISTER_S: Final = 1.0
BACKOFF_MAX_S: Final = 30.0
FIRST_PERIOD_S: Final = 10.0
"""Time from the first to the second registration, as with Apache's brokers."""
ANNOUNCED_MAX: Final = 1_000
"""More changed topics than this are sent as one registration of all topics."""


class _NameServer:
    """The state of registration with one name server."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel: Channel | None = None
        self.has_us = False
        """It has all our topics, over the present connection."""
        self.is_late = False
        """An announcement timed out, and it has not responded since."""
        self.busy = False
        self.failures = 0
        self.due_at = -math.inf
        """Time of the next registration of all topics."""
        self.all_wanted = False
        self.changed: dict[str, TopicConfig] = {}
        self.waiting: list[asyncio.Future[None]] = []
        self.wake = asyncio.Event()

    @property
    def has_work(self) -> bool:
        return self.all_wanted or (self.has_us and bool(self.changed))

    def want(self, changed: Iterable[TopicConfig] | None = None) -> "asyncio.Future[None]":
        """Request the registration of all topics, or of some; the future is done after the attempt."""
        if changed is None:
            self.all_wanted = True
        else:
            self.changed.update((topic.name, topic) for topic in changed)
            if len(self.changed) > ANNOUNCED_MAX:
                self.changed.clear()
                self.all_wanted = True
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        self.wake.set()
        return future

    def forget(self) -> None:
        self.channel, self.has_us = None, False


class Registrar:
    """Registers at the start, when topics change and at an interval; unregisters at the end."""

    def __init__(
        self,
        addresses: Sequence[str],
        identity: Identity,
        topics: Topics,
        config: BrokerConfig,
        clock: Clock,
        tls: ssl.SSLContext | None = None,
        signer: Signer | None = None,
        mappings: QueueMappings | None = None,
    ) -> None:
        self._identity = identity
        self.own = OwnRegistration(identity, topics, config, mappings)
        self._topics = topics
        self._config = config
        self._clock = clock
        self._tls = tls
        self._signer = signer
        self._name_servers = [_NameServer(address) for address in addresses]
        self._tasks: list[asyncio.Task[None]] = []
        self._next_beat_at = -math.inf
        self._stopped = False
        self.on_reply: Callable[[RegistrationReply], None] | None = None
        """Called with every response to a registration, which has the addresses of the group's master."""
        self.has_registered = False
        """At least one registration succeeded."""

    def __repr__(self) -> str:
        return f"<Registrar {self._identity.name} registered_with={self.registered_with} of={len(self._name_servers)}>"

    @property
    def registered_with(self) -> int:
        """Number of name servers that have this broker."""
        return sum(server.has_us for server in self._name_servers)

    # Called by the broker

    async def start(self) -> None:
        """Register with all name servers. Name servers that do not respond are tried again later."""
        if not self._name_servers:
            log.warning("no name server is known, clients cannot find this broker advice=set namesrvAddr or give -n")
            return
        self._tasks = [asyncio.get_running_loop().create_task(self._serve(server)) for server in self._name_servers]
        attempts = [server.want() for server in self._name_servers]
        deadline = self._clock.monotonic() + START_WAIT_S
        while pending := [attempt for attempt in attempts if not attempt.done()]:
            left_s = max(0.0, deadline - self._clock.monotonic())
            if any(server.has_us for server in self._name_servers):
                left_s = min(left_s, START_GRACE_S)
            done, _ = await asyncio.wait(pending, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                log.warning("some name servers do not respond missing=%d of=%d", len(pending), len(attempts))
                break

    async def announce(self, configs: Collection[TopicConfig]) -> None:
        """Register new or changed topics, and wait for the name servers that responded last time."""
        if not configs or self._stopped:
            return
        # Other name servers get all topics when they are back; a registration under way may lack these topics.
        await self._wait(
            {server: server.want(configs) for server in self._name_servers if server.has_us or server.busy}
        )

    async def register(self) -> None:
        """Register all topics now, because the permission of the broker has changed."""
        if not self._stopped:
            await self._wait({server: server.want() for server in self._name_servers if server.has_us or server.busy})

    async def run(self) -> None:
        """Register at every interval, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self.tick(self._clock.monotonic())

    def tick(self, now: float) -> None:
        """Start the registrations and heartbeats that are due."""
        is_beat_due = self._config.acting_master_enabled and now >= self._next_beat_at
        if is_beat_due:
            self._next_beat_at = now + self._config.heartbeat_interval_s
        for server in self._name_servers:
            if server.busy:
                continue
            if now >= server.due_at:
                server.all_wanted = True
                server.wake.set()
            elif is_beat_due and server.has_us and server.channel is not None and not server.channel.closed:
                server.channel.send_oneway(self.own.heartbeat())

    async def stop(self) -> None:
        """Unregister from all name servers and close the connections, within a bounded time."""
        await self._end_tasks()
        channels = [server.channel for server in self._name_servers if server.channel is not None]
        await asyncio.gather(*map(self._unregister, channels))
        for channel in channels:
            channel.close()
        if channels:
            _, open_still = await asyncio.wait([channel.ended for channel in channels], timeout=UNREGISTER_S)
            if open_still:
                self._abort()

    async def kill(self) -> None:
        """Close the connections without unregistering, as a crash does."""
        self._abort()
        await self._end_tasks()

    def _abort(self) -> None:
        for server in self._name_servers:
            if server.channel is not None:
                server.channel.abort()

    async def _end_tasks(self) -> None:
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _unregister(self, channel: Channel) -> None:
        try:
            await channel.call(self.own.unregistration(), UNREGISTER_S)
        except RemotingError as error:
            log.debug("unregistration failed name_server=%s reason=%s", channel.address, error)

    @staticmethod
    async def _wait(told: "dict[_NameServer, asyncio.Future[None]]") -> None:
        expected = [future for server, future in told.items() if server.has_us and not server.is_late]
        if expected:
            await asyncio.wait(expected, timeout=ANNOUNCE_WAIT_S)
        for server, future in told.items():
            server.is_late = not future.done()

    # One name server

    async def _serve(self, server: _NameServer) -> None:
        while True:
            await server.wake.wait()
            server.wake.clear()
            while server.has_work:
                waiting, server.waiting = server.waiting, []
                server.busy = True
                try:
                    await self._register_with(server)
                except (SkyrouteError, OSError) as error:
                    self._note_failure(server, error)
                    break
                finally:
                    server.busy = False
                    _release(waiting)
            # Requests that arrived during the failure need no attempt: the next registration has all topics.
            _release(server.waiting)
            server.waiting.clear()

    async def _register_with(self, server: _NameServer) -> None:
        """Register all topics, or the changed ones, in one request.

        Raises:
            RemotingError, RefusedError, WireError: the request failed or was refused.
        """
        if server.channel is None or server.channel.closed:
            server.channel = await connect(
                server.address,
                tls=self._tls,
                timeout_s=self._config.connect_timeout_s,
                on_close=self._on_close,
                signer=self._signer,
            )
        channel = server.channel
        changed, server.changed = server.changed, {}
        if not server.all_wanted and server.has_us and await self._announce_topics(channel, changed.values()):
            self._note_success(server)
            return
        server.all_wanted = False
        wait_s = self._config.bounded_registration_interval_s if server.has_us else FIRST_PERIOD_S
        server.due_at = self._clock.monotonic() + wait_s
        if self._config.force_registration or not server.has_us or await self._is_outdated(channel):
            response = await self._call(channel, await self.own.full())
            if response.code != ResponseCode.SUCCESS:
                raise RefusedError(response.code, response.remark or "no remark")
            self._accept_reply(response)
        self._note_success(server)

    async def _announce_topics(self, channel: Channel, topics: Collection[TopicConfig]) -> bool:
        """Send new and changed topics: one 217 for each if so configured, else all in one incremental 103.

        Return False if the name server refuses. It then has forgotten us, or is of 4.x and does not know 217.
        """
        if single := self.own.single_topics(topics):
            responses = await asyncio.gather(*(self._call(channel, request) for request in single))
            return all(response.code == ResponseCode.SUCCESS for response in responses)
        response = await self._call(channel, self.own.announcement(topics))
        if response.code != ResponseCode.SUCCESS:
            return False
        self._accept_reply(response)
        return True

    def _accept_reply(self, response: Response) -> None:
        reply = decode_registration_reply(response)
        self._topics.mark_ordered(reply.ordered_topics)
        if self.on_reply is not None:
            self.on_reply(reply)

    async def _call(self, channel: Channel, request: Request) -> Response:
        return await channel.call(request, self._config.registration_timeout_s)

    async def _is_outdated(self, channel: Channel) -> bool:
        return decode_version_reply(await self._call(channel, self.own.version_query()))

    def _note_success(self, server: _NameServer) -> None:
        if not server.has_us:
            log.info("registered name_server=%s broker=%s", server.address, self._identity.name)
        server.has_us, server.is_late, server.failures = True, False, 0
        self.has_registered = True

    def _note_failure(self, server: _NameServer, error: Exception) -> None:
        server.all_wanted = server.has_us = False
        server.changed.clear()
        level = logging.DEBUG if server.failures else logging.WARNING
        log.log(level, "registration failed name_server=%s reason=%s", server.address, error)
        self._try_again(server)

    def _try_again(self, server: _NameServer) -> None:
        server.failures += 1
        server.due_at = self._clock.monotonic() + min(2.0 ** min(server.failures - 1, 10), BACKOFF_MAX_S)

    def _on_close(self, channel: Channel) -> None:
        for server in self._name_servers:
            if server.channel is channel:
                server.forget()
                if not self._stopped and not server.busy:
                    log.warning("name server lost name_server=%s", server.address)
                    self._try_again(server)


def _release(waiting: "list[asyncio.Future[None]]") -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)
