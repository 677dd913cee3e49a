"""Pulls a part of a queue: large answers, several under way at once, into a buffer that is used again and again.

Brokers give as many messages as they like: ours up to what is asked for, Apache's 32 at most, and every broker fewer
where messages are large. To have several pulls under way it takes a guess where each one ends: the part is cut into
pieces as long as the last answers were. A piece that comes back short is followed by another for what is left of it.
"""

import logging
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from skyroute.client.errors import NoBrokerError, refusal
from skyroute.errors import SkyrouteError
from skyroute.message.reserved_topics import with_namespace
from skyroute.message.tags import EVERY_TAG
from skyroute.pipeline.connections import connect
from skyroute.pipeline.line import Line
from skyroute.pipeline.source.errors import BrokerLostError, SourceError
from skyroute.pipeline.source.options import ReadOptions
from skyroute.pipeline.source.planning import QueueRange
from skyroute.pipeline.source.survey import report_loss
from skyroute.wire.calls.pull import PULL_CODES, PullAnswer, PullQuestion, PullStatus, decode_pull_answer, encode_pull
from skyroute.wire.header import as_response

log = logging.getLogger(__name__)

CHUNK_BYTES: Final = 4 << 20
CHUNK_MESSAGES: Final = 10_000
"""When as much has come, it is handed on. The last answer may go beyond, by as much as a frame can hold."""

IN_FLIGHT_MAX: Final = 32
IN_FLIGHT_MESSAGES: Final = 4_096
IN_FLIGHT_BYTES: Final = 8 << 20
"""How much is asked for ahead: many small answers, or a few large ones."""

FULL_ANSWERS: Final = 16
"""After so many answers as long as was asked for, more is asked for."""


class Chunk(NamedTuple):
    """Records of a queue, one behind the other. The bytes are good until the next chunk is asked for."""

    wire: memoryview
    start: int
    stop: int
    """Which offsets it is about. There may be records of others, which were handed on already, or are not wanted."""
    offset_delta: int
    """What to add to the offsets in the records."""


@dataclass(slots=True)
class _Piece:
    """Offsets that one pull asks for."""

    start: int
    stop: int
    number: int | None = None
    """Of the request that asks for it; None: it was not sent yet."""
    answer: PullAnswer | None = None
    """It came; its body is where it belongs, or here, if it came before its turn."""


class _Mark(NamedTuple):
    """From which byte of the buffer on records have these in common."""

    begin: int
    start: int
    offset_delta: int


