"""Which queues are ours: finds out our share, takes queues over and hands them over.

A queue is always in one of three states: not ours; ours (`owned`); or on its way out, while handlers finish, the offset
is committed and the lock is given back. Only then can it be taken again.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from skyroute.client.consuming import queues as calls
from skyroute.client.consuming.offset_store import OffsetStore
from skyroute.client.consuming.push import queue_locks
from skyroute.client.consuming.push.owned_queue import LOCK_KEPT_S, OwnedQueue
from skyroute.client.consuming.push.settings import ConsumerSettings
from skyroute.client.consuming.push.statistics import ConsumeStatistics
from skyroute.client.consuming.push.subscriptions import Subscriptions
from skyroute.client.errors import NoRouteError
from skyroute.client.producing.queue_selection import subscribe_queues
from skyroute.client.session.session import Session
from skyroute.errors import SkyrouteError
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import is_retry_topic
from skyroute.remoting.log_backoff import LogBackoff

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Balance:
    """What came of a round."""

    is_balanced: bool
    """We have just the queues that are ours."""
    changed: tuple[str, ...]
    """Topics of which we have other queues than before."""
    taken: tuple[OwnedQueue, ...]
    """Queues to begin with."""


class Ownership:
    """The queues of one consumer."""

    def __init__(
        self,
        session: Session,
        settings: ConsumerSettings,
        subscriptions: Subscriptions,
        offsets: OffsetStore,
        *,
        on_handed_over: Callable[[], None],
        on_locked: Callable[[OwnedQueue], None],
    ) -> None:
        """Set it up. `on_locked` hears of a queue that may be consumed again."""
        self._session = session
        self._settings = settings
        self._subscriptions = subscriptions
        self._offsets = offsets
        self._on_handed_over = on_handed_over
        self._on_locked = on_locked
        self._monotonic = session.clock.monotonic
        self.owned: dict[QueueRef, OwnedQueue] = {}
        self._leaving: dict[QueueRef, asyncio.Task[None]] = {}
        self._locked: set[QueueRef] = set()
        """What brokers have locked for us, whether or not we came to take it."""
        self._tallies: dict[str, ConsumeStatistics] = {}
        self._has_company = False
        self._unknown_starts = LogBackoff()
        self._unknown_shares = LogBackoff()

    def tally(self, topic: str) -> ConsumeStatistics:
        """Return the counters of a topic."""
        found = self._tallies.get(topic)
        if found is None:
            found = self._tallies[topic] = ConsumeStatistics(self._monotonic())
        return found

    # ----------------------------------------------------------------------------------------------------- our share

    async def balance(self) -> Balance:
        """Find out which queues are ours, let go of the others, and take those we do not have yet.

        Taken queues are in `owned`; that somebody begins to fetch them is for the caller to see to.
        """
        topics = self._subscriptions.topics
        shares = dict(zip(topics, await asyncio.gather(*map(self._share, topics)), strict=True))
        changed: set[str] = set()
        for owned in list(self.owned.values()):
            share = shares.get(owned.queue.topic, frozenset())
            if share is not None and owned.queue not in share:
                self.release(owned)
                changed.add(owned.queue.topic)
        missing = [q for share in shares.values() for q in sorted(share or ()) if q not in self.owned]
        taken = await self._take([queue for queue in missing if queue not in self._leaving])
        changed.update(owned.queue.topic for owned in taken)
        is_known = all(share is not None for share in shares.values())
        return Balance(is_known and len(taken) == len(missing), tuple(sorted(changed)), tuple(taken))

    async def _share(self, topic: str) -> frozenset[QueueRef] | None:
        """Return which queues of a topic are ours; None where that cannot be known now, and all stays as it is."""
        try:
            queues = subscribe_queues(topic, await self._session.routes.find(topic))
            if not self._settings.shares:
                return frozenset(queues)
            if not queues:
                self._complain("share not known", topic, "no queue of the topic can be read")
                return None
            members = await calls.members(self._session, self._settings.group, topic)
            if self._session.client_id not in members:
                # The broker was restarted, perhaps: it must not cost us our queues that it has not heard of us yet.
                await self._session.send_heartbeats()
                members = await calls.members(self._session, self._settings.group, topic)
            self._has_company = len(set(members)) > 1
            share = self._settings.strategy(self._session.client_id, queues, members)
        except NoRouteError as error:
            if not is_retry_topic(topic):
                self._complain("topic not found", topic, error)
            return frozenset(queue for queue in self.owned if queue.topic == topic)
        except SkyrouteError as error:
            self._complain("share not known", topic, error)
            return None
        except Exception:
            log.exception("strategy failed group=%s topic=%s", self._settings.group, topic)
            return None
        self._unknown_shares.works_again(topic)
        return frozenset(queues).intersection(share)

    def _complain(self, phrase: str, topic: str, cause: SkyrouteError | str) -> None:
        unsaid = self._unknown_shares.unsaid(topic, self._monotonic())
        if unsaid is not None:
            log.warning("%s group=%s topic=%s cause=%s unsaid=%d", phrase, self._settings.group, topic, cause, unsaid)

    # -------------------------------------------------------------------------------------------------------- taking

    async def _take(self, queues: list[QueueRef]) -> list[OwnedQueue]:
        locked_at: float | None = None
        if self._settings.locks and queues:
            locked_at = self._monotonic()  # before asking: the broker's time begins later
            outcome = await queue_locks.lock(self._session, self._settings.group, queues)
            for queue in queues:
                if not outcome.get(queue):
                    log.info("queue not locked yet group=%s queue=%s", self._settings.group, queue)
            queues = [queue for queue in queues if outcome.get(queue)]
            self._locked.update(queues)
        elif self._has_company and queues:
            # Whoever had them hears of the change when we do. A locked queue was committed before it was unlocked.
            await asyncio.sleep(self._settings.pace.settle_s)
        starts = await asyncio.gather(*map(self._start_offset, queues))
        taken = []
        for queue, start in zip(queues, starts, strict=True):
            if start is not None and queue not in self.owned:
                self.owned[queue] = owned = OwnedQueue(queue, start, self.tally(queue.topic), locked_at)
                taken.append(owned)
                log.info("queue taken group=%s queue=%s offset=%d", self._settings.group, queue, start)
        return taken

    async def _start_offset(self, queue: QueueRef) -> int | None:
        self._offsets.forget(queue)
        try:
            offset = await self._offsets.read(queue)
            return await calls.start_offset(self._session, queue, self._settings.start) if offset is None else offset
        except SkyrouteError as error:
            unsaid = self._unknown_starts.unsaid(str(queue), self._monotonic())
            if unsaid is not None:
                log.warning(
                    "start not known group=%s queue=%s cause=%s unsaid=%d", self._settings.group, queue, error, unsaid
                )
            return None

    # -------------------------------------------------------------------------------------------------- handing over

    def release(self, owned: OwnedQueue, *, move_to: int | None = None, is_lost: bool = False) -> None:
        """Let go of a queue, in the background. What no handler has begun is left to whoever has it next.

        With `move_to` the group goes on from there, whatever was consumed. A queue that `is_lost` is another's
        already: nothing is said about it any more.
        """
        if self.owned.get(owned.queue) is not owned:
            return
        del self.owned[owned.queue]
        owned.is_released = True
        owned.backlog.drop_waiting()
        work = self._hand_over(owned, move_to=move_to, is_lost=is_lost)
        task = self._session.spawn(work, name=f"hand-over of {owned.queue}")
        self._leaving[owned.queue] = task
        task.add_done_callback(lambda _: self._left(owned.queue))

    def release_topic(self, topic: str) -> None:
        """Let go of all queues of a topic."""
        for owned in list(self.owned.values()):
            if owned.queue.topic == topic:
                self.release(owned)

    def _left(self, queue: QueueRef) -> None:
        self._leaving.pop(queue, None)
        self._on_handed_over()

    async def _hand_over(self, owned: OwnedQueue, *, move_to: int | None, is_lost: bool) -> None:
        await self.stop_fetching([owned])
        queue, settings = owned.queue, self._settings
        if move_to is None and not is_lost and not settings.ordered:
            # Whoever is next may ask before our handlers are done.
            await self._persist([owned])
        wait_s = settings.pace.ordered_handover_s if settings.ordered else settings.pace.handover_s
        if settings.ordered or move_to is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await owned.until(lambda: owned.running == 0)
        if not is_lost:
            offset = owned.backlog.commit_offset if move_to is None else move_to
            self._offsets.update(queue, offset, only_forward=False)
            await self._offsets.persist([queue], wait=True)
            if settings.locks:
                await queue_locks.unlock(self._session, settings.group, [queue])
        self._locked.discard(queue)
        self._offsets.forget(queue)
        log.info("queue released group=%s queue=%s running=%d", settings.group, queue, owned.running)

    async def stop_fetching(self, queues: Iterable[OwnedQueue]) -> None:
        """Fetch nothing more of these, and let none of their messages be begun."""
        fetchers = []
        for owned in queues:
            owned.backlog.drop_waiting()
            if owned.fetcher is not None:
                owned.fetcher.cancel()
                fetchers.append(owned.fetcher)
        await asyncio.gather(*fetchers, return_exceptions=True)

    async def close(self) -> None:
        """Commit what was consumed and give back the locks. Nothing is fetched or handled any more."""
        leaving = list(self._leaving.values())
        if leaving:
            await asyncio.wait(leaving, timeout=self._settings.pace.handover_s)
        queues = list(self.owned.values())
        await self._persist(queues, wait=True)
        await queue_locks.unlock(self._session, self._settings.group, self._locked)
        self._locked.clear()
        self.owned.clear()

    def abandon(self) -> None:
        """End at once: `close` was not waited for, or not long enough."""
        for owned in self.owned.values():
            if owned.fetcher is not None:
                owned.fetcher.cancel()
        for task in self._leaving.values():
            task.cancel()

    # ------------------------------------------------------------------------------------------------------- upkeep

    def sample(self, now: float) -> None:
        """Remember how fast we are."""
        for tally in self._tallies.values():
            tally.sample(now)

    async def persist(self) -> None:
        """Have it kept how far we have come."""
        await self._persist(list(self.owned.values()))

    async def _persist(self, queues: list[OwnedQueue], *, wait: bool = False) -> None:
        for owned in queues:
            self._offsets.update(owned.queue, owned.backlog.commit_offset)
        await self._offsets.persist([owned.queue for owned in queues], wait=wait)

    async def renew_locks(self) -> None:
        """Stay the only one who has the queues, and let go of those that another has got."""
        queues = list(self.owned.values())
        now = self._monotonic()
        outcome = await queue_locks.lock(self._session, self._settings.group, [owned.queue for owned in queues])
        for owned in queues:
            is_ours = outcome.get(owned.queue)
            if is_ours is None or owned.is_released:
                continue
            if not is_ours or (owned.locked_at is not None and now - owned.locked_at > LOCK_KEPT_S):
                # Somebody else has it, or may have had it for a while: what we know of it is old.
                log.warning("queue lost group=%s queue=%s", self._settings.group, owned.queue)
                owned.locked_at = None
                self.release(owned, is_lost=True)
                continue
            owned.locked_at = now
            self._on_locked(owned)
            owned.changed()
