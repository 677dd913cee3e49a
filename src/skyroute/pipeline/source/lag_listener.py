"""Reports how many messages a stream has not read yet. Attach a `LagListener` to the Spark session."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from skyroute.message.queue_ref import QueueRef
from skyroute.pipeline.source.offsets import parse_offsets

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lag:
    """Number of unread messages of a stream at the end of a batch."""

    query_id: str
    query_name: str | None
    batch_id: int
    queues: Mapping[QueueRef, int]

    @property
    def total(self) -> int:
        """Sum over all queues."""
        return sum(self.queues.values())


class LagListener(StreamingQueryListener):
    """Passes the lag of a stream to a function after every batch; without a function, logs it.

    Examples:
        >>> spark.streams.addListener(LagListener(lambda lag: print(lag.query_name, lag.total)))
    """

    def __init__(self, on_lag: Callable[[Lag], None] | None = None) -> None:
        self._on_lag = on_lag or _log_lag

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: the lag is not known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report the lag at the end of a batch."""
        progress = event.progress
        queues: dict[QueueRef, int] = {}
        for source in progress.sources:
            try:
                ends, read = parse_offsets(source.latestOffset), parse_offsets(source.endOffset)
            except (ValueError, TypeError):
                continue  # not a rocketmq source
            queues |= {queue: max(0, end - read.get(queue, 0)) for queue, end in ends.items()}
        if queues:
            self._on_lag(Lag(str(progress.id), progress.name, progress.batchId, queues))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: the lag has not changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing."""


def _log_lag(lag: Lag) -> None:
    log.info("stream lag query=%s batch=%d messages=%d", lag.query_name or lag.query_id, lag.batch_id, lag.total)
