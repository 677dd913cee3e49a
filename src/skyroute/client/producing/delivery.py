"""Delivers a prepared message: chooses the queue, sends it to the broker, and retries with other brokers."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from skyroute.client.errors import BrokerRefusedError, NoBrokerError, NoRouteError, NotLeaderError, refusal
from skyroute.client.producing.in_flight import InFlight
from skyroute.client.producing.prepared_message import Outbound
from skyroute.client.producing.queue_selection import (
    FAILURE_LATENCY_S,
    SLOW_S,
    BrokerHealth,
    Rotation,
    awaits_master,
    publish_queues,
)
from skyroute.client.results import SendResult, SendStatus
from skyroute.client.session.session import Session
from skyroute.client.session.shared_task import outcome_of
from skyroute.clock import Clock
from skyroute.errors import SkyrouteError
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import DEFAULT_TOPIC, without_namespace
from skyroute.remoting.errors import CallTimeoutError, ConnectError, RemotingError
from skyroute.remoting.log_backoff import LogBackoff
from skyroute.routing.topology import BrokerQueues, TopicRoute
from skyroute.wire.calls.send import SENT_CODES, decode_send_receipt, encode_send, write_send
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.fast_path import PreparedRequest

log = logging.getLogger(__name__)

RETRIED_CODES: Final = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
        ResponseCode.NOT_LEADER_FOR_QUEUE,
    }
)
"""Response codes after which another broker is tried."""

RETRY_PAUSE_S: Final = 0.1
"""Pause before a retry with the same broker, if there is no other; it doubles with each retry.

A new route ends the pause.
"""

ROUTE_RETRY_S: Final = 1.0
"""How long the missing route of a topic is remembered, before it is read again."""

_STATUSES: Final = {status.value: status for status in SendStatus}

_R = TypeVar("_R")

Choose = Callable[[Sequence[QueueRef]], QueueRef]
"""Chooses one of a topic's queues, the same one in every attempt."""


