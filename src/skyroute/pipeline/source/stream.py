"""Streaming reads of topics. The only record of how far a stream has read is Spark's checkpoint."""

import logging
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from skyroute.clock import SystemClock
from skyroute.message.queue_ref import QueueRef
from skyroute.pipeline.options import OptionsError
from skyroute.pipeline.short_errors import short_errors, short_iteration
from skyroute.pipeline.source.columns import chosen_names
from skyroute.pipeline.source.errors import SourceError
from skyroute.pipeline.source.offset_lookup import OffsetLookup, report_loss
from skyroute.pipeline.source.offsets import START, Offsets, from_json, to_json
from skyroute.pipeline.source.options import Position, PositionKind, read_options
from skyroute.pipeline.source.planning import QueueRange, ReadPartition, plan, share
from skyroute.pipeline.spark_versions import (
    HAS_READ_LIMITS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
    arrow_schema,
    check_read_limit,
)

log = logging.getLogger(__name__)

Json = dict[str, dict[str, Any]]

MAX_OFFSETS_CACHE_S: Final = 0.2
"""How long the queues' largest offsets are cached: Spark calls an idle source about 80 times a second."""

QUEUES_CACHE_S: Final = 5.0
"""How long the list of queues is cached."""

monotonic = SystemClock.monotonic


def stream_reader(given: Mapping[str, str], schema: StructType) -> "StreamReader":
    """Return the reader of a stream for the installed Spark.

    Raises:
        OptionsError: options or columns are wrong; the text names them all.
    """
    return StreamReader(given, schema) if HAS_READ_LIMITS else EarlyStreamReader(given, schema)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches on the driver and reads their partitions on workers."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        """Check options and schema; connect later, because Spark pickles this object for the workers.

        Raises:
            OptionsError: options or columns are wrong; the text names them all.
        """
        self._options = read_options(given)
        if self._options.end is not None:
            raise OptionsError(
                "a stream takes no ending position: remove endingOffsets, endingTimestamp and endingOffsetsByTimestamp,"
                " or use trigger(availableNow=True) to stop at the current end"
            )
        check_read_limit(self._options.max_offsets_per_trigger)
        self._start = self._options.start or Position(PositionKind.LATEST)
        self._names = chosen_names(schema, self._options.body_format)
        self._schema = arrow_schema(schema)
        self._initial: Offsets | None = None
        self._is_initial_saved = not self._start.may_move
        """Whether a restart finds the same initial offsets."""
        self._queues: list[QueueRef] = []
        self._queues_at = self._max_offsets_at = float("-inf")
        self._max_offsets: Offsets = {}
        """Of queues whose brokers respond."""
        self._last_max_offsets: Offsets = {}
        """The latest known value of every queue seen."""
        self._target: Offsets | None = None
        """The end of the query with `Trigger.AvailableNow`."""
        self._reported: Offsets = {}
        self._waits_since: float | None = None
        """When the wait for `minOffsetsPerTrigger` began."""

    def _lookup(self) -> OffsetLookup:
        return OffsetLookup(self._options)

    # -------------------------------------------------------------------------------------------------------- offsets

    @short_errors
    def initialOffset(self) -> Json:
        """Return the first offsets of a new stream. Spark calls this more than once and needs the same result."""
        if self._initial is None:
            lookup = self._lookup()
            self._initial = lookup.resolve(self._start, lookup.offset_ranges(lookup.queues()))
        return to_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the size limit of a micro-batch."""
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    @short_errors
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query at the current largest offsets."""
        lookup = self._lookup()
        self._target = {queue: known.max_offset for queue, known in lookup.offset_ranges(lookup.queues()).items()}

    @short_errors
    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """Return the end of the next micro-batch; `start` itself if there is no new batch yet."""
        begins = from_json(start)
        if self._target is not None:
            self._report(begins)  # Spark ends AvailableNow without a commit of the last batch
        if not self._is_initial_saved:
            self._is_initial_saved = True
            if begins == self._initial:
                # `latest` moves on with new messages. An empty first batch saves the initial offsets in the checkpoint.
                # Without it, a stream killed in its first batch would restart at a later end and skip messages.
                return to_json(begins)
        ends = self._target if self._target is not None else self._find_max_offsets()
        lags = self._find_lags(begins, ends)
        if self._waits_for_more(sum(lags.values())):
            return start
        taken = share(limit.max_rows, lags) if isinstance(limit, ReadMaxRows) else lags
        end = {queue: begin + taken.get(queue, 0) for queue, begin in begins.items()}
        return start if end == from_json(start) else to_json(end)

    def _find_lags(self, begins: Offsets, ends: Offsets) -> Offsets:
        """Return the unread messages of each queue, and add new queues to `begins`."""
        if new := [queue for queue in ends if queue not in begins]:
            found = self._lookup().offset_ranges(new)
            log.info("new queues found queues=%s", ", ".join(map(str, new)))
            begins |= {queue: min(known.min_offset, ends[queue]) for queue, known in found.items()}
        reset = [queue for queue, end in ends.items() if end < begins[queue]]
        for queue in reset:
            report_loss(
                self._options,
                f"{queue} ends at {ends[queue]} but was read up to {begins[queue]}: the topic was deleted and created"
                " again, or its broker lost messages",
            )
        if reset:
            # A batch cannot go backwards: this one reads nothing of these queues, the next one their first messages.
            begins |= {queue: known.min_offset for queue, known in self._lookup().offset_ranges(reset).items()}
            ends = {**ends, **{queue: begins[queue] for queue in reset}}
        # A queue of an unreachable broker keeps its offset.
        return {queue: ends.get(queue, begin) - begin for queue, begin in begins.items()}

    def _waits_for_more(self, count: int) -> bool:
        """Whether to wait for `minOffsetsPerTrigger` messages, at most for `maxTriggerDelay`."""
        least = self._options.min_offsets_per_trigger
        if least is None or count >= least or count == 0 or self._target is not None:
            self._waits_since = None
            return False
        now = monotonic()
        if self._waits_since is None:
            self._waits_since = now
        if now - self._waits_since < self._options.max_trigger_delay_s:
            return True
        self._waits_since = None
        return False

    def _find_max_offsets(self) -> Offsets:
        now = monotonic()
        if now - self._max_offsets_at < MAX_OFFSETS_CACHE_S:
            return self._max_offsets
        lookup = self._lookup()
        if now - self._queues_at >= QUEUES_CACHE_S:
            try:
                self._queues = lookup.queues()
            except SourceError as error:
                if not self._queues:
                    raise
                log.warning("queue lookup failed, using the known queues reason=%s", error)
            self._queues_at = monotonic()
        self._max_offsets = lookup.max_offsets(self._queues)
        self._last_max_offsets |= self._max_offsets
        self._max_offsets_at = monotonic()
        return self._max_offsets

    def reportLatestOffset(self) -> Json:
        """Return the queues' largest offsets, for Spark's progress events."""
        self._find_max_offsets()
        return to_json(self._last_max_offsets)

    # ----------------------------------------------------------------------------------------------------- partitions

    @short_errors
    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """Divide the messages between two offsets into partitions.

        Raises:
            DataLossError: some were deleted, and `failOnDataLoss` is true.
        """
        if start != end:  # equal ones only tell where a restarted query is
            start = end.get(START, start)
        begins, ends = from_json(start), from_json(end)
        wanted = [queue for queue, stop in ends.items() if begins.get(queue, -1) < stop]
        if not wanted:
            return []
        lookup = self._lookup()
        known, addresses = lookup.offset_ranges(wanted), lookup.broker_addresses(wanted)
        batch_topics = lookup.batch_topics(wanted)
        ranges = []
        for queue in wanted:
            low, stop = known[queue].min_offset, ends[queue]
            begin = begins.get(queue, min(low, stop))
            if low > begin:
                report_loss(
                    self._options,
                    f"offsets {begin} to {min(low, stop) - 1} of {queue} were deleted before they were read",
                )
                begin = min(low, stop)
            is_filtered = (queue.topic, queue.broker_name) not in batch_topics
            ranges.append(QueueRange(queue, begin, stop, addresses.get(queue.broker_name), broker_filters=is_filtered))
        options = self._options
        return list(plan(ranges, min_partitions=options.min_partitions, max_records=options.max_records_per_partition))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one partition, on a worker."""
        from skyroute.pipeline.source.partition_reader import read_partition  # noqa: PLC0415 - slow; workers only

        assert isinstance(partition, ReadPartition)
        return short_iteration(read_partition(partition, self._names, self._schema, self._options))

    def commit(self, end: Json) -> None:
        """Store the consumer group's offsets on the brokers if `reportGroupOffsets` is set."""
        self._report(from_json(end))

    def _report(self, reached: Offsets) -> None:
        if not self._options.report_group_offsets or reached == self._reported:
            return
        lookup = self._lookup()
        if not self._reported:
            lookup.announce_group(reached)
        lookup.commit_group_offsets(
            {queue: offset for queue, offset in reached.items() if offset != self._reported.get(queue, 0)}
        )
        self._reported = reached


