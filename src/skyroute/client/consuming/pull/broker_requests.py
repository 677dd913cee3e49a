"""Handles the requests that brokers send to a pull consumer."""

from collections.abc import Callable, Mapping

from skyroute.client.consuming.broker_requests import BrokerRequests
from skyroute.client.consuming.pull.prefetch import Prefetch, QueueReader
from skyroute.client.consuming.subscription import StartPosition
from skyroute.client.session.session import Session
from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls import consumers
from skyroute.wire.calls.clients import ConsumeType, MessageModel, Subscription


class PullBrokerRequests(BrokerRequests):
    """Handles the requests about one pull consumer."""

    def __init__(
        self,
        session: Session,
        group: str,
        prefetch: Prefetch,
        subscriptions: Mapping[str, Subscription],
        start: StartPosition,
        *,
        on_members_changed: Callable[[], None],
    ) -> None:
        super().__init__(session, group, on_members_changed=on_members_changed)
        self._prefetch = prefetch
        self._subscriptions = subscriptions
        self._start = start

    def seek(self, queue: QueueRef, offset: int) -> None:
        reader = self._prefetch.readers.get(queue)
        if reader is not None:
            self._prefetch.seek(reader, offset)

    def offsets(self, topic: str) -> Mapping[QueueRef, int]:
        return {
            queue: reader.processed
            for queue, reader in self._prefetch.readers.items()
            if queue.topic == topic and reader.processed is not None
        }

    def describe(self, now: float) -> consumers.RunningConsumer:
        del now  # no value here depends on the time
        common = self.common_properties(ConsumeType.PULL, ordered=False, threads=1)
        return consumers.RunningConsumer(
            properties=common
            | {
                "messageModel": MessageModel.CLUSTERING.value,
                "consumeFromWhere": self._start.wire.value,
                "pullBatchSize": str(self._prefetch.limits.pull_batch),
            },
            subscriptions=tuple(self._subscriptions.values()),
            queues={queue: _described(reader) for queue, reader in sorted(self._prefetch.readers.items())},
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
