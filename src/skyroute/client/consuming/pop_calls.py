"""Requests of POP consumption: receive messages with receipts, acknowledge them, and change their invisible time.

Topics and groups include the namespace.
"""

from collections.abc import Mapping
from typing import Final

from skyroute.client.errors import ArgumentError, NoBrokerError, no_master, refusal
from skyroute.client.session.session import Session
from skyroute.message.errors import MessageError
from skyroute.message.message import StoredMessage
from skyroute.message.property_names import POP_RECEIPT
from skyroute.message.record import decode_records
from skyroute.wire.calls.assignment import (
    AssignmentQuestion,
    QueueAssignment,
    decode_assignments,
    encode_assignment_query,
)
from skyroute.wire.calls.pop import (
    POP_CODES,
    Notification,
    PopAnswer,
    PopQuestion,
    decode_notified,
    decode_pop_answer,
    encode_notification,
    encode_pop,
)
from skyroute.wire.calls.pop_acks import Ack, InvisibleTimeChange, decode_changed, encode_ack, encode_change
from skyroute.wire.calls.pop_receipts import (
    Receipt,
    RetryFlag,
    decode_receipt,
    encode_receipt,
    retry_flag,
    stored_topic,
)
from skyroute.wire.calls.send_back import encode_send_back
from skyroute.wire.codes import ResponseCode
from skyroute.wire.errors import BodyError, FieldError

GRACE_S: Final = 5.0
"""How much longer than its long poll a request may take."""

CALL_S: Final = 5.0
"""Timeout of acknowledgements and changes."""


def broker_names(session: Session, topic: str) -> list[str]:
    """Return the broker groups of a topic that have an address; none without a cached route."""
    route = session.routes.cached(topic)
    if route is None:
        return []
    return [each.broker_name for each in route.queues if session.routes.any_address(each.broker_name) is not None]


async def pop(session: Session, broker_name: str, question: PopQuestion) -> list[StoredMessage]:
    """Receive messages of a topic from one broker; each has its receipt in the property POP_CK.

    Raises:
        BrokerRefusedError: the broker refused the request.
        NoBrokerError: no route contains the broker.
        RemotingError: the connection failed, or no response arrived in time.
    """
    address = _address(session, broker_name)
    response = await session.call(address, encode_pop(question), question.poll_ms / 1000 + GRACE_S)
    if response.code not in POP_CODES:
        raise refusal(response, address)
    answer = decode_pop_answer(response)
    messages = _with_receipts(answer, broker_name) if answer.body else []
    if len(messages) > question.count_max:
        raise BodyError(f"{address} returned {len(messages)} messages of {question.topic}, not {question.count_max}")
    return messages


def _with_receipts(answer: PopAnswer, broker_name: str) -> list[StoredMessage]:
    receipts = answer.receipts(broker_name)
    found: list[StoredMessage] = []
    for stored in decode_records(answer.body):
        flag = retry_flag(stored.topic)
        receipt = receipts.get((flag, stored.queue_id, stored.queue_offset))
        changes: dict[str, object] = {"broker_name": broker_name}
        if answer.order_counts:
            changes["reconsume_times"] = answer.order_count(flag, stored.queue_id, stored.queue_offset)
        message = stored.replace(**changes)
        if not _has_receipt_of(message, receipts):
            if receipt is None:
                what = f"the message at offset {stored.queue_offset} of queue {stored.queue_id} of {stored.topic}"
                raise BodyError(f"broker {broker_name} returned {what} without a receipt")
            message = with_receipt(message, receipt)
        found.append(message)
    return found


def _has_receipt_of(message: StoredMessage, receipts: Mapping[tuple[RetryFlag, int, int], Receipt]) -> bool:
    """Return whether a message has a receipt of this response, as retries have; its sender may have set another one."""
    text = message.find_property(POP_RECEIPT)
    if text is None:
        return False
    try:
        receipt = decode_receipt(text)
    except FieldError:
        return False
    return (receipt.retry, receipt.queue_id, receipt.offset) in receipts


async def wait_for_messages(session: Session, broker_name: str, question: Notification) -> bool:
    """Wait until a broker has messages of a topic for a group, or the time of the long poll is over.

    Raises:
        As `pop`.
    """
    address = _address(session, broker_name)
    response = await session.call(address, encode_notification(question), question.poll_ms / 1000 + GRACE_S)
    if response.code != ResponseCode.SUCCESS:
        raise refusal(response, address)
    return decode_notified(response)[0]


def receipt_of(message: StoredMessage) -> Receipt:
    """Return the receipt of a received message.

    Raises:
        ArgumentError: it has none.
    """
    try:
        return decode_receipt(message.find_property(POP_RECEIPT) or "")
    except (FieldError, MessageError) as error:
        raise ArgumentError(f"message {message.message_id} was not received by `receive`: {error}") from None


def with_receipt(message: StoredMessage, receipt: Receipt) -> StoredMessage:
    """Return a message with another receipt."""
    return message.with_properties({**message.properties, POP_RECEIPT: encode_receipt(receipt)})


def _ack_of(group: str, topic: str, message: StoredMessage) -> Ack:
    receipt = receipt_of(message)
    return Ack(group, stored_topic(receipt.retry, topic, group), receipt, receipt.queue_id, receipt.offset)


async def ack(session: Session, group: str, topic: str, message: StoredMessage) -> None:
    """Acknowledge a message, which then does not come again.

    Raises:
        ArgumentError: the message has no receipt.
        BrokerRefusedError, NoBrokerError, RemotingError: the broker refuses, or is not reached.
    """
    made = _ack_of(group, topic, message)
    await session.ask(_master(session, made.receipt.broker_name), encode_ack(made), CALL_S)


async def change_invisible_time(
    session: Session, group: str, topic: str, message: StoredMessage, invisible_ms: int
) -> StoredMessage:
    """Change how long a message stays invisible, from now on; return it with its new receipt.

    Raises:
        As `ack`.
    """
    change = InvisibleTimeChange(_ack_of(group, topic, message), invisible_ms)
    address = _master(session, change.ack.receipt.broker_name)
    response = await session.ask(address, encode_change(change), CALL_S)
    return with_receipt(message, decode_changed(response, change))


async def query_assignment(session: Session, broker_name: str, group: str, topic: str) -> list[QueueAssignment] | None:
    """Ask a broker for this member's queues of a topic; None if it shall keep those it has.

    Raises:
        As `pop`.
    """
    question = AssignmentQuestion(group, topic, session.client_id)
    response = await session.ask(_address(session, broker_name), encode_assignment_query(question), CALL_S)
    return decode_assignments(response)


async def make_dead_letter(session: Session, group: str, topic: str, message: StoredMessage) -> None:
    """Store a copy of a received message in the dead-letter queue of the group.

    Raises:
        As `ack`.
    """
    broker_name = receipt_of(message).broker_name
    request = encode_send_back(
        group,
        log_position=message.log_position,
        delay_level=-1,
        origin_message_id=message.message_id,
        origin_topic=topic,
        max_reconsume_times=0,
        broker_name=broker_name,
    )
    await session.ask(_master(session, broker_name), request, CALL_S)


def _address(session: Session, broker_name: str) -> str:
    address = session.routes.any_address(broker_name)
    if address is None:
        raise NoBrokerError(f"no route has an address of broker {broker_name}: is it running?")
    return address


def _master(session: Session, broker_name: str) -> str:
    address = session.routes.address(broker_name)
    if address is None:
        raise no_master(broker_name)
    return address
