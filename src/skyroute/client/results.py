"""The results of a send."""

from enum import Enum

import msgspec

from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.transaction import TransactionOutcome
from skyroute.wire.codes import ResponseCode


class SendStatus(Enum):
    """How safely a message is stored. In every case the broker has it, and delivers it.

    Examples:
        >>> if result.status is SendStatus.SLAVE_NOT_AVAILABLE:
        ...     log.warning("stored once only: %s", result.message_id)
    """

    OK = int(ResponseCode.SUCCESS)
    FLUSH_DISK_TIMEOUT = int(ResponseCode.FLUSH_DISK_TIMEOUT)
    """The flush to disk took longer than the broker's timeout."""
    FLUSH_SLAVE_TIMEOUT = int(ResponseCode.FLUSH_SLAVE_TIMEOUT)
    """The replication to a slave took longer than the broker's timeout."""
    SLAVE_NOT_AVAILABLE = int(ResponseCode.SLAVE_NOT_AVAILABLE)
    """The broker replicates to a slave before it responds, and has no slave."""


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Where a message is stored.

    Examples:
        >>> result = await producer.send(message)
        >>> print(result.message_id, result.queue, result.queue_offset)
    """

    status: SendStatus
    message_id: str
    """The unique id from the producer: use it for queries and logs."""
    offset_id: str
    """The id with the broker's address and the position in its commit log."""
    queue: QueueRef
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None
    """The argument of `Producer.recall`, of a delayed message, if the broker supports it."""
    region: str | None = None
    trace_on: bool = True

    @property
    def ok(self) -> bool:
        """Whether the message is stored as safely as the broker is configured to."""
        return self.status is SendStatus.OK


class TransactionResult(msgspec.Struct, frozen=True, gc=False):
    """Where a transactional message is stored, and the outcome that was sent to the broker.

    Examples:
        >>> result = await producer.send_in_transaction(message, pay)
        >>> print(result.sent.message_id, result.outcome.name)
    """

    sent: SendResult
    outcome: TransactionOutcome
