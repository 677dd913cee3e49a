"""Responses to sends: receipts, deferred until the flush if needed, and refusals."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from skyroute.broker.appender import Appender
from skyroute.broker.config import BrokerConfig
from skyroute.broker.delivery.flush_wait import Flushed
from skyroute.broker.identity import Identity
from skyroute.broker.store.draft import Appended
from skyroute.broker.store.errors import RecordTooLargeError, StoreClosedError
from skyroute.files.errors import DiskFullError
from skyroute.message.errors import RecordError
from skyroute.message.message_id import encode_offset_id
from skyroute.remoting.dispatch import DeferredResponse
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.send import ReceiptForm, SendReceipt, encode_send_receipt, region_fields
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import FORM_JSON, Request, Response

_NOT_AVAILABLE: Final = (
    "service not available now. It may be caused by one of the following reasons: the broker's disk is full [%.2f], "
    "messages are put to the slave, message store has been shut down, etc."
)

_CODES: Final = {
    Flushed.LATE: ResponseCode.FLUSH_DISK_TIMEOUT,
    Flushed.NOT_REPLICATED: ResponseCode.FLUSH_SLAVE_TIMEOUT,
}
"""Response codes of messages that are stored, and not yet where they have to be."""


class SendResponses:
    """Makes the responses to sends of single messages and of batches."""

    def __init__(self, appender: Appender, config: BrokerConfig, identity: Identity) -> None:
        self._appender = appender
        self._config = config
        self._raw_store_host = identity.raw_store_host
        self._region = config.region_id
        self._trace_on = config.trace_on
        self._receipt_form = ReceiptForm(identity.raw_store_host, self._region, trace_on=self._trace_on)
        self.fields = region_fields(self._region, trace_on=self._trace_on)
        """Fields of each response to a send, refusals included."""

    def receipt(
        self, request: Request, appended: Appended, queue_id: int, unique_id: bytes, handle: str | None, code: int = 0
    ) -> Response:
        """Return the receipt of a stored message."""
        if request.form == FORM_JSON and handle is None and not code and unique_id.isalnum():
            return self._receipt_form.fill(appended.log_position, queue_id, appended.queue_offset, unique_id)
        receipt = SendReceipt(
            encode_offset_id(self._raw_store_host, appended.log_position),
            queue_id,
            appended.queue_offset,
            unique_id.decode("utf-8", "replace"),
            self._region,
            self._trace_on,
            handle,
        )
        return encode_send_receipt(receipt, code)

    def batch_receipt(
        self, ids: str, queue_id: int, queue_offset: int, log_end: int, unique_id: bytes, *, is_inner: bool
    ) -> Response | DeferredResponse:
        """Return the receipt of a stored batch, deferred if it waits for the flush."""
        batch_id = unique_id.decode("utf-8", "replace")
        receipt = SendReceipt(
            ids,
            queue_id,
            queue_offset,
            batch_id,
            self._region,
            self._trace_on,
            batch_unique_id=batch_id if is_inner else None,
        )
        if self._appender.waits:
            return self.after_flush(log_end, partial(encode_send_receipt, receipt))
        return encode_send_receipt(receipt)

    def after_flush(self, log_end: int, make_receipt: Callable[[int], Response]) -> DeferredResponse:
        """Respond once the log is flushed up to `log_end`; `make_receipt` gets the response code."""
        response = DeferredResponse()

        def respond(outcome: Flushed) -> None:
            if outcome is Flushed.FAILED:
                reason = _NOT_AVAILABLE % self._appender.disk_used()
                response.give(Response(ResponseCode.SERVICE_NOT_AVAILABLE, reason, dict(self.fields)))
            else:
                response.give(make_receipt(_CODES.get(outcome, 0)))

        self._appender.when_durable(log_end, respond)
        return response

    async def with_fields(self, response: Awaitable[Response]) -> Response:
        """Wait for a response; add the fields to its refusal.

        Raises:
            RefusedError: the send is refused.
        """
        try:
            return await response
        except RefusedError as error:
            raise RefusedError(error.code, str(error), self.fields) from None

    def illegal(self) -> RefusedError:
        """Return the refusal of a message that breaks a limit."""
        return RefusedError(
            ResponseCode.MESSAGE_ILLEGAL,
            "the message is illegal, maybe msg body or properties length not matched. "
            f"msg body length limit {self._config.message_bytes_max}B, msg properties length limit 32KB.",
        )

    def store_failure(self, error: Exception) -> RefusedError:
        """Return the refusal of a message that the store did not accept."""
        if isinstance(error, DiskFullError | StoreClosedError):
            return RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, _NOT_AVAILABLE % self._appender.disk_used())
        if isinstance(error, RecordTooLargeError | RecordError):
            return self.illegal()
        return RefusedError(ResponseCode.SYSTEM_ERROR, f"create mapped file failed, server is busy or broken. {error}")
