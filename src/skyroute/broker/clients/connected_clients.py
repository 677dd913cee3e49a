"""The connected producers and consumers, by group and by connection.

It is kept in memory only. Clients send heartbeats every 30 s, and one when they connect.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from skyroute.broker.clients.client_groups import ClientGroup, ConsumerGroup, GroupMember, ProducerGroup
from skyroute.remoting.dispatch import Peer
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.clients import ConsumerData, Heartbeat, Subscription
from skyroute.wire.codes import ResponseCode

EXPIRY_S: Final = 120.0
"""Time after the last heartbeat at which a member is evicted."""
MEMBERSHIPS_MAX: Final = 200_000
"""Members of all producer and consumer groups together, which also bounds the number of groups."""
CONNECTION_GROUPS_MAX: Final = 10_000
"""Groups of one connection."""
SCANNED_A_STEP: Final = 5_000
"""Members checked for missed heartbeats in one step."""
GROUP_MEMBERS_MAX: Final = 10_000
"""Members of one group: each is notified when another joins or leaves."""
SUBSCRIPTION_BYTES_MAX: Final = 128 * 1024 * 1024
"""Approximate memory of the subscriptions of all groups."""

_SUBSCRIPTION_BYTES: Final = 400
_TAG_BYTES: Final = 100
_CODE_BYTES: Final = 40


class HeartbeatOutcome(NamedTuple):
    """The result of a heartbeat."""

    changed: Collection[str]
    """Consumer groups to notify: a member joined, or the topics changed."""
    needs_subscriptions: bool
    """The next heartbeat must have the subscriptions, because the known ones may differ from the sender's."""


class Expired(NamedTuple):
    """Members that were evicted in one step."""

    peers: Collection[Peer]
    """Connections without members."""
    changed: Collection[str]
    """Consumer groups to notify."""


class _ConnectionGroups:
    """The groups of one connection."""

    __slots__ = ("consumer_groups", "peer", "producer_groups", "producing")

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.producer_groups: set[str] = set()
        self.consumer_groups: set[str] = set()
        self.producing: dict[str, int] = {}
        """Number of producer groups by client id; nearly always one id."""

    @property
    def group_count(self) -> int:
        return len(self.producer_groups) + len(self.consumer_groups)


