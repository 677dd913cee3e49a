"""Requests of brokers: registration, heartbeat, version query, unregistration."""

import asyncio
import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Final

from skyroute.access.resources import Action
from skyroute.clock import Clock
from skyroute.nameserver.config import NameServerConfig
from skyroute.nameserver.kv_config import KvConfig
from skyroute.nameserver.server_events import Publish
from skyroute.remoting.dispatch import Answer, OrderedResponse, Peer
from skyroute.remoting.stepwise import StepRunner, run_through
from skyroute.routing.errors import PartialFirstRegistrationError, RegistrationRefusedError
from skyroute.routing.registration import Registration
from skyroute.routing.table import RouteTable
from skyroute.routing.topology import BrokerKey
from skyroute.wire.calls.kv import KV_ENTRIES_A_STEP, ORDER_TOPICS
from skyroute.wire.calls.registration import (
    decode_broker_key,
    decode_data_version,
    decode_registration,
    decode_unregistration,
    encode_registration_reply,
    encode_version_reply,
)
from skyroute.wire.calls.registration_body import body_fingerprint, decode_topic_table
from skyroute.wire.calls.route import decode_topic_registration
from skyroute.wire.command import Request, Response

log = logging.getLogger(__name__)

LARGE_BODY_BYTES: Final = 64 * 1024
"""A registration with a longer body runs in steps, so that other requests do not wait for it."""
STEPS_AT_ONCE: Final = 8
"""Steps of a registration with a short body that are run at once; the body may inflate to a thousand times its size."""
STEPS_AT_A_TIME: Final = 8
"""Steps that all registrations may take. Then they continue one at a time: each takes several times its memory."""


@dataclass(frozen=True, slots=True)
class BrokerHandlers:
    """Handlers that write to the route table for brokers."""

    table: RouteTable
    kv: KvConfig
    config: NameServerConfig
    clock: Clock
    publish: Publish
    step_runner: StepRunner
    require_cluster: Callable[[str, Action, Peer], None] | None = None
    """Raises RefusedError if the sender of the request in hand may not do this with one more cluster."""
    large: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by a registration with more than `STEPS_AT_A_TIME` steps."""

    def register(self, request: Request, peer: Peer) -> Answer:
        """Process a registration: a small one at once, one with a long body or response in steps."""
        registration = decode_registration(request)
        self._check_cluster(registration, peer)
        steps = self._register(registration, request, peer, self.table.take_ticket())
        delete_missing = self.config.delete_missing_topics
        is_short = len(request.body) <= LARGE_BODY_BYTES and self.kv.entry_count <= KV_ENTRIES_A_STEP
        if is_short and not self.table.is_long(registration.broker_name, 0, delete_missing_topics=delete_missing):
            response = run_through(_begin(steps, STEPS_AT_ONCE))
            if response is not None:
                return response
        # It may wait for other long registrations, but its broker is alive: renew the lease now.
        self._renew(registration.key, peer)
        return OrderedResponse(self._register_long(steps))

    def _check_cluster(self, registration: Registration, peer: Peer) -> None:
        """Check that the sender may also change the cluster that has this broker name now.

        Routes name broker groups, not clusters: clients would use a broker of another cluster that joins the group.
        """
        if self.require_cluster is None:
            return
        known = self.table.group(registration.broker_name)
        if known is not None and known.cluster != registration.cluster:
            self.require_cluster(known.cluster, Action.UPDATE, peer)

    async def _register_long(self, steps: Generator[None, None, Response]) -> Response:
        try:
            response = await self.step_runner.run(_begin(steps, STEPS_AT_A_TIME))
            if response is None:
                async with self.large:
                    response = await self.step_runner.run(steps)
            return response
        finally:
            steps.close()

    def _register(
        self, registration: Registration, request: Request, peer: Peer, ticket: int
    ) -> Generator[None, None, Response]:
        fingerprint = yield from body_fingerprint(request)
        registration = replace(registration, fingerprint=fingerprint)
        if not self.table.remembers(registration):
            now_ms = int(self.clock.wall() * 1000)
            table = yield from decode_topic_table(request, self.config.registration_frame_bytes_max, now_ms=now_ms)
            registration = replace(registration, table=table)
            if table.left_out and peer.count_refusal():
                topic, reason = next(iter(table.left_out.items()))
                log.warning(
                    "topics left out of a registration broker=%s peer=%s topics=%d first=%s reason=%s",
                    *(registration.broker_name, peer.address, len(table.left_out), topic, reason),
                )
            yield
        delete_missing = self.config.delete_missing_topics
        try:
            preparation = yield from self.table.prepare(registration, delete_missing_topics=delete_missing)
            if peer.gone:
                if preparation is not None:
                    self.table.discard(preparation)
                    self.publish(())
                return Response.error("the connection ended")  # no broker joins through a closed connection
            outcome = self.table.register(
                registration,
                connection=peer.connection,
                now=self.clock.monotonic(),
                delete_missing_topics=delete_missing,
                preparation=preparation,
                ticket=ticket,
            )
        except RegistrationRefusedError as error:
            self.publish(())
            if peer.count_refusal():
                log.warning("registration refused peer=%s reason=%s", peer.address, error)
            # Apache's brokers expect this text for one of the reasons.
            partial = isinstance(error, PartialFirstRegistrationError)
            return Response.error("register broker failed" if partial else str(error))
        if (outcome.superseded or outcome.overtaken) and peer.count_refusal():
            log.warning(
                "registration not applied broker=%s id=%d address=%s reason=%s",
                registration.broker_name,
                registration.broker_id,
                registration.address,
                "a broker of a newer epoch has this id" if outcome.superseded else "a newer registration was applied",
            )
        self.publish(outcome.events)
        order_topics = None
        if self.config.return_ordered_topics:
            order_topics = yield from self.kv.write_namespace(ORDER_TOPICS)
        return encode_registration_reply(outcome, order_topics or b"")

    def unregister(self, request: Request, peer: Peer) -> Response:
        broker = decode_unregistration(request)
        events = self.table.unregister(broker.cluster, broker.address, broker.broker_name, broker.broker_id)
        if not events:
            log.debug("unregistration of an unknown broker peer=%s %s", peer.address, broker)
        self.publish(events)
        return Response()

    def heartbeat(self, request: Request, peer: Peer) -> Response:
        self._renew(decode_broker_key(request), peer)
        return Response()

    def _renew(self, key: BrokerKey, peer: Peer) -> None:
        self.publish(self.table.renew(key, connection=peer.connection, now=self.clock.monotonic()) or ())

    def query_data_version(self, request: Request, peer: Peer) -> Response:
        """Compare topic table versions. Renews the lease in any case: some brokers send no other heartbeat."""
        key = decode_broker_key(request)
        self._renew(key, peer)
        theirs, ours = decode_data_version(request.body), self.table.version_of(key)
        return encode_version_reply(ours, changed=ours is None or ours != theirs)

    def register_topic(self, request: Request, peer: Peer) -> Response:
        topic, queues = decode_topic_registration(request)
        events = self.table.register_topic(topic, queues)
        if not events:
            log.debug("topic already registered peer=%s topic=%s brokers=%s", peer.address, topic, list(queues))
        self.publish(events)
        return Response()


def _begin(steps: Generator[None, None, Response], count: int) -> Generator[None, None, Response | None]:
    """Run some steps; return the response, or None if there are more steps."""
    for _ in range(count):
        try:
            next(steps)
        except StopIteration as end:
            response: Response = end.value
            return response
        yield
    return None
