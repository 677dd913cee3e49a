"""Shares of a topic's queues for the members of a consumer group, with exactly the results of Apache's strategies."""

from collections.abc import Callable, Iterable, Sequence

from skyroute.message.queue_ref import QueueRef


def ranked(names: Iterable[str]) -> list[str]:
    """Return names in the order in which Java sorts them."""
    # Java compares UTF-16 code units, which sorts characters beyond U+FFFF before some others.
    return sorted(names, key=lambda name: name.encode("utf-16-be", "surrogatepass"))


def average_positions(rank: int, queue_count: int, member_count: int) -> range:
    """Return the positions of a member's queues, by ranks: a contiguous range; the first members get the rest."""
    size, rest = divmod(queue_count, member_count)
    start = rank * size + min(rank, rest)
    return range(start, start + size + (rank < rest))


def circle_positions(rank: int, queue_count: int, member_count: int) -> range:
    """Return the positions of a member's queues, by ranks: they are given out round-robin."""
    return range(rank, queue_count, member_count)


def average_share(client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]) -> list[QueueRef]:
    """Return a contiguous range of the queues; the first members get the remaining ones. [] for no member."""
    return _share(average_positions, client_id, queues, client_ids)


def circle_share(client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]) -> list[QueueRef]:
    """Return the queues of a member that are given out round-robin; [] for no member."""
    return _share(circle_positions, client_id, queues, client_ids)


def _share(
    share: Callable[[int, int, int], range], client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]
) -> list[QueueRef]:
    members = ranked(client_ids)
    if client_id not in members:
        return []
    positions = share(members.index(client_id), len(queues), len(members))
    return sorted(queues)[positions.start : positions.stop : positions.step]
