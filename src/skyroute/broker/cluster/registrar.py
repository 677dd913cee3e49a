"""Makes a broker and its topics known to its name servers, each on its own: a dead one delays nobody."""

import asyncio
import logging
import math
import ssl
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from skyroute.broker.config import BrokerConfig
from skyroute.broker.identity import Identity
from skyroute.broker.tables.topics import Topics
from skyroute.clock import Clock
from skyroute.errors import SkyrouteError
from skyroute.remoting.client import Channel, connect
from skyroute.remoting.errors import RefusedError, RemotingError
from skyroute.routing.registration import Registration, TopicTable
from skyroute.routing.topology import Permission
from skyroute.wire.calls.registration import (
    Unregistration,
    decode_registration_reply,
    decode_version_reply,
    encode_heartbeat,
    encode_registration,
    encode_unregistration,
    encode_version_query,
)
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
START_WAIT_S: Final = 3.0
START_GRACE_S: Final = 0.5
"""How long the start waits for name servers; once one has answered, the others have only this long."""
ANNOUNCE_WAIT_S: Final = 1.0
"""How long an announcement waits for those that do not answer: a producer waits for it, for three seconds mostly."""
GOODBYE_S: Final = 1.0
BACKOFF_MAX_S: Final = 30.0
FIRST_PERIOD_S: Final = 10.0
"""One that has just learned of us is told again so soon, as by Apache's brokers, and from then on every period."""
ANNOUNCED_MAX: Final = 1_000
"""More changes than this are told as one registration of all topics."""
COMPRESS_FROM_BYTES: Final = 256 * 1024
IN_THREAD_FROM: Final = 2_000
"""So many topics take long enough to write for others to notice."""