class Delivery:
    """Sends the messages of one producer group to brokers."""

    def __init__(
        self,
        session: Session,
        group: str,
        in_flight: InFlight,
        *,
        attempts: int,
        retry_unsafe: bool,
        avoid_slow: bool,
        new_topic_queues: int,
    ) -> None:
        self._session = session
        self._group = group
        self._in_flight = in_flight
        # Prepared bytes cannot be signed.
        self._encode: Callable[..., Request | PreparedRequest] = encode_send if session.credentials else write_send
        self._clock: Clock = session.clock
        self._attempts = attempts
        self._retry_unsafe = retry_unsafe
        self._health = BrokerHealth() if avoid_slow else None
        self._new_topic_queues = new_topic_queues
        self._rotations: dict[str, tuple[TopicRoute, Rotation]] = {}
        self._provisional: dict[str, tuple[float, Rotation]] = {}
        """Queues of topics that do not exist yet, and when their route is read again."""
        self._looks: dict[str, asyncio.Task[None]] = {}
        """By topic: sends that wait for a master share one request."""
        self._failed_refreshes = LogBackoff()
        """Topics whose routes cannot be refreshed."""

    @property
    def topics(self) -> Iterable[str]:
        """The topics that messages were sent to."""
        return (*self._rotations, *self._provisional)

    async def deliver_oneway(self, outbound: Outbound, choose: Choose | None) -> None:
        """Send to one broker without a response.

        Raises:
            NoRouteError, RemotingError, NoBrokerError: no broker can be reached.
        """
        rotation = await self.rotation(outbound.topic)
        queue = choose(rotation.queues) if choose is not None else rotation.next(self.avoided())
        await self._session.tell(await self.address(outbound.topic, queue), self._request(outbound, queue, encode_send))

    async def deliver(self, outbound: Outbound, choose: Choose | None, timeout_s: float) -> SendResult:
        """Wait for a place in flight, and then try one broker after the other until one has stored the message.

        The timeout starts when the place is free.

        Raises:
            NoRouteError, BrokerRefusedError, RemotingError, NoBrokerError: the last failure, with notes on the others.
        """
        size = len(outbound.body)
        if not self._in_flight.try_enter(size):
            await self._in_flight.enter(size)
        now = self._clock.monotonic
        outbound.began_at = now()
        deadline = outbound.began_at + timeout_s
        topic = outbound.topic
        failures: list[str] = []
        failed_brokers: set[str] = set()
        unsafe: SendResult | None = None
        try:
            for attempt in range(self._attempts):
                queue: QueueRef | None = None
                try:
                    rotation = self._known_rotation(topic) or await self.rotation(topic, deadline - now())
                    queue = choose(rotation.queues) if choose else rotation.next(failed_brokers or self.avoided())
                    if queue.broker_name in failed_brokers:
                        pause_s = min(RETRY_PAUSE_S * 2 ** (attempt - 1), deadline - now())
                        queue = await self._queue_after(pause_s, topic, choose, deadline)
                    address = self._known_address(queue) or await self.address(topic, queue, deadline - now())
                    sent_at = now()
                    if sent_at >= deadline:
                        raise CallTimeoutError(f"not sent: no broker of {topic} was found in {timeout_s:g} s")
                    request = self._request(outbound, queue, self._encode)
                    response = await self._session.call(address, request, deadline - sent_at)
                    if response.code not in SENT_CODES:
                        raise refusal(response, address)
                    self._report(queue, now() - sent_at)
                    result = self._result(outbound, queue, response)
                    if result.ok or not self._retry_unsafe or choose is not None:
                        return result
                    unsafe = result
                    failed_brokers.add(queue.broker_name)
                except (RemotingError, BrokerRefusedError, NoRouteError, NoBrokerError) as error:
                    if queue is not None:
                        self._note_failure(topic, queue, error, failed_brokers)
                    last = queue is None or attempt + 1 == self._attempts or now() >= deadline
                    if last or not _may_retry(error, fixed=choose is not None):
                        if unsafe is not None:
                            return unsafe
                        _add_notes(error, failures)
                        raise
                    failures.append(str(error))
                    if isinstance(error, NotLeaderError):
                        await self._refresh_route(topic)
        finally:
            self._in_flight.leave(size)
        assert unsafe is not None  # every other way out of the loop returns or raises
        return unsafe

    async def _queue_after(self, pause_s: float, topic: str, choose: Choose | None, deadline: float) -> QueueRef:
        """Choose a queue again after a pause, which a new route ends."""
        await self._session.routes.until_changed(topic, max(0.0, pause_s))
        rotation = self._known_rotation(topic) or await self.rotation(topic, deadline - self._clock.monotonic())
        return choose(rotation.queues) if choose else rotation.next(self.avoided())

    def _note_failure(self, topic: str, queue: QueueRef, error: SkyrouteError, failed_brokers: set[str]) -> None:
        """Avoid the broker, and read the route again if it may be old, for the next attempt or the next message."""
        if not isinstance(error, NotLeaderError):
            failed_brokers.add(queue.broker_name)
            self._report(queue, FAILURE_LATENCY_S)
        if error.stale_route or isinstance(error, ConnectError):
            self._session.spawn(self._refresh_route(topic), name="route refresh after a failure")

    def _report(self, queue: QueueRef, latency_s: float) -> None:
        if latency_s >= SLOW_S and self._health is not None:
            self._health.report(queue.broker_name, latency_s, self._clock.monotonic())

    def _result(self, outbound: Outbound, queue: QueueRef, response: Response) -> SendResult:
        """Return the result from the response of the broker."""
        receipt = decode_send_receipt(response)
        namespace = self._session.namespace
        if receipt.queue_id != queue.queue_id or namespace is not None:
            queue = QueueRef(without_namespace(namespace, queue.topic), queue.broker_name, receipt.queue_id)
        return SendResult(
            _STATUSES[response.code],
            outbound.message_id,
            receipt.offset_id,
            queue,
            receipt.queue_offset,
            receipt.transaction_id,
            receipt.recall_handle,
            receipt.region,
            receipt.trace_on,
        )

    def _request(self, outbound: Outbound, queue: QueueRef, encode: "Callable[..., _R]") -> "_R":
        return encode(
            self._group,
            queue,
            outbound.body,
            properties=outbound.properties,
            born_at_ms=int(self._clock.wall() * 1000),
            sys_flag=outbound.sys_flag,
            flag=outbound.flag,
            batch=outbound.batch,
            reply=outbound.reply,
            default_topic_queues=self._new_topic_queues,
        )

    def avoided(self) -> frozenset[str]:
        """Return the brokers to avoid, because they failed or were slow."""
        return self._health.avoided(self._clock.monotonic()) if self._health is not None else frozenset()

    def _known_rotation(self, topic: str) -> Rotation | None:
        """Return the rotation of a topic, if its route has not changed."""
        known = self._rotations.get(topic)
        return known[1] if known is not None and known[0] is self._session.routes.cached(topic) else None

    async def rotation(self, topic: str, timeout_s: float | None = None) -> Rotation:
        """Return the rotation over the writable queues of a topic. With a timeout, wait for a master in a fail-over.

        Raises:
            NoRouteError: no broker serves the topic, and none would create it; or none of its queues can be written.
        """
        if (rotation := self._known_rotation(topic)) is not None:
            return rotation
        route = self._session.routes.cached(topic)
        if route is None:
            provisional = self._provisional.get(topic)
            if provisional is not None and self._clock.monotonic() < provisional[0]:
                return provisional[1]
            try:
                async with asyncio.timeout(timeout_s):
                    found = await self._find_route(topic)
            except TimeoutError:
                raise CallTimeoutError(f"no name server returned the route of {topic} in {timeout_s:.3g} s") from None
            if isinstance(found, Rotation):
                return found
            if (rotation := self._known_rotation(topic)) is not None:
                return rotation  # a concurrent send has stored it
            route = found
        queues = publish_queues(topic, route)
        if not queues and timeout_s is not None and awaits_master(route):
            route = await self._await_master(topic, route, timeout_s)
            queues = publish_queues(topic, route)
        if not queues:
            self._session.spawn(self._refresh_route(topic), name="route refresh without queues")
            raise NoRouteError(
                f"topic {topic} has no writable queue: check that its brokers have a master, and its permission"
            )
        rotation = Rotation(queues)
        self._rotations[topic] = (route, rotation)
        self._provisional.pop(topic, None)
        return rotation

    async def _await_master(self, topic: str, route: TopicRoute, timeout_s: float) -> TopicRoute:
        """Wait until one of the replicas has become master, and return the newest route."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while awaits_master(route):
                    look = self._looks.get(topic)
                    if look is None:
                        look = self._session.spawn(self._look_for_master(topic), name="look for a master")
                        self._looks[topic] = look
                        look.add_done_callback(lambda _: self._looks.pop(topic))
                    await outcome_of(look)
                    route = self._session.routes.cached(topic) or route
        return route

    async def _look_for_master(self, topic: str) -> None:
        """Read the route again. If it has not changed, wait a moment for a change."""
        routes = self._session.routes
        before = routes.cached(topic)
        await self._refresh_route(topic)
        if routes.cached(topic) is before:
            await routes.until_changed(topic, RETRY_PAUSE_S)

    async def _find_route(self, topic: str) -> TopicRoute | Rotation:
        try:
            return await self._session.routes.find(topic)
        except NoRouteError as error:
            return await self._provisional_rotation(topic, error)

    async def _provisional_rotation(self, topic: str, unknown: NoRouteError) -> Rotation:
        """Return the queues that a broker creates at the first message of a topic."""
        try:
            # The route of the default topic is not polled, so the cached one may be old.
            route = await self._session.routes.refresh(DEFAULT_TOPIC)
        except NoRouteError:
            raise unknown from None
        capped = tuple(
            BrokerQueues(
                queues.broker_name,
                queues.settings._replace(write_queues=min(self._new_topic_queues, queues.settings.read_queues)),
            )
            for queues in route.queues
        )
        queues = publish_queues(topic, TopicRoute(route.groups, capped))
        if not queues:
            raise unknown
        known = self._provisional.get(topic)
        rotation = known[1] if known is not None and known[1].queues == queues else Rotation(queues)
        self._provisional[topic] = (self._clock.monotonic() + ROUTE_RETRY_S, rotation)
        return rotation

    def _known_address(self, queue: QueueRef) -> str | None:
        address = self._session.routes.address(self._session.routes.broker_of(queue))
        return None if address is None else self._session.sending_address(address)

    async def address(self, topic: str, queue: QueueRef, timeout_s: float | None = None) -> str:
        """Return the address of a queue's broker; refresh the route if it is unknown.

        Raises:
            NoBrokerError: no route contains its broker.
        """
        if (address := self._known_address(queue)) is not None:
            return address
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._refresh_route(topic)
        address = self._known_address(queue)
        if address is None:
            raise NoBrokerError(f"the route of {topic} has no master of broker {queue.broker_name}: is it running?")
        return address

    async def _refresh_route(self, topic: str) -> None:
        try:
            await self._session.routes.refresh(topic)
        except SkyrouteError as error:
            suppressed = self._failed_refreshes.suppressed(topic, self._clock.monotonic())
            if suppressed is not None:
                log.info("route not refreshed topic=%s reason=%s suppressed=%d", topic, error, suppressed)


def _add_notes(error: SkyrouteError, failures: Iterable[str]) -> None:
    for failure in failures:
        error.add_note(f"earlier attempt: {failure}")


def _may_retry(error: SkyrouteError, *, fixed: bool) -> bool:
    if fixed:
        return isinstance(error, ConnectError | NotLeaderError)
    return not isinstance(error, BrokerRefusedError) or error.code in RETRIED_CODES
