"""Looks up, on the driver, the queues to read and their offsets."""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from skyroute.client.consuming import queue_calls as calls
from skyroute.client.consuming.subscription import TAG
from skyroute.client.errors import BrokerRefusedError, NoRouteError
from skyroute.client.producing.queue_selection import subscribe_queues
from skyroute.client.session.session import Session
from skyroute.clock import SystemClock
from skyroute.errors import SkyrouteError
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    is_system_topic,
    retry_topic,
    with_namespace,
    without_namespace,
)
from skyroute.message.tags import EVERY_TAG
from skyroute.pipeline.connections import connect
from skyroute.pipeline.source.errors import BrokerLostError, DataLossError, SourceError
from skyroute.pipeline.source.offsets import Offsets
from skyroute.pipeline.source.options import EARLIEST_OFFSET, LATEST_OFFSET, Position, PositionKind, ReadOptions
from skyroute.remoting.log_backoff import LogBackoff
from skyroute.wire.calls.topics import (
    TopicConfig,
    decode_topic_config,
    decode_topic_list,
    encode_topic_config_query,
    encode_topic_list_query,
    encode_topic_update,
)

log = logging.getLogger(__name__)

R = TypeVar("R")

_unreachable = LogBackoff()
"""Limits warnings for each broker that does not respond: an idle stream sends several lookups a second."""


class OffsetRange(NamedTuple):
    """The offset of a queue's oldest message, and the offset that its next message will get."""

    min_offset: int
    max_offset: int


