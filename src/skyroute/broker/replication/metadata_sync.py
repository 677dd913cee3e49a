"""Keeps a slave's topics, groups, offsets and progress of delays and timers as its master has them.

Small requests find out every second whether a table has changed; only then is it fetched. A topic that appears in the
log and is unknown here is fetched at once.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final

from skyroute.broker.scheduling.delay_levels import DelayLevels, read_delay_offsets
from skyroute.broker.scheduling.timers import Timers
from skyroute.broker.store.errors import StoreDamagedError
from skyroute.broker.tables.consumer_groups import Groups, read_groups
from skyroute.broker.tables.consumer_offsets import ConsumerOffsets, read_offsets
from skyroute.broker.tables.queue_mappings import QueueMappings, read_page_mappings
from skyroute.broker.tables.request_modes import RequestModes, read_request_modes
from skyroute.broker.tables.table_format import read_as, read_version
from skyroute.broker.tables.topics import Announce, Topics, read_topics
from skyroute.clock import Clock
from skyroute.errors import SkyrouteError
from skyroute.remoting.client import Channel, connect
from skyroute.remoting.errors import RefusedError
from skyroute.remoting.signing import Signer
from skyroute.routing.registration import DataVersion
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request
from skyroute.wire.data_version import version_members
from skyroute.wire.fastjson import Dialect, dumps, loads

log = logging.getLogger(__name__)

TICK_S: Final = 0.5
SLOW_S: Final = 3.0
"""Interval of the tables without a data version to ask for: offsets, delays, timers and request modes."""
COST_RATIO: Final = 20
"""Offsets are fetched again after this many times as long as the last fetch took."""
CALL_S: Final = 10.0
_CHECK_POINT_BYTES: Final = 56
PAGE: Final = 2_000
MAPPINGS: Final = "topicQueueMappingDetailMap"
"""The member of a page of topics with the mappings of static topics."""
PAGES_MAX: Final = 100
"""Pages of one table; a table that changes all the time is fetched again later."""


class MetadataSync:
    """Asks the master in the background. Failures are logged, and tried again at the next tick."""

    def __init__(
        self,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        request_modes: RequestModes,
        queue_mappings: QueueMappings,
        delays: DelayLevels,
        timers: Timers,
        clock: Clock,
        *,
        announce: Announce,
        master_address: Callable[[], str | None],
        tls: ssl.SSLContext | None = None,
        signer: Signer | None = None,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._request_modes = request_modes
        self._queue_mappings = queue_mappings
        self._delays = delays
        self._timers = timers
        self._announce = announce
        self._clock = clock
        self._master_address = master_address
        self._tls = tls
        self._signer = signer
        self._channel: Channel | None = None
        self._wake = asyncio.Event()
        self._slow_at = self._offsets_at = 0.0
        self._failed: set[str] = set()
        self.timer_metrics: bytes | None = None
        """The master's numbers of timer messages by topic, in the form in which others ask for them."""
        self.synced_at = 0.0
        """When the last complete round ended; 0 before the first."""

    def __repr__(self) -> str:
        return f"<MetadataSync of={self._master_address()}>"

    def note_arrived(self, arrived: dict[tuple[str, int], None]) -> None:
        """Fetch the topics at once if one of these is unknown."""
        if any(self._topics.get(topic) is None for topic, _ in arrived):
            self._wake.set()

    async def run(self) -> None:
        """Ask at every tick, until cancelled."""
        try:
            while True:
                await self.tick()
                try:
                    async with asyncio.timeout(TICK_S):
                        await self._wake.wait()
                        await asyncio.sleep(0.05)  # several new topics share one round
                except TimeoutError:
                    pass
                self._wake.clear()
        finally:
            if self._channel is not None:
                self._channel.close()

    async def tick(self) -> None:
        """Ask the master what has changed, and take it over."""
        address = self._master_address()
        if address is None:
            return
        channel = await self._connect(address)
        if channel is None:
            return
        now = self._clock.monotonic()
        complete = await self._try("topics", self._sync_topics(channel))
        complete &= await self._try("groups", self._sync_groups(channel))
        if now >= self._offsets_at:
            complete &= await self._try("offsets", self._sync_offsets(channel))
            took_s = self._clock.monotonic() - now
            self._offsets_at = now + max(SLOW_S, COST_RATIO * took_s)
        if now >= self._slow_at:
            self._slow_at = now + SLOW_S
            complete &= await self._try("delay offsets", self._sync_delays(channel))
            complete &= await self._try("request modes", self._sync_request_modes(channel))
            complete &= await self._try("timers", self._sync_timers(channel))
            complete &= await self._try("timer metrics", self._sync_timer_metrics(channel))
        if complete:
            self.synced_at = self._clock.monotonic()

    async def _connect(self, address: str) -> Channel | None:
        channel = self._channel
        if channel is None or channel.closed or channel.address != address:
            if channel is not None:
                channel.close()
            self._channel = channel = None
            try:
                self._channel = channel = await connect(address, tls=self._tls, signer=self._signer)
            except SkyrouteError as error:
                self._note("connection", error)
            else:
                self._failed.discard("connection")
        return channel

    async def _try(self, what: str, work: Awaitable[None]) -> bool:
        try:
            await work
        except (SkyrouteError, ValueError) as error:
            self._note(what, error)
            return False
        self._failed.discard(what)
        return True

    def _note(self, what: str, error: Exception) -> None:
        if what not in self._failed:  # a master may be away for hours
            self._failed.add(what)
            log.warning("metadata not synchronized what=%s master=%s reason=%s", what, self._master_address(), error)

    # The tables

    async def _sync_topics(self, channel: Channel) -> None:
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        table = await self._fetch_changed(channel, code, "Topic", "topicConfigTable", self._topics.version)
        if table is not None:
            # First the mappings: a logical queue of a static topic must not be read as a physical one.
            self._queue_mappings.take_over(read_page_mappings(table.pop(MAPPINGS, {})))
            await self._queue_mappings.table_file.save()
            changed = self._topics.replace_all(read_topics(table))
            log.info("topics taken over count=%d changed=%d", len(self._topics.all()), len(changed))
            await self._topics.table_file.save()
            await self._announce(changed)

    async def _sync_groups(self, channel: Channel) -> None:
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        table = await self._fetch_changed(channel, code, "Group", "subscriptionGroupTable", self._groups.version)
        if table is not None:
            self._groups.take_over(read_groups(table))
            await self._groups.table_file.save()

    async def _sync_offsets(self, channel: Channel) -> None:
        body = await self._ask(channel, Request(RequestCode.GET_ALL_CONSUMER_OFFSET))
        if body is not None:
            stored = await asyncio.to_thread(lambda: read_offsets(loads(body)))
            for _ in self._offsets.merge(stored):
                await asyncio.sleep(0)

    async def _sync_delays(self, channel: Channel) -> None:
        body = await self._ask(channel, Request(RequestCode.GET_ALL_DELAY_OFFSET))
        if body is not None:
            self._delays.take_over(*read_delay_offsets(loads(body)))
            await self._delays.table_file.save()

    async def _sync_request_modes(self, channel: Channel) -> None:
        body = await self._ask(channel, Request(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE))
        if body is not None:
            self._request_modes.take_over(read_request_modes(loads(body)))

    async def _sync_timers(self, channel: Channel) -> None:
        body = await self._ask(channel, Request(RequestCode.GET_TIMER_CHECK_POINT))
        if body is not None and len(body) >= _CHECK_POINT_BYTES:
            await asyncio.to_thread(self._timers.take_over, body)

    async def _sync_timer_metrics(self, channel: Channel) -> None:
        body = await self._ask(channel, Request(RequestCode.GET_TIMER_METRICS))
        if body is not None:
            read_as(loads(body), dict[str, Any], "the timer metrics")
            self.timer_metrics = body

    # Requests

    async def _ask(self, channel: Channel, request: Request) -> bytes | None:
        """Return the body of a response; None if the master has no such table, as one of 4.x."""
        response = await channel.call(request, CALL_S)
        return response.body if response.code == ResponseCode.SUCCESS and response.body else None

    async def _fetch_changed(
        self, channel: Channel, code: RequestCode, kind: str, member: str, version: DataVersion
    ) -> dict[str, Any] | None:
        """Return a table in the form of its file, joined from its pages; None if it has this data version."""
        first = await self._page(channel, code, kind, 0, 1, None)
        if read_version(first[0]) == version:
            return None
        joined, found = first
        entries: dict[str, Any] = {}
        mappings: dict[str, Any] = {}
        seen: DataVersion | None = None
        for _ in range(PAGES_MAX):
            joined, found = await self._page(channel, code, kind, len(entries), PAGE, seen)
            page_version = read_version(joined)
            page = read_as(joined.get(member) or {}, dict[str, Any], member)
            if seen is not None and page_version != seen:
                entries, mappings = {}, {}  # the table has changed: the master begins with the first page
            seen = page_version
            entries.update(page)
            mappings.update(read_as(joined.get(MAPPINGS) or {}, dict[str, Any], MAPPINGS))
            if found is None or len(entries) >= found or not page:
                return {**joined, member: entries, **({MAPPINGS: mappings} if MAPPINGS in joined else {})}
        raise StoreDamagedError(f"the master's table of {kind.lower()}s changes all the time")

    async def _page(
        self, channel: Channel, code: RequestCode, kind: str, start: int, count: int, version: DataVersion | None
    ) -> tuple[dict[str, Any], int | None]:
        """Return one page of a table, and the number of all entries; None from a master without pages."""
        fields = {f"{kind.lower()}Seq": str(start), f"max{kind}Num": str(count)}
        if version is not None:
            fields["dataVersion"] = dumps(version_members(version), Dialect.LEGACY).decode()
        response = await channel.call(Request(code, fields), CALL_S)
        if response.code != ResponseCode.SUCCESS:
            raise RefusedError(response.code, response.remark or "no remark")
        total = (response.fields or {}).get(f"total{kind}Num")
        page = read_as(loads(response.body), dict[str, Any], f"a page of {kind.lower()}s")
        return page, None if total is None else int(total)
