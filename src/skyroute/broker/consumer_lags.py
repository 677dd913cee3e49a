"""The lag of every group in every topic, for metrics.

A topic may have 65,536 queues, and a broker 1,000,000 offsets. So each queue with messages is read once, and each
offset once, in steps; queues of a topic in which a group has no offset are not read again for that group.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from skyroute.broker.components import Components
from skyroute.message.reserved_topics import is_system_group

VISITED_PER_TURN: Final = 500
"""Queues and offsets that are read per turn of the loop, which takes about 2 ms."""


class Lag(NamedTuple):
    """The lag of a group in a topic."""

    group: str
    topic: str
    messages: int
    """Messages that are not committed."""
    inflight: int
    """Messages of these that were pulled."""


@dataclass(slots=True)
class _TopicQueues:
    """The queues of a topic that have messages."""

    ids: list[int] = field(default_factory=list)
    messages: int | None = None
    """Messages in the log; None until they are counted."""
    oldest: list[tuple[int, int]] | None = None
    """Store time of the oldest message and queue id, oldest first; None until they are read."""


class ConsumerLags:
    """Reads lags once: each number is of the time at which it is read."""

    def __init__(self, components: Components) -> None:
        self._components = components
        self._queues: dict[str, _TopicQueues] = {}
        self._visited = 0

    async def find(self) -> list[Lag]:
        """Return the lag of every group in every topic in which it has an offset."""
        components = self._components
        for topic, queue_id in components.store.queues():
            self._queues.setdefault(topic, _TopicQueues()).ids.append(queue_id)
            await self._pause()
        lags: list[Lag] = []
        for group, topic in components.offsets.pairs():
            await self._pause()
            config = components.topics.get(topic)
            if config is not None and not is_system_group(group):
                lags.append(await self._lag(group, topic, config.read_queues))
        return lags

    async def _pause(self) -> None:
        """Let other tasks run after some visits."""
        self._visited += 1
        if self._visited % VISITED_PER_TURN == 0:
            await asyncio.sleep(0)

    async def _lag(self, group: str, topic: str, read_queues: int) -> Lag:
        components, store = self._components, self._components.store
        messages, inflight = await self._count(topic, read_queues), 0
        for queue_id in components.offsets.queues_of(group, topic):
            await self._pause()
            if queue_id < read_queues:
                offset, behind = self._behind(group, topic, queue_id)
                pulled = components.offsets.pulled(group, topic, queue_id) or 0
                messages -= offset - store.min_offset(topic, queue_id)
                inflight += min(max(pulled - offset, 0), behind)
        messages = max(messages, 0)  # some may have arrived, and been consumed, since all were counted
        inflight = min(inflight, messages)
        # The committed offset of a POP group is behind messages in flight, or before them if they are in memory.
        if popped := components.in_flight.count(group, topic):
            messages, inflight = messages - inflight + popped, popped
        # That of an ordered group is at the first message in flight.
        if ordered := components.ordered_queues.in_flight(topic, group):
            inflight = min(ordered, messages)
        return Lag(group, topic, messages, inflight)

    async def _count(self, topic: str, read_queues: int) -> int:
        """Return the messages of a topic that the log has."""
        queues, store = self._queues.get(topic), self._components.store
        if queues is None:
            return 0
        if queues.messages is None:
            count = 0
            for queue_id in queues.ids:
                await self._pause()
                if queue_id < read_queues:
                    count += store.max_offset(topic, queue_id) - store.min_offset(topic, queue_id)
            queues.messages = count
        return queues.messages

    def _behind(self, group: str, topic: str, queue_id: int) -> tuple[int, int]:
        """Return the offset of a group in a queue, within the queue, and the number of messages from there on."""
        store = self._components.store
        low, high = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        offset = min(max(self._components.offsets.get(group, topic, queue_id) or 0, low), max(low, high))
        return offset, max(high - offset, 0)

    async def ages_ms(self, lags: Iterable[Lag]) -> list[int]:
        """Return the age of the oldest message that is not committed, for each lag."""
        return [await self._age_ms(lag) if lag.messages else 0 for lag in lags]

    async def _age_ms(self, lag: Lag) -> int:
        components, topic = self._components, lag.topic
        config, now_ms = components.topics.get(topic), int(components.clock.wall() * 1000)
        read_queues = 0 if config is None else config.read_queues
        oldest_ms, known = now_ms, components.offsets.queues_of(lag.group, topic)
        for queue_id in known:
            await self._pause()
            offset, behind = self._behind(lag.group, topic, queue_id)
            if behind and queue_id < read_queues:
                oldest_ms = min(oldest_ms, components.store.stored_at_ms(topic, queue_id, offset) or now_ms)
        for stored_ms, queue_id in await self._oldest(topic):
            await self._pause()
            if queue_id < read_queues and queue_id not in known:
                oldest_ms = min(oldest_ms, stored_ms)
                break
        return now_ms - oldest_ms

    async def _oldest(self, topic: str) -> list[tuple[int, int]]:
        """Return the store time of the oldest message of each queue of a topic, oldest first, with the queue's id."""
        queues = self._queues.get(topic)
        if queues is None:
            return []
        if queues.oldest is None:
            found: list[tuple[int, int]] = []
            for queue_id in queues.ids:
                await self._pause()
                stored_ms = self._components.store.earliest_ms(topic, queue_id)
                if stored_ms is not None:
                    found.append((stored_ms, queue_id))
            queues.oldest = sorted(found)
        return queues.oldest
