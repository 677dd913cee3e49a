"""What brokers ask of a running consumer: to look for its queues, to tell of itself, to go back, to try one message."""

import asyncio
from collections.abc import Callable, Mapping

from skyroute.client.consuming.broker_requests import GroupAnswers
from skyroute.client.consuming.push.fetching import Fetching
from skyroute.client.consuming.push.handlers import ConsumeResult, HandlerCall, RetryLater
from skyroute.client.consuming.push.handling import Handling
from skyroute.client.consuming.push.owned_queue import OwnedQueue
from skyroute.client.consuming.push.ownership import Ownership
from skyroute.client.consuming.push.settings import ConsumerSettings
from skyroute.client.consuming.push.subscriptions import Subscriptions
from skyroute.client.consuming.push.threads import ExitError
from skyroute.client.session.session import Session
from skyroute.message import property_names as names
from skyroute.message.message import StoredMessage
from skyroute.message.queue_ref import QueueRef
from skyroute.message.record import decode_record
from skyroute.message.reserved_topics import is_dead_letter_topic, without_namespace
from skyroute.wire.calls import consumers
from skyroute.wire.calls.clients import ConsumeType
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Request, Response


class ConsumerAnswers(GroupAnswers):
    """Answers brokers for one consumer that is given messages. Requests about other groups are left to others."""

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
        super().__init__(session, settings.group)
        self._settings = settings
        self._subscriptions = subscriptions
        self._ownership = ownership
        self._fetching = fetching
        self._handling = handling
        self._on_members_changed = on_members_changed
        self._handlers[RequestCode.CONSUME_MESSAGE_DIRECTLY] = self._consume

    def look_for_queues(self) -> None:
        self._on_members_changed()

    def move(self, queue: QueueRef, offset: int) -> None:
        owned = self._ownership.owned.get(queue)
        if owned is not None:
            self._ownership.release(owned, move_to=offset)

    def offsets(self, topic: str) -> Mapping[QueueRef, int]:
        return {
            queue: owned.backlog.commit_offset for queue, owned in self._ownership.owned.items() if queue.topic == topic
        }

    def describe(self, now: float) -> consumers.RunningConsumer:
        settings = self._settings
        common = self.common_properties(ConsumeType.PUSH, ordered=settings.ordered, threads=settings.concurrency)
        return consumers.RunningConsumer(
            properties=common
            | {
                "messageModel": settings.model.value,
                "consumeFromWhere": settings.start.wire.value,
                "consumeMessageBatchMaxSize": str(settings.batch_size),
                "pullBatchSize": str(settings.pull_batch),
                "maxReconsumeTimes": str(settings.reconsume_times_max),
            },
            subscriptions=self._subscriptions.all,
            queues={queue: self._describe(owned, now) for queue, owned in sorted(self._ownership.owned.items())},
            paces={topic: self._ownership.tally(topic).pace(now) for topic in self._subscriptions.topics},
        )

    def _describe(self, owned: OwnedQueue, now: float) -> consumers.HeldQueue:
        backlog = owned.backlog
        wall = self._session.clock.wall()

        def wall_ms(monotonic: float | None) -> int:
            return int((wall - (now - monotonic)) * 1000) if monotonic else 0

        return consumers.HeldQueue(
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
        wanted = consumers.decode_direct_consumption(request)
        if wanted.group != self._settings.group:
            return None
        stored = decode_record(wanted.record).replace(broker_name=wanted.broker_name or "")
        (message,) = self._fetching.as_seen([stored], stored.topic)
        handler = self._subscriptions.find_handler(message.topic)
        if handler is None and is_dead_letter_topic(stored.topic):  # for those who have mended what it died of
            first_topic = stored.find_property(names.RETRY_TOPIC) or stored.topic
            message = stored.replace(topic=without_namespace(self._session.namespace, first_topic))
            handler = self._subscriptions.find_handler(message.topic)
        if handler is None:
            return Response.error(f"nobody here handles messages of {message.topic}")
        started = self._session.clock.monotonic()
        result, remark = await self._try(handler, message)
        outcome = consumers.DirectOutcome(
            result,
            spent_ms=int((self._session.clock.monotonic() - started) * 1000),
            remark=remark,
            ordered=self._settings.ordered,
        )
        return Response(body=consumers.encode_direct_outcome(outcome))

    async def _try(self, handler: HandlerCall, message: StoredMessage) -> tuple[consumers.ConsumeResult, str | None]:
        try:
            if await handler.run([message], self._handling.threads) is ConsumeResult.RETRY:
                return consumers.ConsumeResult.LATER, None
        except RetryLater:
            return consumers.ConsumeResult.LATER, None
        except (SystemExit, KeyboardInterrupt, ExitError) as left:
            self._handling.leave_by(left)
            return consumers.ConsumeResult.RAISED, type(left.__cause__ or left).__name__
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return consumers.ConsumeResult.RAISED, "CancelledError"
        except Exception as error:  # noqa: BLE001 - whoever asked is told, and nobody else has to know
            return consumers.ConsumeResult.RAISED, f"{type(error).__name__}: {error}"
        return consumers.ConsumeResult.SUCCESS, None
