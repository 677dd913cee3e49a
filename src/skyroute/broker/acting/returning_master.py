"""A master that starts while its slaves live: before it registers, it takes over what they did for it."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from skyroute.broker.acting.acting_master import decode_members
from skyroute.broker.cluster.peer_brokers import PeerBrokers
from skyroute.broker.identity import Identity
from skyroute.broker.scheduling.delay_levels import DelayLevels, read_delay_offsets
from skyroute.broker.scheduling.timer_check import version_of
from skyroute.broker.scheduling.timers import Timers
from skyroute.broker.tables.consumer_offsets import ConsumerOffsets, read_offsets
from skyroute.errors import SkyrouteError
from skyroute.remoting.errors import RefusedError
from skyroute.routing.registration import DataVersion
from skyroute.wire.calls.replication import GroupAddresses, encode_group_addresses_notice
from skyroute.wire.calls.route import encode_member_group_query
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request
from skyroute.wire.fastjson import loads

log = logging.getLogger(__name__)

CALL_S: Final = 10.0
"""Time limit of a request to a slave, which may have to stop its deliveries first."""
_CHECK_POINT_BYTES: Final = 56


class ReturningMaster:
    """Takes over offsets, and progress of delays and timers, from each living slave."""

    def __init__(
        self,
        identity: Identity,
        peers: PeerBrokers,
        *,
        delays: DelayLevels,
        timers: Timers,
        offsets: ConsumerOffsets,
        ha_address: Callable[[], str | None],
        log_end_at_start: int,
    ) -> None:
        self._identity = identity
        self._peers = peers
        self._delays = delays
        self._timers = timers
        self._offsets = offsets
        self._ha_address = ha_address
        self._log_end_at_start = log_end_at_start

    async def take_over(self) -> bool:
        """Tell each slave that its master returns, and take over its tables; return whether there were slaves.

        A slave that does not respond is left out: after this, it finds its master at the name server.
        """
        own = self._identity
        query = encode_member_group_query(own.cluster, own.name)
        members = await self._peers.call_name_server(query, decode_members) or {}
        taken = False
        for broker_id, address in sorted(members.items()):
            if address == own.address:
                continue
            try:
                await self._take_over_from(address)
                taken = True
                log.info("progress taken over from slave id=%d address=%s", broker_id, address)
            except (SkyrouteError, ValueError) as error:
                log.warning("progress not taken over from slave id=%d address=%s reason=%s", broker_id, address, error)
        return taken

    async def _take_over_from(self, address: str) -> None:
        own = GroupAddresses(self._identity.address, self._ha_address(), self._log_end_at_start)
        await self._ask(address, encode_group_addresses_notice(own))
        offsets = await self._ask(address, Request(RequestCode.GET_ALL_CONSUMER_OFFSET))
        delays = await self._ask(address, Request(RequestCode.GET_ALL_DELAY_OFFSET))
        timers = await self._ask(address, Request(RequestCode.GET_TIMER_CHECK_POINT))
        if offsets:
            stored = await asyncio.to_thread(lambda: read_offsets(loads(offsets)))
            for _ in self._offsets.merge(stored, larger_only=True):
                await asyncio.sleep(0)
            await self._offsets.table_file.save()
        if delays:
            progress, version = read_delay_offsets(loads(delays))
            if version is not None and _is_newer(version, self._delays.version):
                self._delays.take_over(progress, version)
                await self._delays.table_file.save()
        if len(timers) >= _CHECK_POINT_BYTES and _is_newer(version_of(timers), self._timers.version):
            await asyncio.to_thread(self._timers.take_over, timers)

    async def _ask(self, address: str, request: Request) -> bytes:
        response = await self._peers.call_address(address, request, CALL_S)
        if response.code != ResponseCode.SUCCESS:
            raise RefusedError(response.code, response.remark or "no remark")
        return response.body


def _is_newer(theirs: DataVersion, ours: DataVersion) -> bool:
    """Return whether a data version is not older, by the order of Apache's brokers."""
    return (theirs.state_version, theirs.counter) >= (ours.state_version, ours.counter)
