"""Strategies that assign the queues of a topic to the members of a consumer group.

Every member computes its own share from the same lists of queues and members. So each strategy returns exactly the
result of the strategy with the same name in Apache's Java client. Pure: no I/O.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import ClassVar, Final, TypeVar

from skyroute.client.arguments import check_callables, check_counts, check_queues
from skyroute.client.errors import ArgumentError, ClientError
from skyroute.message.queue_ref import QueueRef
from skyroute.message.queue_shares import average_share, circle_share, ranked

T = TypeVar("T")

Strategy = Callable[[str, Sequence[QueueRef], Sequence[str]], list[QueueRef]]
"""Gets a member's client id, all queues of a topic, and all members' client ids, in any order; returns the queues of
that member, or [] if it is not a member. The strategies here also have a `name`, the same as in Apache's client.
"""

VIRTUAL_NODES: Final = 10
VIRTUAL_NODES_MAX: Final = 100_000


@dataclass(frozen=True, slots=True)
class Average:
    """Assigns a contiguous range of queues to each member; the first members get the remaining queues."""

    name: ClassVar[str] = "AVG"

    def __call__(self, client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]) -> list[QueueRef]:
        return average_share(client_id, queues, client_ids)


AVERAGE: Final = Average()
"""The default strategy."""


@dataclass(frozen=True, slots=True)
class AverageByCircle:
    """Assigns queues to members round-robin."""

    name: ClassVar[str] = "AVG_BY_CIRCLE"

    def __call__(self, client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]) -> list[QueueRef]:
        return circle_share(client_id, queues, client_ids)


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """Assigns queues by consistent hashing, so that few queues move when the members change.

    Shares are uneven with few virtual nodes per member. All members need the same number.

    Raises:
        ArgumentError: the number of virtual nodes is out of range.
    """

    virtual_nodes: int = VIRTUAL_NODES
    name: ClassVar[str] = "CONSISTENT_HASH"

    def __post_init__(self) -> None:
        check_counts(1, VIRTUAL_NODES_MAX, virtual_nodes=self.virtual_nodes)

    def __call__(self, client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]) -> list[QueueRef]:
        if client_id not in client_ids:
            return []
        owners = self._ring(ranked(client_ids))
        hashes = sorted(owners)
        # A queue belongs to the next node at or after its hash; after the last node comes the first.
        return [
            queue
            for queue in sorted(queues)
            if owners[hashes[bisect_left(hashes, _hash(queue.ring_text)) % len(hashes)]] == client_id
        ]

    def _ring(self, members: list[str]) -> dict[int, str]:
        owners: dict[int, str] = {}
        before = None
        for member in members:
            # Two processes with one client id appear twice; the numbers of the second continue those of the first.
            first = list(owners.values()).count(member) if member == before else 0
            for number in range(first, first + self.virtual_nodes):
                owners[_hash(f"{member}-{number}")] = member
            before = member
        return owners


def _hash(text: str) -> int:
    digest = md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")


@dataclass(frozen=True, slots=True, init=False)
class MachineRoom:
    """Assigns only the queues of brokers in given machine rooms; such a broker is named `room@broker`."""

    rooms: frozenset[str]
    name: ClassVar[str] = "MACHINE_ROOM"

    def __init__(self, rooms: str | Collection[str]) -> None:
        if not isinstance(rooms, Iterable):
            raise ArgumentError(f"rooms is {rooms!r}: expected the name of a machine room, or several names")
        names = [rooms] if isinstance(rooms, str) else list(rooms)
        for name in names:
            if not isinstance(name, str):
                raise ArgumentError(f"rooms contains {name!r}: expected the name of a machine room")
        object.__setattr__(self, "rooms", frozenset(names))

    def __call__(self, client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]) -> list[QueueRef]:
        members = ranked(client_ids)
        if client_id not in members:
            return []
        rank = members.index(client_id)
        ours = [queue for queue in sorted(queues) if self._is_ours(queue.broker_name)]
        size = len(ours) // len(members)
        rest = ours[size * len(members) :]
        return ours[rank * size : (rank + 1) * size] + rest[rank : rank + 1]

    def _is_ours(self, broker_name: str) -> bool:
        # Java's split drops empty parts at the end.
        pieces = broker_name.rstrip("@").split("@")
        return len(pieces) == 2 and pieces[0] in self.rooms


@dataclass(frozen=True, slots=True)
class NearbyMachineRoom:
    """Assigns the queues of a machine room to the members in it, and those of a room without members to all members.

    `within` is the strategy inside a room. All members need the same functions.

        NearbyMachineRoom(
            room_of_queue=lambda queue: queue.broker_name.partition("-")[0],
            room_of_client=lambda client_id: ROOM_BY_IP[client_id.partition("@")[0]],
        )

    Raises:
        ClientError: when called, if a queue or a member has no room.
    """

    room_of_queue: Callable[[QueueRef], str]
    room_of_client: Callable[[str], str]
    within: Strategy = AVERAGE

    def __post_init__(self) -> None:
        check_callables(room_of_queue=self.room_of_queue, room_of_client=self.room_of_client, within=self.within)

    @property
    def name(self) -> str:
        return f"MACHINE_ROOM_NEARBY-{getattr(self.within, 'name', 'CUSTOM')}"

    def __call__(self, client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]) -> list[QueueRef]:
        if client_id not in client_ids:
            return []
        queues_by_room = _by_room(sorted(queues), self.room_of_queue)
        members_by_room = _by_room(client_ids, self.room_of_client)
        own_room = self.room_of_client(client_id)
        share: list[QueueRef] = []
        if own_room in queues_by_room:
            share += self.within(client_id, queues_by_room[own_room], members_by_room[own_room])
        for room in ranked(queues_by_room.keys() - members_by_room.keys()):
            share += self.within(client_id, queues_by_room[room], client_ids)
        return share


def _by_room(things: Iterable[T], room_of: Callable[[T], str]) -> dict[str, list[T]]:
    rooms: dict[str, list[T]] = {}
    for thing in things:
        room = room_of(thing)
        if not room:
            raise ClientError(f"{thing} has no machine room: return its name from room_of_queue or room_of_client")
        rooms.setdefault(room, []).append(thing)
    return rooms


@dataclass(frozen=True, slots=True, init=False)
class Configured:
    """Assigns fixed queues to this member. The application ensures that every queue is assigned to some member.

    A queue that the topic does not have yet is skipped.
    """

    queues: tuple[QueueRef, ...]
    name: ClassVar[str] = "CONFIG"

    def __init__(self, queues: Iterable[QueueRef]) -> None:
        object.__setattr__(self, "queues", tuple(check_queues("queues", queues)))

    def __call__(self, client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]) -> list[QueueRef]:
        there = frozenset(queues)
        return [queue for queue in self.queues if queue in there]
