"""Sends trace records in the background, and drops records rather than delay the application."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from skyroute.client.errors import ArgumentError
from skyroute.client.trace.records import (
    DEFAULT_REGION,
    ConsumeEnded,
    ConsumeStarted,
    Recalled,
    Sent,
    TracedReturn,
    TraceRecord,
    TransactionEnded,
    encode_record,
)
from skyroute.message import property_names as names
from skyroute.message.message import Message, StoredMessage
from skyroute.message.names import check_topic
from skyroute.message.reserved_topics import TRACE_TOPIC

log = logging.getLogger(__name__)

RECORDS_MAX: Final = 2048
"""Maximum number of waiting records; beyond it the oldest are dropped."""
BATCH_RECORDS: Final = 10
"""Number of records that are sent without waiting for more."""
BATCH_RECORDS_MAX: Final = 20
BATCH_BYTES_MAX: Final = 128_000
BATCH_KEYS_BYTES_MAX: Final = 16_384
"""Keys are a property, and brokers accept 32767 bytes of properties."""
FLUSH_INTERVAL_S: Final = 5.0
STOP_TIMEOUT_S: Final = 5.0
LOSSES_PER_LOG_LINE: Final = 1000
"""The first lost record is logged, and then one of this many."""


def check_trace(trace: object) -> None:
    """Check the `trace` argument: True, False, or the name of the trace topic.

    Raises:
        ArgumentError: it is something else.
        InvalidNameError: the topic name is invalid.
    """
    if isinstance(trace, str):
        check_topic(trace)
    elif not isinstance(trace, bool):
        raise ArgumentError(f"trace is {trace!r}: expected True, False or the name of a topic")


class Tracer:
    """Sends trace records in batches, in the background.

    Only `stop` waits, and nothing raises: records that cannot be sent are dropped, counted in `lost`, and logged.
    """

    def __init__(
        self,
        send: Callable[[Message], Awaitable[object]],
        *,
        topic: str = TRACE_TOPIC,
        batch_records: int = BATCH_RECORDS,
        flush_interval_s: float = FLUSH_INTERVAL_S,
    ) -> None:
        """Prepare. `send` sends a message, with a timeout of its own.

        Raises:
            InvalidNameError: the topic name is invalid.
        """
        check_topic(topic)
        self.topic = topic
        self.lost = 0
        """Number of dropped records."""
        self._send = send
        self._batch_records = min(batch_records, BATCH_RECORDS_MAX)
        self._flush_interval_s = flush_interval_s
        self._waiting: deque[TraceRecord] = deque()
        self._has_records = asyncio.Event()
        self._has_batch = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Tracer(topic={self.topic!r}, waiting={len(self._waiting)}, lost={self.lost})"

    def is_traced(self, topic: str) -> bool:
        """Return whether to trace messages of a topic: all topics except the trace topic."""
        return topic != self.topic

    def add(self, record: Sent | TransactionEnded | Recalled) -> None:
        """Add the record of a producer, unless it is about a trace message."""
        if self.is_traced(record.topic):
            self._add(record)

    def consume_started(
        self, group: str, messages: Sequence[StoredMessage], *, request_id: str, at_ms: int
    ) -> list[ConsumeStarted]:
        """Add records of a handler call, and return them for `consume_ended`.

        Messages of brokers that have tracing turned off are skipped.
        """
        records = [
            ConsumeStarted(
                at_ms=at_ms,
                region=message.find_property(names.REGION) or DEFAULT_REGION,
                group=group,
                request_id=request_id,
                message_id=message.message_id,
                reconsume_times=message.reconsume_times,
                keys=message.keys,
            )
            for message in messages
            if self.is_traced(message.topic) and message.find_property(names.TRACE_ON) != "false"
        ]
        for record in records:
            self._add(record)
        return records

    def consume_ended(
        self, started: Sequence[ConsumeStarted], *, at_ms: int, success: bool, returned: TracedReturn
    ) -> None:
        """Add records of the end of a handler call."""
        for record in started:
            self._add(
                ConsumeEnded(
                    request_id=record.request_id,
                    message_id=record.message_id,
                    cost_ms=max(0, at_ms - record.at_ms) // len(started),
                    success=success,
                    keys=record.keys,
                    returned=returned,
                    at_ms=at_ms,
                    group=record.group,
                )
            )

    def _add(self, record: TraceRecord) -> None:
        if len(self._waiting) >= RECORDS_MAX:
            self._waiting.popleft()
            self._lose(1, "more records than can be sent")
        self._waiting.append(record)
        self._has_records.set()
        if len(self._waiting) >= self._batch_records:
            self._has_batch.set()

    def start(self) -> None:
        """Send waiting and future records in the background."""
        if self._task is None:
            self._stopping = False
            self._task = asyncio.create_task(self._run(), name="skyroute tracer")

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Send the remaining records, and drop those left after the timeout."""
        if self._task is None:
            return
        task, self._task = self._task, None
        self._stopping = True
        self._has_records.set()
        self._has_batch.set()
        try:
            await asyncio.wait({task}, timeout=timeout_s)
        finally:
            task.cancel()
        await asyncio.wait({task})
        if self._waiting:
            self._lose(len(self._waiting), "stopped before they were sent")
            self._waiting.clear()

    async def _run(self) -> None:
        while self._waiting or not self._stopping:
            await self._has_records.wait()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._flush_interval_s):
                    await self._has_batch.wait()
            await self._send_batch()

    async def _send_batch(self) -> None:
        rows, keys = self._take_batch()
        if not rows:
            return
        try:
            await self._send(Message(self.topic, b"".join(rows), keys=keys))
        except asyncio.CancelledError:
            self._lose(len(rows), "stopped before they were sent")
            raise
        except Exception as error:  # noqa: BLE001 - a failed trace must not fail the application
            self._lose(len(rows), f"{type(error).__name__}: {error}")

    def _take_batch(self) -> tuple[list[bytes], list[str]]:
        rows: list[bytes] = []
        keys: dict[str, None] = {}  # each once, in the order of the records
        rows_bytes = keys_bytes = 0
        while self._waiting and len(rows) < BATCH_RECORDS_MAX:
            record = self._waiting[0]
            row = encode_record(record).encode("utf-8", "replace")
            found = _lookup_keys(record)
            rows_bytes += len(row)
            keys_bytes += sum(len(key.encode("utf-8", "replace")) + 1 for key in found)
            if rows and (rows_bytes > BATCH_BYTES_MAX or keys_bytes > BATCH_KEYS_BYTES_MAX):
                break
            self._waiting.popleft()
            rows.append(row)
            keys.update(dict.fromkeys(found))
        if not self._waiting and not self._stopping:
            self._has_records.clear()
        if len(self._waiting) < self._batch_records and not self._stopping:
            self._has_batch.clear()
        return rows, list(keys)

    def _lose(self, count: int, why: str) -> None:
        before, self.lost = self.lost, self.lost + count
        if not before or before // LOSSES_PER_LOG_LINE != self.lost // LOSSES_PER_LOG_LINE:
            log.warning("trace records lost count=%d topic=%s reason=%s", self.lost, self.topic, why)


def _lookup_keys(record: TraceRecord) -> list[str]:
    """Return the keys of a trace message: the id and the keys of the traced message."""
    keys = () if isinstance(record, Recalled) else record.keys
    return [key for key in (record.message_id, *keys) if key and not key.isspace()]
