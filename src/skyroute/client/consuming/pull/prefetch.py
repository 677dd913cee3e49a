"""Prefetches messages: one task for each queue pulls into a buffer, and the application takes from the buffers."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from skyroute.client.consuming import queue_calls as calls
from skyroute.client.consuming.intervals import Intervals
from skyroute.client.consuming.subscription import TAG, read_messages
from skyroute.client.errors import FlowControlError, InvalidParameterError, UnsupportedError
from skyroute.client.session.session import Session
from skyroute.errors import SkyrouteError
from skyroute.message.message import StoredMessage
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import without_namespace
from skyroute.routing.topology import MASTER_ID
from skyroute.wire.calls.clients import Subscription
from skyroute.wire.calls.pull import PullAnswer, PullQuestion, PullStatus

log = logging.getLogger(__name__)

SUSPEND_S: Final = 20.0
"""How long a broker holds a long poll when there is no message."""


@dataclass(frozen=True, slots=True)
class PrefetchLimits:
    """Flow control. A queue at a limit is not pulled: at most the messages of one pull exceed a limit."""

    messages_max: int
    queue_messages_max: int
    queue_bytes_max: int
    pull_batch: int


class QueueReader:
    """One queue: its prefetched messages, and the offsets up to which it was pulled, taken and processed."""

    def __init__(self, queue: QueueRef, subscription: Subscription, *, is_shared: bool) -> None:
        self.queue = queue
        """With the namespace."""
        self.subscription = subscription
        self.is_shared = is_shared
        """Whether a rebalance assigned it, and removes it when its broker no longer has it."""
        self.next_pull: int | None = None
        """Offset of the next pull; None until the start offset is known."""
        self.locating = asyncio.Lock()
        self.messages: deque[StoredMessage] = deque()
        self.bytes = 0
        self.unprocessed_from: int | None = None
        """Offset of the first message that was taken and does not count as processed; None: all are processed."""
        self.is_paused = False
        self.room = asyncio.Event()
        """Set when the queue may be below its limits again."""
        self.task: asyncio.Task[Any] | None = None
        self.broker_id = MASTER_ID
        self.is_lite = True
        """Whether its broker knows LITE_PULL_MESSAGE; brokers before 5.0 do not."""
        self.is_failing = False

    @property
    def position(self) -> int | None:
        """Offset of the next message to take, or of the next pull."""
        return self.messages[0].queue_offset if self.messages else self.next_pull

    @property
    def processed(self) -> int | None:
        """The offset before which all messages are processed."""
        return self.position if self.unprocessed_from is None else self.unprocessed_from

    def stop(self) -> None:
        """Stop pulling. The result of a running pull is dropped."""
        if self.task is not None:
            self.task.cancel()
            self.task = None


class Prefetch:
    """The queues of one consumer. The consumer adds and drops queues; each is pulled from `start` or `add` on."""

    def __init__(
        self,
        session: Session,
        group: str,
        limits: PrefetchLimits,
        *,
        find_start: Callable[[QueueRef], Awaitable[int]],
        intervals: Intervals,
    ) -> None:
        """`find_start` returns the start offset of a queue, or raises if it is not known now."""
        self.readers: dict[QueueRef, QueueReader] = {}
        self.buffered = 0
        """Number of prefetched messages of all queues."""
        self._session = session
        self._group = group
        self.limits = limits
        self._find_start = find_start
        self._intervals = intervals
        self._ready: deque[QueueReader] = deque()
        """Readers with messages to take, the next one first."""
        self._taken: list[QueueReader] = []
        """Readers whose messages were taken and do not count as processed."""
        self._failures: dict[QueueReader, Exception] = {}
        """Readers that stopped because of an error, which the next `take` raises."""
        self._changed = asyncio.Event()
        """Set when messages arrive, a reader fails, or the consumer stops."""
        self._running = False

    def start(self) -> None:
        """Pull all queues."""
        self._changed = asyncio.Event()  # after a restart, the consumer may run on another event loop
        self._running = True
        for reader in self.readers.values():
            self._begin(reader)

    def stop(self) -> None:
        """Stop pulling, and wake a waiting poll. The offsets of all readers stay readable."""
        self._running = False
        for reader in self.readers.values():
            reader.stop()
        self._failures.clear()
        self._changed.set()

    def clear(self) -> None:
        """Drop all queues."""
        for reader in list(self.readers.values()):
            self.drop(reader)
        self._taken.clear()

    # ------------------------------------------------------------------------------------------------ take messages

    async def wait_for_messages(self, timeout_s: float) -> None:
        """Wait until there are messages to take, an error to raise, the consumer stops, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, timeout_s)):
                while not self._ready and not self._failures and self._running:
                    self._changed.clear()
                    await self._changed.wait()

    def take(self, messages_max: int | None) -> list[StoredMessage]:
        """Return prefetched messages, queue by queue. A queue with messages left comes last next time.

        Raises:
            SkyrouteError: a queue cannot be read. It is pulled again from now on.
        """
        if self._failures:
            self._raise_failure()
        limit = self.buffered if messages_max is None else messages_max
        was_full = self.buffered >= self.limits.messages_max
        taken: list[StoredMessage] = []
        for _ in range(len(self._ready)):
            if len(taken) >= limit:
                break
            reader = self._ready.popleft()
            count = min(limit - len(taken), len(reader.messages))
            messages = [reader.messages.popleft() for _ in range(count)]
            reader.bytes -= sum(message.record_bytes for message in messages)
            reader.unprocessed_from = messages[0].queue_offset
            reader.room.set()
            self._taken.append(reader)
            taken += messages
            if reader.messages:
                self._ready.append(reader)
        self.buffered -= len(taken)
        if was_full:
            for reader in self.readers.values():
                reader.room.set()
        return taken

    def mark_processed(self) -> None:
        """Count all messages that were taken as processed."""
        for reader in self._taken:
            reader.unprocessed_from = None
        self._taken.clear()

    def _raise_failure(self) -> NoReturn:
        failures = dict(self._failures)
        self._failures.clear()
        for reader in failures:
            self._begin(reader)
        raise next(iter(failures.values()))

    # ------------------------------------------------------------------------------------------ queues and positions

    def add(self, queue: QueueRef, subscription: Subscription, *, is_shared: bool) -> None:
        """Pull a queue from now on."""
        reader = QueueReader(queue, subscription, is_shared=is_shared)
        self.readers[queue] = reader
        self._begin(reader)

    def drop(self, reader: QueueReader) -> None:
        """Stop pulling a queue. Its reader keeps the offset up to which it was processed."""
        if self.readers.get(reader.queue) is not reader:
            return
        del self.readers[reader.queue]
        reader.stop()
        reader.next_pull, reader.unprocessed_from = reader.processed, None
        self._discard_messages(reader)
        self._failures.pop(reader, None)

    def seek(self, reader: QueueReader, offset: int) -> None:
        """Continue at this offset. Prefetched messages and the result of a running pull are dropped."""
        reader.next_pull, reader.unprocessed_from = offset, None
        self._restart(reader)

    def change_subscription(self, reader: QueueReader, subscription: Subscription) -> None:
        """Continue with another filter at the next message to take."""
        before = reader.subscription
        reader.subscription = subscription
        if (before.expression, before.expression_type) != (subscription.expression, subscription.expression_type):
            reader.next_pull = reader.position
            self._restart(reader)

    def pause(self, reader: QueueReader) -> None:
        """Return no messages of a queue. Its prefetched messages are kept."""
        reader.is_paused = True
        if reader in self._ready:
            self._ready.remove(reader)

    def resume(self, reader: QueueReader) -> None:
        """Return messages of a queue again."""
        reader.is_paused = False
        reader.room.set()
        if reader.messages and reader not in self._ready:
            self._ready.append(reader)
            self._changed.set()

    async def locate(self, reader: QueueReader) -> int:
        """Return the offset of the next message of a queue; determine its start offset first if needed.

        Raises:
            ClientError, RemotingError: the start offset is not known now.
        """
        async with reader.locating:
            if reader.next_pull is None:
                start = await self._find_start(reader.queue)
                if reader.next_pull is None:  # else a seek has set it meanwhile
                    reader.next_pull = start
        return reader.next_pull if reader.position is None else reader.position

    def _restart(self, reader: QueueReader) -> None:
        reader.stop()
        self._discard_messages(reader)
        self._failures.pop(reader, None)
        self._begin(reader)

    def _discard_messages(self, reader: QueueReader) -> None:
        self.buffered -= len(reader.messages)
        reader.messages.clear()
        reader.bytes = 0
        if reader in self._ready:
            self._ready.remove(reader)

    # --------------------------------------------------------------------------------------------------------- pulling

    def _begin(self, reader: QueueReader) -> None:
        if self._running and reader.task is None and self.readers.get(reader.queue) is reader:
            reader.task = self._session.spawn(self._read(reader), name=f"prefetch of {reader.queue}")

    async def _read(self, reader: QueueReader) -> None:
        """Pull one queue until it is stopped, or fails with an error that a retry does not help."""
        while True:
            await self._wait_for_room(reader)
            try:
                await self._read_once(reader)
            except FlowControlError:
                await asyncio.sleep(self._intervals.flow_control_s)
            except SkyrouteError as error:
                if not await self._recover(reader, error):
                    return
            except Exception as error:
                log.exception("pull failed group=%s queue=%s", self._group, reader.queue)
                self._fail(reader, error)
                return

    async def _wait_for_room(self, reader: QueueReader) -> None:
        limits = self.limits
        while (
            reader.is_paused
            or len(reader.messages) >= limits.queue_messages_max
            or reader.bytes >= limits.queue_bytes_max
            or self.buffered >= limits.messages_max
        ):
            reader.room.clear()
            await reader.room.wait()

    async def _read_once(self, reader: QueueReader) -> None:
        if reader.next_pull is None:
            await self.locate(reader)
            return
        subscription = reader.subscription
        question = PullQuestion(
            group=self._group,
            topic=reader.queue.topic,
            queue_id=reader.queue.queue_id,
            offset=reader.next_pull,
            count_max=self.limits.pull_batch,
            suspend_ms=round(SUSPEND_S * 1000),
            expression=subscription.expression,
            expression_type=subscription.expression_type,
            # The request contains the filter, so its version matters only to brokers that keep compiled SQL filters.
            subscription_version=0 if subscription.expression_type == TAG else subscription.version,
            lite=reader.is_lite,
            broker_name=reader.queue.broker_name,
        )
        started = self._session.clock.monotonic()
        answer = await calls.pull(self._session, question, broker_id=reader.broker_id)
        if reader.task is asyncio.current_task():  # else the queue was dropped, or a seek made this result obsolete
            self._receive(reader, answer, question.offset)
            if reader.next_pull <= question.offset:
                # A broker that does not hold the long poll, or finds nothing new, must not cause a busy loop.
                await asyncio.sleep(self._intervals.empty_pull_s - (self._session.clock.monotonic() - started))

    def _receive(self, reader: QueueReader, answer: PullAnswer, asked: int) -> None:
        if reader.is_failing:
            reader.is_failing = False
            log.info("pull works again group=%s queue=%s", self._group, reader.queue)
        if answer.status is PullStatus.OFFSET_ILLEGAL:
            log.warning(
                "offset corrected group=%s queue=%s from=%d to=%d min=%d max=%d",
                *(self._group, reader.queue, asked, answer.next_offset, answer.min_offset, answer.max_offset),
            )
        next_offset = answer.next_offset
        if answer.status is PullStatus.FOUND:
            messages, next_offset = read_messages(answer, reader.queue, reader.subscription, asked, skips_damage=False)
            # A batch in one record is returned whole, even if its first messages were read before.
            self._store(reader, [message for message in messages if message.queue_offset >= asked])
        reader.next_pull = next_offset
        reader.broker_id = answer.suggested_broker_id

    def _store(self, reader: QueueReader, messages: list[StoredMessage]) -> None:
        if not messages:
            return
        namespace = self._session.namespace
        if namespace is not None:
            messages = [message.replace(topic=without_namespace(namespace, message.topic)) for message in messages]
        if not reader.messages and not reader.is_paused:
            self._ready.append(reader)
        reader.messages += messages
        reader.bytes += sum(message.record_bytes for message in messages)
        self.buffered += len(messages)
        self._changed.set()

    async def _recover(self, reader: QueueReader, error: SkyrouteError) -> bool:
        """Wait and return True if a retry may help; else keep the error for the next `take`."""
        if isinstance(error, UnsupportedError) and reader.is_lite:
            reader.is_lite = False
            return True
        is_outdated = isinstance(error, InvalidParameterError) and reader.is_shared
        if not (error.retryable or is_outdated):
            log.warning("pull refused group=%s queue=%s reason=%s", self._group, reader.queue, error)
            self._fail(reader, error)
            return False
        if not reader.is_failing:
            reader.is_failing = True
            log.warning("pull failed group=%s queue=%s reason=%s", self._group, reader.queue, error)
        reader.broker_id = MASTER_ID
        await asyncio.sleep(self._intervals.failed_pull_s)
        if error.stale_route or is_outdated:
            with suppress(SkyrouteError):  # the next pull fails again with the same error
                await self._session.routes.refresh(reader.queue.topic)
        return True

    def _fail(self, reader: QueueReader, error: Exception) -> None:
        if reader.task is asyncio.current_task():
            reader.task = None
            self._failures[reader] = error
            self._changed.set()
