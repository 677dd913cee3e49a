"""Shares of a topic's queues for the members of a consumer group, with exactly the results of Apache's strategies."""

from collections.abc import Iterable, Sequence

from skyroute.message.queue_ref import QueueRef


def ranked(names: Iterable[str]) -> list[str]:
    """Return names in the order in which Java sorts them."""
    # Java compares UTF-16 code units, which sorts characters beyond U+FFFF before some others.
    return sorted(names, key=lambda name: name.encode("utf-16-be", "surrogatepass"))


def average_share(client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]) -> list[QueueRef]:
    """Return a contiguous range of the queues; the first members get the remaining ones. [] for no member."""
    members = ranked(client_ids)
    if client_id not in members:
        return []
    rank = members.index(client_id)
    size, rest = divmod(len(queues), len(members))
    start = rank * size + min(rank, rest)
    return sorted(queues)[start : start + size + (rank < rest)]


def circle_share(client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str]) -> list[QueueRef]:
    """Return the queues of a member that are given out round-robin; [] for no member."""
    members = ranked(client_ids)
    return sorted(queues)[members.index(client_id) :: len(members)] if client_id in members else []
