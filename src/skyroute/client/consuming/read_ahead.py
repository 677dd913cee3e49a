"""Reads queues ahead, each in a task of its own, and hands out what was read when it is asked for."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from skyroute.client.consuming import queues as calls
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
"""How long a broker may wait for a message before it answers that there is none."""

FLOW_CONTROL_PAUSE_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class ReadAheadBounds:
    """How much is read ahead. A queue at a bound is not read from: at most the answer to one pull goes beyond."""

    messages_max: int
    queue_messages_max: int
    queue_bytes_max: int
    pull_messages_max: int


class QueueReader:
    """One queue: what was read of it and not handed out yet, and how far it was read, handed out and processed."""

    def __init__(self, queue: QueueRef, subscription: Subscription, *, is_shared: bool) -> None:
        self.queue = queue
        """As brokers name it: with the namespace."""
        self.subscription = subscription
        self.is_shared = is_shared
        """The group's sharing gave it to us, and will take it away should its broker not have it any more."""
        self.next_pull: int | None = None
        """Where to read on; None until it is known where to start."""
        self.locating = asyncio.Lock()
        self.messages: deque[StoredMessage] = deque()
        self.bytes = 0
        self.unprocessed_from: int | None = None
        """The first message that was handed out last: whether it was processed, nobody has said yet."""
        self.is_paused = False
        self.room = asyncio.Event()
        """Set when it may be possible to read on."""
        self.task: asyncio.Task[Any] | None = None
        self.broker_id = MASTER_ID
        self.is_lite = True
        """Its broker has a lane of its own for pulls of this kind; those before 5.0 have not."""
        self.is_failing = False

    @property
    def position(self) -> int | None:
        """What comes next: the next message to be handed out, or where to read on."""
        return self.messages[0].queue_offset if self.messages else self.next_pull

    @property
    def processed(self) -> int | None:
        """The offset up to which everything is processed."""
        return self.position if self.unprocessed_from is None else self.unprocessed_from

    def stop(self) -> None:
        """Read no more. What a pull under way brings is dropped."""
        if self.task is not None:
            self.task.cancel()
            self.task = None


