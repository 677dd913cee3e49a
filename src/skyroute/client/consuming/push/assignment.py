"""Takes queues at a rebalance and hands them over: start offsets, locks, and the last commit.

A queue is in one of three states: not assigned; assigned (in `queues`); or being handed over, while handlers finish,
the offset is committed and the lock is released. Only after that can it be taken again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from skyroute.client.consuming import queue_calls as calls
from skyroute.client.consuming.membership import GroupMembership
from skyroute.client.consuming.offset_store import OffsetStore
from skyroute.client.consuming.push import queue_locks
from skyroute.client.consuming.push.process_queue import LOCK_KEPT_S, ProcessQueue
from skyroute.client.consuming.push.settings import ConsumerSettings
from skyroute.client.consuming.push.statistics import ConsumeStatistics
from skyroute.client.consuming.push.subscriptions import Subscriptions
from skyroute.client.errors import NoRouteError
from skyroute.client.session.session import Session
from skyroute.errors import SkyrouteError
from skyroute.message.queue_ref import QueueRef
from skyroute.remoting.log_backoff import LogBackoff

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RebalanceResult:
    """What one rebalance changed."""

    is_balanced: bool
    """Whether the consumer has exactly its share."""
    changed_topics: tuple[str, ...]
    """Topics whose assigned queues changed."""
    taken: tuple[ProcessQueue, ...]
    """New queues, which the caller starts to pull."""


class PushAssignment:
    """The queues of one push consumer."""

    def __init__(
        self,
        session: Session,
        settings: ConsumerSettings,
        subscriptions: Subscriptions,
        offsets: OffsetStore,
        membership: GroupMembership,
        *,
        on_handed_over: Callable[[], None],
        on_locked: Callable[[ProcessQueue], None],
    ) -> None:
        """Prepare. `on_locked` is called when a queue's lock was renewed, so that it can be consumed again."""
        self._session = session
        self._settings = settings
        self._subscriptions = subscriptions
        self._offsets = offsets
        self._membership = membership
        self._on_handed_over = on_handed_over
        self._on_locked = on_locked
        self._monotonic = session.clock.monotonic
        self.queues: dict[QueueRef, ProcessQueue] = {}
        self._handovers: dict[QueueRef, asyncio.Task[None]] = {}
        self._locked: set[QueueRef] = set()
        """Queues that brokers may have locked for this member, including queues that were never taken."""
        self._statistics: dict[str, ConsumeStatistics] = {}
        self._unknown_starts = LogBackoff()
        self._failed_locks = LogBackoff()

    def statistics(self, topic: str) -> ConsumeStatistics:
        """Return the counters of a topic."""
        found = self._statistics.get(topic)
        if found is None:
            found = self._statistics[topic] = ConsumeStatistics(self._monotonic())
        return found

    # ----------------------------------------------------------------------------------------------------- rebalance

    async def rebalance(self) -> RebalanceResult:
        """Release the queues that are no longer in this member's share, and take the new ones."""
        topics = self._subscriptions.topics
        shares = dict(zip(topics, await asyncio.gather(*map(self._share_of, topics)), strict=True))
        changed: set[str] = set()
        for queue in list(self.queues.values()):
            share = shares.get(queue.ref.topic, frozenset())
            if share is not None and queue.ref not in share:
                self.release(queue)
                changed.add(queue.ref.topic)
        missing = [ref for share in shares.values() for ref in sorted(share or ()) if ref not in self.queues]
        if unused := self._locked.difference(self.queues, self._handovers, missing):
            await queue_locks.unlock(self._session, self._settings.group, unused)
            self._locked -= unused
        taken = await self._take([ref for ref in missing if ref not in self._handovers])
        changed.update(queue.ref.topic for queue in taken)
        is_known = all(share is not None for share in shares.values())
        return RebalanceResult(is_known and len(taken) == len(missing), tuple(sorted(changed)), tuple(taken))

    async def _share_of(self, topic: str) -> frozenset[QueueRef] | None:
        try:
            return await self._membership.share_of(topic)
        except NoRouteError:  # a retry topic exists only after the first retry; a new route starts a rebalance
            return frozenset(ref for ref in self.queues if ref.topic == topic)

    # ---------------------------------------------------------------------------------------------------------- take

    async def _take(self, refs: list[QueueRef]) -> list[ProcessQueue]:
        locked_at: float | None = None
        if self._settings.locks and refs:
            locked_at = self._monotonic()  # before the request, so that our lock expires before the broker's
            self._locked.update(refs)  # before the request: the broker may lock them, and its response get lost
            outcome = await queue_locks.lock(self._session, self._settings.group, refs, self._failed_locks)
            for ref in refs:
                if not outcome.get(ref):
                    log.info("queue not locked yet group=%s queue=%s", self._settings.group, ref)
            self._locked.difference_update(ref for ref, is_ours in outcome.items() if not is_ours)
            refs = [ref for ref in refs if outcome.get(ref)]
        elif self._membership.has_other_members and refs:
            # The former owner learns of the change when we do, and commits. A locked queue is committed already.
            await asyncio.sleep(self._settings.intervals.takeover_delay_s)
        starts = await asyncio.gather(*map(self._start_offset, refs))
        taken = []
        for ref, start in zip(refs, starts, strict=True):
            if start is not None and ref not in self.queues:
                self.queues[ref] = queue = ProcessQueue(ref, start, self.statistics(ref.topic), locked_at)
                taken.append(queue)
                log.info("queue taken group=%s queue=%s offset=%d", self._settings.group, ref, start)
        return taken

    async def _start_offset(self, ref: QueueRef) -> int | None:
        self._offsets.forget(ref)
        try:
            offset = await self._offsets.read(ref)
            return await calls.start_offset(self._session, ref, self._settings.start) if offset is None else offset
        except SkyrouteError as error:
            suppressed = self._unknown_starts.suppressed(str(ref), self._monotonic())
            if suppressed is not None:
                log.warning(
                    "start offset not known group=%s queue=%s reason=%s suppressed=%d",
                    *(self._settings.group, ref, error, suppressed),
                )
            return None

    # ------------------------------------------------------------------------------------------------------- release

    def release(self, queue: ProcessQueue, *, move_to: int | None = None, is_lost: bool = False) -> None:
        """Hand a queue over in the background. Messages that no handler has started are left to the next owner.

        With `move_to`, that offset is committed instead of the processed one. With `is_lost`, another member already
        has the queue, and nothing is committed.
        """
        if self.queues.get(queue.ref) is not queue:
            return
        del self.queues[queue.ref]
        queue.is_released = True
        queue.buffer.drop_waiting()
        work = self._hand_over(queue, move_to=move_to, is_lost=is_lost)
        task = self._session.spawn(work, name=f"handover of {queue.ref}")
        self._handovers[queue.ref] = task
        task.add_done_callback(lambda _: self._handed_over(queue.ref))

    def release_topic(self, topic: str) -> None:
        """Release all queues of a topic."""
        for queue in list(self.queues.values()):
            if queue.ref.topic == topic:
                self.release(queue)

    def _handed_over(self, ref: QueueRef) -> None:
        self._handovers.pop(ref, None)
        self._on_handed_over()

    async def _hand_over(self, queue: ProcessQueue, *, move_to: int | None, is_lost: bool) -> None:
        await self.stop_pulling([queue])
        ref, settings = queue.ref, self._settings
        if move_to is None and not is_lost and not settings.ordered:
            # The next owner may read the offset before our handlers have finished.
            await self._commit([queue])
        intervals = settings.intervals
        wait_s = intervals.ordered_handover_s if settings.ordered else intervals.handover_s
        if settings.ordered or move_to is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await queue.until(lambda: queue.running == 0)
        if not is_lost:
            offset = queue.buffer.commit_offset if move_to is None else move_to
            self._offsets.update(ref, offset, only_forward=False)
            await self._offsets.persist([ref], wait=True)
            if settings.locks:
                await queue_locks.unlock(self._session, settings.group, [ref])
        self._locked.discard(ref)
        self._offsets.forget(ref)
        log.info("queue released group=%s queue=%s running=%d", settings.group, ref, queue.running)

    async def stop_pulling(self, queues: Iterable[ProcessQueue]) -> None:
        """Stop the pull loops of queues, and start no handler with their messages."""
        pullers = []
        for queue in queues:
            queue.buffer.drop_waiting()
            if queue.puller is not None:
                queue.puller.cancel()
                pullers.append(queue.puller)
        await asyncio.gather(*pullers, return_exceptions=True)

    async def close(self) -> None:
        """Commit all queues and release their locks. Pulling and handling have ended before."""
        handovers = list(self._handovers.values())
        if handovers:
            await asyncio.wait(handovers, timeout=self._settings.intervals.handover_s)
        await self._commit(list(self.queues.values()), wait=True)
        await queue_locks.unlock(self._session, self._settings.group, self._locked)
        self._locked.clear()
        self.queues.clear()

    def abandon(self) -> None:
        """Cancel what `close` has not finished."""
        for queue in self.queues.values():
            if queue.puller is not None:
                queue.puller.cancel()
        for task in self._handovers.values():
            task.cancel()

    # ------------------------------------------------------------------------------------------------- periodic work

    def sample(self, now: float) -> None:
        """Take a sample of all counters."""
        for statistics in self._statistics.values():
            statistics.sample(now)

    async def commit(self) -> None:
        """Commit the processed offsets of all queues."""
        await self._commit(list(self.queues.values()))

    async def _commit(self, queues: list[ProcessQueue], *, wait: bool = False) -> None:
        for queue in queues:
            self._offsets.update(queue.ref, queue.buffer.commit_offset)
        await self._offsets.persist([queue.ref for queue in queues], wait=wait)

    async def renew_locks(self) -> None:
        """Renew the locks of all queues, and release queues whose lock another member has."""
        queues = list(self.queues.values())
        now = self._monotonic()
        refs = [queue.ref for queue in queues]
        outcome = await queue_locks.lock(self._session, self._settings.group, refs, self._failed_locks)
        for queue in queues:
            is_ours = outcome.get(queue.ref)
            if is_ours is None or queue.is_released:
                continue
            if not is_ours or (queue.locked_at is not None and now - queue.locked_at > LOCK_KEPT_S):
                # Another member has it, or may have had it after our lock expired: our buffer is outdated.
                log.warning("queue lost group=%s queue=%s", self._settings.group, queue.ref)
                queue.locked_at = None
                self.release(queue, is_lost=True)
                continue
            queue.locked_at = now
            self._on_locked(queue)
            queue.changed()
