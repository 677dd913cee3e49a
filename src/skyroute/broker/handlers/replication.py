"""Requests of slaves, of other members of the group and of tools about replication."""

from collections.abc import Callable
from dataclasses import dataclass

from skyroute.broker.acting.acting_master import ActingMaster
from skyroute.broker.identity import Identity
from skyroute.broker.replication.master import HaMaster
from skyroute.broker.replication.metadata_sync import MetadataSync
from skyroute.broker.replication.slave import HaSlave
from skyroute.broker.scheduling.timers import Timers
from skyroute.broker.store.message_store import MessageStore
from skyroute.remoting.dispatch import Answer, OrderedResponse, Peer
from skyroute.wire.calls.replication import (
    FollowerInfo,
    GroupAddresses,
    ReplicaInfo,
    ReplicationStatus,
    decode_group_addresses,
    encode_group_addresses,
    encode_replication_status,
    encode_timer_metrics,
)
from skyroute.wire.command import Request, Response


@dataclass(frozen=True, slots=True)
class ReplicationHandlers:
    """Handles requests about replication; `slave` is None on a master."""

    store: MessageStore
    timers: Timers
    identity: Identity
    master: HaMaster
    slave: HaSlave | None
    ha_address: Callable[[], str | None]
    log_end_at_start: int
    acting: ActingMaster | None = None
    sync: MetadataSync | None = None
    """On a slave."""

    def status(self, _request: Request, _peer: Peer) -> Response:
        """Return who follows whom, and how far behind."""
        slave = self.slave
        if slave is None:
            slaves = self.master.slaves()
            return encode_replication_status(
                ReplicationStatus(
                    master=True,
                    master_log_end=self.store.max_position,
                    in_sync_slaves=sum(each.in_sync for each in slaves),
                    slaves=tuple(
                        ReplicaInfo(
                            *(each.address, each.acked, each.behind_bytes, each.in_sync),
                            *(each.bytes_per_s, each.sent),
                        )
                        for each in slaves
                    ),
                )
            )
        follower = FollowerInfo(
            *(slave.ha_address, slave.bytes_per_s, self.store.max_position),
            *(slave.read_at_ms, slave.reported_at_ms, slave.master_end),
            activated=slave.is_connected,
        )
        return encode_replication_status(ReplicationStatus(master=False, follower=follower))

    def exchange(self, request: Request, _peer: Peer) -> Answer:
        """Take over the addresses of a returning master, or return this master's."""
        addresses = decode_group_addresses(request)
        if self.slave is not None:
            if addresses.master_ha_address:
                self.slave.set_master(addresses.master_address, addresses.master_ha_address)
                if self.acting is not None:
                    return OrderedResponse(self._hand_over(self.acting, addresses.master_address))
            return Response()
        return encode_group_addresses(GroupAddresses(self.identity.address, self.ha_address(), self.log_end_at_start))

    async def _hand_over(self, acting: ActingMaster, master_address: str | None) -> Response:
        await acting.hand_over(master_address)
        return Response()

    def smallest_id_changed(self, _request: Request, _peer: Peer) -> Response:
        """Look at the group at once. Who is in it is asked for, because notices may be late or forged."""
        if self.acting is not None:
            self.acting.notice()
        return Response()

    def reset_flush_offset(self, _request: Request, _peer: Peer) -> Response:
        """Accept the end of a master's log. A slave here reads it from the master."""
        return Response()

    def timer_check_point(self, _request: Request, _peer: Peer) -> Response:
        """Return the progress of timers, in the form of its file."""
        return Response(body=self.timers.check_point)

    def timer_metrics(self, _request: Request, _peer: Peer) -> Response:
        """Return the numbers of timer messages by topic; a slave has its master's."""
        if self.sync is not None and self.sync.timer_metrics is not None:
            return Response(body=self.sync.timer_metrics)
        return encode_timer_metrics()
