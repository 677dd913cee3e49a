"""The leases of registered brokers, by address and by connection."""

from collections.abc import Iterable, Iterator
from typing import Final

from skyroute.routing.group_state import GroupMember
from skyroute.routing.topology import BrokerKey

NO_CONNECTION: Final = -1
"""Connection of restored brokers that have not sent anything yet; no real connection has this number."""


class Leases:
    """Every registered broker, by address and by connection.

    A broker container registers many brokers on one connection. Expiry is a scan: twenty thousand leases take a
    millisecond, and a heap would have to be updated by every heartbeat.
    """

    def __init__(self) -> None:
        self._by_key: dict[BrokerKey, GroupMember] = {}
        self._by_connection: dict[int, dict[GroupMember, None]] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[GroupMember]:
        return iter(self._by_key.values())

    def __contains__(self, key: BrokerKey) -> bool:
        return key in self._by_key

    @property
    def connection_count(self) -> int:
        return len(self._by_connection)

    def find(self, key: BrokerKey) -> GroupMember | None:
        return self._by_key.get(key)

    @property
    def unconfirmed_count(self) -> int:
        """Number of restored brokers that have not sent anything yet."""
        return len(self._by_connection.get(NO_CONNECTION, ()))

    def on_connection(self, connection: int) -> Iterable[GroupMember]:
        return self._by_connection.get(connection, ())

    def close_connection(self, connection: int) -> list[GroupMember]:
        """Return the brokers that registered on this connection only. The others keep their other connection."""
        members = list(self.on_connection(connection))
        for member in members:
            if member.older_connection is not None:
                self._unlink(member, connection)
                if member.connection == connection:
                    member.connection = member.older_connection
                member.older_connection = None
        return list(self.on_connection(connection))

    def expired(self, now: float) -> list[GroupMember]:
        return [member for member in self._by_key.values() if member.expires_at < now]

    def add(self, member: GroupMember) -> None:
        self._by_key[member.key] = member
        for connection in member.connections:
            self._link(member, connection)

    def remove(self, member: GroupMember) -> None:
        del self._by_key[member.key]
        for connection in member.connections:
            self._unlink(member, connection)

    def change_connection(self, member: GroupMember, connection: int) -> None:
        """Record the connection of a registration.

        A newer connection replaces the known ones: closing these no longer removes the broker. An older one is kept
        beside the newest, because the order of two registrations on two connections is unknown. Whichever was sent
        first, closing its connection must not remove the broker.
        """
        if connection in member.connections:
            return
        self.remove(member)
        if connection > member.connection:
            member.connection, member.older_connection = connection, None
        else:
            member.older_connection = connection
        self.add(member)

    def _link(self, member: GroupMember, connection: int) -> None:
        self._by_connection.setdefault(connection, {})[member] = None

    def _unlink(self, member: GroupMember, connection: int) -> None:
        members = self._by_connection[connection]
        del members[member]
        if not members:
            del self._by_connection[connection]
