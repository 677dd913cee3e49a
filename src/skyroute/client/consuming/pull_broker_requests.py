"""What brokers ask of a consumer that reads when it is told to."""

from collections.abc import Callable, Mapping

from skyroute.client.consuming.broker_requests import GroupAnswers
from skyroute.client.consuming.read_ahead import QueueReader, ReadAhead
from skyroute.client.consuming.subscription import StartPosition
from skyroute.client.session.session import Session
from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls import consumers
from skyroute.wire.calls.clients import ConsumeType, MessageModel, Subscription


class PullConsumerAnswers(GroupAnswers):
    """Answers brokers for one consumer that is polled. Requests about other groups are left to others."""

    def __init__(
        self,
        session: Session,
        group: str,
        ahead: ReadAhead,
        subscriptions: Mapping[str, Subscription],
        start_from: StartPosition,
        *,
        on_members_changed: Callable[[], None],
    ) -> None:
        super().__init__(session, group)
        self._ahead = ahead
        self._subscriptions = subscriptions
        self._start_from = start_from
        self._on_members_changed = on_members_changed

    def look_for_queues(self) -> None:
        self._on_members_changed()

    def move(self, queue: QueueRef, offset: int) -> None:
        reader = self._ahead.readers.get(queue)
        if reader is not None:
            self._ahead.move(reader, offset)

    def offsets(self, topic: str) -> Mapping[QueueRef, int]:
        return {
            queue: reader.processed
            for queue, reader in self._ahead.readers.items()
            if queue.topic == topic and reader.processed is not None
        }

    def describe(self, now: float) -> consumers.RunningConsumer:
        del now  # nothing here is counted by time
        common = self.common_properties(ConsumeType.PULL, ordered=False, threads=1)
        return consumers.RunningConsumer(
            properties=common
            | {
                "messageModel": MessageModel.CLUSTERING.value,
                "consumeFromWhere": self._start_from.wire.value,
                "pullBatchSize": str(self._ahead.bounds.pull_messages_max),
            },
            subscriptions=tuple(self._subscriptions.values()),
            queues={queue: _described(reader) for queue, reader in sorted(self._ahead.readers.items())},
            paces={topic: consumers.ConsumePace() for topic in self._subscriptions},
        )


def _described(reader: QueueReader) -> consumers.HeldQueue:
    messages = reader.messages
    return consumers.HeldQueue(
        cached_count=len(messages),
        cached_min_offset=messages[0].queue_offset if messages else 0,
        cached_max_offset=messages[-1].queue_offset if messages else 0,
        cached_mib=reader.bytes // (1024 * 1024),
        commit_offset=reader.processed or 0,
    )
