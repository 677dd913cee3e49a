"""Pulls a range of a queue with several requests in flight, into a reused buffer.

A broker may return fewer messages than requested: Apache's at most 32, and any broker fewer if messages are large. To
send several pulls ahead, the range is split into pulls of the size of recent responses. A pull with a short response
is followed by others for its remaining offsets.
"""

import logging
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, NamedTuple

from skyroute.client.errors import NoBrokerError, refusal
from skyroute.errors import SkyrouteError
from skyroute.message.reserved_topics import with_namespace
from skyroute.message.tags import EVERY_TAG
from skyroute.pipeline.connections import connect
from skyroute.pipeline.pull_socket import PullSocket
from skyroute.pipeline.source.errors import BrokerLostError, SourceError
from skyroute.pipeline.source.offset_lookup import report_loss
from skyroute.pipeline.source.options import ReadOptions
from skyroute.pipeline.source.planning import QueueRange
from skyroute.wire.calls.pull import PULL_CODES, PullAnswer, PullQuestion, PullStatus, decode_pull_answer, encode_pull
from skyroute.wire.header import as_response

log = logging.getLogger(__name__)

CHUNK_BYTES: Final = 4 << 20
CHUNK_MESSAGES: Final = 10_000
"""Size at which a chunk is returned. The last response may exceed it by one frame."""

IN_FLIGHT_MAX: Final = 32
IN_FLIGHT_MESSAGES: Final = 4_096
IN_FLIGHT_BYTES: Final = 8 << 20
"""Bounds of the pulls in flight: many small ones or a few large ones."""

FULL_RESPONSES: Final = 16
"""Number of full responses in a row after which the pull size doubles."""


class Chunk(NamedTuple):
    """Consecutive records of a queue. The bytes are valid until the next chunk is requested."""

    wire: memoryview
    start: int
    stop: int
    """The offsets that this chunk covers. Its records may include offsets outside; ignore those."""
    offset_delta: int
    """Added to the offsets in the records."""


@dataclass(slots=True)
class _Pull:
    """One pull request."""

    start: int
    stop: int
    request_id: int | None = None
    """None: not sent yet."""
    response: PullAnswer | None = None
    """Its body is in the buffer, or here if it arrived before an earlier pull's response."""


class _ChunkStart(NamedTuple):
    """A position in the buffer where a chunk starts."""

    begin: int
    start: int
    offset_delta: int