class OffsetLookup:
    """Lookups in one cluster. Each waits for its result and retries retryable failures."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._connection = connect(options.connection)

    def _run(self, request: Callable[[Session], Coroutine[Any, Any, R]]) -> R:
        """Return the result of a request.

        Raises:
            SourceError: the request failed and is not retryable.
            BrokerLostError: all retries failed.
        """
        options = self._options.connection
        failures = 0
        while True:
            try:
                return self._connection.run(request(self._connection.session))
            except SourceError:
                raise
            except SkyrouteError as error:
                if not error.retryable or isinstance(error, NoRouteError):
                    raise SourceError(f"the topic cannot be read: {error}") from error
                failures += 1
                if failures > options.retries:
                    raise BrokerLostError(f"request failed {failures} times: {error}") from error
                log.warning("request failed, retrying failures=%d reason=%s", failures, error)
            time.sleep(options.retry_interval_s)

    def queues(self) -> list[QueueRef]:
        """Return the queues that the options select, with current routes.

        Raises:
            SourceError: a topic or queue does not exist, or the lookup fails.
        """
        return self._run(self._find_queues)

    async def _find_queues(self, session: Session) -> list[QueueRef]:
        options, namespace = self._options, self._options.connection.namespace
        topics: Collection[str] = options.topics or sorted({queue.topic for queue in options.queues})
        if options.pattern is not None:
            known = decode_topic_list((await session.ask_name_server(encode_topic_list_query())).body)
            topics = [topic for topic in map(_plain_name(namespace), known) if _matches(topic, options.pattern)]

        async def queues_of(topic: str) -> list[QueueRef]:
            try:
                route = await session.routes.refresh(with_namespace(namespace, topic))
            except NoRouteError:
                if options.pattern is not None:  # deleted since the topic list was read
                    return []
                raise
            return subscribe_queues(topic, route)

        found = [queue for queues in await asyncio.gather(*map(queues_of, topics)) for queue in queues]
        if missing := set(options.queues).difference(found):
            raise SourceError(f"assign: unknown queues {_listed(missing)} (expected some of {_listed(found)})")
        return sorted(options.queues or found)

    def offset_ranges(self, queues: Iterable[QueueRef]) -> dict[QueueRef, OffsetRange]:
        """Return the smallest and largest offset of each queue.

        Raises:
            SourceError: the lookup fails.
        """

        async def look_up(session: Session) -> dict[QueueRef, OffsetRange]:
            return await _each(queues, lambda queue: self._offset_range(session, queue))

        return self._run(look_up)

    async def _offset_range(self, session: Session, queue: QueueRef) -> OffsetRange:
        wire = self._wire(queue)
        low, high = await asyncio.gather(calls.min_offset(session, wire), calls.max_offset(session, wire))
        # A broker may report -1 for a queue without messages.
        return OffsetRange(max(0, low), max(0, low, high))

    def max_offsets(self, queues: Iterable[QueueRef]) -> Offsets:
        """Return the largest offset of each queue. Queues of unreachable brokers are left out, with a warning."""

        async def max_offset(session: Session, queue: QueueRef) -> int | None:
            try:
                return max(0, await calls.max_offset(session, self._wire(queue)))
            except SkyrouteError as error:
                suppressed = _unreachable.suppressed(queue.broker_name, SystemClock.monotonic())
                if suppressed is not None:
                    log.warning("end of queue unknown queue=%s reason=%s suppressed=%d", queue, error, suppressed)
                return None

        async def look_up(session: Session) -> dict[QueueRef, int | None]:
            return await _each(queues, lambda queue: max_offset(session, queue))

        return {queue: offset for queue, offset in self._run(look_up).items() if offset is not None}

    def resolve(self, position: Position, ranges: Mapping[QueueRef, OffsetRange]) -> Offsets:
        """Return the offset of a position in each queue.

        Raises:
            SourceError: the position has an unknown queue, lacks a queue, or no message is that new.
            DataLossError: an offset is outside its queue, and `failOnDataLoss` is true.
        """
        if position.kind is PositionKind.EARLIEST:
            return {queue: known.min_offset for queue, known in ranges.items()}
        if position.kind is PositionKind.LATEST:
            return {queue: known.max_offset for queue, known in ranges.items()}
        if position.kind is PositionKind.GROUP:
            return self._run(lambda session: self._find_group_offsets(session, ranges))
        self._check_queues(position, ranges)
        if position.kind is PositionKind.OFFSETS:
            return {
                queue: self._clamp(queue, position.queues[queue], known, position.option)
                for queue, known in ranges.items()
            }
        return self._run(lambda session: self._find_times(session, position, ranges))

    def _check_queues(self, position: Position, ranges: Mapping[QueueRef, OffsetRange]) -> None:
        if position.time_ms is not None:
            return
        if unknown := position.queues.keys() - ranges.keys():
            raise SourceError(f"{position.option}: unknown queues {_listed(unknown)} (expected {_listed(ranges)})")
        if missing := ranges.keys() - position.queues.keys():
            hint = "" if position.kind is PositionKind.TIME else " (-1 is the latest offset, -2 the earliest)"
            raise SourceError(f"{position.option}: queues are missing: add {_listed(missing)}{hint}")

    def _clamp(self, queue: QueueRef, offset: int, known: OffsetRange, option: str) -> int:
        if offset == EARLIEST_OFFSET:
            return known.min_offset
        if offset == LATEST_OFFSET:
            return known.max_offset
        if known.min_offset <= offset <= known.max_offset:
            return offset
        report_loss(
            self._options,
            f"{option}: offset {offset} of {queue} is out of range (expected {known.min_offset} to {known.max_offset})",
        )
        return min(max(offset, known.min_offset), known.max_offset)

    async def _find_group_offsets(self, session: Session, ranges: Mapping[QueueRef, OffsetRange]) -> Offsets:
        """Return the committed offsets of the group; the oldest message of a queue that has none."""
        group = with_namespace(self._options.connection.namespace, self._options.consumer_group)

        async def find(queue: QueueRef) -> int:
            low, high = ranges[queue]
            offset = await calls.committed_offset(session, group, self._wire(queue), zero_if_not_found=False)
            return low if offset is None else min(max(low, offset), high)

        return await _each(ranges, find)

    async def _find_times(
        self, session: Session, position: Position, ranges: Mapping[QueueRef, OffsetRange]
    ) -> Offsets:
        async def find(queue: QueueRef) -> int:
            time_ms = position.time_ms if position.time_ms is not None else position.queues[queue]
            low, high = ranges[queue]
            offset = min(max(low, await calls.offset_at(session, self._wire(queue), time_ms)), high)
            if offset == high and position.fail_if_no_message:
                raise SourceError(
                    f"{position.option}: {queue} has no message stored at {_shown(time_ms)} or later: use an earlier"
                    " time, or set startingOffsetsByTimestampStrategy=latest to start with the next message"
                )
            return offset

        return await _each(ranges, find)

    def broker_addresses(self, queues: Iterable[QueueRef]) -> dict[str, str]:
        """Return broker addresses by name. Brokers without a route are left out."""
        known = self._connection.session.routes
        found = {queue.broker_name: known.any_address(queue.broker_name) for queue in queues}
        return {name: address for name, address in found.items() if address is not None}

    def batch_topics(self, queues: Iterable[QueueRef]) -> set[tuple[str, str]]:
        """Return topic and broker of the queues that store batches as one record; empty if the read has no tags.

        Raises:
            SourceError: the lookup fails.
        """
        if self._options.expression == EVERY_TAG or self._options.expression_type != TAG:
            return set()
        places = sorted({(queue.topic, queue.broker_name) for queue in queues})

        async def look_up(session: Session) -> list[bool]:
            return await asyncio.gather(*(self._is_batch_topic(session, *place) for place in places))

        return {place for place, is_batch in zip(places, self._run(look_up), strict=True) if is_batch}

    async def _is_batch_topic(self, session: Session, topic: str, broker_name: str) -> bool:
        address = session.routes.any_address(broker_name)
        if address is None:
            return False
        request = encode_topic_config_query(with_namespace(self._options.connection.namespace, topic))
        try:
            config = decode_topic_config((await session.ask(address, request)).body)
        except BrokerRefusedError:  # before 5.0 there are no batch topics; or the user may read messages only
            return False
        return config.attributes.get("queue.type") == "BatchCQ"

    def commit_group_offsets(self, offsets: Mapping[QueueRef, int]) -> None:
        """Store offsets of the consumer group on the brokers. Failures are logged, not raised."""
        group = with_namespace(self._options.connection.namespace, self._options.consumer_group)

        async def report(session: Session) -> None:
            await self._log_failures(
                {
                    str(queue): calls.commit_offset(session, group, self._wire(queue), offset, wait=True)
                    for queue, offset in offsets.items()
                },
                "group offset not reported",
            )

        self._connection.run(report(self._connection.session))

    def announce_group(self, queues: Iterable[QueueRef]) -> None:
        """Create the group's retry topic on the brokers of these queues. Failures are logged, not raised.

        Admin tools find the brokers of a group by this topic. Other consumers create it with their first heartbeat.
        """
        group = with_namespace(self._options.connection.namespace, self._options.consumer_group)
        topic = TopicConfig(retry_topic(group), read_queues=1, write_queues=1)

        async def announce(session: Session) -> None:
            try:
                known = {queue.broker_name for queue in subscribe_queues("", await session.routes.refresh(topic.name))}
            except SkyrouteError:
                known = set()
            addresses = {queue.broker_name: session.routes.address(queue.broker_name) for queue in queues}
            await self._log_failures(
                {
                    name: session.ask(address, encode_topic_update(topic))
                    for name, address in addresses.items()
                    if address is not None and name not in known
                },
                "retry topic of the group not created",
            )

        self._connection.run(announce(self._connection.session))

    async def _log_failures(self, requests: Mapping[str, Coroutine[Any, Any, object]], problem: str) -> None:
        outcomes = await asyncio.gather(*requests.values(), return_exceptions=True)
        for name, outcome in zip(requests, outcomes, strict=True):
            if isinstance(outcome, SkyrouteError):
                log.warning("%s at=%s reason=%s", problem, name, outcome)
            elif isinstance(outcome, BaseException):
                raise outcome

    def _wire(self, queue: QueueRef) -> QueueRef:
        topic = with_namespace(self._options.connection.namespace, queue.topic)
        return QueueRef(topic, queue.broker_name, queue.queue_id)


def report_loss(options: ReadOptions, what: str) -> None:
    """Raise or log that messages are missing, as the option `failOnDataLoss` says.

    Raises:
        DataLossError: `failOnDataLoss` is true.
    """
    if options.fail_on_data_loss:
        raise DataLossError(f"{what}. To read the remaining messages, set failOnDataLoss=false")
    log.warning("messages lost what=%s", what)


async def _each(queues: Iterable[QueueRef], look_up: Callable[[QueueRef], Coroutine[Any, Any, R]]) -> dict[QueueRef, R]:
    queues = list(queues)
    return dict(zip(queues, await asyncio.gather(*map(look_up, queues)), strict=True))


def _plain_name(namespace: str | None) -> Callable[[str], str]:
    return lambda topic: without_namespace(namespace, topic)


def _matches(topic: str, pattern: str) -> bool:
    is_user_topic = not is_system_topic(topic) and not topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    return is_user_topic and re.fullmatch(pattern, topic) is not None


def _listed(queues: Iterable[QueueRef]) -> str:
    return ", ".join(map(str, sorted(queues)))


def _shown(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
