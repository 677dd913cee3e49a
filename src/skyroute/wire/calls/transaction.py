"""How a transactional message ends: the producer's word, and the broker's question where that did not come."""

from enum import IntEnum

import msgspec

from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Request
from skyroute.wire.errors import FieldError
from skyroute.wire.fields import required_int, required_name, truth


class TransactionOutcome(IntEnum):
    """What became of a transaction, numbered as the flags of a stored message are.

    Examples:
        >>> async def check(message: StoredMessage) -> TransactionOutcome:
        ...     return TransactionOutcome.COMMIT if message.message_id in ledger else TransactionOutcome.ROLLBACK
    """

    UNKNOWN = 0
    COMMIT = 8
    ROLLBACK = 12


class TransactionEnd(msgspec.Struct, frozen=True, gc=False):
    """A producer's word on one of its half messages."""

    producer_group: str
    half_offset: int
    """The half message's offset in the broker's queue of half messages."""
    log_position: int
    """The half message's place in the broker's log."""
    outcome: TransactionOutcome
    message_id: str = ""
    """The id that the producer gave the message."""
    transaction_id: str | None = None
    topic: str | None = None
    from_check: bool = False
    """The broker asked for it."""
    broker_name: str | None = None
    remark: str | None = None
    """Why the producer does not know."""


def encode_end_transaction(end: TransactionEnd) -> Request:
    """Say how a transaction ended. Sent one way: nobody answers."""
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
    """Read how a transaction ended.

    Raises:
        FieldError: a field is missing or malformed, or the outcome is none.
    """
    fields = request.fields
    number = required_int(fields, "commitOrRollback")
    try:
        outcome = TransactionOutcome(number)
    except ValueError:
        raise FieldError(f"commitOrRollback is neither 0, 8 nor 12: {number}") from None
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
    """A broker's question what became of a transaction; its answer repeats the two numbers."""

    half_offset: int
    log_position: int
    record: bytes
    """The message itself, as it lies in a log, under its own topic."""
    message_id: str | None = None
    transaction_id: str | None = None
    offset_message_id: str | None = None
    topic: str | None = None
    """The topic of half messages, not the message's own."""
    broker_name: str | None = None


def encode_transaction_check(check: TransactionCheck) -> Request:
    """Ask what became of a transaction. Sent one way: the answer is a request of the producer's own."""
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
    """Read the question what became of a transaction.

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
    """Have a broker ask for a transaction again that it has given up."""
    return Request(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"topic": topic, "msgId": offset_message_id})


def decode_resume_check(request: Request) -> str:
    """Read which record is asked for again: its id, which says where it lies.

    Raises:
        FieldError: a field is missing.
    """
    return required_name(request.fields, "msgId")
