"""Which brokers we believe to be alive, through whom they speak, and until when."""

from collections.abc import Iterable, Iterator
from typing import Final

from skyroute.routing.groups import Member
from skyroute.routing.topology import BrokerKey

NOBODY: Final = -1
"""The holder of brokers that were restored and have not been heard from: no connection has this number."""


class Leases:
    """Every broker of the table, found by its address or by its holder.

    One holder may speak for many brokers, as a container of brokers shares one connection. Expiry is a scan: twenty
    thousand leases take a millisecond, and a heap would have to be mended by every heartbeat.
    """

    def __init__(self) -> None:
        self._by_key: dict[BrokerKey, Member] = {}
        self._by_holder: dict[int, dict[Member, None]] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_key.values())

    def __contains__(self, key: BrokerKey) -> bool:
        return key in self._by_key

    @property
    def holder_count(self) -> int:
        return len(self._by_holder)

    def find(self, key: BrokerKey) -> Member | None:
        return self._by_key.get(key)

    @property
    def unconfirmed_count(self) -> int:
        """How many restored brokers have not been heard from yet."""
        return len(self._by_holder.get(NOBODY, ()))

    def held_by(self, holder: int) -> Iterable[Member]:
        return self._by_holder.get(holder, ())

    def expired(self, now: float) -> list[Member]:
        return [member for member in self._by_key.values() if member.expires_at < now]

    def add(self, member: Member) -> None:
        self._by_key[member.key] = member
        self._by_holder.setdefault(member.holder, {})[member] = None

    def remove(self, member: Member) -> None:
        del self._by_key[member.key]
        held = self._by_holder[member.holder]
        del held[member]
        if not held:
            del self._by_holder[member.holder]

    def hand_over(self, member: Member, holder: int) -> None:
        """Let a broker speak through another holder; the old one no longer ends it."""
        if member.holder != holder:
            self.remove(member)
            member.holder = holder
            self.add(member)