class Fetch:
    """Reads one part of a queue, in order."""

    def __init__(self, options: ReadOptions, wanted: QueueRange) -> None:
        namespace = options.connection.namespace
        self._options = options
        self._connection = connect(options.connection)
        self._queue = wanted.queue
        self._topic = with_namespace(namespace, wanted.queue.topic)
        self._group = with_namespace(namespace, options.group)
        self._address = wanted.address
        self._at, self._stop = wanted.start, wanted.stop
        """Where the next message to hand on is, and where it ends."""
        self._selects = options.expression != EVERY_TAG
        self._step = options.pull_messages
        self._full_answers = 0
        self._answer_bytes = 1
        self._pieces: deque[_Piece] = deque()
        """What is asked for, or will be next, in order."""
        self._line: Line | None = None
        self._failures = 0
        """How often it failed since the last message came."""
        self._buffer = bytearray()
        """The line's; or one of our own, once that was too small."""
        self._used = 0

    def chunks(self) -> Iterator[Chunk]:
        """Give everything there is to read.

        Raises:
            DataLossError: messages are gone, and that is not to be passed over.
            BrokerLostError: the broker does not answer, however often it is tried.
            SourceError: it refuses.
        """
        try:
            while self._at < self._stop:
                yield from self._fill()
        except BaseException:
            self._hang_up()
            raise
        if self._line is not None and not self._line.owed:
            self._connection.keep_line(self._line)
            self._line = None
        self._hang_up()

    def read_one(self, at: int) -> Chunk:
        """Return what the broker gives for one offset alone.

        Raises:
            SourceError: nothing, or not now.
        """
        alone = Fetch(self._options, QueueRange(self._queue, at, at + 1, self._address))
        found = [chunk._replace(wire=memoryview(bytes(chunk.wire))) for chunk in alone.chunks()]
        if not found:
            raise SourceError(f"{self._queue} gives nothing at {at} alone, though it did with others")
        return found[0]

    # ------------------------------------------------------------------------------------------------------- answers

    def _fill(self) -> Iterator[Chunk]:
        """Gather answers until they are enough, and give them on."""
        start = reached = self._at
        self._used = 0
        marks: list[_Mark] = []
        while self._at < self._stop and self._used < CHUNK_BYTES and self._at - start < CHUNK_MESSAGES:
            begin = self._used
            try:
                answer = self._next_answer()
                if answer.status is not PullStatus.FOUND:
                    self._step_over(answer)
                    break
            except (OSError, SkyrouteError) as error:
                self._used = begin
                self._recover(error)
                continue
            self._failures = 0
            if not marks or answer.offset_delta != marks[-1].offset_delta:
                marks.append(_Mark(begin, self._at, answer.offset_delta))
            reached = self._at = max(self._at, answer.next_offset)
        # Messages that are gone may have been stepped over in the end: nothing was told of those.
        marks.append(_Mark(self._used, reached, 0))
        for mark, following in pairwise(marks):
            wire = memoryview(self._buffer)[mark.begin : following.begin]
            yield Chunk(wire, mark.start, following.start, mark.offset_delta)

    def _next_answer(self) -> PullAnswer:
        """Return the answer for the next piece, with its body at the end of the buffer."""
        if self._line is None:
            self._line = self._connection.take_line(self._address or self._find_broker(), self._options.pull_timeout_s)
            if not self._used:
                self._buffer = self._line.buffer
        while self._pieces and self._pieces[0].stop <= self._at:
            self._pieces.popleft()  # an earlier answer went further than was asked for
        self._ask_ahead(self._line)
        first = self._pieces[0]
        while first.answer is None:
            self._receive(self._line, first)
        self._pieces.popleft()
        if first.answer.body:
            self._room(len(first.answer.body))[:] = first.answer.body
            self._used += len(first.answer.body)
        if first.answer.status is PullStatus.FOUND:
            if first.answer.next_offset <= first.start:
                raise _NotYetError(f"{self._queue} gives messages at {first.start}, and says to go on there")
            if not self._selects:
                self._adapt(first, first.answer.next_offset)
        return first.answer

    def _receive(self, line: Line, first: _Piece) -> None:
        """Read one answer: to the end of the buffer if it is its turn, else aside."""
        came = line.receive()
        piece = next((each for each in self._pieces if each.number == came.number), None)
        if piece is first:
            line.read_into(self._room(came.body_bytes))
            self._used += came.body_bytes
            self._answer_bytes = max(1, came.body_bytes)
        else:
            aside = bytearray(came.body_bytes)
            line.read_into(memoryview(aside))
            came.head.body = bytes(aside)
        if piece is not None:
            response = as_response(came.head)
            if response.code not in PULL_CODES:
                raise refusal(response, line.address)
            piece.answer = decode_pull_answer(response)

    def _room(self, count: int) -> memoryview:
        """Return the next so many bytes of the buffer."""
        if self._used + count > len(self._buffer):
            # A new one: whoever has the last chunk may still look into this one.
            self._buffer = self._buffer[: self._used] + bytearray(max(count, len(self._buffer) - self._used))
        return memoryview(self._buffer)[self._used : self._used + count]

    # ----------------------------------------------------------------------------------------------------- questions

    def _ask_ahead(self, line: Line) -> None:
        """Have as many pulls under way as is useful, that for the next piece among them."""
        if self._selects:  # how far an answer reaches, nobody knows
            if not self._pieces:
                self._pieces.append(_Piece(self._at, self._stop))
            self._ask(line, self._pieces[0])
            return
        by_count = max(2, IN_FLIGHT_MESSAGES // self._step)
        by_bytes = max(1, IN_FLIGHT_BYTES // self._answer_bytes)
        free = min(IN_FLIGHT_MAX, by_count, by_bytes) - sum(piece.number is not None for piece in self._pieces)
        for place, piece in enumerate(self._pieces):
            if piece.number is None and (free > 0 or place == 0):
                self._ask(line, piece)
                free -= 1
        end = self._pieces[-1].stop if self._pieces else self._at
        while end < self._stop and (free > 0 or not self._pieces):
            self._pieces.append(_Piece(end, min(end + self._step, self._stop)))
            self._ask(line, self._pieces[-1])
            end = self._pieces[-1].stop
            free -= 1

    def _ask(self, line: Line, piece: _Piece) -> None:
        if piece.number is not None:
            return
        question = PullQuestion(
            self._group,
            self._topic,
            self._queue.queue_id,
            piece.start,
            min(piece.stop - piece.start, self._options.pull_messages),
            expression=self._options.expression,
            expression_type=self._options.expression_type,
            bytes_max=self._options.pull_bytes,
            broker_name=self._queue.broker_name,
        )
        piece.number = line.send(self._connection.sign(encode_pull(question)))

    def _adapt(self, piece: _Piece, next_offset: int) -> None:
        """Ask for as much as the broker gives: for what is left of a piece that came back short, and from now on."""
        if next_offset >= piece.stop:
            self._full_answers += 1
            if self._full_answers >= FULL_ANSWERS:
                self._full_answers = 0
                self._step = min(2 * self._step, self._options.pull_messages)
            return
        self._full_answers = 0
        self._step = max(1, next_offset - piece.start)
        starts = range(next_offset, piece.stop, self._step)
        self._pieces.extendleft(_Piece(start, min(start + self._step, piece.stop)) for start in reversed(starts))

    # ------------------------------------------------------------------------------------------------------- trouble

    def _step_over(self, answer: PullAnswer) -> None:
        """Go on where an answer says that there is nothing here.

        Raises:
            DataLossError: messages are gone, and that is not to be passed over.
            SourceError: what it says makes no sense, or will later.
        """
        at, low, high = self._at, answer.min_offset, answer.max_offset
        if low > at:
            self._lose(at, low, f"the oldest message is at {low}")
        elif answer.status is PullStatus.NO_MATCHED_MESSAGE and answer.next_offset > at:
            if self._selects:
                self._at = answer.next_offset
            else:
                self._lose(at, answer.next_offset, "they are being deleted")
        elif self._failures < self._options.connection.retries:
            raise _NotYetError(f"{self._queue} has offsets from {low} to {high}, and gives nothing at {at}")
        elif high <= at:
            self._lose(at, self._stop, f"the queue ends at {high}, though it reached further before")
        else:
            raise SourceError(f"{self._queue} has offsets from {low} to {high}, and gives nothing at {at}")

    def _lose(self, start: int, stop: int, why: str) -> None:
        stop = min(stop, self._stop)
        report_loss(self._options, f"{self._queue} has no messages from {start} to {stop - 1} any more: {why}")
        self._at = stop

    def _recover(self, error: OSError | SkyrouteError) -> None:
        """Be ready to try again, after a while.

        Raises:
            BrokerLostError: it was tried often enough.
            SourceError: it would not help.
        """
        self._hang_up()
        if isinstance(error, SkyrouteError) and not error.retryable:
            raise error if isinstance(error, SourceError) else SourceError(f"{self._queue}: {error}") from error
        retries = self._options.connection.retries
        if self._failures >= retries:
            tried = f"tried {retries + 1} times"
            raise BrokerLostError(f"{self._queue} cannot be read from {self._at} on, {tried}: {error}") from error
        self._failures += 1
        self._address = None
        log.warning("pull failed, trying again queue=%s at=%d cause=%s", self._queue, self._at, error)
        time.sleep(self._options.connection.retry_interval_s)

    def _find_broker(self) -> str:
        """Ask where the broker is now; a slave will do."""
        routes = self._connection.session.routes
        self._connection.run(routes.refresh(self._topic))
        self._address = routes.any_address(self._queue.broker_name)
        if self._address is None:
            raise NoBrokerError(f"no route knows where {self._queue.broker_name} is; it may be back later")
        return self._address

    def _hang_up(self) -> None:
        """Give up the line: answers that nobody waits for any more may be on it."""
        self._pieces.clear()
        if self._line is not None:
            self._line.close()
            self._line = None


class _NotYetError(SourceError):
    """A queue does not give what it has announced: it may soon."""

    retryable = True
