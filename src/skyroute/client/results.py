"""What became of a send."""

from enum import Enum

import msgspec

from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.transaction import TransactionOutcome
from skyroute.wire.codes import ResponseCode


class SendStatus(Enum):
    """How safe a stored message is. In every case the broker has it, and will deliver it.

    Examples:
        >>> if result.status is SendStatus.SLAVE_NOT_AVAILABLE:
        ...     log.warning("stored once only: %s", result.message_id)
    """

    OK = int(ResponseCode.SUCCESS)
    FLUSH_DISK_TIMEOUT = int(ResponseCode.FLUSH_DISK_TIMEOUT)
    """The broker was to wait for its disk, and its disk took too long."""
    FLUSH_SLAVE_TIMEOUT = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)
    """The broker was to wait for a slave, and that took too long."""
    SLAVE_NOT_AVAILABLE = int(ResponseCode.SLAVE_NOT_AVAILABLE)
    """The broker was to wait for a slave, and there is none."""


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Where a message is now.

    Examples:
        >>> result = await producer.send(message)
        >>> print(result.message_id, result.queue, result.queue_offset)
    """

    status: SendStatus
    message_id: str
    """The id its sender gave it: the one to look it up by, and to write into logs."""
    offset_id: str
    """The id that says where the broker put it."""
    queue: QueueRef
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None
    """Of a message that waits for its time: what `Producer.recall` takes, if the broker allows it."""
    region: str | None = None
    trace_on: bool = True

    @property
    def ok(self) -> bool:
        """Whether the message is as safe as the broker is set up to make it."""
        return self.status is SendStatus.OK


class TransactionResult(msgspec.Struct, frozen=True, gc=False):
    """Where a transactional message is, and what we told the broker to do with it.

    Examples:
        >>> result = await producer.send_in_transaction(message, pay)
        >>> print(result.sent.message_id, result.outcome.name)
    """

    sent: SendResult
    outcome: TransactionOutcome
