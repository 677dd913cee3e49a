"""The key index in a process of its own, so that a broker with much to do has a second processor write it.

The store says how far the log may be read, the process how far it has come. It reads the log itself, so that nothing
else has to be told. Should it end before it is asked to, the store goes on alone from where it was. Since it knows
where the log ends, it also has the system find the pages that come next.
"""

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from skyroute.broker.store.files.folder_lock import lock_index
from skyroute.broker.store.files.segment import OpenSegments, Segment
from skyroute.broker.store.index.key_index import KeyIndex
from skyroute.broker.store.index.keys import Key, KeyReader
from skyroute.broker.store.settings import StoreSettings
from skyroute.files.disk import Disk
from skyroute.files.errors import StorageError

LAG_BYTES_MAX: Final = 64 << 20
"""The store waits for a process that is so far behind the log."""
PATIENCE_S: Final = 5.0
"""A process that says nothing for so long, though there is something to do, is taken for lost."""
AHEAD_BYTES: Final = 16 << 20
"""How much of the log is prepared before it is written."""
TOUCHED_BYTES: Final = 1 << 18
"""How much of that at once."""
STEP_BYTES: Final = 1 << 20
"""A process is woken for no less, unless somebody cannot wait."""

_POSITION: Final = Struct(">q")
_PROGRESS: Final = Struct(">qqqqq")
_STDIN, _STDOUT = 0, 1


def processors() -> int:
    """Return how many of them we may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class IndexProgress(NamedTuple):
    """How far the index has come: the newest record whose keys it has, its newest file, and that one's entries."""

    position: int
    size: int
    index_file: int
    index_count: int
    end_ms: int

    @property
    def end(self) -> int:
        """The position behind that record."""
        return self.position + self.size


class IndexProcess:
    """The store's end of it. Whatever is asked of a process that is gone comes back with a `False`."""

    def __init__(self, folder: Path, settings: StoreSettings, progress: IndexProgress) -> None:
        numbers = settings.log_segment_bytes, settings.index_slots, settings.index_entries, progress.end
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder), *map(str, numbers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # control-C is for the broker, which has it end in good order
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._into, self._out_of = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._into, False)
        os.set_blocking(self._out_of, False)
        self.progress = progress
        """What it last said."""
        self.requested = progress.end
        """How far it shall go."""
        self._said = progress.end

    def __repr__(self) -> str:
        return f"<IndexProcess {self.pid} {self.progress.end}..{self.requested}>"

    @property
    def pid(self) -> int:
        return self._process.pid

    def request(self, position: int) -> bool:
        """Have it read the log up to a position, soon at least, and wait if it is too far behind."""
        self.requested = position
        return position - self._said < STEP_BYTES or (self.update() and self._wait(position - LAG_BYTES_MAX))

    def catch_up(self) -> bool:
        """Wait until it has come as far as it shall."""
        return self.update() and self._wait(self.requested)

    def _wait(self, position: int) -> bool:
        while self.progress.end < position:
            ready = select.poll()
            ready.register(self._out_of, select.POLLIN)
            if self._said != self.requested:
                ready.register(self._into, select.POLLOUT)
            if not ready.poll(PATIENCE_S * 1000) or not self.update():
                return False
        return True

    def update(self) -> bool:
        """Have it go as far as it shall, and hear how far it is; never waits."""
        try:
            if self._said != self.requested:
                with suppress(BlockingIOError):  # there is enough to read for it already
                    os.write(self._into, _POSITION.pack(self.requested))
                    self._said = self.requested
            with suppress(BlockingIOError):
                heard = os.read(self._out_of, _PROGRESS.size * 1024)
                if not heard:
                    return False
                self.progress = IndexProgress(*_PROGRESS.unpack_from(heard, len(heard) - _PROGRESS.size))
        except OSError:
            return False
        return True

    def end(self) -> None:
        """Have it end, now if it does not do so soon. May be called again."""
        with self._process:  # closes the pipes, which is what it waits for
            with suppress(OSError):
                assert self._process.stdin is not None
                self._process.stdin.close()
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def kill(self) -> None:
        """End it at once. May be called again."""
        self._process.kill()
        self.end()


def _serve(folder: Path, segment_bytes: int, slots: int, entries: int, start: int) -> None:
    """Write keys to the index for as long as somebody says how far to go."""
    disk = Disk()
    lock = lock_index(folder, disk)
    if lock is None or _has_ended():
        return  # whoever started us is gone, and the folder may be another's by now
    index = KeyIndex(folder / "index", slots, entries, disk)
    index.load()
    index.truncate_to(start, slots_are_sound=True)
    segments: dict[int, Segment] = {}

    def find_segment(position: int) -> Segment:
        begin = position - position % segment_bytes
        segment = segments.get(begin)
        if segment is None:
            path = folder / "commitlog" / f"{begin:020d}"
            segment = segments[begin] = Segment(path, begin, segment_bytes, disk, OpenSegments())
            if hasattr(os, "posix_fadvise"):
                # Else the system would take pages together, and each small write look at all of such a heap.
                os.posix_fadvise(segment.descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        return segment

    reader = KeyReader(find_segment)
    keys: list[Key] = []
    reached = wanted = prepared = start
    while (further := _read_position(wait=reached >= wanted)) is not None:
        wanted = further or wanted
        if wanted - reached < AHEAD_BYTES:  # else whoever writes has the time to do so itself
            prepared = _prepare(find_segment(wanted - 1), prepared, wanted)
        newest = reader.read(reached, wanted, keys)
        if newest is None:
            reached = wanted
            continue
        index.add(keys)
        while len(index.files) > 1:
            index.files.pop(0).close()  # they are for the store, which may have removed them
        position, size, _ = newest
        os.write(_STDOUT, _PROGRESS.pack(position, size, *index.extent, index.end_ms))
        reached = position + size
        for begin in [begin for begin in segments if begin + segment_bytes <= reached]:
            segments.pop(begin).close()


def _prepare(segment: Segment, prepared: int, position: int) -> int:
    """Touch what the log will need next behind a position; return how far that was done.

    A page that nobody has touched yet is dear to write to: the system has to find it, and the host of a virtual machine
    another one behind it. Whoever reads it has it found.
    """
    prepared = max(prepared, position)
    stop = min(position + AHEAD_BYTES, segment.stop)
    while prepared < stop:
        segment.read(prepared - segment.start, min(TOUCHED_BYTES, stop - prepared))
        prepared = min(prepared + TOUCHED_BYTES, stop)
    return prepared


def _read_position(*, wait: bool) -> int | None:
    """Return how far to go, 0 where nobody has said so anew, or None at the end."""
    if not select.select([_STDIN], [], [], None if wait else 0)[0]:
        return 0
    said = os.read(_STDIN, _POSITION.size * 1024)
    return int(_POSITION.unpack_from(said, len(said) - _POSITION.size)[0]) if said else None


def _has_ended() -> bool:
    waiting = select.poll()
    waiting.register(_STDIN, select.POLLHUP)
    return any(event & select.POLLHUP for _, event in waiting.poll(0))


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the end of our input is the sign to end
    try:
        _serve(Path(sys.argv[1]), *map(int, sys.argv[2:]))
    except (BrokenPipeError, StorageError):
        sys.exit(1)  # nobody listens any more, or the store meets the same trouble and says so
