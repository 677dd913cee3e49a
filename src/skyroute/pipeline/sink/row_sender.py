"""Sends packed rows with several requests in flight, in order where rows have a target queue."""

import asyncio
import math
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Final

import pyarrow as pa

from skyroute.client.errors import BrokerRefusedError, NoRouteError
from skyroute.client.producing.delivery import Choose, Delivery
from skyroute.client.producing.in_flight import InFlight
from skyroute.client.producing.prepared_message import Outbound, write_properties
from skyroute.client.session.session import Session
from skyroute.errors import SkyrouteError
from skyroute.message.property_names import UNIQUE_ID
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import DEFAULT_TOPIC, with_namespace
from skyroute.pipeline.sink.options import WriteOptions
from skyroute.pipeline.sink.row_packer import RowPacker, SendBatch
from skyroute.routing.topology import MASTER_ID, Permission
from skyroute.wire.calls.topics import TopicConfig, encode_topic_update

IN_FLIGHT_MAX: Final = 256
IN_FLIGHT_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bounds of one task's requests in flight. At a bound, no more rows are taken from Spark."""

ROUTE_RETRY_S: Final = 0.05
"""Time between two lookups of the route of a new topic."""

_BATCH_TOPIC: Final = {"queue.type": "BatchCQ"}


class UnsafeRowsError(SkyrouteError):
    """A broker stored rows, but not as safely as it is configured to, so they may be lost with one machine."""

    retryable = True


class RowSender:
    """Sends the rows of one partition."""

    def __init__(self, session: Session, options: WriteOptions, key_start: str) -> None:
        namespace = session.namespace
        self._session = session
        self._timeout_s = options.send_timeout_s
        self._retries = options.connection.retries
        self._retry_interval_s = options.connection.retry_interval_s
        self._in_flight = InFlight(IN_FLIGHT_MAX, IN_FLIGHT_BYTES_MAX)
        self._delivery = Delivery(
            session,
            with_namespace(namespace, options.producer_group),
            InFlight(IN_FLIGHT_MAX, IN_FLIGHT_BYTES_MAX),  # never full: `self._in_flight` has the same bounds
            attempts=1,  # retries are made here, each with the full timeout
            retry_unsafe=False,
            avoid_slow=True,
            new_topic_queues=options.new_topic_queues,
        )
        self._packer = RowPacker(
            key_start,
            topic=options.topic,
            namespace=namespace,
            batch_bytes_max=options.batch_bytes_max,
        )
        self._batch_topic_queues = options.new_topic_queues if options.new_topic_is_batch else 0
        """Number of queues of a new batch topic; 0: a new topic is an ordinary one, which the broker creates."""
        self._queues: dict[str, list[QueueRef]] = {}
        self._last: dict[QueueRef, asyncio.Task[None]] = {}
        """The latest send to each queue whose order matters."""

    async def send(self, batches: Iterator[pa.RecordBatch]) -> int:
        """Send all rows, and return their number once brokers have stored them all.

        Raises:
            SkyrouteError: a row cannot be sent, or a broker rejected it; other rows may be stored.
        """
        try:
            async with asyncio.TaskGroup() as sends:
                # Wait for rows in a thread, so that the event loop handles responses.
                while (rows := await asyncio.to_thread(next, batches, None)) is not None:
                    for topic in self._packer.topics(rows) - self._queues.keys():
                        self._queues[topic] = await self._find_queues(topic)
                    for batch in self._packer.pack(rows, self._queues):
                        size = len(batch.encoded)
                        await self._in_flight.enter(size)
                        task = sends.create_task(
                            self._deliver(batch, self._last.get(batch.queue) if batch.queue else None)
                        )
                        task.add_done_callback(partial(self._leave, size))
                        if batch.queue is not None:
                            self._last[batch.queue] = task
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return self._packer.count

    def _leave(self, size: int, _: "asyncio.Task[None]") -> None:
        self._in_flight.leave(size)

    async def _find_queues(self, topic: str) -> list[QueueRef]:
        name = with_namespace(self._session.namespace, topic)
        try:
            # Routes are not refreshed between the tasks of a worker.
            await self._session.routes.refresh(name)
        except NoRouteError:
            if self._batch_topic_queues:
                await self._create_batch_topic(name, self._batch_topic_queues)
        except SkyrouteError:
            pass  # a known route may still be right; without one, `rotation` raises
        return list((await self._delivery.rotation(name, self._timeout_s)).queues)

    async def _create_batch_topic(self, name: str, queues: int) -> None:
        """Create a batch topic on the brokers that create topics automatically.

        Raises:
            SkyrouteError: a broker refused it, or it does not appear in time.
        """
        routes = self._session.routes
        config = TopicConfig(name, queues, queues, int(Permission.READ | Permission.WRITE))
        refusal: SkyrouteError | None = None
        for group in (await routes.refresh(DEFAULT_TOPIC)).groups:
            if (address := group.addresses.get(MASTER_ID)) is not None:
                try:
                    await self._session.ask(address, encode_topic_update(config, _BATCH_TOPIC), self._timeout_s)
                except BrokerRefusedError as error:
                    refusal = error  # another task may have created it: then there is a route
        for _ in range(1 + math.ceil(self._timeout_s / ROUTE_RETRY_S)):
            with suppress(NoRouteError):
                await routes.refresh(name)
                return
            if refusal is not None:
                raise refusal
            await asyncio.sleep(ROUTE_RETRY_S)

    async def _deliver(self, batch: SendBatch, previous: "asyncio.Task[None] | None") -> None:
        if previous is not None:
            await asyncio.wait([previous])  # if it failed, the task group cancels this task
        topic = with_namespace(self._session.namespace, batch.topic)
        if batch.count == 1:
            ((body, raw_properties, _),) = batch.items
            outbound = Outbound(topic, body, raw_properties.decode(), "")
        else:
            properties = write_properties({UNIQUE_ID: self._session.message_ids.next()})
            outbound = Outbound(topic, bytes(batch.encoded), properties, "", batch=True)
        for attempt in range(1 + self._retries):
            try:
                result = await self._delivery.deliver(outbound, _always(batch.queue), self._timeout_s)
                if not result.ok:
                    raise UnsafeRowsError(
                        f"{result.queue} stored rows with the status {result.status.name}, {attempt + 1} times: check"
                        " the broker's slaves and disk, or configure it not to wait for them"
                    )
            except SkyrouteError as error:
                if not error.retryable or attempt == self._retries:
                    raise
                await asyncio.sleep(self._retry_interval_s)
            else:
                return


def _always(queue: QueueRef | None) -> Choose | None:
    return None if queue is None else lambda _: queue
