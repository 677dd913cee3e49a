"""How far streams are behind, for whoever wants to know: attach a `LagListener` to the session."""

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
    """How many messages a stream had not read yet when a batch was done."""

    query_id: str
    query_name: str | None
    batch_id: int
    queues: Mapping[QueueRef, int]

    @property
    def total(self) -> int:
        """Of all queues."""
        return sum(self.queues.values())


class LagListener(StreamingQueryListener):
    """Tells after every batch how far a stream is behind: to a function, or else to the log.

    Examples:
        >>> spark.streams.addListener(LagListener(lambda lag: print(lag.query_name, lag.total)))
    """

    def __init__(self, on_lag: Callable[[Lag], None] | None = None) -> None:
        self._on_lag = on_lag or _log_lag

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is known yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Compare what was read with what there is."""
        progress = event.progress
        queues: dict[QueueRef, int] = {}
        for source in progress.sources:
            try:
                ends, read = parse_offsets(source.latestOffset), parse_offsets(source.endOffset)
            except (ValueError, TypeError):
                continue  # a source of another kind
            queues |= {queue: max(0, end - read.get(queue, 0)) for queue, end in ends.items()}
        if queues:
            self._on_lag(Lag(str(progress.id), progress.name, progress.batchId, queues))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing has changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Nothing is left to tell."""


def _log_lag(lag: Lag) -> None:
    log.info("stream lags query=%s batch=%d messages=%d", lag.query_name or lag.query_id, lag.batch_id, lag.total)
