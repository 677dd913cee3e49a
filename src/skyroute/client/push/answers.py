"""What brokers ask of a running consumer: to look for its queues, to tell of itself, to go back, to try one message."""

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Final

from skyroute.client.push.fetching import Fetching
from skyroute.client.push.handlers import ConsumeResult, HandlerCall, RetryLater
from skyroute.client.push.handling import Handling
from skyroute.client.push.owned_queue import OwnedQueue
from skyroute.client.push.ownership import Ownership
from skyroute.client.push.settings import ConsumerSettings
from skyroute.client.push.subscriptions import Subscriptions
from skyroute.client.session import RequestHandler, Session
from skyroute.message.message import StoredMessage
from skyroute.message.record import decode_record
from skyroute.wire.calls import clients
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Request, Response

VERSION_NAME: Final = "V5_3_3"
"""The name of the release whose number we send, as Apache's tools show it."""


class ConsumerAnswers:
    """Answers brokers for one consumer. Requests about other groups are left to others."""

    def __init__(
        self,
        session: Session,
        settings: ConsumerSettings,
        subscriptions: Subscriptions,
        ownership: Ownership,
        fetching: Fetching,
        handling: Handling,
        *,
        on_members_changed: Callable[[], None],
    ) -> None:
        self._session = session
        self._settings = settings
        self._subscriptions = subscriptions
        self._ownership = ownership
        self._fetching = fetching
        self._handling = handling
        self._on_members_changed = on_members_changed
        self._started_at_ms = int(session.clock.wall() * 1000)
        self._handlers: dict[int, RequestHandler] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offsets,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._tell_offsets,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._tell_all,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume,
        }

    def start(self) -> None:
        """Begin to answer."""
        for code, handler in self._handlers.items():
            self._session.on_request(code, handler)

    def stop(self) -> None:
        """Answer nothing more."""
        for code, handler in self._handlers.items():
            self._session.off_request(code, handler)

    async def _members_changed(self, request: Request, _address: str) -> Response | None:
        if clients.decode_consumer_group(request) != self._settings.group:
            return None
        self._on_members_changed()
        return Response()

    async def _reset_offsets(self, request: Request, _address: str) -> Response | None:
        reset = clients.decode_offset_reset(request)
        if reset.group != self._settings.group:
            return None
        for queue, offset in reset.offsets.items():
            owned = self._ownership.owned.get(queue)
            if owned is not None:
                self._ownership.release(owned, move_to=offset)
        return Response()

    async def _tell_offsets(self, request: Request, _address: str) -> Response | None:
        query = clients.decode_offsets_query(request)
        if query.group != self._settings.group:
            return None
        offsets = {
            queue: owned.backlog.commit_offset
            for queue, owned in self._ownership.owned.items()
            if queue.topic == query.topic
        }
        return Response(body=clients.encode_consumer_offsets(offsets))

    async def _tell_all(self, request: Request, _address: str) -> Response | None:
        query = clients.decode_running_query(request)
        if query.group != self._settings.group:
            return None
        now = self._session.clock.monotonic()
        settings = self._settings
        running = clients.RunningConsumer(
            properties={
                clients.PROPERTY_NAME_SERVERS: ";".join(self._session.name_servers.addresses),
                clients.PROPERTY_CONSUME_TYPE: clients.ConsumeType.PUSH.value,
                clients.PROPERTY_ORDERED: "true" if settings.ordered else "false",
                clients.PROPERTY_THREADS: str(settings.concurrency),
                clients.PROPERTY_STARTED_MS: str(self._started_at_ms),
                clients.PROPERTY_CLIENT_VERSION: VERSION_NAME,
                "language": "PYTHON",
                "messageModel": settings.model.value,
                "consumeFromWhere": settings.start.wire.value,
                "consumeMessageBatchMaxSize": str(settings.batch_size),
                "pullBatchSize": str(settings.pull_batch),
                "maxReconsumeTimes": str(settings.reconsume_times_max),
            },
            subscriptions=self._subscriptions.all,
            queues={queue: self._describe(owned, now) for queue, owned in sorted(self._ownership.owned.items())},
            paces={topic: self._ownership.tally(topic).pace(now) for topic in self._subscriptions.topics},
            stacks=_stacks() if query.with_stacks else None,
        )
        return Response(body=clients.encode_running_consumer(running))

    def _describe(self, owned: OwnedQueue, now: float) -> clients.HeldQueue:
        backlog = owned.backlog
        wall = self._session.clock.wall()

        def wall_ms(monotonic: float | None) -> int:
            return int((wall - (now - monotonic)) * 1000) if monotonic else 0

        return clients.HeldQueue(
            cached_count=backlog.count,
            cached_min_offset=backlog.commit_offset if backlog.count else 0,
            cached_max_offset=backlog.newest_offset if backlog.count else 0,
            cached_mib=backlog.bytes // (1024 * 1024),
            commit_offset=backlog.commit_offset,
            locked=owned.is_locked(now),
            last_lock_ms=wall_ms(owned.locked_at),
            last_pull_ms=wall_ms(owned.pulled_at),
            last_consume_ms=wall_ms(owned.consumed_at),
        )

    async def _consume(self, request: Request, _address: str) -> Response | None:
        wanted = clients.decode_direct_consumption(request)
        if wanted.group != self._settings.group:
            return None
        stored = decode_record(wanted.record).replace(broker_name=wanted.broker_name or "")
        (message,) = self._fetching.as_seen([stored], stored.topic)
        handler = self._subscriptions.find_handler(message.topic)
        if handler is None:
            return Response.error(f"nobody here handles messages of {message.topic}")
        started = self._session.clock.monotonic()
        result, remark = await self._try(handler, message)
        outcome = clients.DirectOutcome(
            result,
            spent_ms=int((self._session.clock.monotonic() - started) * 1000),
            remark=remark,
            ordered=self._settings.ordered,
        )
        return Response(body=clients.encode_direct_outcome(outcome))

    async def _try(self, handler: HandlerCall, message: StoredMessage) -> tuple[clients.ConsumeResult, str | None]:
        try:
            if await handler.run([message], self._handling.threads) is ConsumeResult.RETRY:
                return clients.ConsumeResult.LATER, None
        except RetryLater:
            return clients.ConsumeResult.LATER, None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return clients.ConsumeResult.RAISED, "CancelledError"
        except Exception as error:  # noqa: BLE001 - whoever asked is told, and nobody else has to know
            return clients.ConsumeResult.RAISED, f"{type(error).__name__}: {error}"
        return clients.ConsumeResult.SUCCESS, None


def _stacks() -> str:
    threads = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()  # noqa: SLF001 - Python's own way to see what other threads do
    return "\n".join(
        f"{threads.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}" for ident, frame in frames.items()
    )