class _Link:
    """What one name server knows of us, and what it is still to be told."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel: Channel | None = None
        self.knows_us = False
        """It has taken all our topics over the present connection."""
        self.is_late = False
        """An announcement gave up waiting for it, and it has not answered since."""
        self.busy = False
        self.failures = 0
        self.due_at = -math.inf
        """When all topics are to be told again."""
        self.all_wanted = False
        self.changed: dict[str, TopicConfig] = {}
        self.waiting: list[asyncio.Future[None]] = []
        self.wake = asyncio.Event()

    @property
    def has_work(self) -> bool:
        return self.all_wanted or (self.knows_us and bool(self.changed))

    def want(self, changed: Iterable[TopicConfig] | None = None) -> "asyncio.Future[None]":
        """Have it told of all topics, or of some; the future is done when it was tried."""
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
        self.channel, self.knows_us = None, False


class Registrar:
    """Registers at the start, when topics change and every so often; says goodbye at the end."""

    def __init__(
        self,
        addresses: Sequence[str],
        identity: Identity,
        topics: Topics,
        config: BrokerConfig,
        clock: Clock,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._identity = identity
        self._topics = topics
        self._config = config
        self._clock = clock
        self._tls = tls
        self._links = [_Link(address) for address in addresses]
        self._tasks: list[asyncio.Task[None]] = []
        self._written: tuple[object, Request] | None = None
        """The last registration of all topics, and what it was made of."""
        self._writing = asyncio.Lock()
        self._beat_at = -math.inf
        self._stopped = False
        self.has_registered = False
        """A name server has taken us at least once."""

    def __repr__(self) -> str:
        return f"<Registrar {self._identity.name} known_to={self.known_to} of={len(self._links)}>"

    @property
    def known_to(self) -> int:
        """How many name servers know us."""
        return sum(link.knows_us for link in self._links)

    # What the broker calls

    async def start(self) -> None:
        """Register everywhere. Name servers that do not answer are tried again later, and are no failure."""
        if not self._links:
            log.warning("no name server is known: clients cannot find this broker advice=set namesrvAddr or give -n")
            return
        self._tasks = [asyncio.get_running_loop().create_task(self._tell_for_ever(link)) for link in self._links]
        attempts = [link.want() for link in self._links]
        deadline = self._clock.monotonic() + START_WAIT_S
        while pending := [attempt for attempt in attempts if not attempt.done()]:
            left_s = max(0.0, deadline - self._clock.monotonic())
            if any(link.knows_us for link in self._links):
                left_s = min(left_s, START_GRACE_S)
            done, _ = await asyncio.wait(pending, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                log.warning("some name servers do not answer unanswered=%d of=%d", len(pending), len(attempts))
                break

    async def announce(self, configs: Collection[TopicConfig]) -> None:
        """Tell every name server of new or changed topics, and wait for those that can be expected to answer."""
        if not configs or self._stopped:
            return
        # Those that do not know us are told everything when they are back; one that is just being told may miss this.
        await self._wait({link: link.want(configs) for link in self._links if link.knows_us or link.busy})

    async def register(self) -> None:
        """Tell every name server of all topics now, as after a change of what all of them may do."""
        if not self._stopped:
            await self._wait({link: link.want() for link in self._links if link.knows_us or link.busy})

    async def run(self) -> None:
        """Register again and again; ends when it is cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self.tick(self._clock.monotonic())

    def tick(self, now: float) -> None:
        """Begin what is due."""
        beats = self._config.acting_master_enabled and now >= self._beat_at
        if beats:
            self._beat_at = now + self._config.heartbeat_interval_s
        for link in self._links:
            if link.busy:
                continue
            if now >= link.due_at:
                link.all_wanted = True
                link.wake.set()
            elif beats and link.knows_us and link.channel is not None and not link.channel.closed:
                link.channel.send_oneway(self._heartbeat())

    async def stop(self) -> None:
        """Say goodbye to all that know us, and hang up; bounded."""
        await self._end_tasks()
        channels = [link.channel for link in self._links if link.channel is not None]
        await asyncio.gather(*map(self._say_goodbye, channels))
        for channel in channels:
            channel.close()
        if channels:
            _, open_still = await asyncio.wait([channel.ended for channel in channels], timeout=GOODBYE_S)
            if open_still:
                self._abort()

    async def kill(self) -> None:
        """End as a process that dies: without a word."""
        self._abort()
        await self._end_tasks()

    def _abort(self) -> None:
        for link in self._links:
            if link.channel is not None:
                link.channel.abort()

    async def _end_tasks(self) -> None:
        self._stopped = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()

    async def _say_goodbye(self, channel: Channel) -> None:
        own = self._identity
        try:
            await channel.call(
                encode_unregistration(Unregistration(own.cluster, own.name, own.broker_id, own.address)), GOODBYE_S
            )
        except RemotingError as error:
            log.debug("goodbye not answered name_server=%s reason=%s", channel.address, error)

    @staticmethod
    async def _wait(told: "dict[_Link, asyncio.Future[None]]") -> None:
        expected = [future for link, future in told.items() if link.knows_us and not link.is_late]
        if expected:
            await asyncio.wait(expected, timeout=ANNOUNCE_WAIT_S)
        for link, future in told.items():
            link.is_late = not future.done()

    # One name server

    async def _tell_for_ever(self, link: _Link) -> None:
        while True:
            await link.wake.wait()
            link.wake.clear()
            while link.has_work:
                waiting, link.waiting = link.waiting, []
                link.busy = True
                try:
                    await self._tell(link)
                except (SkyrouteError, OSError) as error:
                    self._note_failure(link, error)
                    break
                finally:
                    link.busy = False
                    _release(waiting)
            # Nothing is done for those who came while it failed: when it is back, it is told everything.
            _release(link.waiting)
            link.waiting.clear()

    async def _tell(self, link: _Link) -> None:
        """Say what is to be said, in one request.

        Raises:
            RemotingError, RefusedError, WireError: it was not heard, or not taken.
        """
        if link.channel is None or link.channel.closed:
            link.channel = await connect(
                link.address, tls=self._tls, timeout_s=self._config.connect_timeout_s, on_close=self._on_close
            )
        channel = link.channel
        changed, link.changed = link.changed, {}
        if not link.all_wanted and link.knows_us:
            request = encode_registration(self._registration(), self._narrowed(changed.values()))
            response = await self._call(channel, request)
            if response.code != ResponseCode.SUCCESS:
                # It has forgotten us, and cannot make sense of a part.
                link.all_wanted = True
                return
        else:
            link.all_wanted = False
            wait_s = self._config.bounded_registration_interval_s if link.knows_us else FIRST_PERIOD_S
            link.due_at = self._clock.monotonic() + wait_s
            if not self._config.force_registration and link.knows_us and not await self._is_outdated(channel):
                self._note_success(link)
                return
            response = await self._call(channel, await self._registration_of_all())
            if response.code != ResponseCode.SUCCESS:
                raise RefusedError(response.code, response.remark or "no reason given")
        self._note_success(link)
        self._topics.mark_ordered(decode_registration_reply(response).ordered_topics)

    async def _call(self, channel: Channel, request: Request) -> Response:
        return await channel.call(request, self._config.registration_timeout_s)

    async def _is_outdated(self, channel: Channel) -> bool:
        query = encode_version_query(self._registration(), self._topics.version)
        return decode_version_reply(await self._call(channel, query))

    def _note_success(self, link: _Link) -> None:
        if not link.knows_us:
            log.info("registered name_server=%s broker=%s", link.address, self._identity.name)
        link.knows_us, link.is_late, link.failures = True, False, 0
        self.has_registered = True

    def _note_failure(self, link: _Link, error: Exception) -> None:
        link.all_wanted = link.knows_us = False
        link.changed.clear()
        level = logging.DEBUG if link.failures else logging.WARNING
        log.log(level, "registration failed name_server=%s reason=%s", link.address, error)
        self._try_again(link)

    def _try_again(self, link: _Link) -> None:
        link.failures += 1
        link.due_at = self._clock.monotonic() + min(2.0 ** min(link.failures - 1, 10), BACKOFF_MAX_S)

    def _on_close(self, channel: Channel) -> None:
        for link in self._links:
            if link.channel is channel:
                link.forget()
                if not self._stopped and not link.busy:
                    log.warning("name server lost name_server=%s", link.address)
                    self._try_again(link)

    # What is said

    def _registration(self) -> Registration:
        own, config = self._identity, self._config
        acting = config.acting_master_enabled
        return Registration(
            cluster=own.cluster,
            broker_name=own.name,
            broker_id=own.broker_id,
            address=own.address,
            ha_address=own.ha_address,
            acting_master=acting,
            lease_s=config.lease_s if acting else None,
            table=TopicTable(self._topics.version),
        )

    def _narrowed(self, topics: Iterable[TopicConfig]) -> list[TopicConfig]:
        """Return topics as name servers are to know them: a closed broker's allow no more than it does itself."""
        allowed = self._config.broker_permission
        if allowed & _BOTH == _BOTH:
            return list(topics)
        return [msgspec.structs.replace(topic, permission=int(topic.permission) & allowed) for topic in topics]

    def _heartbeat(self) -> Request:
        registration = self._registration()
        if self._config.supports_old_name_servers:
            return encode_version_query(registration, self._topics.version)
        return encode_heartbeat(registration)

    async def _registration_of_all(self) -> Request:
        """Write all topics; it is mostly what was said the last time."""
        async with self._writing:
            always = self._config.compress_registration
            made_of = (self._topics.version, self._config.broker_permission, always)
            if self._written is None or self._written[0] != made_of:
                registration, topics = self._registration(), list(self._topics.all().values())
                if len(topics) >= IN_THREAD_FROM:
                    request = await asyncio.to_thread(self._write_all, registration, topics, always=always)
                else:
                    request = self._write_all(registration, topics, always=always)
                self._written = made_of, request
            return self._written[1]

    def _write_all(self, registration: Registration, topics: Iterable[TopicConfig], *, always: bool) -> Request:
        """Encode a registration, compressed if it is long and compression loses no field."""
        narrowed = self._narrowed(topics)
        request = encode_registration(registration, narrowed)
        if not (always or len(request.body) >= COMPRESS_FROM_BYTES):
            return request
        if any(topic.sys_flag or topic.ordered for topic in narrowed):
            return request
        return encode_registration(registration, narrowed, compressed=True)


_BOTH: Final = int(Permission.READ | Permission.WRITE)


def _release(waiting: "list[asyncio.Future[None]]") -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)
