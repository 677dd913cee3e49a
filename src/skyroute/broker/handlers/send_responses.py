"""Responses to sends: receipts, deferred until the message is durable if needed, and refusals."""

from collections.abc import Awaitable
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
from skyroute.wire.command import FORM_JSON, Response
from skyroute.wire.fast_path import with_code

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

    def receipt(self, form: int, appended: Appended, queue_id: int, unique_id: bytes, handle: str | None) -> Response:
        """Return the receipt of a stored message, for a request of this form."""
        if form == FORM_JSON and handle is None and unique_id.isalnum():
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
        return encode_send_receipt(receipt)

    def batch_receipt(
        self, ids: str, queue_id: int, queue_offset: int, log_end: int, unique_id: bytes, *, is_inner: bool
    ) -> Response | DeferredResponse:
        """Return the receipt of a stored batch, deferred if it waits until the batch is durable."""
        batch_id = unique_id.decode("utf-8", "replace")
        receipt = encode_send_receipt(
            SendReceipt(
                ids,
                queue_id,
                queue_offset,
                batch_id,
                self._region,
                self._trace_on,
                batch_unique_id=batch_id if is_inner else None,
            )
        )
        return self.when_durable(log_end, receipt)

    def when_durable(self, log_end: int, receipt: Response) -> Response | DeferredResponse:
        """Respond once the log is durable up to `log_end`. The receipt gets another code if that is too late."""
        if not self._appender.must_wait():
            return receipt
        response = DeferredResponse()
        self._appender.when_durable(log_end, partial(self._give, response, receipt))
        return response

    def _give(self, response: DeferredResponse, receipt: Response, outcome: Flushed) -> None:
        if outcome is Flushed.DONE:
            response.give(receipt)
        elif outcome is Flushed.FAILED:
            reason = _NOT_AVAILABLE % self._appender.disk_used()
            response.give(Response(ResponseCode.SERVICE_NOT_AVAILABLE, reason, dict(self.fields)))
        else:
            response.give(with_code(receipt, _CODES[outcome]))

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
