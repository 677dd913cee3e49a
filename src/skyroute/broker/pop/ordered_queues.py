"""Ordered POP: queues that are blocked until their popped messages are acknowledged or visible again.

The file has Apache's name and format (`consumerOrderInfo.json`).
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Any, Final

import msgspec

from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.tables.table_file import TableFile
from skyroute.broker.tables.table_format import entry_pieces, read_as, read_member
from skyroute.remoting.errors import RefusedError
from skyroute.wire.codes import ResponseCode

QUEUES_MAX: Final = 200_000
"""Queues with popped messages, of all groups."""
GROUP_QUEUES_MAX: Final = 65_536
"""Queues with popped messages, of one group."""

WOKEN_MAX: Final = 1_024
"""Queues whose pops are woken in one step."""

IDLE_MS: Final = 24 * 3600 * 1000
"""Time after which the state of a queue without pops is dropped."""


class OrderState(
    msgspec.Struct,
    rename={
        "popped_at_ms": "popTime",
        "invisible_ms": "i",
        "packed_offsets": "o",
        "visible_at_ms": "ot",
        "counts": "oc",
        "last_ms": "l",
        "acked": "cm",
        "attempt_id": "a",
    },
    omit_defaults=True,
):
    """The last messages that a group popped from a queue."""

    popped_at_ms: int
    invisible_ms: int | None = None
    packed_offsets: list[int] = []
    """The first offset, then the distances of the others from it."""
    visible_at_ms: dict[int, int] | None = None
    """Times that differ from pop time plus invisible time, by offset."""
    counts: dict[int, int] | None = None
    """How often messages were popped before, by offset."""
    last_ms: int = 0
    acked: int = 0
    """One bit for each acknowledged message."""
    attempt_id: str | None = None

    def offsets(self) -> list[int]:
        """Return the offsets of the messages."""
        first, *distances = self.packed_offsets or [0]
        return [first, *(first + distance for distance in distances)] if self.packed_offsets else []

    def blocked_until_ms(self) -> int:
        """Return the time until which the queue is blocked; 0 if all messages are acknowledged."""
        default_ms = self.popped_at_ms + (self.invisible_ms or 0)
        times = self.visible_at_ms or {}
        left = [offset for at, offset in enumerate(self.offsets()) if not self.acked >> at & 1]
        return max((times.get(offset, default_ms) for offset in left), default=0)

    def next_offset(self) -> int:
        """Return the offset of the first message that is not acknowledged."""
        offsets = self.offsets()
        return next((offset for at, offset in enumerate(offsets) if not self.acked >> at & 1), offsets[-1] + 1)


def read_ordered_queues(raw: object) -> dict[tuple[str, str], dict[int, OrderState]]:
    """Parse the file. A queue without messages, or with negative offsets, is left out.

    Raises:
        StoreDamagedError: it is not a table of ordered queues.
    """
    stored = read_as(raw, dict[str, Any], "the table of ordered queues")
    table: dict[tuple[str, str], dict[int, OrderState]] = {}
    for name, queues in read_member(stored, "table", dict[str, dict[int, OrderState]]).items():
        topic, at, group = name.rpartition("@")
        whole = {queue_id: state for queue_id, state in queues.items() if min(state.offsets(), default=-1) >= 0}
        if at and whole:
            table[topic, group] = whole
    return table


class OrderedQueues:
    """The state of all queues that groups pop in order."""

    def __init__(self, file: JsonFile, wake: Callable[[str, str, int], None]) -> None:
        self._table: dict[tuple[str, str], dict[int, OrderState]] = {}
        self._count = 0
        self._group_counts: dict[str, int] = {}
        self._wake = wake
        """Called with topic, group and queue when a queue is no longer blocked."""
        self._unblocked: list[tuple[int, str, str, int]] = []
        """Heap of the times at which queues are no longer blocked; some are outdated."""
        self.table_file = TableFile(file, self.pieces)

    def __repr__(self) -> str:
        return f"<OrderedQueues {self._count}>"

    def load(self) -> None:
        """Read the file.

        Raises:
            StoreDamagedError: neither the file nor its backup can be used.
        """
        self._table = self.table_file.load(read_ordered_queues) or {}
        self._count = sum(map(len, self._table.values()))
        self._group_counts = {}
        for (topic, group), queues in self._table.items():
            self._group_counts[group] = self._group_counts.get(group, 0) + len(queues)
            for queue_id, state in queues.items():
                self._note(topic, group, queue_id, state)

    def _note(self, topic: str, group: str, queue_id: int, state: OrderState) -> None:
        heappush(self._unblocked, (state.blocked_until_ms(), topic, group, queue_id))
        if len(self._unblocked) > 4 * self._count + 1024:
            self._unblocked = sorted((found.blocked_until_ms(), *where) for where, found in self._all())

    def _all(self) -> Iterator[tuple[tuple[str, str, int], OrderState]]:
        for (topic, group), queues in self._table.items():
            for queue_id, state in queues.items():
                yield (topic, group, queue_id), state

    def find(self, topic: str, group: str, queue_id: int) -> OrderState | None:
        """Return the state of a queue."""
        return self._table.get((topic, group), {}).get(queue_id)

    def is_blocked(self, topic: str, group: str, queue_id: int, attempt_id: str | None, now_ms: int) -> bool:
        """Return whether nothing can be popped from a queue now. A repeated request (same attempt) is not blocked."""
        state = self.find(topic, group, queue_id)
        if state is None or (attempt_id is not None and state.attempt_id == attempt_id):
            return False
        return now_ms < state.blocked_until_ms()

    def popped(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offsets: tuple[int, ...],
        *,
        popped_at_ms: int,
        invisible_ms: int,
        attempt_id: str | None,
    ) -> dict[int, int]:
        """Note popped messages; return how often each was popped before.

        Raises:
            RefusedError: the table is full.
        """
        before = self.find(topic, group, queue_id)
        if before is None:
            of_group = self._group_counts.get(group, 0)
            if self._count >= QUEUES_MAX or of_group >= GROUP_QUEUES_MAX:
                raise RefusedError(
                    ResponseCode.SYSTEM_BUSY,
                    f"this broker has {self._count} queues popped in order, {of_group} of group {group} "
                    f"(expected fewer than {QUEUES_MAX} and {GROUP_QUEUES_MAX})",
                )
            self._count += 1
            self._group_counts[group] = of_group + 1
        counts: dict[int, int] = {}
        if before is not None and before.attempt_id is not None and before.attempt_id == attempt_id:
            counts = before.counts or {}
        elif before is not None:
            known, old = set(before.offsets()), before.counts or {}
            counts = {offset: old.get(offset, 0) + 1 for offset in offsets if offset in known}
        first = offsets[0]
        state = OrderState(
            popped_at_ms,
            invisible_ms,
            [first, *(offset - first for offset in offsets[1:])],
            counts=counts,
            last_ms=popped_at_ms,
            attempt_id=attempt_id,
        )
        self._table.setdefault((topic, group), {})[queue_id] = state
        self._note(topic, group, queue_id, state)
        self.table_file.touch()
        return counts

    def acknowledge(self, topic: str, group: str, queue_id: int, offset: int, popped_at_ms: int) -> int | None:
        """Note an acknowledged message; return the offset to commit, None if the receipt is no longer valid."""
        state = self.find(topic, group, queue_id)
        if state is None or state.popped_at_ms != popped_at_ms or offset not in (offsets := state.offsets()):
            return None
        state.acked |= 1 << offsets.index(offset)
        self.table_file.touch()
        return state.next_offset()

    def wake_if_free(self, topic: str, group: str, queue_id: int) -> int:
        """Wake the pops of a queue if all its messages are acknowledged; return until when it is blocked, else 0."""
        state = self.find(topic, group, queue_id)
        if state is None:
            return 0
        until_ms = state.blocked_until_ms()
        if not until_ms:
            self._wake(topic, group, queue_id)
        elif state.visible_at_ms:  # the messages that are left may be visible before those acknowledged
            self._note(topic, group, queue_id, state)
        return until_ms

    def change(self, topic: str, group: str, queue_id: int, offset: int, popped_at_ms: int, visible_at_ms: int) -> bool:
        """Set the time at which a message is visible again; False if the receipt is no longer valid."""
        state = self.find(topic, group, queue_id)
        if state is None or state.popped_at_ms != popped_at_ms or offset not in state.offsets():
            return False
        if state.visible_at_ms is None:
            state.visible_at_ms = {}
        state.visible_at_ms[offset] = visible_at_ms
        self._note(topic, group, queue_id, state)
        self.table_file.touch()
        return True

    def clear(self, topic: str, group: str, queue_id: int) -> None:
        """Drop the state of a queue, because its offset was reset."""
        queues = self._table.get((topic, group))
        if queues is not None and queues.pop(queue_id, None) is not None:
            self._count -= 1
            self._group_counts[group] -= 1
            if not self._group_counts[group]:
                del self._group_counts[group]
            if not queues:
                del self._table[topic, group]
            self.table_file.touch()

    def in_flight(self, topic: str, group: str) -> int:
        """Return the messages of a topic that a group has popped and not acknowledged."""
        states = self._table.get((topic, group), {}).values()
        return sum(len(state.packed_offsets) - state.acked.bit_count() for state in states)

    def wake_unblocked(self, now_ms: int) -> int | None:
        """Wake the pops of up to `WOKEN_MAX` queues that are no longer blocked; return when the next one is."""
        for _ in range(WOKEN_MAX):
            if not self._unblocked or self._unblocked[0][0] > now_ms:
                break
            _, topic, group, queue_id = heappop(self._unblocked)
            state = self.find(topic, group, queue_id)
            if state is not None and state.blocked_until_ms() <= now_ms:
                self._wake(topic, group, queue_id)
        return self._unblocked[0][0] if self._unblocked else None

    def clean(self, exists: Callable[[str, str], bool], now_ms: int) -> Iterator[None]:
        """Drop queues of topics and groups that do not exist, and queues that were idle for `IDLE_MS`, in steps."""
        for (topic, group), queues in list(self._table.items()):
            does_exist = exists(topic, group)
            for number, (queue_id, state) in enumerate(list(queues.items())):
                if now_ms - state.last_ms > IDLE_MS or not does_exist:
                    self.clear(topic, group, queue_id)
                if number % 1_024 == 0:
                    yield

    def pieces(self) -> Iterator[bytes]:
        """Return the table as its file has it, in pieces."""
        yield b'{"table":{'
        yield from entry_pieces({f"{topic}@{group}": queues for (topic, group), queues in self._table.items()})
        yield b"}}"
