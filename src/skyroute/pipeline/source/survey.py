"""Asks a cluster which queues there are to read, where they begin and end, and where a position is in them."""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from skyroute.client import queues as calls
from skyroute.client.errors import NoRouteError
from skyroute.client.selection import subscribe_queues
from skyroute.client.session import Session
from skyroute.clock import SystemClock
from skyroute.errors import SkyrouteError
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    is_system_topic,
    with_namespace,
    without_namespace,
)
from skyroute.pipeline.connections import connect
from skyroute.pipeline.source.errors import BrokerLostError, DataLossError, SourceError
from skyroute.pipeline.source.offsets import Offsets
from skyroute.pipeline.source.options import EARLIEST_OFFSET, LATEST_OFFSET, Position, ReadOptions, Where
from skyroute.remoting.spaced_lines import SpacedLines
from skyroute.wire.calls.topics import decode_topic_list, encode_topic_list_query

log = logging.getLogger(__name__)

R = TypeVar("R")

_silent = SpacedLines()
"""Brokers that do not say where their queues end, by name: an idle stream asks several times a second."""


class Span(NamedTuple):
    """Where the oldest message of a queue is, and where the next one will be."""

    low: int
    high: int


class Survey:
    """Questions to one cluster. Each waits for its answer, and is asked again if it failed for what may pass."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._connection = connect(options.connection)

    def _ask(self, question: Callable[[Session], Coroutine[Any, Any, R]]) -> R:
        """Return an answer.

        Raises:
            SourceError: there is none, and it would not help to ask again, or has not.
        """
        options = self._options.connection
        failures = 0
        while True:
            try:
                return self._connection.run(question(self._connection.session))
            except SourceError:
                raise
            except SkyrouteError as error:
                if not error.retryable or isinstance(error, NoRouteError):
                    raise SourceError(f"the topic cannot be read: {error}") from error
                failures += 1
                if failures > options.retries:
                    raise BrokerLostError(f"asked {failures} times, and there is no answer: {error}") from error
                log.warning("cluster not asked, trying again failures=%d cause=%s", failures, error)
            time.sleep(options.retry_interval_s)

    def queues(self) -> list[QueueRef]:
        """Return the queues to read as they are now, new ones too.

        Raises:
            SourceError: there are none such, or nobody says.
        """
        return self._ask(self._find_queues)

    async def _find_queues(self, session: Session) -> list[QueueRef]:
        options, namespace = self._options, self._options.connection.namespace
        topics: Collection[str] = options.topics or sorted({queue.topic for queue in options.queues})
        if options.pattern is not None:
            known = decode_topic_list((await session.ask_name_server(encode_topic_list_query())).body)
            topics = [topic for topic in map(_plain_name(namespace), known) if _is_wanted(topic, options.pattern)]

        async def queues_of(topic: str) -> list[QueueRef]:
            try:
                route = await session.routes.refresh(with_namespace(namespace, topic))
            except NoRouteError:
                if options.pattern is not None:  # it was deleted a moment ago
                    return []
                raise
            return subscribe_queues(topic, route)

        found = [queue for queues in await asyncio.gather(*map(queues_of, topics)) for queue in queues]
        if missing := set(options.queues).difference(found):
            raise SourceError(f"assign names queues that are not there: {_listed(missing)}; there are {_listed(found)}")
        return sorted(options.queues or found)

    def spans(self, queues: Iterable[QueueRef]) -> dict[QueueRef, Span]:
        """Return where queues begin and end.

        Raises:
            SourceError: nobody says.
        """

        async def ask(session: Session) -> dict[QueueRef, Span]:
            return await _each(queues, lambda queue: self._span(session, queue))

        return self._ask(ask)

    async def _span(self, session: Session, queue: QueueRef) -> Span:
        wire = self._wire(queue)
        low, high = await asyncio.gather(calls.min_offset(session, wire), calls.max_offset(session, wire))
        # A broker that has nothing of the queue yet may say -1.
        return Span(max(0, low), max(0, low, high))

    def ends(self, queues: Iterable[QueueRef]) -> Offsets:
        """Return where queues end now. Those whose broker does not answer are left out, with a line in the log."""

        async def end(session: Session, queue: QueueRef) -> int | None:
            try:
                return max(0, await calls.max_offset(session, self._wire(queue)))
            except SkyrouteError as error:
                unsaid = _silent.unsaid(queue.broker_name, SystemClock.monotonic())
                if unsaid is not None:
                    log.warning("end of queue unknown queue=%s cause=%s unsaid=%d", queue, error, unsaid)
                return None

        async def ask(session: Session) -> dict[QueueRef, int | None]:
            return await _each(queues, lambda queue: end(session, queue))

        return {queue: offset for queue, offset in self._ask(ask).items() if offset is not None}

    def locate(self, position: Position, spans: Mapping[QueueRef, Span], option: str) -> Offsets:
        """Return where a position is in each queue; `option` is what a person would have to correct.

        Raises:
            SourceError: it names queues that are not there, or leaves some out, or no message is as young.
            DataLossError: an offset is not in its queue, and that is not to be passed over.
        """
        if position.where is Where.EARLIEST:
            return {queue: span.low for queue, span in spans.items()}
        if position.where is Where.LATEST:
            return {queue: span.high for queue, span in spans.items()}
        self._check_named(position, spans, option)
        if position.where is Where.OFFSETS:
            return {queue: self._within(queue, position.queues[queue], span, option) for queue, span in spans.items()}
        return self._ask(lambda session: self._find_times(session, position, spans, option))

    def _check_named(self, position: Position, spans: Mapping[QueueRef, Span], option: str) -> None:
        if position.time_ms is not None:
            return
        if unknown := position.queues.keys() - spans.keys():
            raise SourceError(f"{option} names queues that are not there: {_listed(unknown)}, but {_listed(spans)} are")
        if missing := spans.keys() - position.queues.keys():
            hint = "" if position.where is Where.TIME else " (-1 is the latest offset, -2 the earliest)"
            raise SourceError(f"{option} leaves out queues: give {_listed(missing)} as well{hint}")

    def _within(self, queue: QueueRef, offset: int, span: Span, option: str) -> int:
        if offset == EARLIEST_OFFSET:
            return span.low
        if offset == LATEST_OFFSET:
            return span.high
        if span.low <= offset <= span.high:
            return offset
        report_loss(
            self._options,
            f"{option} gives {offset} for {queue}, which has offsets from {span.low} to {span.high}",
        )
        return min(max(offset, span.low), span.high)

    async def _find_times(
        self, session: Session, position: Position, spans: Mapping[QueueRef, Span], option: str
    ) -> Offsets:
        async def find(queue: QueueRef) -> int:
            time_ms = position.time_ms if position.time_ms is not None else position.queues[queue]
            low, high = spans[queue]
            offset = min(max(low, await calls.offset_at(session, self._wire(queue), time_ms)), high)
            if offset == high and position.fails_if_none:
                raise SourceError(
                    f"{option}: {queue} has no message from {time_ms} on; an earlier time, or"
                    " startingOffsetsByTimestampStrategy=latest, begins with the next that comes"
                )
            return offset

        return await _each(spans, find)

    def addresses(self, queues: Iterable[QueueRef]) -> dict[str, str]:
        """Return where brokers are, by name; one that no route names any more is left out."""
        known = self._connection.session.routes
        found = {queue.broker_name: known.any_address(queue.broker_name) for queue in queues}
        return {name: address for name, address in found.items() if address is not None}

    def report_group(self, offsets: Mapping[QueueRef, int]) -> None:
        """Have brokers note how far we have come, for people to see. One that does not is only logged."""
        group = with_namespace(self._options.connection.namespace, self._options.group)

        async def report(session: Session) -> None:
            outcomes = await asyncio.gather(
                *(
                    calls.commit_offset(session, group, self._wire(queue), offset, wait=True)
                    for queue, offset in offsets.items()
                ),
                return_exceptions=True,
            )
            for queue, outcome in zip(offsets, outcomes, strict=True):
                if isinstance(outcome, SkyrouteError):
                    log.warning("group offset not reported queue=%s cause=%s", queue, outcome)
                elif isinstance(outcome, BaseException):
                    raise outcome

        self._connection.run(report(self._connection.session))

    def _wire(self, queue: QueueRef) -> QueueRef:
        topic = with_namespace(self._options.connection.namespace, queue.topic)
        return QueueRef(topic, queue.broker_name, queue.queue_id)


def report_loss(options: ReadOptions, what: str) -> None:
    """Say that messages are not there, in the way that was asked for.

    Raises:
        DataLossError: it is not to be passed over.
    """
    if options.fail_on_data_loss:
        raise DataLossError(f"{what}. To read what is there, set failOnDataLoss=false")
    log.warning("messages are lost what=%s", what)


async def _each(queues: Iterable[QueueRef], ask: Callable[[QueueRef], Coroutine[Any, Any, R]]) -> dict[QueueRef, R]:
    queues = list(queues)
    return dict(zip(queues, await asyncio.gather(*map(ask, queues)), strict=True))


def _plain_name(namespace: str | None) -> Callable[[str], str]:
    return lambda topic: without_namespace(namespace, topic)


def _is_wanted(topic: str, pattern: str) -> bool:
    is_ours = not is_system_topic(topic) and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    return is_ours and re.fullmatch(pattern, topic) is not None


def _listed(queues: Iterable[QueueRef]) -> str:
    return ", ".join(map(str, sorted(queues)))
