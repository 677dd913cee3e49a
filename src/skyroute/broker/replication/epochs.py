"""Epochs of a log: from which position on each master wrote it. Values only; `EpochFile` keeps them.

A master that is elected begins an epoch at the end of its log. Two logs are equal up to the end of the last epoch that
begins at the same position in both.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Self

from skyroute.broker.store.errors import StoreDamagedError
from skyroute.message.crc import crc32
from skyroute.wire.auto_switch import EPOCHS_MAX, Epoch

NO_EPOCH: Final = -1
_CRC_MASK: Final = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class Epochs:
    """The epochs of one log, oldest first. Numbers grow; an epoch without records begins where the next one does."""

    entries: tuple[Epoch, ...] = ()

    def __iter__(self) -> Iterator[Epoch]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def last_number(self) -> int:
        """The number of the newest epoch; `NO_EPOCH` if there is none."""
        return self.entries[-1].number if self.entries else NO_EPOCH

    @property
    def last_start(self) -> int:
        """Where the newest epoch begins; 0 if there is none."""
        return self.entries[-1].start if self.entries else 0

    def begin(self, epoch: Epoch) -> Self:
        """Return the epochs of a master that begins an epoch; epochs of a higher number or position are dropped.

        An epoch without records stays: it shows a broker that has records of it where they must end. A master that was
        restarted goes on with its epoch. The oldest of more than `EPOCHS_MAX` epochs are dropped.
        """
        if epoch.number == self.last_number:
            return self
        kept = (each for each in self.entries if each.number < epoch.number and each.start <= epoch.start)
        return type(self)((*kept, epoch)[-EPOCHS_MAX:])

    def follow(self, epoch: Epoch) -> Self:
        """Return the epochs of a slave that receives records of an epoch: the same if the epoch is not a new one."""
        if epoch.number <= self.last_number or epoch.start < self.last_start:
            return self
        return type(self)((*self.entries, epoch)[-EPOCHS_MAX:])

    def cut(self, end: int) -> Self:
        """Return the epochs of the log cut at a position: those that begin before it."""
        return type(self)(tuple(each for each in self.entries if each.start < end))

    def expire(self, start: int) -> Self:
        """Return the epochs of the log without the records before a position: those that end behind it."""
        return type(self)(tuple(each for each, end in self.with_ends(1 << 63) if end > start))

    def with_ends(self, log_end: int) -> Iterator[tuple[Epoch, int]]:
        """Give each epoch with its end; the newest ends with the log, but not before its start."""
        for each, following in pairwise(self.entries):
            yield each, following.start
        for each in self.entries[-1:]:
            yield each, max(each.start, log_end)

    def at(self, position: int) -> tuple[Epoch, int | None] | None:
        """Return the epoch of a record and where it ends, None for the newest; None if it is older than all epochs."""
        last = len(self.entries) - 1
        for index in range(last, -1, -1):
            if self.entries[index].start <= position:
                return self.entries[index], None if index == last else self.entries[index + 1].start
        return None


def common_end(own: Epochs, own_end: int, master: Epochs, master_end: int) -> int | None:
    """Return the position up to which two logs are equal; None if they have no common epoch."""
    ends = dict(master.with_ends(master_end))
    for epoch, end in reversed(list(own.with_ends(own_end))):
        if epoch in ends:
            return min(end, ends[epoch])
    return None


def render_epochs(epochs: Epochs) -> bytes:
    """Return the content of an epoch file: number of epochs, checksum, and a line for each."""
    lines = "".join(f"{number}-{start}\n" for number, start in epochs).encode()
    return b"%d\n%d\n%s" % (len(epochs), crc32(lines) & _CRC_MASK, lines)


def parse_epochs(content: bytes) -> Epochs:
    """Parse the content of an epoch file. A checksum of 0 is not checked.

    Raises:
        StoreDamagedError: it is not an epoch file, or the checksum is wrong.
    """
    try:
        count, checksum, *lines = content.decode("ascii").split("\n")
        pairs = (line.split("-") for line in lines if line)
        epochs = Epochs(tuple(Epoch(int(number), int(start)) for number, start in pairs))
        expected = int(checksum)
        is_whole = int(count) == len(epochs)
    except ValueError:
        raise StoreDamagedError("it is not an epoch file (expected number of epochs, checksum, `7-7000`…)") from None
    if not is_whole:
        raise StoreDamagedError(f"it has {len(epochs)} epochs (expected {count[:20]})")
    body = "".join(f"{line}\n" for line in lines if line).encode()
    if expected not in (0, crc32(body) & _CRC_MASK):
        raise StoreDamagedError(f"the checksum of its epochs is {crc32(body) & _CRC_MASK} (expected {expected})")
    if any(older.number >= newer.number or older.start > newer.start for older, newer in pairwise(epochs)):
        raise StoreDamagedError("its epochs are not in order")
    return epochs