class Fetcher:
    """Reads one range of a queue, in order."""

    def __init__(self, options: ReadOptions, wanted: QueueRange) -> None:
        namespace = options.connection.namespace
        self._options = options
        self._connection = connect(options.connection)
        self._wanted = wanted
        self._queue = wanted.queue
        self._topic = with_namespace(namespace, wanted.queue.topic)
        self._group = with_namespace(namespace, options.consumer_group)
        self._address = wanted.address
        self._at, self._stop = wanted.start, wanted.stop
        """The next offset to return, and the exclusive end."""
        self._expression = options.expression if wanted.broker_filters else EVERY_TAG
        self._has_filter = self._expression != EVERY_TAG
        self._in_batches = False
        """Whether a response had more than requested, as those of a batch topic: then pulls ahead would overlap."""
        self._pull_size = options.pull_messages
        self._full_responses = 0
        self._response_bytes = 1
        self._pulls: deque[_Pull] = deque()
        """Pulls in flight and pulls to send next, in order."""
        self._socket: PullSocket | None = None
        self._failures = 0
        """Failures since the last response with messages."""
        self._buffer = bytearray()
        """The socket's buffer, or a larger one."""
        self._used = 0

    def chunks(self) -> Iterator[Chunk]:
        """Yield the whole range.

        Raises:
            DataLossError: messages were deleted, and `failOnDataLoss` is true.
            BrokerLostError: the broker did not respond after all retries.
            SourceError: the broker rejected the request.
        """
        try:
            while self._at < self._stop:
                yield from self._fill()
        except BaseException:
            self._disconnect()
            raise
        if self._socket is not None and not self._socket.open_requests:
            self._connection.return_socket(self._socket)
            self._socket = None
        self._disconnect()

    def read_one(self, at: int) -> Chunk:
        """Pull a single offset.

        Raises:
            SourceError: the broker returns no record for it, or the pull fails.
        """
        single = Fetcher(self._options, replace(self._wanted, start=at, stop=at + 1, address=self._address))
        found = [chunk._replace(wire=memoryview(bytes(chunk.wire))) for chunk in single.chunks()]
        if not found:
            raise SourceError(f"{self._queue} returned no record for offset {at}, but returned it with others before")
        return found[0]

    # ------------------------------------------------------------------------------------------------------ responses

    def _fill(self) -> Iterator[Chunk]:
        """Collect responses up to the size of a chunk, and yield them."""
        start = reached = self._at
        self._used = 0
        starts: list[_ChunkStart] = []
        while self._at < self._stop and self._used < CHUNK_BYTES and self._at - start < CHUNK_MESSAGES:
            begin = self._used
            try:
                response = self._next_response()
                if response.status is not PullStatus.FOUND:
                    self._skip(response)
                    break
            except (OSError, SkyrouteError) as error:
                self._used = begin
                self._recover(error)
                continue
            self._failures = 0
            if not starts or response.offset_delta != starts[-1].offset_delta:
                starts.append(_ChunkStart(begin, self._at, response.offset_delta))
            reached = self._at = max(self._at, response.next_offset)
        # `_at` may have skipped deleted messages at the end, which are not part of the chunk.
        starts.append(_ChunkStart(self._used, reached, 0))
        for first, following in pairwise(starts):
            wire = memoryview(self._buffer)[first.begin : following.begin]
            yield Chunk(wire, first.start, following.start, first.offset_delta)

    def _next_response(self) -> PullAnswer:
        """Return the response of the first pull, with its body at the end of the buffer."""
        if self._socket is None:
            address = self._address or self._find_broker()
            self._socket = self._connection.borrow_socket(address, self._options.pull_timeout_s)
            if not self._used:
                self._buffer = self._socket.buffer
        while self._pulls and self._pulls[0].stop <= self._at:
            self._pulls.popleft()  # an earlier response returned more than requested
        self._send_ahead(self._socket)
        first = self._pulls[0]
        while first.response is None:
            self._receive(self._socket, first)
        self._pulls.popleft()
        if first.response.body:
            self._reserve(len(first.response.body))[:] = first.response.body
            self._used += len(first.response.body)
        if first.response.status is PullStatus.FOUND:
            if first.response.next_offset <= first.start:
                raise _NotYetError(f"{self._queue} returned messages at {first.start} and the same next offset")
            if not self._has_filter and not self._in_batches:
                self._adapt(first, first.response.next_offset)
        return first.response

    def _receive(self, pull_socket: PullSocket, first: _Pull) -> None:
        """Read one response: the first pull's body into the buffer, another pull's into memory of its own."""
        head = pull_socket.receive()
        pull = next((each for each in self._pulls if each.request_id == head.request_id), None)
        body = b""
        if pull is first:
            pull_socket.read_into(self._reserve(head.body_bytes))
            self._used += head.body_bytes
            self._response_bytes = max(1, head.body_bytes)
        else:
            buffer = bytearray(head.body_bytes)
            pull_socket.read_into(memoryview(buffer))
            body = bytes(buffer)
        if pull is not None:
            response = as_response(head.command, body)
            if response.code not in PULL_CODES:
                raise refusal(response, pull_socket.address)
            pull.response = decode_pull_answer(response)

    def _reserve(self, count: int) -> memoryview:
        """Return the next `count` bytes of the buffer."""
        if self._used + count > len(self._buffer):
            # Allocate a new buffer: the caller may still read the last chunk in this one.
            self._buffer = self._buffer[: self._used] + bytearray(max(count, len(self._buffer) - self._used))
        return memoryview(self._buffer)[self._used : self._used + count]

    # ------------------------------------------------------------------------------------------------------- requests

    def _send_ahead(self, pull_socket: PullSocket) -> None:
        """Send pulls up to the bounds of those in flight, the first one in any case."""
        if self._has_filter or self._in_batches:  # the end of a response is unpredictable
            if not self._pulls:
                self._pulls.append(_Pull(self._at, self._stop))
            self._send(pull_socket, self._pulls[0])
            return
        by_count = max(2, IN_FLIGHT_MESSAGES // self._pull_size)
        by_bytes = max(1, IN_FLIGHT_BYTES // self._response_bytes)
        free = min(IN_FLIGHT_MAX, by_count, by_bytes) - sum(pull.request_id is not None for pull in self._pulls)
        for place, pull in enumerate(self._pulls):
            if pull.request_id is None and (free > 0 or place == 0):
                self._send(pull_socket, pull)
                free -= 1
        end = self._pulls[-1].stop if self._pulls else self._at
        while end < self._stop and (free > 0 or not self._pulls):
            self._pulls.append(_Pull(end, min(end + self._pull_size, self._stop)))
            self._send(pull_socket, self._pulls[-1])
            end = self._pulls[-1].stop
            free -= 1

    def _send(self, pull_socket: PullSocket, pull: _Pull) -> None:
        if pull.request_id is not None:
            return
        query = PullQuestion(
            self._group,
            self._topic,
            self._queue.queue_id,
            pull.start,
            min(pull.stop - pull.start, self._options.pull_messages),
            expression=self._expression,
            expression_type=self._options.expression_type,
            bytes_max=self._options.pull_bytes,
            broker_name=self._queue.broker_name,
        )
        pull.request_id = pull_socket.send(self._connection.sign(encode_pull(query)))

    def _adapt(self, pull: _Pull, next_offset: int) -> None:
        """Set the pull size to the size of the response, and pull the rest of a short response."""
        if next_offset > pull.stop:
            self._in_batches = True
            self._pulls.clear()  # their responses would have the same batches again
            return
        if next_offset >= pull.stop:
            self._full_responses += 1
            if self._full_responses >= FULL_RESPONSES:
                self._full_responses = 0
                self._pull_size = min(2 * self._pull_size, self._options.pull_messages)
            return
        self._full_responses = 0
        self._pull_size = max(1, next_offset - pull.start)
        starts = range(next_offset, pull.stop, self._pull_size)
        self._pulls.extendleft(_Pull(start, min(start + self._pull_size, pull.stop)) for start in reversed(starts))

    # ------------------------------------------------------------------------------------------------------- failures

    def _skip(self, response: PullAnswer) -> None:
        """Continue after a response without messages, at the offset that it gives.

        Raises:
            DataLossError: messages were deleted, and `failOnDataLoss` is true.
            SourceError: the response is not consistent; it may be retryable.
        """
        at, low, high = self._at, response.min_offset, response.max_offset
        skips = response.status is PullStatus.NO_MATCHED_MESSAGE and response.next_offset > at
        if skips and self._has_filter and low <= at:
            self._at = response.next_offset
        elif not self._is_master():
            raise _NotYetError(f"a slave responds, which does not have offset {at}: start the master")
        elif low > at:
            self._lose(at, low, f"the oldest message is now at {low}")
        elif skips:
            self._lose(at, response.next_offset, "the broker is deleting them")
        elif self._failures < self._options.connection.retries:
            raise _NotYetError(f"{self._queue} has offsets {low} to {high} but returned nothing at {at}")
        elif high <= at:
            self._lose(at, self._stop, f"the queue now ends at {high}")
        else:
            raise SourceError(f"{self._queue} has offsets {low} to {high} but returned nothing at {at}")

    def _lose(self, start: int, stop: int, why: str) -> None:
        stop = min(stop, self._stop)
        report_loss(self._options, f"offsets {start} to {stop - 1} of {self._queue} are missing: {why}")
        self._at = stop
        self._pulls.clear()  # those in flight may begin before

    def _is_master(self) -> bool:
        """Whether the responses are from the broker group's master; a slave may lag, or start late.

        Raises:
            SkyrouteError: the route cannot be read.
        """
        routes = self._connection.session.routes
        self._connection.run(routes.refresh(self._topic))
        return self._socket is not None and self._socket.address == routes.address(routes.broker_of(self._queue))

    def _recover(self, error: OSError | SkyrouteError) -> None:
        """Disconnect and wait before the next try.

        Raises:
            BrokerLostError: no retries are left.
            SourceError: the error is not retryable.
        """
        self._disconnect()
        if isinstance(error, SkyrouteError) and not error.retryable:
            raise error if isinstance(error, SourceError) else SourceError(f"{self._queue}: {error}") from error
        retries = self._options.connection.retries
        if self._failures >= retries:
            raise BrokerLostError(
                f"{self._queue} cannot be read from offset {self._at} on, tried {retries + 1} times: {error}"
            ) from error
        self._failures += 1
        self._address = None
        log.warning("pull failed, retrying queue=%s offset=%d reason=%s", self._queue, self._at, error)
        time.sleep(self._options.connection.retry_interval_s)

    def _find_broker(self) -> str:
        """Refresh the route, and return the address of the master or a slave."""
        routes = self._connection.session.routes
        self._connection.run(routes.refresh(self._topic))
        self._address = routes.any_address(routes.broker_of(self._queue))
        if self._address is None:
            raise NoBrokerError(f"no route has an address of {self._queue.broker_name}: is the broker running?")
        return self._address

    def _disconnect(self) -> None:
        """Drop all pulls and close the socket, which may still receive their responses."""
        self._pulls.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class _NotYetError(SourceError):
    """A broker does not return a message that its offsets promise; a retry may get it."""

    retryable = True
