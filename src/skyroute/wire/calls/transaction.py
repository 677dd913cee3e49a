"""End of transactions: commit or rollback by the producer, check by the broker."""

from enum import IntEnum

import msgspec

from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Request
from skyroute.wire.errors import FieldError
from skyroute.wire.fields import required_int, required_name, truth


class TransactionOutcome(IntEnum):
    """The outcome of a transaction, with the numbers of the flag of a stored message.

    Examples:
        >>> async def check(message: StoredMessage) -> TransactionOutcome:
        ...     return TransactionOutcome.COMMIT if message.message_id in ledger else TransactionOutcome.ROLLBACK
    """

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


class TransactionEnd(msgspec.Struct, frozen=True, gc=False):
    """END_TRANSACTION: commit or rollback of a half message."""

    producer_group: str
    half_offset: int
    """Queue offset of the half message in the half topic."""
    log_position: int
    """Log position of the half message."""
    outcome: TransactionOutcome
    message_id: str = ""
    """Unique id of the message."""
    transaction_id: str | None = None
    topic: str | None = None
    from_check: bool = False
    """In response to a check by the broker."""
    broker_name: str | None = None
    remark: str | None = None
    """Why the outcome is unknown."""


def encode_end_transaction(end: TransactionEnd) -> Request:
    """Encode the end of a transaction, a one-way request."""
    fields = {
        "producerGroup": end.producer_group,
        "tranStateTableOffset": str(end.half_offset),
        "commitLogOffset": str(end.log_position),
        "commitOrRollback": str(int(end.outcome)),
        "fromTransactionCheck": "true" if end.from_check else "false",
        "msgId": end.message_id,
    }
    _add_known(fields, {"transactionId": end.transaction_id, "topic": end.topic, "bname": end.broker_name})
    return Request(RequestCode.END_TRANSACTION, fields, remark=end.remark)


def decode_end_transaction(request: Request) -> TransactionEnd:
    """Decode the end of a transaction.

    Raises:
        FieldError: a field is missing or malformed, or the outcome is unknown.
    """
    fields = request.fields
    number = required_int(fields, "commitOrRollback")
    try:
        outcome = TransactionOutcome(number)
    except ValueError:
        raise FieldError(f"commitOrRollback is {number} (expected 0, 8 or 12)") from None
    return TransactionEnd(
        producer_group=required_name(fields, "producerGroup"),
        half_offset=required_int(fields, "tranStateTableOffset"),
        log_position=required_int(fields, "commitLogOffset"),
        outcome=outcome,
        message_id=fields.get("msgId", ""),
        transaction_id=fields.get("transactionId"),
        topic=fields.get("topic"),
        from_check=truth(fields, "fromTransactionCheck"),
        broker_name=fields.get("bname"),
        remark=request.remark,
    )


class TransactionCheck(msgspec.Struct, frozen=True, gc=False):
    """CHECK_TRANSACTION_STATE: a broker requests the outcome of a transaction. The producer repeats the two numbers."""

    half_offset: int
    log_position: int
    record: bytes
    """The record of the message, under its own topic."""
    message_id: str | None = None
    transaction_id: str | None = None
    offset_message_id: str | None = None
    topic: str | None = None
    """The half topic, not that of the message."""
    broker_name: str | None = None


def encode_transaction_check(check: TransactionCheck) -> Request:
    """Encode a check, a one-way request; the producer sends END_TRANSACTION."""
    fields = {"tranStateTableOffset": str(check.half_offset), "commitLogOffset": str(check.log_position)}
    _add_known(
        fields,
        {
            "msgId": check.message_id,
            "transactionId": check.transaction_id,
            "offsetMsgId": check.offset_message_id,
            "topic": check.topic,
            "bname": check.broker_name,
        },
    )
    return Request(RequestCode.CHECK_TRANSACTION_STATE, fields, body=check.record)


def decode_transaction_check(request: Request) -> TransactionCheck:
    """Decode a check.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    return TransactionCheck(
        half_offset=required_int(fields, "tranStateTableOffset"),
        log_position=required_int(fields, "commitLogOffset"),
        record=request.body,
        message_id=fields.get("msgId"),
        transaction_id=fields.get("transactionId"),
        offset_message_id=fields.get("offsetMsgId"),
        topic=fields.get("topic"),
        broker_name=fields.get("bname"),
    )


def _add_known(fields: dict[str, str], optional: dict[str, str | None]) -> None:
    fields.update((name, value) for name, value in optional.items() if value is not None)


def encode_resume_check(topic: str, offset_message_id: str) -> Request:
    """Encode a request to check again a half message whose checks were exhausted."""
    return Request(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"topic": topic, "msgId": offset_message_id})


def decode_resume_check(request: Request) -> str:
    """Decode which half message to check again: its offset id.

    Raises:
        FieldError: a field is missing.
    """
    return required_name(request.fields, "msgId")
