"""Gives the messages of many queues to handlers: so many at once, or each queue strictly in order.

A few workers take from the queues that have something waiting, each queue in turn. There is no task and no future for a
single message: a worker whose handler does not wait for anything goes from one message to the next at once.
"""

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from skyroute.client.consuming.push.handlers import ConsumeResult, HandlerCall, RetryLater
from skyroute.client.consuming.push.owned_queue import OwnedQueue
from skyroute.client.consuming.push.redelivery import DEAD_LETTER_LEVEL, TIMED_OUT_LEVEL, Redelivery
from skyroute.client.consuming.push.settings import ConsumerSettings
from skyroute.client.consuming.push.threads import ExitError, Threads
from skyroute.client.session.session import Session
from skyroute.client.trace import TracedReturn, Tracer
from skyroute.message.message import StoredMessage

log = logging.getLogger(__name__)

SLICE_S: Final = 0.005
"""How long one worker goes on without letting others have a turn."""

_AT_WORK: "Final[ContextVar[Handling | None]]" = ContextVar("_AT_WORK", default=None)
"""Whose handler this is, for a handler and all that it calls."""

CANCELLED_S: Final = 1.0
"""How long a handler that was cancelled may take to end."""

FindHandler = Callable[[str], HandlerCall | None]
"""Told a topic as the application knows it, says who handles its messages."""


OnLeft = Callable[[BaseException], None]
"""Told that a handler has called sys.exit(), or raised KeyboardInterrupt or the like."""


class Worker:
    """One who gives messages to a handler, and which ones just now."""

    __slots__ = ("has_raised", "has_timed_out", "messages", "owned", "since", "task")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.owned: OwnedQueue | None = None
        self.messages: list[StoredMessage] = []
        """Those in the handler's hands; none once it is done, or once they are taken out of its hands."""
        self.since = 0.0
        self.has_timed_out = False
        self.has_raised = False
        """The handler was left by something else than its wish to have the messages again."""


