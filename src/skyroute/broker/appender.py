"""Appends messages to the store, redirects delayed messages, and wakes long polls."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from skyroute.broker.delivery.flush_wait import Flushed, Flushing
from skyroute.broker.delivery.long_polling import LongPolling
from skyroute.broker.stats import Stats
from skyroute.broker.store.draft import Appended, AppendedBatch, Draft
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.prepared_batch import PreparedBatch
from skyroute.files.errors import FileWriteError
from skyroute.message.batch import RawItem

if TYPE_CHECKING:  # they deliver through the appender
    from skyroute.broker.scheduling.delay_levels import DelayLevels
    from skyroute.broker.scheduling.timers import Timers

_LEVEL_MARK: Final = b"DELAY\x01"
_TIMER_MARK: Final = b"TIMER_"
"""Parts of the properties of delayed messages. `in` would take three times as long as `find`."""


class Appender:
    """The only writer of the store."""

    def __init__(
        self,
        store: MessageStore,
        *,
        long_polling: LongPolling,
        flushing: Flushing,
        stats: Stats,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._flushing = flushing
        self._long_polling = long_polling
        self._stats = stats
        self._delays: DelayLevels | None = None
        self._timers: Timers | None = None
        self.waits_for_disk = store.settings.sync_flush
        """A response waits until the message is on the disk: see `when_flushed`."""
        self.now_ms = now_ms

    def use(self, delays: "DelayLevels", timers: "Timers") -> None:
        """Set the delay levels and timers, which are constructed with this appender."""
        self._delays, self._timers = delays, timers

    def put(self, draft: Draft) -> Appended:
        """Store a message, or schedule it if it has a delay.

        Raises:
            RefusedError: its delay is not allowed.
            StorageError: nothing was stored.
        """
        return self.put_plain(self.schedule(draft))

    def schedule(self, draft: Draft) -> Draft:
        """Return the message to store: the message itself, or its form for the schedule or timer topic.

        Raises:
            RefusedError: its delay is not allowed.
        """
        scheduled = draft
        if self._delays is not None and draft.raw_properties.find(_LEVEL_MARK) >= 0:
            scheduled = self._delays.schedule(draft)
        if scheduled is draft and self._timers is not None and draft.raw_properties.find(_TIMER_MARK) >= 0:
            scheduled = self._timers.schedule(draft, self.now_ms())
        return scheduled

    def put_plain(self, draft: Draft) -> Appended:
        """Store a message without looking at its delay.

        Raises:
            StorageError: nothing was stored.
        """
        appended = self._store.append(draft, self.now_ms())
        if self.waits_for_disk:
            self._flushing.flush_soon()
        self._stats.stored(draft.topic, 1, appended.record_bytes)
        self._long_polling.arrived(draft.topic, draft.queue_id)
        return appended

    def put_batch(self, draft: Draft, items: Sequence[RawItem]) -> AppendedBatch:
        """Store a batch as one record per message. Each takes everything but its content from the draft.

        Raises:
            StorageError: nothing was stored.
        """
        appended = self._store.append_batch(draft, items, self.now_ms())
        if self.waits_for_disk:
            self._flushing.flush_soon()
        self._stats.stored(draft.topic, len(items), appended.log_end - appended.log_positions[0])
        self._long_polling.arrived(draft.topic, draft.queue_id)
        return appended

    def prepare_batch(self, draft: Draft) -> PreparedBatch:
        """Return an empty long batch, which is encoded in steps; all but the content of its messages is the draft's.

        Raises:
            StorageError, RecordError: such messages cannot be stored.
        """
        return self._store.prepare_batch(draft)

    def put_prepared(self, batch: PreparedBatch) -> AppendedBatch:
        """Store a long batch with one write. `dispatch_step` then completes what follows from it.

        Raises:
            StorageError: nothing was stored.
        """
        appended = self._store.append_prepared(batch, self.now_ms())
        if self.waits_for_disk:
            self._flushing.flush_soon()
        self._stats.stored(batch.draft.topic, len(appended.log_positions), len(batch.records))
        self._long_polling.arrived(batch.draft.topic, batch.draft.queue_id)
        return appended

    def dispatch_step(self) -> bool:
        """Write some of what follows from stored messages to files; return whether there is more."""
        return self._store.dispatch_step()

    def put_inner_batch(self, draft: Draft, messages: int) -> Appended:
        """Store a batch of `messages` messages as one record.

        Raises:
            StorageError, RecordError: nothing was stored.
        """
        appended = self._store.append_inner_batch(draft, messages, self.now_ms())
        self._stats.stored(draft.topic, messages, appended.record_bytes)
        self._long_polling.arrived(draft.topic, draft.queue_id)
        return appended

    def disk_used(self) -> float:
        """Return the used share of the disk, from 0 to 1."""
        return self._store.disk_used()

    def when_flushed(self, log_end: int, then: Callable[[Flushed], None]) -> None:
        """Call `then` once the log is flushed up to this position, or the flush fails."""
        self._flushing.wait_for(log_end, then)

    def until_flushed(self, appended: Appended) -> Awaitable[None] | None:
        """Return an awaitable for the flush of a message; None if responses do not wait for the disk."""
        return self._wait_for_flush(appended) if self.waits_for_disk else None

    async def _wait_for_flush(self, appended: Appended) -> None:
        flushed: asyncio.Future[Flushed] = asyncio.get_running_loop().create_future()

        def complete(outcome: Flushed) -> None:
            if not flushed.done():
                flushed.set_result(outcome)

        self.when_flushed(appended.log_end, complete)
        outcome = await flushed
        if outcome is not Flushed.DONE:
            raise FileWriteError(f"record at {appended.log_position} is not on the disk: flush {outcome.name.lower()}")
