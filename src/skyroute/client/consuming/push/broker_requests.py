"""Handles the requests that brokers send to a push consumer."""

import asyncio
from collections.abc import Callable, Mapping

from skyroute.client.consuming.broker_requests import BrokerRequests
from skyroute.client.consuming.push.assignment import PushAssignment
from skyroute.client.consuming.push.dispatch import Dispatcher
from skyroute.client.consuming.push.handlers import ConsumeResult, HandlerCall, RetryLater
from skyroute.client.consuming.push.process_queue import ProcessQueue
from skyroute.client.consuming.push.pull_loop import PullLoop
from skyroute.client.consuming.push.settings import ConsumerSettings
from skyroute.client.consuming.push.subscriptions import Subscriptions
from skyroute.client.session.session import Session
from skyroute.client.threads import ExitError
from skyroute.message import property_names as names
from skyroute.message.message import StoredMessage
from skyroute.message.queue_ref import QueueRef
from skyroute.message.record import decode_record
from skyroute.message.reserved_topics import is_dead_letter_topic, without_namespace
from skyroute.wire.calls import consumers
from skyroute.wire.calls.clients import ConsumeType
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Request, Response


class PushBrokerRequests(BrokerRequests):
    """Handles the requests about one push consumer."""

    def __init__(
        self,
        session: Session,
        settings: ConsumerSettings,
        subscriptions: Subscriptions,
        assignment: PushAssignment,
        pull_loop: PullLoop,
        dispatcher: Dispatcher,
        *,
        on_members_changed: Callable[[], None],
    ) -> None:
        super().__init__(session, settings.group, on_members_changed=on_members_changed)
        self._settings = settings
        self._subscriptions = subscriptions
        self._assignment = assignment
        self._pull_loop = pull_loop
        self._dispatcher = dispatcher
        self._handlers[RequestCode.CONSUME_MESSAGE_DIRECTLY] = self._consume

    def seek(self, queue: QueueRef, offset: int) -> None:
        assigned = self._assignment.queues.get(queue)
        if assigned is not None:
            self._assignment.release(assigned, move_to=offset)

    def offsets(self, topic: str) -> Mapping[QueueRef, int]:
        return {ref: queue.buffer.commit_offset for ref, queue in self._assignment.queues.items() if ref.topic == topic}

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
            queues={ref: self._describe(queue, now) for ref, queue in sorted(self._assignment.queues.items())},
            paces={topic: self._assignment.statistics(topic).rates(now) for topic in self._subscriptions.topics},
        )

    def _describe(self, queue: ProcessQueue, now: float) -> consumers.HeldQueue:
        buffer = queue.buffer
        wall = self._session.clock.wall()

        def wall_ms(monotonic: float | None) -> int:
            return int((wall - (now - monotonic)) * 1000) if monotonic else 0

        return consumers.HeldQueue(
            cached_count=buffer.count,
            cached_min_offset=buffer.commit_offset if buffer.count else 0,
            cached_max_offset=buffer.newest_offset if buffer.count else 0,
            cached_mib=buffer.bytes // (1024 * 1024),
            commit_offset=buffer.commit_offset,
            locked=queue.is_locked(now),
            last_lock_ms=wall_ms(queue.locked_at),
            last_pull_ms=wall_ms(queue.pulled_at),
            last_consume_ms=wall_ms(queue.consumed_at),
        )

    async def _consume(self, request: Request, _address: str) -> Response | None:
        wanted = consumers.decode_direct_consumption(request)
        if wanted.group != self._settings.group:
            return None
        stored = decode_record(wanted.record).replace(broker_name=wanted.broker_name or "")
        (message,) = self._pull_loop.as_application_sees([stored], stored.topic)
        handler = self._subscriptions.find_handler(message.topic)
        if handler is None and is_dead_letter_topic(stored.topic):  # to retry a dead letter after its cause is fixed
            first_topic = stored.find_property(names.RETRY_TOPIC) or stored.topic
            message = stored.replace(topic=without_namespace(self._session.namespace, first_topic))
            handler = self._subscriptions.find_handler(message.topic)
        if handler is None:
            return Response.error(f"no handler of topic {message.topic} in this consumer: choose a subscribed member")
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
            if await handler.run([message], self._dispatcher.threads) is ConsumeResult.RETRY:
                return consumers.ConsumeResult.LATER, None
        except RetryLater:
            return consumers.ConsumeResult.LATER, None
        except (SystemExit, KeyboardInterrupt, ExitError) as error:
            self._dispatcher.exit_with(error)
            return consumers.ConsumeResult.RAISED, type(error.__cause__ or error).__name__
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return consumers.ConsumeResult.RAISED, "CancelledError"
        except Exception as error:  # noqa: BLE001 - the response contains it
            return consumers.ConsumeResult.RAISED, f"{type(error).__name__}: {error}"
        return consumers.ConsumeResult.SUCCESS, None