class Handling:
    """The workers of one consumer, and the queues that wait for them."""

    def __init__(
        self,
        session: Session,
        settings: ConsumerSettings,
        redelivery: Redelivery,
        find_handler: FindHandler,
        tracer: Tracer | None = None,
        *,
        on_left: OnLeft,
    ) -> None:
        self._session = session
        self._on_left = on_left
        self._settings = settings
        self._redelivery = redelivery
        self._find_handler = find_handler
        self._tracer = tracer
        self._ordered = settings.ordered
        self._locks = settings.locks
        self._batch_size = settings.batch_size
        self._monotonic = session.clock.monotonic
        self._ready: deque[OwnedQueue] = deque()
        """Queues with something waiting. Each is in it once at most."""
        self._resting: deque[asyncio.Future[None]] = deque()
        self._wake_is_due = False
        self._workers: list[Worker] = []
        self._has_started = False
        self._stopping = False
        self.threads = Threads(settings.concurrency, f"consumer-{settings.group}")

    # ------------------------------------------------------------------------------------------------------- life

    def start(self) -> None:
        """Set the workers to work, if they are not at it."""
        if self._has_started or self._stopping:
            return
        self._has_started = True
        for number in range(self._settings.concurrency):
            worker = Worker()
            worker.task = self._session.spawn(self._work(worker), name=f"consumer worker {number}")
            self._workers.append(worker)

    def watch(self, worker: Worker) -> None:
        """Take notice of one who takes messages without being told to: what it has for too long is sent back."""
        self._workers.append(worker)

    def close(self) -> None:
        """Begin nothing more."""
        self._stopping = True
        self._ready.clear()
        while self._resting:
            self._wake_one()

    @property
    def is_calling(self) -> bool:
        """Whether a handler of ours is the one who asks, in a task or a thread of its own or in what it began."""
        return _AT_WORK.get() is self

    async def stop(self, timeout_s: float) -> None:
        """Wait for what is under way, after `close`; what takes longer is cancelled, and threads are left behind."""
        tasks = [worker.task for worker in self._workers if worker.task is not None]
        try:
            await _finished(tasks, timeout_s)
        finally:
            left = [task for task in tasks if not task.done()]
            for task in left:
                task.cancel()
            self.threads.stop()
        if left:
            log.warning("handlers cancelled group=%s count=%d", self._settings.group, len(left))
            await _finished(left, CANCELLED_S)
            if stubborn := sum(not task.done() for task in left):
                log.warning("handlers left behind group=%s count=%d", self._settings.group, stubborn)

    def leave_by(self, error: BaseException) -> None:
        """Begin nothing more, because a handler was left as one leaves a program."""
        left = error.__cause__ if isinstance(error, ExitError) else None
        self.close()
        self._on_left(left or error)

    def abandon(self) -> None:
        """End at once: `stop` was not waited for."""
        self.close()
        for worker in self._workers:
            if worker.task is not None:
                worker.task.cancel()

    # ------------------------------------------------------------------------------------------------ what is ready

    def offer(self, owned: OwnedQueue) -> None:
        """Have a queue's waiting messages handled, unless that is under way."""
        if owned.is_offered or owned.is_suspended or self._stopping or not owned.backlog.has_waiting:
            return
        owned.is_offered = True
        self._ready.append(owned)
        self._call_for_help()

    def _call_for_help(self) -> None:
        # A worker that is at it may well be done before this comes about, and then nobody has been woken in vain.
        if not self._wake_is_due:
            self._wake_is_due = True
            asyncio.get_running_loop().call_soon(self._help)

    def _help(self) -> None:
        self._wake_is_due = False
        if self._ready:
            self._wake_one()

    def _wake_one(self) -> None:
        while self._resting:
            resting = self._resting.popleft()
            if not resting.done():
                resting.set_result(None)
                return

    async def take(self) -> tuple[OwnedQueue, list[StoredMessage]] | None:
        """Return the next messages to handle, waiting for them; None when no more are to be begun."""
        while (taken := self._take_now()) is None:
            if self._stopping:
                return None
            resting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._resting.append(resting)
            try:
                await resting
            except asyncio.CancelledError:
                if resting.done() and not resting.cancelled():
                    self._wake_one()  # woken for work that another has to do now
                raise
        return taken

    def _take_now(self) -> tuple[OwnedQueue, list[StoredMessage]] | None:
        ready = self._ready
        while ready:
            owned = ready.popleft()
            if self._locks and not owned.is_locked(self._monotonic()):
                owned.is_offered = False  # offered again when it is locked again
                continue
            messages = owned.backlog.take(self._batch_size)
            if not self._ordered and owned.backlog.has_waiting:
                ready.append(owned)
            elif not self._ordered or not messages:
                owned.is_offered = False
            if messages:
                if ready and self._resting:
                    self._call_for_help()
                return owned, messages
        return None

    # ------------------------------------------------------------------------------------------------------- work

    async def _work(self, worker: Worker) -> None:
        _AT_WORK.set(self)
        slice_start = self._monotonic()
        while (taken := self._take_now() or await self.take()) is not None:
            owned, messages = taken
            self.begin(worker, owned, messages)
            try:
                if self._tracer is None:
                    wish = await self._handle(worker, messages)
                else:
                    wish = await self._handle_traced(worker, messages, self._tracer)
                await self.settle(worker, messages, wish)
            except Exception:
                log.exception("settling failed group=%s queue=%s", self._settings.group, owned.queue)
            finally:
                self.leave(owned)
            if owned.consumed_at - slice_start > SLICE_S:
                await asyncio.sleep(0)
                slice_start = self._monotonic()

    async def _handle(self, worker: Worker, messages: list[StoredMessage]) -> RetryLater | None:
        """Call the handler; return None if it is content, else what it wishes for."""
        try:
            handler = self._find_handler(messages[0].topic)
            if handler is None:
                log.warning(
                    "message without a handler group=%s topic=%s message=%s",
                    self._settings.group,
                    messages[0].topic,
                    messages[0].message_id,
                )
                return RetryLater()
            if await handler.run(messages, self.threads) is ConsumeResult.RETRY:
                return RetryLater()
        except RetryLater as wish:
            return wish
        except (SystemExit, KeyboardInterrupt, GeneratorExit, ExitError) as left:
            if isinstance(left, GeneratorExit) and not _is_running(worker.task):
                raise  # nobody runs the event loop any more, and our task is being thrown away
            worker.messages = []  # neither consumed nor failed: whoever has the queue next is given them again
            worker.has_raised = True
            self.leave_by(left)
        except asyncio.CancelledError:
            if not worker.has_timed_out and (worker.task is None or worker.task.cancelling()):
                worker.messages = []
                raise
            worker.has_raised = not worker.has_timed_out
            return RetryLater()  # also where the handler waited for somebody else who was cancelled
        except Exception:
            worker.has_raised = True
            log.warning(
                "handler failed group=%s topic=%s queue=%d offset=%d message=%s reconsume_times=%d",
                self._settings.group,
                messages[0].topic,
                messages[0].queue_id,
                messages[0].queue_offset,
                messages[0].message_id,
                messages[0].reconsume_times,
                exc_info=True,
            )
            return RetryLater()
        finally:
            if worker.has_timed_out and worker.task is not None:
                worker.has_timed_out = False
                worker.task.uncancel()
        return None

    async def _handle_traced(self, worker: Worker, messages: list[StoredMessage], tracer: Tracer) -> RetryLater | None:
        clock = self._session.clock
        request_id = uuid.uuid4().hex
        at_ms = int(clock.wall() * 1_000)
        started = tracer.consume_started(self._settings.group, messages, request_id=request_id, at_ms=at_ms)
        worker.has_raised = False
        wish = await self._handle(worker, messages)
        returned = TracedReturn.SUCCESS if wish is None else TracedReturn.FAILED
        if worker.has_raised:
            returned = TracedReturn.RAISED
        elif worker.messages is not messages:
            returned = TracedReturn.TIMED_OUT
        success = wish is None and not worker.has_raised
        tracer.consume_ended(started, at_ms=int(clock.wall() * 1_000), success=success, returned=returned)
        return wish

    def begin(self, worker: Worker, owned: OwnedQueue, messages: list[StoredMessage]) -> None:
        """Note that messages that were taken are being handled."""
        worker.owned, worker.messages, worker.since = owned, messages, self._monotonic()
        owned.running += 1

    async def settle(self, worker: Worker, messages: list[StoredMessage], wish: RetryLater | None) -> None:
        """Do what follows from a handler's word, unless the messages were taken out of its hands."""
        owned = worker.owned
        if worker.messages is not messages or owned is None:
            return
        worker.messages = []
        owned.consumed_at = now = self._monotonic()
        tally = owned.tally
        tally.handlings += 1
        tally.handled_s += now - worker.since
        if wish is None:
            tally.consumed += len(messages)
            owned.backlog.finish(messages)
            return
        from_index = min(max(wish.from_index, 0), len(messages))
        tally.consumed += from_index
        owned.backlog.finish(messages[:from_index])
        await self._fail(owned, messages[from_index:], wish.delay_level)

    def leave(self, owned: OwnedQueue) -> None:
        """Be done with messages that were taken."""
        owned.running -= 1
        if self._ordered:
            owned.is_offered = False
            self.offer(owned)
        owned.changed()

    # ---------------------------------------------------------------------------------------------------- failures

    async def _fail(self, owned: OwnedQueue, messages: list[StoredMessage], delay_level: int) -> None:
        owned.tally.failed += len(messages)
        if owned.is_released:
            return  # whoever has the queue now gets them again
        if self._settings.ordered:
            await self._retry_in_order(owned, messages, delay_level)
        elif not self._settings.shares:
            for message in messages:
                log.warning(
                    "message dropped group=%s topic=%s message=%s cause=broadcast messages are not given again",
                    self._settings.group,
                    message.topic,
                    message.message_id,
                )
            owned.backlog.finish(messages)
        else:
            await self._send_back(owned, messages, delay_level)

    async def _send_back(self, owned: OwnedQueue, messages: list[StoredMessage], delay_level: int) -> None:
        kept = []
        for message in messages:
            if await self._redelivery.send_back(message, delay_level):
                owned.backlog.finish([message])
            else:
                kept.append(message.replace(reconsume_times=message.reconsume_times + 1))
        if kept:
            pause_s = self._settings.pace.failed_send_back_s
            asyncio.get_running_loop().call_later(pause_s, self._try_here, owned, kept)

    def _try_here(self, owned: OwnedQueue, messages: list[StoredMessage]) -> None:
        if not owned.is_released and not self._stopping:
            owned.backlog.put_back(messages)
            self.offer(owned)

    async def _retry_in_order(self, owned: OwnedQueue, messages: list[StoredMessage], delay_level: int) -> None:
        kept = []
        for message in messages:
            is_given_up = message.reconsume_times >= self._settings.reconsume_times_max
            if is_given_up or delay_level == DEAD_LETTER_LEVEL:
                if not self._settings.shares:
                    log.warning("message dropped group=%s message=%s", self._settings.group, message.message_id)
                    owned.backlog.finish([message])
                    continue
                if await self._redelivery.send_to_retry_topic(message, DEAD_LETTER_LEVEL):
                    owned.backlog.finish([message])
                    continue
            kept.append(message.replace(reconsume_times=message.reconsume_times + 1))
        if kept:
            owned.backlog.put_back(kept)
            owned.is_suspended = True
            asyncio.get_running_loop().call_later(self._settings.suspend_s, self._go_on, owned)

    def _go_on(self, owned: OwnedQueue) -> None:
        owned.is_suspended = False
        if not owned.is_released:
            self.offer(owned)

    # ---------------------------------------------------------------------------------------------------- timeouts

    async def sweep(self, now: float) -> None:
        """Take messages out of the hands of handlers that are at them for too long."""
        late = [w for w in self._workers if w.messages and now - w.since > self._settings.consume_timeout_s]
        await asyncio.gather(*map(self._give_up, late))

    async def _give_up(self, worker: Worker) -> None:
        owned, messages = worker.owned, worker.messages
        if owned is None or not messages:
            return
        log.warning(
            "handler takes too long group=%s topic=%s message=%s timeout_s=%g",
            self._settings.group,
            messages[0].topic,
            messages[0].message_id,
            self._settings.consume_timeout_s,
        )
        handler = self._find_handler(messages[0].topic)
        cancels = worker.task is not None and (handler is None or handler.is_async)
        if cancels and worker.task is not None:
            worker.has_timed_out = True
            worker.task.cancel()
        if self._settings.ordered:
            # Nothing may overtake it. A cancelled handler's message is tried again; a thread's has to wait for it.
            if not cancels:
                worker.since = self._monotonic()
            return
        worker.messages = []
        await self._fail(owned, messages, TIMED_OUT_LEVEL)
        owned.changed()  # there is room now, even if a thread never comes back


def _is_running(task: "asyncio.Task[None] | None") -> bool:
    try:
        return task is asyncio.current_task()
    except RuntimeError:
        return False


async def _finished(tasks: list[asyncio.Task[Any]], timeout_s: float) -> None:
    if tasks:
        await asyncio.wait(tasks, timeout=timeout_s)