class ConnectedClients:
    """All groups with members."""

    def __init__(self) -> None:
        self._producers: dict[str, ProducerGroup] = {}
        self._consumers: dict[str, ConsumerGroup] = {}
        self._connections: dict[int, _ConnectionGroups] = {}
        self._producing: dict[str, Peer] = {}
        """Connection of the last heartbeat of a producer, by client id."""
        self._memberships = 0
        self._subscription_bytes = 0

    def __repr__(self) -> str:
        return (
            f"<ConnectedClients producer_groups={len(self._producers)} consumer_groups={len(self._consumers)} "
            f"connections={len(self._connections)}>"
        )

    # Lookup

    def consumers(self, group: str) -> ConsumerGroup | None:
        """Return a consumer group; None if it has no members."""
        return self._consumers.get(group)

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """Return the subscription of a group to a topic. Every pull calls this."""
        known = self._consumers.get(group)
        return None if known is None else known.subscriptions.get(topic)

    @property
    def consumer_groups(self) -> Mapping[str, ConsumerGroup]:
        return self._consumers

    @property
    def producer_groups(self) -> Mapping[str, ProducerGroup]:
        return self._producers

    def producers(self, group: str) -> Sequence[GroupMember]:
        """Return the members of a producer group."""
        known = self._producers.get(group)
        return () if known is None else list(known.members)

    def next_producer(self, group: str, is_allowed: Callable[[Peer], bool] | None = None) -> Peer | None:
        """Return the connected producers of a group in turn; None if there are none that are allowed."""
        known = self._producers.get(group)
        return None if known is None else known.next_peer(is_allowed)

    def producer_of(self, client_id: str) -> Peer | None:
        """Return the connection of the producer with this client id."""
        return self._producing.get(client_id)

    # Heartbeats

    def beat(self, peer: Peer, beat: Heartbeat, language: str | None, version: int, now: float) -> HeartbeatOutcome:
        """Apply a heartbeat, completely or not at all.

        Raises:
            RefusedError: a limit is reached.
        """
        if peer.gone:
            return HeartbeatOutcome((), needs_subscriptions=True)
        holder = self._producing.get(beat.client_id)
        if beat.producer_groups and holder is not None and not holder.gone and holder.user != peer.user:
            # Replies are sent to the connection of a client id, and producer groups need no right.
            raise RefusedError(
                ResponseCode.NO_PERMISSION, f"client id {beat.client_id[:80]} belongs to a producer of another user"
            )
        # If a group is there twice, the last entry counts.
        consumers = {consumer.group: consumer for consumer in beat.consumers}
        newer = {} if beat.without_subscriptions else self._newer(consumers)
        groups = (*map(self._consumers.get, consumers), *map(self._producers.get, beat.producer_groups))
        self._check_room(peer, groups, newer)
        changed: list[str] = []
        # Heartbeats of version 1 have no fingerprint, and their senders ignore this flag.
        needs_subscriptions = beat.fingerprint == 0
        for consumer in consumers.values():
            group = self._consumers.get(consumer.group)
            if group is None:
                group = self._consumers[consumer.group] = ConsumerGroup(consumer)
            before, group.fingerprint = group.fingerprint, beat.fingerprint
            if before != beat.fingerprint and (before is not None or beat.without_subscriptions):
                needs_subscriptions = True
            group.update(consumer)
            has_changed = self._join(group, GroupMember(peer, beat.client_id, language or "OTHER", version, now))
            if not beat.without_subscriptions:
                has_changed |= self._subscribe(group, newer[consumer.group], consumer)
            if has_changed and group.needs_notifications:
                changed.append(group.name)
        for name in beat.producer_groups:
            producers = self._producers.get(name)
            if producers is None:
                producers = self._producers[name] = ProducerGroup(name)
            self._join(producers, GroupMember(peer, beat.client_id, language or "OTHER", version, now))
        if beat.producer_groups:
            self._producing[beat.client_id] = peer
        return HeartbeatOutcome(changed, needs_subscriptions)

    def _newer(self, consumers: Mapping[str, ConsumerData]) -> dict[str, Sequence[Subscription]]:
        """Return the new subscriptions of a heartbeat by group; mostly none."""
        newer: dict[str, Sequence[Subscription]] = {}
        for name, consumer in consumers.items():
            group = self._consumers.get(name)
            newer[name] = consumer.subscriptions if group is None else group.newer(consumer.subscriptions)
        return newer

    def _check_room(
        self, peer: Peer, groups: Iterable[ClientGroup | None], newer: Mapping[str, Iterable[Subscription]]
    ) -> None:
        joined = [group for group in groups if group is None or group.on(peer.connection) is None]
        known = self._connections.get(peer.connection)
        in_groups = len(joined) + (0 if known is None else known.group_count)
        subscription_bytes = sum(map(_memory_bytes, (one for group in newer.values() for one in group)))
        if in_groups > CONNECTION_GROUPS_MAX:
            reason = f"the connection has {in_groups} groups (expected at most {CONNECTION_GROUPS_MAX})"
        elif self._memberships + len(joined) > MEMBERSHIPS_MAX:
            reason = f"all groups have {self._memberships} members (expected at most {MEMBERSHIPS_MAX})"
        elif any(group is not None and len(group) >= GROUP_MEMBERS_MAX for group in joined):
            reason = f"a group has {GROUP_MEMBERS_MAX} members, and takes no more"
        elif self._subscription_bytes + subscription_bytes > SUBSCRIPTION_BYTES_MAX:
            reason = (
                f"all subscriptions have {self._subscription_bytes} bytes (expected at most {SUBSCRIPTION_BYTES_MAX})"
            )
        else:
            return
        raise RefusedError(ResponseCode.SYSTEM_BUSY, f"heartbeat refused: {reason}")

    def _join(self, group: ClientGroup, member: GroupMember) -> bool:
        """Add a client to a group, or renew its heartbeat time; return whether it was added."""
        connection = member.peer.connection
        known = group.on(connection)
        if known is not None and known.client_id == member.client_id:
            known.heard_at, known.language, known.version = member.heard_at, member.language, member.version
            return False
        for old in group.add(member):
            self._forget(group, old)
        joined = self._connections.get(connection)
        if joined is None:
            joined = self._connections[connection] = _ConnectionGroups(member.peer)
        if isinstance(group, ProducerGroup):
            joined.producer_groups.add(group.name)
            joined.producing[member.client_id] = joined.producing.get(member.client_id, 0) + 1
        else:
            joined.consumer_groups.add(group.name)
        self._memberships += 1
        return True

    def _subscribe(self, group: ConsumerGroup, newer: Sequence[Subscription], consumer: ConsumerData) -> bool:
        topics = {subscription.topic for subscription in consumer.subscriptions}
        if not newer and len(topics) == len(group.subscriptions):
            return False
        before = sum(map(_memory_bytes, group.subscriptions.values()))
        changed = group.subscribe(newer, topics)
        self._subscription_bytes += sum(map(_memory_bytes, group.subscriptions.values())) - before
        return changed

    # Removal

    def leave(
        self, connection: int, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> Collection[str]:
        """Remove the members of a connection from groups; return the consumer groups to notify."""
        if producer_group is not None:
            self._remove(self._producers.get(producer_group), connection)
        if consumer_group is not None and self._remove(self._consumers.get(consumer_group), connection):
            return self._to_notify([consumer_group])
        return ()

    def drop(self, connection: int) -> Collection[str]:
        """Remove all members of a closed connection; return the consumer groups to notify."""
        joined = self._connections.get(connection)
        if joined is None:
            return ()
        for name in list(joined.producer_groups):
            self._remove(self._producers.get(name), connection)
        groups = list(joined.consumer_groups)
        for name in groups:
            self._remove(self._consumers.get(name), connection)
        return self._to_notify(groups)

    def expire(self, now: float, expiry_s: float = EXPIRY_S) -> Iterator[Expired]:
        """Evict members without a recent heartbeat, in steps of about `SCANNED_A_STEP` members."""
        peers: list[Peer] = []
        changed: dict[str, None] = {}
        oldest = now - expiry_s
        scanned = 0
        for connection in list(self._connections):
            if (joined := self._connections.get(connection)) is None:
                continue  # closed during an earlier step
            scanned += joined.group_count
            for name in list(joined.producer_groups):
                self._remove_expired(self._producers[name], connection, oldest)
            for name in list(joined.consumer_groups):
                if self._remove_expired(self._consumers[name], connection, oldest):
                    changed[name] = None
            if connection not in self._connections:
                peers.append(joined.peer)
            if scanned >= SCANNED_A_STEP:
                yield Expired(peers, self._to_notify(changed))
                peers, changed, scanned = [], {}, 0
        yield Expired(peers, self._to_notify(changed))

    def _remove_expired(self, group: ClientGroup, connection: int, oldest: float) -> bool:
        member = group.on(connection)
        return member is not None and member.heard_at < oldest and self._remove(group, connection)

    def _to_notify(self, groups: Iterable[str]) -> list[str]:
        return [
            name for name in groups if (group := self._consumers.get(name)) is not None and group.needs_notifications
        ]

    def _remove(self, group: ClientGroup | None, connection: int) -> bool:
        member = None if group is None else group.on(connection)
        if group is None or member is None:
            return False
        group.remove(member)
        self._forget(group, member)
        if not len(group):
            if isinstance(group, ConsumerGroup):
                self._subscription_bytes -= sum(map(_memory_bytes, group.subscriptions.values()))
                del self._consumers[group.name]
            else:
                del self._producers[group.name]
        return True

    def _forget(self, group: ClientGroup, member: GroupMember) -> None:
        """Update the indexes after a member was removed from a group."""
        self._memberships -= 1
        connection = member.peer.connection
        joined = self._connections[connection]
        if isinstance(group, ProducerGroup):
            joined.producer_groups.remove(group.name)
            joined.producing[member.client_id] -= 1
            if not joined.producing[member.client_id]:
                del joined.producing[member.client_id]
                if self._producing.get(member.client_id) is member.peer:
                    del self._producing[member.client_id]
        else:
            joined.consumer_groups.remove(group.name)
        if not joined.group_count:
            del self._connections[connection]


def _memory_bytes(subscription: Subscription) -> int:
    """Return the approximate memory of a subscription."""
    tags = subscription.tags
    texts = len(subscription.topic) + len(subscription.expression) + sum(map(len, tags))
    return _SUBSCRIPTION_BYTES + 4 * texts + _TAG_BYTES * len(tags) + _CODE_BYTES * len(subscription.codes)
