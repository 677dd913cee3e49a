"""The index process: under load, a second process writes the key index, on a second processor.

The store sends the position up to which the log may be read; the process reads keys from the log and sends back its
progress. If it dies, the store continues from that progress. It also reads the pages behind the end of the log, so
that the system has allocated them when the store writes there.
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
"""Maximum bytes of log that the process may be behind before the store waits for it."""
TIMEOUT_S: Final = 5.0
"""A process that has work and sends no progress for this time counts as dead."""
AHEAD_BYTES: Final = 16 << 20
"""Bytes behind the end of the log that the process reads ahead."""
READ_AHEAD_STEP: Final = 1 << 18
"""Bytes per read of these."""
STEP_BYTES: Final = 1 << 20
"""Minimum bytes of new log for which the process is woken, unless a caller waits for the index."""

_POSITION: Final = Struct(">q")
_PROGRESS: Final = Struct(">qqqqq")
_STDIN, _STDOUT = 0, 1


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class IndexProgress(NamedTuple):
    """Progress of the index: its newest record, its newest file, and the number of entries in that file."""

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
    """The store's side of the index process. Methods return False if the process is dead."""

    def __init__(self, folder: Path, settings: StoreSettings, progress: IndexProgress) -> None:
        numbers = settings.log_segment_bytes, settings.index_slots, settings.index_entries, progress.end
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder), *map(str, numbers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # an interrupt from the terminal is for the broker, which ends this process
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._into, self._out_of = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._into, False)
        os.set_blocking(self._out_of, False)
        self.progress = progress
        """The progress that it last reported."""
        self.requested = progress.end
        """The position up to which the process should read."""
        self._sent = progress.end

    def __repr__(self) -> str:
        return f"<IndexProcess {self.pid} {self.progress.end}..{self.requested}>"

    @property
    def pid(self) -> int:
        return self._process.pid

    def request(self, position: int) -> bool:
        """Request keys up to a position, soon; wait if the process is too far behind."""
        self.requested = position
        return position - self._sent < STEP_BYTES or (self.update() and self._wait(position - LAG_BYTES_MAX))

    def catch_up(self) -> bool:
        """Wait until the process has reached the requested position."""
        return self.update() and self._wait(self.requested)

    def _wait(self, position: int) -> bool:
        while self.progress.end < position:
            ready = select.poll()
            ready.register(self._out_of, select.POLLIN)
            if self._sent != self.requested:
                ready.register(self._into, select.POLLOUT)
            if not ready.poll(TIMEOUT_S * 1000) or not self.update():
                return False
        return True

    def update(self) -> bool:
        """Send the requested position and read the progress, without waiting."""
        try:
            if self._sent != self.requested:
                with suppress(BlockingIOError):  # the pipe is full: the process has enough to read
                    os.write(self._into, _POSITION.pack(self.requested))
                    self._sent = self.requested
            with suppress(BlockingIOError):
                received = os.read(self._out_of, _PROGRESS.size * 1024)
                if not received:
                    return False
                self.progress = IndexProgress(*_PROGRESS.unpack_from(received, len(received) - _PROGRESS.size))
        except OSError:
            return False
        return True

    def end(self) -> None:
        """End the process; kill it if it does not end in time. May be called again."""
        with self._process:  # closes the pipes, which ends the process
            with suppress(OSError):
                assert self._process.stdin is not None
                self._process.stdin.close()
            try:
                self._process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def kill(self) -> None:
        """Kill the process. May be called again."""
        self._process.kill()
        self.end()


def _serve(folder: Path, segment_bytes: int, slots: int, entries: int, start: int) -> None:
    """Write keys to the index until the store closes the pipe."""
    disk = Disk()
    lock = lock_index(folder, disk)
    if lock is None or _has_ended():
        return  # the store has ended, and another one may have opened the folder
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
                # Otherwise the system reads large folios, and each small write of the store has to search one.
                os.posix_fadvise(segment.descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        return segment

    reader = KeyReader(find_segment)
    keys: list[Key] = []
    reached = wanted = prepared = start
    while (further := _read_position(wait=reached >= wanted)) is not None:
        wanted = further or wanted
        if wanted - reached < AHEAD_BYTES:  # otherwise the process is behind, and the index comes first
            prepared = _prepare(find_segment(wanted - 1), prepared, wanted)
        newest = reader.read(reached, wanted, keys)
        if newest is None:
            reached = wanted
            continue
        index.add(keys)
        while len(index.files) > 1:
            index.files.pop(0).close()  # the store owns the older files and may have removed them
        position, size, _ = newest
        os.write(_STDOUT, _PROGRESS.pack(position, size, *index.extent, index.end_ms))
        reached = position + size
        for begin in [begin for begin in segments if begin + segment_bytes <= reached]:
            segments.pop(begin).close()


def _prepare(segment: Segment, prepared: int, position: int) -> int:
    """Read the bytes that the store will write next, behind a position; return the end of the bytes read.

    The first access to a page is expensive: the system allocates it, and the host of a virtual machine as well. A read
    does this in advance.
    """
    prepared = max(prepared, position)
    stop = min(position + AHEAD_BYTES, segment.stop)
    while prepared < stop:
        segment.read(prepared - segment.start, min(READ_AHEAD_STEP, stop - prepared))
        prepared = min(prepared + READ_AHEAD_STEP, stop)
    return prepared


def _read_position(*, wait: bool) -> int | None:
    """Return the newest requested position; 0 if there is no new one, None if the store has closed the pipe."""
    if not select.select([_STDIN], [], [], None if wait else 0)[0]:
        return 0
    received = os.read(_STDIN, _POSITION.size * 1024)
    return int(_POSITION.unpack_from(received, len(received) - _POSITION.size)[0]) if received else None


def _has_ended() -> bool:
    waiting = select.poll()
    waiting.register(_STDIN, select.POLLHUP)
    return any(event & select.POLLHUP for _, event in waiting.poll(0))


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the end of the input ends this process
    try:
        _serve(Path(sys.argv[1]), *map(int, sys.argv[2:]))
    except (BrokenPipeError, StorageError):
        sys.exit(1)  # the store has ended, or will meet the same error and report it
