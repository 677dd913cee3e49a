"""One connection of a slave to its master: the bytes of the master's log, and the slave's reports.

Bytes are appended and reported as they come. Their records are dispatched in the next turn of the loop: the report,
for which senders wait, is written before.
"""

import asyncio
from typing import TYPE_CHECKING, Final, cast

from skyroute.errors import SkyrouteError
from skyroute.wire.ha import HaFrameError, TransferStream, encode_report

if TYPE_CHECKING:
    from skyroute.broker.replication.slave import HaSlave

UNDISPATCHED_BYTES_MAX: Final = 1 << 20
"""Bytes that were read since the last dispatch. With more, nothing is read until the records are dispatched."""
HEARTBEATS_MAX: Final = 1_000
"""Transfers without bytes in one read. They cost time and bring nothing."""


class HistoryError(SkyrouteError):
    """The slave's log is no beginning of its master's log: an operator has to decide which one to keep."""


class MasterLine(asyncio.Protocol):
    """A connection. It ends when the master closes it, or with a failure."""

    def __init__(self, slave: "HaSlave") -> None:
        self._slave = slave
        self._transport = cast("asyncio.Transport", None)  # asyncio sets it before anything else is called
        self._stream = TransferStream()
        self._is_paused = False
        """Whether the master does not read the reports."""
        self._dispatch: asyncio.Handle | None = None
        self._undispatched = 0
        """Bytes that were read since the last dispatch."""
        self._has_read = False
        self.ended = asyncio.Event()
        self.failure: Exception | None = None
        """Why this slave does not follow on this connection; None if the master has closed it."""

    def __repr__(self) -> str:
        return f"<MasterLine {'ended' if self.ended.is_set() else 'open'} undispatched={self._undispatched}>"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.report()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self.report()

    def report(self) -> None:
        """Report the end of the log, unless the master has not read the reports before."""
        if not (self._is_paused or self._transport.is_closing()):
            self._transport.write(encode_report(self._slave.note_report()))

    def data_received(self, data: bytes) -> None:
        if self.ended.is_set():
            return
        self._has_read = True
        self._slave.note_read(len(data))
        try:
            has_appended = self._append(data)
        except Exception as error:  # noqa: BLE001 - the task that follows the master raises it again
            self._end(error)
            return
        if not has_appended:
            return
        self.report()
        self._undispatched += len(data)
        if self._dispatch is None:
            self._dispatch = asyncio.get_running_loop().call_soon(self._dispatch_step)
        if self._undispatched > UNDISPATCHED_BYTES_MAX:
            self._transport.pause_reading()

    def _append(self, data: bytes) -> bool:
        """Append what was read of the master's log; return whether there was any."""
        store = self._slave.store
        expected = store.max_position
        may_begin = expected == store.min_position
        """Whether the log is empty: it may begin at any position."""
        start, heartbeats = expected, 0
        parts: list[memoryview] = []
        for position, part in self._stream.feed(data):
            if position != expected and not may_begin:
                raise HistoryError(
                    f"the master sends {len(part)} bytes at {position}, and this slave's log ends at {expected}: "
                    "nothing was changed"
                )
            if part:
                if not parts:
                    start, may_begin = position, False
                parts.append(part)
                expected = position + len(part)
            elif (heartbeats := heartbeats + 1) > HEARTBEATS_MAX:
                raise HaFrameError(f"more than {HEARTBEATS_MAX} heartbeats at once (expected one in seconds)")
        if parts:
            store.append_raw(start, b"".join(parts))
        self._slave.note_master_end(expected)
        return bool(parts)

    def _dispatch_step(self) -> None:
        """Make some whole records visible."""
        self._dispatch = None
        try:
            has_more = self._slave.dispatch()
        except Exception as error:  # noqa: BLE001 - the task that follows the master raises it again
            self._end(error)
            return
        if has_more:
            self._dispatch = asyncio.get_running_loop().call_soon(self._dispatch_step)
            return
        if self._undispatched > UNDISPATCHED_BYTES_MAX:
            self._transport.resume_reading()
        self._undispatched = 0

    def _end(self, failure: Exception | None) -> None:
        if not self.ended.is_set():
            self.failure = failure
            self.ended.set()

    @property
    def was_lost(self) -> bool:
        """Whether the master has sent, and this slave could have followed it further."""
        return self._has_read and (self.failure is None or isinstance(self.failure, OSError))

    def close(self) -> None:
        """Close the connection. What was appended is still dispatched."""
        self.ended.set()
        if self._transport is not None:
            self._transport.abort()

    def cancel_dispatch(self) -> None:
        """Dispatch nothing more: the store is about to be closed, which notes where the dispatch continues."""
        if self._dispatch is not None:
            self._dispatch.cancel()
