"""Reading a topic as it grows. How far it was read is in Spark's checkpoint, and nowhere else."""

import logging
from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from skyroute.clock import SystemClock
from skyroute.message.queue_ref import QueueRef
from skyroute.pipeline.options import OptionsError
from skyroute.pipeline.source.columns import arrow_schema, chosen_names
from skyroute.pipeline.source.errors import SourceError
from skyroute.pipeline.source.offsets import Offsets, from_json, to_json
from skyroute.pipeline.source.options import Position, Where, read_options
from skyroute.pipeline.source.planning import Part, QueueRange, plan, share
from skyroute.pipeline.source.survey import Survey, report_loss

log = logging.getLogger(__name__)

Json = dict[str, dict[str, int]]

ENDS_S: Final = 0.2
"""How long it is believed where queues end: a stream that is idle asks some eighty times a second."""

QUEUES_S: Final = 5.0
"""How long it is believed which queues there are."""

monotonic = SystemClock.monotonic


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Tells Spark on the driver how far the queues go, and reads parts of them on workers."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        """Nothing is connected yet: workers get a copy.

        Raises:
            OptionsError: options or columns are wrong; the text names them all.
        """
        self._options = read_options(given)
        if self._options.end is not None:
            raise OptionsError(
                "a stream has no end: leave out endingOffsets, endingTimestamp and endingOffsetsByTimestamp, or use"
                " trigger(availableNow=True) to stop at what is there now"
            )
        self._start = self._options.start or Position(Where.LATEST)
        self._names = chosen_names(schema)
        self._schema = arrow_schema(schema)
        self._initial: Offsets | None = None
        self._is_initial_kept = not self._start.moves
        """Whether the checkpoint knows where we began."""
        self._queues: list[QueueRef] = []
        self._queues_at = self._ends_at = float("-inf")
        self._ends: Offsets = {}
        """Of queues whose brokers answer."""
        self._last_ends: Offsets = {}
        """Of all queues that were ever heard of."""
        self._target: Offsets | None = None
        """Where to stop, with `Trigger.AvailableNow`."""
        self._reported: Offsets = {}
        self._waits_since: float | None = None
        """Since when there were too few messages for a batch."""

    def _survey(self) -> Survey:
        return Survey(self._options)

    # -------------------------------------------------------------------------------------------------- how far to go

    def initialOffset(self) -> Json:
        """Return where a new stream begins. Spark asks more than once, and must hear the same."""
        if self._initial is None:
            survey = self._survey()
            self._initial = survey.locate(self._start, survey.spans(survey.queues()), "startingOffsets")
        return to_json(self._initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        """How much a batch takes, unless the trigger says otherwise."""
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        """Stop at what is there now."""
        survey = self._survey()
        self._target = {queue: span.high for queue, span in survey.spans(survey.queues()).items()}

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """Return where the next batch ends; `start` itself, if there is to be none yet."""
        begins = from_json(start)
        if not self._is_initial_kept:
            self._is_initial_kept = True
            if begins == self._initial:
                # Where the queues end moves on. An empty first batch puts into the checkpoint where we began, so that
                # a restart finds it there; without, a stream that is killed in its first batch would skip messages.
                return to_json(begins)
        ends = self._target if self._target is not None else self._find_ends()
        lags = self._find_lags(begins, ends)
        if self._is_too_little(sum(lags.values())):
            return start
        taken = share(limit.max_rows, lags) if isinstance(limit, ReadMaxRows) else lags
        return to_json({queue: begin + taken.get(queue, 0) for queue, begin in begins.items()})

    def _find_lags(self, begins: Offsets, ends: Offsets) -> Offsets:
        """Return how many messages each queue has, and put queues that are new into `begins`."""
        if new := [queue for queue in ends if queue not in begins]:
            found = self._survey().spans(new)
            log.info("queues found queues=%s", ", ".join(map(str, new)))
            begins |= {queue: min(span.low, ends[queue]) for queue, span in found.items()}
        anew = [queue for queue, end in ends.items() if end < begins[queue]]
        for queue in anew:
            report_loss(
                self._options,
                f"{queue} ends at {ends[queue]}, and was read up to {begins[queue]}: it was deleted and made anew, or"
                " its broker has lost messages",
            )
        if anew:
            # A batch cannot go backwards: this one takes nothing of them, and the next one begins with what is there.
            begins |= {queue: span.low for queue, span in self._survey().spans(anew).items()}
            ends = {**ends, **{queue: begins[queue] for queue in anew}}
        # A queue whose broker is away is not forgotten: it goes on where it was.
        return {queue: ends.get(queue, begin) - begin for queue, begin in begins.items()}

    def _is_too_little(self, count: int) -> bool:
        """Whether to wait for more messages, and not for too long."""
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

    def _find_ends(self) -> Offsets:
        now = monotonic()
        if now - self._ends_at < ENDS_S:
            return self._ends
        survey = self._survey()
        if now - self._queues_at >= QUEUES_S:
            try:
                self._queues = survey.queues()
            except SourceError as error:
                if not self._queues:
                    raise
                log.warning("queues not looked for, going on with those known cause=%s", error)
            self._queues_at = monotonic()
        self._ends = survey.ends(self._queues)
        self._last_ends |= self._ends
        self._ends_at = monotonic()
        return self._ends

    def reportLatestOffset(self) -> Json:
        """Return where the queues end, for the progress that listeners see."""
        self._find_ends()
        return to_json(self._last_ends)

    # ---------------------------------------------------------------------------------------------------- what to read

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """Share out what lies between two offsets.

        Raises:
            DataLossError: some of it is gone, and that is not to be passed over.
        """
        begins, ends = from_json(start), from_json(end)
        wanted = [queue for queue, stop in ends.items() if begins.get(queue, -1) < stop]
        if not wanted:
            return []
        survey = self._survey()
        spans, addresses = survey.spans(wanted), survey.addresses(wanted)
        ranges = []
        for queue in wanted:
            low, stop = spans[queue].low, ends[queue]
            begin = begins.get(queue, min(low, stop))
            if low > begin:
                report_loss(
                    self._options,
                    f"{queue} has no messages from {begin} to {min(low, stop) - 1} any more: they were deleted before"
                    " they were read",
                )
                begin = min(low, stop)
            ranges.append(QueueRange(queue, begin, stop, addresses.get(queue.broker_name)))
        options = self._options
        return list(plan(ranges, min_parts=options.min_partitions, max_records=options.max_records_per_partition))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read a part, on a worker."""
        from skyroute.pipeline.source.rows import read_part  # noqa: PLC0415 - it takes long, and the driver only plans

        assert isinstance(partition, Part)
        return read_part(partition, self._names, self._schema, self._options)

    def commit(self, end: Json) -> None:
        """Have brokers note how far we have come, for people to see, if they are to."""
        if self._options.report_group_offsets:
            reached = from_json(end)
            news = {queue: offset for queue, offset in reached.items() if offset != self._reported.get(queue, 0)}
            self._survey().report_group(news)
            self._reported = reached
