"""Gives a pull consumer its queues at a rebalance, and commits the offsets of queues that it gives up."""

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from skyroute.client.consuming.membership import GroupMembership
from skyroute.client.consuming.offset_store import BrokerOffsets
from skyroute.client.consuming.pull.prefetch import Prefetch, QueueReader
from skyroute.client.errors import NoRouteError
from skyroute.client.namespaces import queue_without_namespace
from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.clients import Subscription

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AssignmentChange:
    """Queues that a rebalance assigned to this consumer, and queues that it removed."""

    added: frozenset[QueueRef]
    removed: frozenset[QueueRef]


OnAssignmentChanged = Callable[[AssignmentChange], Awaitable[None] | None]


class PullAssignment:
    """The queues of one pull consumer: which ones it reads, and how far the application has processed each."""

    def __init__(
        self,
        group: str,
        namespace: str | None,
        subscriptions: Mapping[str, Subscription],
        prefetch: Prefetch,
        offsets: BrokerOffsets,
        *,
        auto_commit: bool,
        on_changed: OnAssignmentChanged | None,
    ) -> None:
        self._group = group
        self._namespace = namespace
        self._subscriptions = subscriptions
        self._prefetch = prefetch
        self._offsets = offsets
        self.auto_commit = auto_commit
        self._on_changed = on_changed

    async def rebalance(self, membership: GroupMembership, is_running: Callable[[], bool]) -> bool:
        """Take this member's share of all subscribed topics, and return whether all shares are known."""
        is_balanced = True
        share: set[QueueRef] = set()
        for topic in list(self._subscriptions):
            try:
                mine = await membership.share_of(topic)
            except NoRouteError:
                mine = None
            if mine is None:  # keep what we have
                is_balanced = False
                mine = frozenset(queue for queue in self._prefetch.readers if queue.topic == topic)
            share |= mine
        await self._change(share, is_running)
        return is_balanced

    async def _change(self, share: set[QueueRef], is_running: Callable[[], bool]) -> None:
        readers = self._prefetch.readers
        added, removed = share - readers.keys(), [readers[queue] for queue in readers.keys() - share]
        if not added and not removed:
            return
        log.info("assignment changed group=%s added=%d removed=%d", self._group, len(added), len(removed))
        for reader in removed:
            reader.stop()
        await self._notify_application(added, removed)
        if not is_running():
            return  # the application has stopped the consumer, which committed everything
        for reader in removed:
            self._prefetch.drop(reader)
        if self.auto_commit:
            # The next owner starts at this offset: the earlier the commit, the fewer messages are read twice.
            await self.commit_processed(removed, wait=True)
        for reader in removed:
            self._offsets.forget(reader.queue)
        for queue in sorted(added):
            subscription = self._subscriptions.get(queue.topic)
            if subscription is not None:  # else unsubscribed meanwhile
                self._prefetch.add(queue, subscription, is_shared=True)

    async def _notify_application(self, added: Iterable[QueueRef], removed: Iterable[QueueReader]) -> None:
        if self._on_changed is None:
            return
        change = AssignmentChange(
            frozenset(queue_without_namespace(self._namespace, queue) for queue in added),
            frozenset(queue_without_namespace(self._namespace, reader.queue) for reader in removed),
        )
        try:
            outcome = self._on_changed(change)
            if inspect.isawaitable(outcome):
                await outcome
        except Exception:
            log.exception("on_assignment_changed failed group=%s", self._group)

    async def commit_processed(self, readers: Iterable[QueueReader], *, wait: bool) -> None:
        """Commit how far each queue was processed. A failure is logged, and the next commit includes the offset."""
        queues = []
        for reader in readers:
            offset = reader.processed
            if offset is not None:
                self._offsets.update(reader.queue, offset, only_forward=False)
                queues.append(reader.queue)
        await self._offsets.persist(queues, wait=wait)
