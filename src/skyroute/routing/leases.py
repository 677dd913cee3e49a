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

    def expired(self, now: float) -> list[GroupMember]:
        return [member for member in self._by_key.values() if member.expires_at < now]

    def add(self, member: GroupMember) -> None:
        self._by_key[member.key] = member
        self._by_connection.setdefault(member.connection, {})[member] = None

    def remove(self, member: GroupMember) -> None:
        del self._by_key[member.key]
        held = self._by_connection[member.connection]
        del held[member]
        if not held:
            del self._by_connection[member.connection]

    def change_connection(self, member: GroupMember, connection: int) -> None:
        """Move a broker to another connection: closing the old one no longer removes it."""
        if member.connection != connection:
            self.remove(member)
            member.connection = connection
            self.add(member)
