"""The calls of a broker to its controllers, over one connection to each."""

import asyncio
import logging
import ssl
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from skyroute.errors import SkyrouteError
from skyroute.remoting.client import Channel, connect
from skyroute.remoting.errors import ConnectError, RefusedError, RemotingError
from skyroute.remoting.log_backoff import LogBackoff
from skyroute.remoting.signing import Signer
from skyroute.wire.calls.controller import (
    ElectionRequest,
    IdApplication,
    ReplicaHeartbeat,
    ReplicaRegistration,
    SyncSetChange,
    encode_controllers_query,
    encode_election_request,
    encode_id_application,
    encode_id_query,
    encode_replica_heartbeat,
    encode_replica_query,
    encode_replica_registration,
    encode_sync_set_change,
)
from skyroute.wire.calls.controller_responses import (
    MasterFields,
    SyncStateFields,
    decode_controllers,
    decode_master,
    decode_next_id,
    decode_sync_state,
)
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 3.0
CONNECT_S: Final = 1.0


class ControllerClient:
    """Finds the leading controller, and calls it. Heartbeats go to all controllers."""

    def __init__(
        self, addresses: Sequence[str], *, tls: ssl.SSLContext | None = None, signer: Signer | None = None
    ) -> None:
        self._addresses = tuple(addresses)
        self._tls = tls
        self._signer = signer
        self._channels: dict[str, Channel] = {}
        self._connecting: dict[str, asyncio.Lock] = {}
        self._close_log = LogBackoff()
        self.leader = ""
        """Address of the leading controller; empty before it is found."""

    def __repr__(self) -> str:
        return f"<ControllerClient leader={self.leader or 'unknown'} of={len(self._addresses)}>"

    async def connect_all(self) -> None:
        """Connect to the controllers that can be reached."""
        await asyncio.gather(*map(self._try_connect, self._addresses))

    async def _try_connect(self, address: str) -> None:
        with suppress(RemotingError):
            await self._channel(address)

    async def find_leader(self) -> None:
        """Ask the controllers which one leads.

        Raises:
            RemotingError: none of them knows.
        """
        reasons = []
        addresses = tuple(dict.fromkeys(filter(None, (self.leader, *self._addresses))))
        asked = [asyncio.get_running_loop().create_task(self._ask_leader(address)) for address in addresses]
        try:
            for response in asyncio.as_completed(asked):  # all at once: one that does not respond costs no time
                try:
                    leader = await response
                except SkyrouteError as error:
                    reasons.append(str(error))
                    continue
                if leader != self.leader:
                    log.info("controller found address=%s", leader)
                self.leader = leader
                return
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        self.leader = ""
        raise ConnectError(f"no leading controller ({'; '.join(reasons) or 'controllerAddr is empty'})")

    async def _ask_leader(self, address: str) -> str:
        try:
            leader = decode_controllers(await self._call_at(address, encode_controllers_query())).leader_address
        except SkyrouteError as error:
            raise ConnectError(f"{address}: {error}") from error
        if not leader:
            raise ConnectError(f"{address}: no controller leads")
        return leader

    @property
    def has_several(self) -> bool:
        """Whether the leader may change."""
        return len(self._addresses) > 1

    async def next_id(self, cluster: str, broker_name: str) -> int:
        """Return the id to apply for.

        Raises:
            RemotingError, RefusedError, WireError: the call failed or was refused. So do all calls below.
        """
        return decode_next_id(await self._call(encode_id_query(cluster, broker_name)))

    async def apply(self, application: IdApplication) -> None:
        """Apply for an id."""
        await self._call(encode_id_application(application))

    async def register(self, registration: ReplicaRegistration, now_ms: int) -> tuple[MasterFields, SyncStateFields]:
        """Register with an id; return the living master, if there is one, and the sync state set."""
        response = await self._call(encode_replica_registration(registration, now_ms))
        return decode_master(response.fields), decode_sync_state(response.body)

    async def elect(self, request: ElectionRequest, now_ms: int) -> tuple[MasterFields, SyncStateFields]:
        """Ask for an election; return the new master, or the present one."""
        accepted = (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
        response = await self._call(encode_election_request(request, now_ms), accepted)
        master = decode_master(response.fields)
        return master, SyncStateFields(decode_sync_state(response.body).members, master.sync_set_epoch or 0)

    async def change_sync_set(self, change: SyncSetChange, now_ms: int) -> SyncStateFields:
        """Ask to change the sync state set; return the new one."""
        return decode_sync_state((await self._call(encode_sync_set_change(change, now_ms))).body)

    async def replica_info(self, broker_name: str) -> tuple[MasterFields, SyncStateFields]:
        """Return the master, if there is one, and the sync state set."""
        response = await self._call(encode_replica_query(broker_name))
        return decode_master(response.fields), decode_sync_state(response.body)

    async def beat(self, beat: ReplicaHeartbeat) -> None:
        """Send a heartbeat to all controllers that can be reached."""
        await self.connect_all()
        request = encode_replica_heartbeat(beat)
        for channel in self._channels.values():
            with suppress(RemotingError):
                channel.send_oneway(request)

    async def _call(self, request: Request, accepted: tuple[int, ...] = (ResponseCode.SUCCESS,)) -> Response:
        if not self.leader:
            await self.find_leader()
        try:
            response = await self._call_at(self.leader, request)
        except RemotingError:
            self.leader = ""
            raise
        if response.code not in accepted:
            if response.code == ResponseCode.CONTROLLER_NOT_LEADER:
                self.leader = ""
            raise RefusedError(response.code, response.remark or "no remark")
        return response

    async def _call_at(self, address: str, request: Request) -> Response:
        return await (await self._channel(address)).call(request, TIMEOUT_S)

    async def _channel(self, address: str) -> Channel:
        async with self._connecting.setdefault(address, asyncio.Lock()):
            channel = self._channels.get(address)
            if channel is None or channel.closed:
                channel = self._channels[address] = await connect(
                    address, tls=self._tls, timeout_s=CONNECT_S, close_log=self._close_log, signer=self._signer
                )
            return channel

    def close(self) -> None:
        """Close all connections."""
        for channel in self._channels.values():
            channel.abort()
        self._channels.clear()
