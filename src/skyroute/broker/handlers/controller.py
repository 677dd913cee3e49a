"""Requests of controllers, slaves and tools to a broker in controller mode."""

from typing import Final

from skyroute.broker.config import BrokerConfig
from skyroute.broker.identity import Identity
from skyroute.broker.roles import Roles
from skyroute.broker.store.message_store import MessageStore
from skyroute.remoting.dispatch import Answer, Handler, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.broker_epochs import Epoch, EpochHistory, encode_epochs
from skyroute.wire.calls.controller_responses import decode_master
from skyroute.wire.calls.replication import FollowerInfo, ReplicaInfo, ReplicationStatus, encode_replication_status
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response

_NOT_MASTER: Final = "[REJECTREQUEST] this broker is not the master of its group"


class ControllerHandlers:
    """Handles notices of a new master, and queries for epochs and the replication port."""

    def __init__(self, roles: Roles, store: MessageStore, identity: Identity, config: BrokerConfig) -> None:
        self._roles = roles
        self._store = store
        self._identity = identity
        self._config = config

    def role_changed(self, request: Request, peer: Peer) -> Answer:
        """Look at the role at once, because a controller announces a new master (1008)."""
        self._roles.mode.notice(decode_master(request.fields))
        return Response()

    def epochs(self, request: Request, peer: Peer) -> Answer:
        """Respond with the epochs of the log (1007)."""
        own, mode, end = self._identity, self._roles.mode, self._store.max_position
        entries = tuple(Epoch(*epoch, stop) for epoch, stop in mode.epoch_file.epochs.with_ends(end))
        return encode_epochs(EpochHistory(own.cluster, own.name, mode.broker_id or 0, entries, end))

    def status(self, request: Request, peer: Peer) -> Answer:
        """Respond with who follows whom, and how far behind (907)."""
        mode, end = self._roles.mode, self._store.max_position
        state = mode.state
        if state is None:
            follower = mode.follower
            address = None if follower is None else follower.master
            info = FollowerInfo(address or None, max_offset=end, activated=bool(address))
            return encode_replication_status(ReplicationStatus(master=False, follower=info))
        slaves = tuple(
            ReplicaInfo(address, each.acked or 0, end - (each.acked or 0), each.broker_id in state.members, 0, position)
            for address, each, position in mode.sender.slaves()
        )
        return encode_replication_status(
            ReplicationStatus(master=True, master_log_end=end, in_sync_slaves=len(state.members) - 1, slaves=slaves)
        )

    def only_master(self, handler: Handler) -> Handler:
        """Return a handler that refuses requests while this broker is not master."""

        def handle(request: Request, peer: Peer) -> Answer:
            if not self._roles.is_master:
                raise RefusedError(ResponseCode.SYSTEM_BUSY, _NOT_MASTER)
            return handler(request, peer)

        return handle

    def unless_slave(self, handler: Handler) -> Handler:
        """Return a handler that refuses requests while this broker is not master, unless slaves may be read."""

        def handle(request: Request, peer: Peer) -> Answer:
            if not (self._roles.is_master or self._config.slave_read_enabled):
                raise RefusedError(ResponseCode.SYSTEM_BUSY, _NOT_MASTER)
            return handler(request, peer)

        return handle
