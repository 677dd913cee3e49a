"""Who is in one group, of producers or of consumers."""

from collections.abc import Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import msgspec

from skyroute.message.tags import java_hash
from skyroute.remoting.dispatch import Peer
from skyroute.wire.calls.clients import ConsumerData, ConsumeType, MessageModel, StartFrom, Subscription


@dataclass(slots=True, eq=False)
class GroupMember:
    """A client in one group, through one connection."""

    peer: Peer
    client_id: str
    language: str
    version: int
    heard_at: float
    """When a heartbeat last spoke of it in this group; monotonic seconds."""


class ClientGroup:
    """The members of one group: at most one for each connection, and one for each client id."""

    __slots__ = ("_by_client", "_by_connection", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._by_connection: dict[int, GroupMember] = {}
        self._by_client: dict[str, GroupMember] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} members={len(self._by_connection)}>"

    def __len__(self) -> int:
        return len(self._by_connection)

    @property
    def members(self) -> Collection[GroupMember]:
        return self._by_connection.values()

    def find(self, client_id: str) -> GroupMember | None:
        """Return the member with this client id."""
        return self._by_client.get(client_id)

    def on(self, connection: int) -> GroupMember | None:
        """Return the member that is in through this connection."""
        return self._by_connection.get(connection)

    def add(self, member: GroupMember) -> list[GroupMember]:
        """Let a member in, and return whom it replaces: who came through its connection, or had its client id."""
        there, namesake = self._by_connection.get(member.peer.connection), self._by_client.get(member.client_id)
        replaced = [old for old in (there, namesake) if old is not None]
        if there is namesake:
            del replaced[1:]
        for old in replaced:
            self.remove(old)
        self._by_connection[member.peer.connection] = member
        self._by_client[member.client_id] = member
        return replaced

    def remove(self, member: GroupMember) -> None:
        """Take out a member that is in."""
        del self._by_connection[member.peer.connection]
        del self._by_client[member.client_id]


class ProducerGroup(ClientGroup):
    """Producers who can stand in for each other."""

    __slots__ = ("_turn",)

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._turn = 0

    def next_peer(self) -> Peer | None:
        """Return one after the other of those whose connections live."""
        peers = [member.peer for member in self.members if not member.peer.gone]
        if not peers:
            return None
        self._turn = (self._turn + 1) % len(peers)
        return peers[self._turn]


class ConsumerGroup(ClientGroup):
    """Consumers who share one progress, and what they say they want. The last of them to speak is believed."""

    __slots__ = ("fingerprint", "model", "start_from", "subscriptions", "type")

    def __init__(self, consumer: ConsumerData) -> None:
        super().__init__(consumer.group)
        self.subscriptions: dict[str, Subscription] = {}
        """By topic."""
        self.fingerprint: int | None = None
        """Of the subscriptions, as the last heartbeat gave it; None before the first."""
        self.update(consumer)

    def update(self, consumer: ConsumerData) -> None:
        """Believe what a heartbeat says of how this group consumes."""
        self.type: ConsumeType = consumer.consume_type
        self.model: MessageModel = consumer.model
        self.start_from: StartFrom = consumer.start_from

    @property
    def is_told_of_members(self) -> bool:
        """ConnectedClients share queues out among them, so they have to know of each other."""
        return self.model is not MessageModel.BROADCASTING

    def newer(self, subscriptions: Iterable[Subscription]) -> list[Subscription]:
        """Return which of these are newer than what is known of their topics."""
        known = self.subscriptions
        return [
            subscription
            for subscription in subscriptions
            if (old := known.get(subscription.topic)) is None or old.version < subscription.version
        ]

    def subscribe(self, newer: Iterable[Subscription], topics: AbstractSet[str]) -> bool:
        """Take up newer subscriptions, forget topics that are not among these, and return whether topics changed."""
        known = self.subscriptions
        changed = known.keys() != topics
        for subscription in newer:
            old = known.get(subscription.topic)
            # One heartbeat may name a topic twice.
            if old is None or old.version < subscription.version:
                known[subscription.topic] = _with_java_codes(subscription)
        for topic in known.keys() - topics:
            del known[topic]
        return changed


def _with_java_codes(subscription: Subscription) -> Subscription:
    """Return a subscription that also has the codes that queues have for its tags.

    Go's client takes the hash of UTF-8, and queues have that of UTF-16: beyond ASCII they differ.
    """
    ours = [java_hash(tag) for tag in subscription.tags if not tag.isascii()]
    if not ours:
        return subscription
    return msgspec.structs.replace(subscription, codes=tuple({*subscription.codes, *ours}))