class EarlyStreamReader(StreamReader):
    """As Spark before 4.2 calls it: `latestOffset` has no arguments, and comes before `initialOffset`."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        super().__init__(given, schema)
        self._planned: Json | None = None
        """The end of the last planned batch; None until a batch was planned."""

    @short_errors
    def latestOffset(self) -> Json:  # type: ignore[override] # of Spark 4.0 and 4.1
        """Return the end of the next micro-batch."""
        if self._planned is None:
            # Fails if a broker is unreachable: the checkpoint would lack its queues.
            return self._first_end()
        self._is_initial_saved = True
        return super().latestOffset(self._planned, ReadAllAvailable())

    def _first_end(self) -> Json:
        """Return the end of the first batch of a new stream, and its start if that moves.

        Spark saves only the end. A stream killed in its first batch would restart at a later start and skip messages.
        An empty first batch is no way out here: `Trigger.AvailableNow` would end after it.
        """
        start = self.initialOffset()
        begins, lookup = from_json(start), self._lookup()
        ranges = lookup.offset_ranges(begins)
        end = to_json({queue: max(begin, ranges[queue].max_offset) for queue, begin in begins.items()})
        return {START: start, **end} if self._start.may_move else end

    @short_errors
    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """Divide the messages between two offsets into partitions."""
        self._planned = end
        return super().partitions(start, end)
