"""Which clients a broker knows: producers and consumers by group and by connection.

Nothing of it outlives the process. Clients repeat all of it every 30 s, and at once when they connect.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from skyroute.broker.clients.client_groups import ClientGroup, ConsumerGroup, GroupMember, ProducerGroup
from skyroute.remoting.dispatch import Peer
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.clients import ConsumerData, Heartbeat, Subscription
from skyroute.wire.codes import ResponseCode

SILENCE_S: Final = 120.0
"""How long a member may be silent before it counts as gone."""
MEMBERSHIPS_MAX: Final = 200_000
"""How many there are of a client in a group, over all groups of both kinds; so there are no more groups either."""
CONNECTION_GROUPS_MAX: Final = 10_000
"""How many groups one connection may be in."""
SCANNED_A_STEP: Final = 5_000
"""Members checked for missed heartbeats in one step."""
GROUP_MEMBERS_MAX: Final = 10_000
"""How many members a group may have: each of them is told of every other that comes and goes."""
SUBSCRIPTION_BYTES_MAX: Final = 128 * 1024 * 1024
"""How much memory the subscriptions of all groups may take, roughly."""

_SUBSCRIPTION_BYTES: Final = 400
_TAG_BYTES: Final = 100
_CODE_BYTES: Final = 40


class BeatOutcome(NamedTuple):
    """What came of a heartbeat."""

    changed: Collection[str]
    """Consumer groups whose members have to be told that there are others, or that they want other topics."""
    wants_whole: bool
    """The next heartbeat has to bring the subscriptions, because they may not be what the sender takes them for."""


class Silent(NamedTuple):
    """Who has not been heard from for too long. They are members no more."""

    peers: Collection[Peer]
    """Connections that no member is left on."""
    changed: Collection[str]
    """Consumer groups whose remaining members have to be told."""


class _Connection:
    """What came through one connection."""

    __slots__ = ("consumer_groups", "peer", "producer_groups", "producing")

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.producer_groups: set[str] = set()
        self.consumer_groups: set[str] = set()
        self.producing: dict[str, int] = {}
        """In how many producer groups it is, by client id; nearly always there is one."""

    @property
    def group_count(self) -> int:
        return len(self.producer_groups) + len(self.consumer_groups)


class ConnectedClients:
    """All groups that have a member now."""

    def __init__(self) -> None:
        self._producers: dict[str, ProducerGroup] = {}
        self._consumers: dict[str, ConsumerGroup] = {}
        self._connections: dict[int, _Connection] = {}
        self._producing: dict[str, Peer] = {}
        """By client id, where a producer was last heard."""
        self._memberships = 0
        self._subscription_bytes = 0

    def __repr__(self) -> str:
        return (
            f"<ConnectedClients producer_groups={len(self._producers)} consumer_groups={len(self._consumers)} "
            f"connections={len(self._connections)}>"
        )

    # Who is there

    def consumers(self, group: str) -> ConsumerGroup | None:
        """Return a consumer group that has members."""
        return self._consumers.get(group)

    def subscription(self, group: str, topic: str) -> Subscription | None:
        """Return what a group wants of a topic. Every pull asks."""
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

    def next_producer(self, group: str) -> Peer | None:
        """Return one after the other of a group's live producers; None where there is none."""
        known = self._producers.get(group)
        return None if known is None else known.next_peer()

    def producer_of(self, client_id: str) -> Peer | None:
        """Return where the producer with this client id is."""
        return self._producing.get(client_id)

    # Who comes

    def beat(self, peer: Peer, beat: Heartbeat, language: str | None, version: int, now: float) -> BeatOutcome:
        """Take a heartbeat: whole, or if there is no room for all of it, not at all.

        Raises:
            RefusedError: there is no room.
        """
        if peer.gone:
            return BeatOutcome((), wants_whole=True)
        # Of a group that is there twice, the last word counts.
        consumers = {consumer.group: consumer for consumer in beat.consumers}
        newer = {} if beat.without_subscriptions else self._newer(consumers)
        groups = (*map(self._consumers.get, consumers), *map(self._producers.get, beat.producer_groups))
        self._make_sure_of_room(peer, groups, newer)
        changed: list[str] = []
        # The first form of heartbeats knows no fingerprint, and its senders do not look at this.
        wants_whole = beat.fingerprint == 0
        for consumer in consumers.values():
            group = self._consumers.get(consumer.group)
            if group is None:
                group = self._consumers[consumer.group] = ConsumerGroup(consumer)
            known_as, group.fingerprint = group.fingerprint, beat.fingerprint
            if known_as != beat.fingerprint and (known_as is not None or beat.without_subscriptions):
                wants_whole = True
            group.update(consumer)
            has_news = self._join(group, GroupMember(peer, beat.client_id, language or "OTHER", version, now))
            if not beat.without_subscriptions:
                has_news |= self._subscribe(group, newer[consumer.group], consumer)
            if has_news and group.is_told_of_members:
                changed.append(group.name)
        for name in beat.producer_groups:
            producers = self._producers.get(name)
            if producers is None:
                producers = self._producers[name] = ProducerGroup(name)
            self._join(producers, GroupMember(peer, beat.client_id, language or "OTHER", version, now))
        if beat.producer_groups:
            self._producing[beat.client_id] = peer
        return BeatOutcome(changed, wants_whole)

    def _newer(self, consumers: Mapping[str, ConsumerData]) -> dict[str, Sequence[Subscription]]:
        """Return what of a heartbeat's subscriptions is not known yet, by group: mostly nothing."""
        newer: dict[str, Sequence[Subscription]] = {}
        for name, consumer in consumers.items():
            group = self._consumers.get(name)
            newer[name] = consumer.subscriptions if group is None else group.newer(consumer.subscriptions)
        return newer

    def _make_sure_of_room(
        self, peer: Peer, groups: Iterable[ClientGroup | None], newer: Mapping[str, Iterable[Subscription]]
    ) -> None:
        joined = [group for group in groups if group is None or group.on(peer.connection) is None]
        known = self._connections.get(peer.connection)
        in_groups = len(joined) + (0 if known is None else known.group_count)
        subscription_bytes = sum(map(_weigh, (one for group in newer.values() for one in group)))
        if in_groups > CONNECTION_GROUPS_MAX:
            reason = f"one connection may be in {CONNECTION_GROUPS_MAX} groups, and not in {in_groups}"
        elif self._memberships + len(joined) > MEMBERSHIPS_MAX:
            reason = f"there are {self._memberships} members of groups already"
        elif any(group is not None and len(group) >= GROUP_MEMBERS_MAX for group in joined):
            reason = f"a group may have {GROUP_MEMBERS_MAX} members, and this one has them already"
        elif self._subscription_bytes + subscription_bytes > SUBSCRIPTION_BYTES_MAX:
            reason = f"the subscriptions of all groups take {self._subscription_bytes} bytes already"
        else:
            return
        raise RefusedError(ResponseCode.SYSTEM_BUSY, f"no room for this heartbeat: {reason}")

    def _join(self, group: ClientGroup, member: GroupMember) -> bool:
        """Let a client into a group, or note that it is still there; return whether it came, or came back."""
        connection = member.peer.connection
        known = group.on(connection)
        if known is not None and known.client_id == member.client_id:
            known.heard_at, known.language, known.version = member.heard_at, member.language, member.version
            return False
        for old in group.add(member):
            self._forget(group, old)
        there = self._connections.get(connection)
        if there is None:
            there = self._connections[connection] = _Connection(member.peer)
        if isinstance(group, ProducerGroup):
            there.producer_groups.add(group.name)
            there.producing[member.client_id] = there.producing.get(member.client_id, 0) + 1
        else:
            there.consumer_groups.add(group.name)
        self._memberships += 1
        return True

    def _subscribe(self, group: ConsumerGroup, newer: Sequence[Subscription], consumer: ConsumerData) -> bool:
        topics = {subscription.topic for subscription in consumer.subscriptions}
        if not newer and len(topics) == len(group.subscriptions):
            return False
        before = sum(map(_weigh, group.subscriptions.values()))
        changed = group.subscribe(newer, topics)
        self._subscription_bytes += sum(map(_weigh, group.subscriptions.values())) - before
        return changed

    # Who goes

    def leave(
        self, connection: int, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> Collection[str]:
        """Have whoever came through a connection leave groups; return the groups that have to be told."""
        if producer_group is not None:
            self._remove(self._producers.get(producer_group), connection)
        if consumer_group is not None and self._remove(self._consumers.get(consumer_group), connection):
            return self._to_be_told([consumer_group])
        return ()

    def drop(self, connection: int) -> Collection[str]:
        """Forget all that came through a connection that has ended; return the groups that have to be told."""
        there = self._connections.get(connection)
        if there is None:
            return ()
        for name in list(there.producer_groups):
            self._remove(self._producers.get(name), connection)
        groups = list(there.consumer_groups)
        for name in groups:
            self._remove(self._consumers.get(name), connection)
        return self._to_be_told(groups)

    def expire(self, now: float, silence_s: float = SILENCE_S) -> Iterator[Silent]:
        """Evict members without a recent heartbeat, in steps of about `SCANNED_A_STEP` members."""
        peers: list[Peer] = []
        changed: dict[str, None] = {}
        oldest = now - silence_s
        scanned = 0
        for connection in list(self._connections):
            if (there := self._connections.get(connection)) is None:
                continue  # closed during an earlier step
            scanned += there.group_count
            for name in list(there.producer_groups):
                self._remove_silent(self._producers[name], connection, oldest)
            for name in list(there.consumer_groups):
                if self._remove_silent(self._consumers[name], connection, oldest):
                    changed[name] = None
            if connection not in self._connections:
                peers.append(there.peer)
            if scanned >= SCANNED_A_STEP:
                yield Silent(peers, self._to_be_told(changed))
                peers, changed, scanned = [], {}, 0
        yield Silent(peers, self._to_be_told(changed))

    def _remove_silent(self, group: ClientGroup, connection: int, oldest: float) -> bool:
        member = group.on(connection)
        return member is not None and member.heard_at < oldest and self._remove(group, connection)

    def _to_be_told(self, groups: Iterable[str]) -> list[str]:
        return [
            name for name in groups if (group := self._consumers.get(name)) is not None and group.is_told_of_members
        ]

    def _remove(self, group: ClientGroup | None, connection: int) -> bool:
        member = None if group is None else group.on(connection)
        if group is None or member is None:
            return False
        group.remove(member)
        self._forget(group, member)
        if not len(group):
            if isinstance(group, ConsumerGroup):
                self._subscription_bytes -= sum(map(_weigh, group.subscriptions.values()))
                del self._consumers[group.name]
            else:
                del self._producers[group.name]
        return True

    def _forget(self, group: ClientGroup, member: GroupMember) -> None:
        """Note that a member is no longer in a group."""
        self._memberships -= 1
        connection = member.peer.connection
        there = self._connections[connection]
        if isinstance(group, ProducerGroup):
            there.producer_groups.remove(group.name)
            there.producing[member.client_id] -= 1
            if not there.producing[member.client_id]:
                del there.producing[member.client_id]
                if self._producing.get(member.client_id) is member.peer:
                    del self._producing[member.client_id]
        else:
            there.consumer_groups.remove(group.name)
        if not there.group_count:
            del self._connections[connection]


def _weigh(subscription: Subscription) -> int:
    """Return about how many bytes of memory a subscription takes."""
    tags = subscription.tags
    texts = len(subscription.topic) + len(subscription.expression) + sum(map(len, tags))
    return _SUBSCRIPTION_BYTES + 4 * texts + _TAG_BYTES * len(tags) + _CODE_BYTES * len(subscription.codes)
