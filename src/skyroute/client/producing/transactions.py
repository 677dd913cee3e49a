"""Ends transactions at the broker, and handles its transaction checks."""

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from skyroute.client.errors import ArgumentError
from skyroute.client.results import SendResult
from skyroute.client.session.session import Session
from skyroute.client.threads import Threads
from skyroute.client.trace.records import DEFAULT_REGION, TransactionEnded
from skyroute.client.trace.tracer import Tracer
from skyroute.errors import SkyrouteError
from skyroute.message.message import Message, StoredMessage
from skyroute.message.message_id import decode_offset_id
from skyroute.message.property_names import PRODUCER_GROUP, REGION, TRACE_ON, TRANSACTION_ID
from skyroute.message.record import decode_record
from skyroute.message.reserved_topics import LOGICAL_BROKER_PREFIX, with_namespace, without_namespace
from skyroute.wire.calls.transaction import (
    TransactionEnd,
    TransactionOutcome,
    decode_transaction_check,
    encode_end_transaction,
)
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Request, Response

log = logging.getLogger(__name__)

THREADS_MAX: Final = 32
"""Maximum number of plain functions that run at once."""

Check = Callable[[StoredMessage], TransactionOutcome | Awaitable[TransactionOutcome]]
"""Returns the outcome of the transaction of a message. A plain function runs in a thread."""


def as_outcome(name: str, returned: object) -> TransactionOutcome:
    """Check the return value of a function of the application.

    Raises:
        ArgumentError: it is not an outcome.
    """
    if not isinstance(returned, TransactionOutcome):
        raise ArgumentError(f"{name} returned {returned!r}: expected a skyroute.TransactionOutcome")
    return returned


class Transactions:
    """The transactions of one producer group."""

    def __init__(self, session: Session, group: str, check: Check | None, tracer: Tracer | None) -> None:
        self._session = session
        self._group = group
        self.check = check
        self._tracer = tracer
        self._threads: Threads | None = None

    def start(self) -> None:
        """Handle transaction checks from now on."""
        self._threads = Threads(THREADS_MAX, "skyroute-transaction")
        if self.check is not None:
            self._session.requests.add(RequestCode.CHECK_TRANSACTION_STATE, self._on_check)

    def stop(self) -> None:
        """Leave transaction checks to other producers of the group."""
        if self.check is not None:
            self._session.requests.remove(RequestCode.CHECK_TRANSACTION_STATE, self._on_check)
        if self._threads is not None:
            self._threads.stop()

    async def end(self, message: Message, sent: SendResult, outcome: TransactionOutcome, remark: str | None) -> None:
        """Send the outcome to the broker. If it is lost, the broker sends a check."""
        try:
            end = TransactionEnd(
                producer_group=self._group,
                half_offset=sent.queue_offset,
                log_position=decode_offset_id(sent.offset_id).log_position,
                outcome=outcome,
                message_id=sent.message_id,
                transaction_id=sent.transaction_id,
                topic=with_namespace(self._session.namespace, message.topic),
                broker_name=sent.queue.broker_name,
                remark=remark,
            )
            address = self._session.routes.address(sent.queue.broker_name)
            if sent.queue.broker_name.startswith(LOGICAL_BROKER_PREFIX):
                # The queue may have moved since: the id has the address of the broker that stored the message.
                address = str(decode_offset_id(sent.offset_id).store_host)
            if sent.trace_on:
                self._trace(message, end, sent.region, address)
            if address is None:
                log.warning("transaction outcome not sent broker=%s reason=no route", sent.queue.broker_name)
            else:
                await self._session.tell(address, encode_end_transaction(end))
        except SkyrouteError as error:
            log.warning("transaction outcome not sent, the broker will check reason=%s", error)

    async def _on_check(self, request: Request, address: str) -> Response | None:
        check = decode_transaction_check(request)
        message = decode_record(check.record)
        if message.find_property(PRODUCER_GROUP) != self._group or self.check is None:
            return None
        message = message.replace(topic=without_namespace(self._session.namespace, message.topic))
        remark: str | None = None
        try:
            outcome = as_outcome("check", await self.call(self.check, message))
        except Exception as error:
            log.exception("transaction check failed message=%s", message.message_id)
            outcome, remark = TransactionOutcome.UNKNOWN, f"{type(error).__name__}: {error}"
        end = TransactionEnd(
            producer_group=self._group,
            half_offset=check.half_offset,
            log_position=check.log_position,
            outcome=outcome,
            message_id=message.unique_id or check.message_id or "",
            transaction_id=check.transaction_id or message.find_property(TRANSACTION_ID),
            topic=check.topic,
            from_check=True,
            broker_name=check.broker_name,
            remark=remark,
        )
        if message.find_property(TRACE_ON) != "false":
            self._trace(message, end, message.find_property(REGION), address)
        await self._session.tell(address, encode_end_transaction(end))
        return Response()

    def _trace(
        self, message: Message | StoredMessage, end: TransactionEnd, region: str | None, store_host: str | None
    ) -> None:
        if self._tracer is not None:
            self._tracer.add(
                TransactionEnded(
                    at_ms=int(self._session.clock.wall() * 1000),
                    region=region or DEFAULT_REGION,
                    group=without_namespace(self._session.namespace, self._group),
                    topic=message.topic,
                    message_id=end.message_id,
                    tag=message.tag,
                    keys=message.keys,
                    store_host=store_host or "",
                    transaction_id=end.transaction_id,
                    outcome=end.outcome,
                    from_check=end.from_check,
                )
            )

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of the application: an async one on the event loop, a plain one in a thread."""
        if inspect.iscoroutinefunction(function):
            return await function(*arguments)
        assert self._threads is not None  # called between start and stop only
        result = await self._threads.run(function, *arguments)
        return await result if inspect.isawaitable(result) else result
