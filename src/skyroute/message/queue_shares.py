"""Shares of a topic's queues for the members of a consumer group, with exactly the results of Apache's strategies."""

from collections.abc import Iterable, Sequence

from skyroute.message.queue_ref import QueueRef


def ranked(names: Iterable[str]) -> list[str]:
    """Return names in the order in which Java sorts them."""
    # Java compares UTF-16 code units, which sorts characters beyond U+FFFF before some others.
    return sorted(names, key=lambda name: name.encode("utf-16-be", "surrogatepass"))


def average_positions(client_id: str, count: int, client_ids: Iterable[str]) -> range:
    """Return a contiguous range of the positions of sorted queues; the first members get the remaining ones."""
    members = ranked(client_ids)
    if client_id not in members:
        return range(0)
    rank = members.index(client_id)
    size, rest = divmod(count, len(members))
    start = rank * size + min(rank, rest)
    return range(start, start + size + (rank < rest))


def circle_positions(client_id: str, count: int, client_ids: Iterable[str]) -> range:
    """Return the positions of sorted queues that are given to a member, round-robin; none if it is not a member."""
    members = ranked(client_ids)
    return range(members.index(client_id), count, len(members)) if client_id in members else range(0)


def average_share(client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]) -> list[QueueRef]:
    """Return a contiguous range of the queues; the first members get the remaining ones. [] for no member."""
    return _at(queues, average_positions(client_id, len(queues), client_ids))


def circle_share(client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]) -> list[QueueRef]:
    """Return the queues of a member that are given out round-robin; [] for no member."""
    return _at(queues, circle_positions(client_id, len(queues), client_ids))


def _at(queues: Sequence[QueueRef], positions: range) -> list[QueueRef]:
    return sorted(queues)[positions.start : positions.stop : positions.step]