class ReadAhead:
    """The queues of one consumer. Its owner adds and drops them; each is read from then on, once it is started."""

    def __init__(
        self,
        session: Session,
        group: str,
        bounds: ReadAheadBounds,
        *,
        locate: Callable[[QueueRef], Awaitable[int]],
        retry_interval_s: float,
    ) -> None:
        """`locate` says where to start with a queue; it raises if that cannot be known now."""
        self.readers: dict[QueueRef, QueueReader] = {}
        self.buffered = 0
        """How many messages wait to be handed out."""
        self._session = session
        self._group = group
        self.bounds = bounds
        self._find_start = locate
        self._retry_interval_s = retry_interval_s
        self._ready: deque[QueueReader] = deque()
        """Those that have something to hand out, the next one in front."""
        self._handed_out: list[QueueReader] = []
        """Those whose messages were handed out last."""
        self._failures: dict[QueueReader, Exception] = {}
        """Why some queues are not read any more."""
        self._news = asyncio.Event()
        """Something was read, or failed, or it is over: whoever waits looks again."""
        self._running = False

    def start(self) -> None:
        """Read every queue there is, and every one to come."""
        self._news = asyncio.Event()  # the one of an earlier start belongs to the event loop of that time
        self._running = True
        for reader in self.readers.values():
            self._begin(reader)

    def stop(self) -> None:
        """Read no more, and let go who waits. How far each queue was processed can still be seen."""
        self._running = False
        for reader in self.readers.values():
            reader.stop()
        self._failures.clear()
        self._news.set()

    def clear(self) -> None:
        """Forget all queues."""
        for reader in list(self.readers.values()):
            self.drop(reader)
        self._handed_out.clear()

    # ------------------------------------------------------------------------------------------------- handing out

    async def until_news(self, timeout_s: float) -> None:
        """Wait until there is something to hand out, or to raise, or it is over, or the time is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, timeout_s)):
                while not self._ready and not self._failures and self._running:
                    self._news.clear()
                    await self._news.wait()

    def take(self, max_messages: int | None) -> list[StoredMessage]:
        """Hand out what is there, queue after queue; the queue that was not emptied comes last next time.

        Raises:
            SkyrouteError: a queue cannot be read. It is tried again from now on.
        """
        if self._failures:
            self._raise_failure()
        limit = self.buffered if max_messages is None else max_messages
        was_full = self.buffered >= self.bounds.messages_max
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
            self._handed_out.append(reader)
            taken += messages
            if reader.messages:
                self._ready.append(reader)
        self.buffered -= len(taken)
        if was_full:
            for reader in self.readers.values():
                reader.room.set()
        return taken

    def take_as_processed(self) -> None:
        """Count everything that was handed out as processed."""
        for reader in self._handed_out:
            reader.unprocessed_from = None
        self._handed_out.clear()

    def _raise_failure(self) -> NoReturn:
        failures = dict(self._failures)
        self._failures.clear()
        for reader in failures:
            self._begin(reader)
        raise next(iter(failures.values()))

    # ---------------------------------------------------------------------------------------------- which, and where

    def add(self, queue: QueueRef, subscription: Subscription, *, is_shared: bool) -> None:
        """Read a queue from now on."""
        reader = QueueReader(queue, subscription, is_shared=is_shared)
        self.readers[queue] = reader
        self._begin(reader)

    def drop(self, reader: QueueReader) -> None:
        """Read a queue no more. Its reader still says how far it was processed."""
        if self.readers.get(reader.queue) is not reader:
            return
        del self.readers[reader.queue]
        reader.stop()
        reader.next_pull, reader.unprocessed_from = reader.processed, None
        self._discard_messages(reader)
        self._failures.pop(reader, None)

    def move(self, reader: QueueReader, offset: int) -> None:
        """Go on from this offset. What was read ahead is dropped, and so is what is on its way."""
        reader.next_pull, reader.unprocessed_from = offset, None
        self._restart(reader)

    def change_subscription(self, reader: QueueReader, subscription: Subscription) -> None:
        """Read on with another expression, from the message that would be the next."""
        before = reader.subscription
        reader.subscription = subscription
        if (before.expression, before.expression_type) != (subscription.expression, subscription.expression_type):
            reader.next_pull = reader.position
            self._restart(reader)

    def pause(self, reader: QueueReader) -> None:
        """Hand out nothing of a queue. What was read of it is kept."""
        reader.is_paused = True
        if reader in self._ready:
            self._ready.remove(reader)

    def resume(self, reader: QueueReader) -> None:
        """Hand out a queue again."""
        reader.is_paused = False
        reader.room.set()
        if reader.messages and reader not in self._ready:
            self._ready.append(reader)
            self._news.set()

    async def locate(self, reader: QueueReader) -> int:
        """Return what comes next of a queue, and find out where to start if need be.

        Raises:
            ClientError, RemotingError: it cannot be known now.
        """
        async with reader.locating:
            if reader.next_pull is None:
                start = await self._find_start(reader.queue)
                if reader.next_pull is None:  # else it was moved meanwhile
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

    # ------------------------------------------------------------------------------------------------------- reading

    def _begin(self, reader: QueueReader) -> None:
        if self._running and reader.task is None and self.readers.get(reader.queue) is reader:
            reader.task = self._session.spawn(self._read(reader), name=f"reading of {reader.queue}")

    async def _read(self, reader: QueueReader) -> None:
        """Read one queue ahead until it is stopped, or cannot be read."""
        while True:
            await self._until_room(reader)
            try:
                await self._read_once(reader)
            except FlowControlError:
                await asyncio.sleep(FLOW_CONTROL_PAUSE_S)
            except SkyrouteError as error:
                if not await self._recover(reader, error):
                    return
            except Exception as error:
                log.exception("reading failed group=%s queue=%s", self._group, reader.queue)
                self._fail(reader, error)
                return

    async def _until_room(self, reader: QueueReader) -> None:
        bounds = self.bounds
        while (
            reader.is_paused
            or len(reader.messages) >= bounds.queue_messages_max
            or reader.bytes >= bounds.queue_bytes_max
            or self.buffered >= bounds.messages_max
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
            count_max=self.bounds.pull_messages_max,
            suspend_ms=round(SUSPEND_S * 1000),
            expression=subscription.expression,
            expression_type=subscription.expression_type,
            # The question brings its expression along, so no broker has to tell which one is the newest, save one
            # that keeps conditions compiled.
            subscription_version=0 if subscription.expression_type == TAG else subscription.version,
            lite=reader.is_lite,
            broker_name=reader.queue.broker_name,
        )
        answer = await calls.pull(self._session, question, broker_id=reader.broker_id)
        if reader.task is asyncio.current_task():  # else it was moved, or dropped, and this is from elsewhere
            self._take_in(reader, answer, question.offset)

    def _take_in(self, reader: QueueReader, answer: PullAnswer, asked: int) -> None:
        if reader.is_failing:
            reader.is_failing = False
            log.info("reading works again group=%s queue=%s", self._group, reader.queue)
        if answer.status is PullStatus.OFFSET_ILLEGAL:
            log.warning(
                "offset moved group=%s queue=%s from=%d to=%d min=%d max=%d",
                *(self._group, reader.queue, asked, answer.next_offset, answer.min_offset, answer.max_offset),
            )
        next_offset = answer.next_offset
        if answer.status is PullStatus.FOUND:
            messages, next_offset = read_messages(answer, reader.queue, reader.subscription, asked, skips_damage=False)
            # A batch that is stored as one record comes whole, also when its first messages were read before.
            self._keep(reader, [message for message in messages if message.queue_offset >= asked])
        reader.next_pull = next_offset
        reader.broker_id = answer.suggested_broker_id

    def _keep(self, reader: QueueReader, messages: list[StoredMessage]) -> None:
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
        self._news.set()

    async def _recover(self, reader: QueueReader, error: SkyrouteError) -> bool:
        """Wait and return True if trying again may help; else keep the failure for who takes next."""
        if isinstance(error, UnsupportedError) and reader.is_lite:
            reader.is_lite = False
            return True
        is_outdated = isinstance(error, InvalidParameterError) and reader.is_shared
        if not (error.retryable or is_outdated):
            log.warning("reading refused group=%s queue=%s cause=%s", self._group, reader.queue, error)
            self._fail(reader, error)
            return False
        if not reader.is_failing:
            reader.is_failing = True
            log.warning("reading interrupted group=%s queue=%s cause=%s", self._group, reader.queue, error)
        reader.broker_id = MASTER_ID
        await asyncio.sleep(self._retry_interval_s)
        if error.stale_route or is_outdated:
            with suppress(SkyrouteError):  # the old route is as good as none, and the next try says so again
                await self._session.routes.refresh(reader.queue.topic)
        return True

    def _fail(self, reader: QueueReader, error: Exception) -> None:
        if reader.task is asyncio.current_task():
            reader.task = None
            self._failures[reader] = error
            self._news.set()
