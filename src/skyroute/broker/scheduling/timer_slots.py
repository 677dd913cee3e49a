"""Messages by the slot in which they are due: the nearest as offsets, the others as counts."""

from array import array
from heapq import heapify, heappop, heappush

import msgspec


class Slot(msgspec.Struct):
    """The messages of one slot, as sorted offsets of the timer topic."""

    offsets: "array[int]"
    marks: "array[int] | None" = None
    """Offsets of recall marks, which recall messages of this slot."""
    marks_read: int = 0
    """Number of `marks` whose keys are in `recalled`."""
    recalled: set[str] = msgspec.field(default_factory=set)
    """Recall keys of the marks."""
    done: int = 0
    """Number of `offsets` that are delivered."""


class Slots:
    """Keeps the offsets of at most `near_max` messages, and of at least the nearest slot.

    Messages of slots at `horizon` or later are only counted. When few offsets are left, the caller reads the timer
    topic again: see `begin_refill`.
    """

    def __init__(self, near_max: int) -> None:
        self._near_max = near_max
        self._near: dict[int, Slot] = {}
        self._order: list[int] = []
        """A heap of the slots in `_near`."""
        self._near_count = 0
        self._far: dict[int, int] = {}
        self.horizon: int | None = None
        self.far_oldest: int | None = None
        """Smallest offset of the messages that are only counted."""
        self._refilled_from: int | None = None
        """During a refill: smallest offset of the messages to read again."""

    def __repr__(self) -> str:
        return f"<Slots near={self._near_count} far={sum(self._far.values())} horizon={self.horizon}>"

    def __len__(self) -> int:
        return self._near_count + sum(self._far.values())

    def count(self, slot_ms: int) -> int:
        """Return the number of messages in a slot; beyond the horizon, with its recall marks."""
        slot = self._near.get(slot_ms)
        return self._far.get(slot_ms, 0) if slot is None else len(slot.offsets) - slot.done

    def count_marks(self, slot_ms: int) -> int:
        """Return the number of recall marks of a slot; 0 beyond the horizon."""
        slot = self._near.get(slot_ms)
        return 0 if slot is None else len(slot.marks or ())

    def add(self, slot_ms: int, offset: int, *, is_mark: bool = False) -> None:
        """Add a message, or a recall mark, to a slot."""
        if self.horizon is not None and slot_ms >= self.horizon:
            self._far[slot_ms] = self._far.get(slot_ms, 0) + 1
            self.far_oldest = offset if self.far_oldest is None else min(self.far_oldest, offset)
            return
        slot = self._near.get(slot_ms)
        if slot is None:
            slot = self._near[slot_ms] = Slot(array("q"))
            heappush(self._order, slot_ms)
        if is_mark:
            if slot.marks is None:
                slot.marks = array("q")
            slot.marks.append(offset)
        else:
            slot.offsets.append(offset)
        self._near_count += 1
        if self._near_count > self._near_max:
            self._spill()

    def _spill(self) -> None:
        order = sorted(self._near)
        kept = 0
        for at, slot_ms in enumerate(order):
            slot = self._near[slot_ms]
            size = _size(slot)
            if at and kept + size > self._near_max // 2:
                break
            kept += size
        else:
            return
        for slot_ms in order[at:]:
            slot = self._near.pop(slot_ms)
            self._far[slot_ms] = self._far.get(slot_ms, 0) + _size(slot)
            oldest = _oldest(slot)
            if oldest is not None:
                self.far_oldest = oldest if self.far_oldest is None else min(self.far_oldest, oldest)
        self.horizon = order[at]
        self._order = order[:at]
        heapify(self._order)
        self._near_count = kept

    def nearest(self) -> tuple[int, Slot] | None:
        """Return the slot that is due first; None if there are none."""
        return (self._order[0], self._near[self._order[0]]) if self._order else None

    def remove_nearest(self) -> None:
        """Remove the slot that is due first."""
        slot = self._near.pop(heappop(self._order))
        self._near_count -= _size(slot)

    def oldest(self) -> int | None:
        """Return a lower bound of the offsets of all messages; None if there are none."""
        known = (self.far_oldest, self._refilled_from, *map(_oldest, self._near.values()))
        return min((offset for offset in known if offset is not None), default=None)

    # ------------------------------------------------------------------------------------------------------ refilling

    def needs_refill(self) -> bool:
        """Return whether it is time to read the topic again for messages beyond the horizon."""
        return bool(self._far) and self._near_count <= self._near_max // 4

    def begin_refill(self) -> tuple[int, int]:
        """Move the horizon on. Returns the slot and the offset from which the topic has to be read again.

        The caller adds all messages of that slot and later ones again, and calls `end_refill`.
        """
        start, oldest = self.horizon or 0, self.far_oldest or 0
        order = sorted(self._far)
        total = self._far[order[0]]
        at = 1
        while at < len(order) and total + self._far[order[at]] <= self._near_max // 2:
            total += self._far[order[at]]
            at += 1
        self.horizon = order[at] if at < len(order) else None
        self._far = {}
        self._refilled_from = self.far_oldest
        self.far_oldest = None
        return start, oldest

    def end_refill(self, start_ms: int) -> None:
        """Sort the refilled slots, because messages may have been added meanwhile."""
        self._refilled_from = None
        for slot_ms, slot in self._near.items():
            if slot_ms >= start_ms:
                slot.offsets = array("q", sorted(slot.offsets))
                slot.marks = array("q", sorted(slot.marks)) if slot.marks else None
                slot.marks_read = 0


def _size(slot: Slot) -> int:
    return len(slot.offsets) + len(slot.marks or ())


def _oldest(slot: Slot) -> int | None:
    mark = slot.marks[0] if slot.marks else None
    if slot.done >= len(slot.offsets):
        return mark
    first = slot.offsets[slot.done]
    return first if mark is None else min(first, mark)
