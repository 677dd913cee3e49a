"""Trace records of sends and recalls."""

from contextlib import suppress

from skyroute.client.producing.prepared_message import Outbound
from skyroute.client.results import SendResult
from skyroute.client.session.session import Session
from skyroute.client.trace.records import DEFAULT_REGION, Recalled, Sent, kind_of
from skyroute.client.trace.tracer import Tracer
from skyroute.message.message import Message
from skyroute.message.properties import split_properties
from skyroute.message.reserved_topics import without_namespace
from skyroute.wire.calls.send_back import decode_recall_handle
from skyroute.wire.errors import FieldError


def trace_send(
    tracer: Tracer, session: Session, group: str, outbound: Outbound, message: Message, result: SendResult
) -> None:
    """Add the record of a send; of a batch, one for each of its messages. Brokers may turn tracing off."""
    if not result.trace_on:
        return
    cost_s = session.clock.monotonic() - outbound.began_at
    offset_ids = result.offset_id.split(",")
    message_ids = outbound.message_id.split(",")
    for index, message_id in enumerate(message_ids):
        tracer.add(
            Sent(
                at_ms=int((session.clock.wall() - cost_s) * 1000),
                region=result.region or DEFAULT_REGION,
                group=without_namespace(session.namespace, group),
                topic=message.topic,
                message_id=message_id,
                tag=message.tag,
                keys=message.keys,
                store_host=session.routes.address(session.routes.broker_of(result.queue)) or "",
                body_bytes=len(outbound.body) // len(message_ids),
                cost_ms=int(cost_s * 1000),
                kind=kind_of(split_properties(outbound.properties)),
                offset_id=offset_ids[index] if len(offset_ids) == len(message_ids) else result.offset_id,
                success=result.ok,
            )
        )


def trace_recall(
    tracer: Tracer, session: Session, group: str, topic: str, recall_handle: str, region: str | None, *, success: bool
) -> None:
    """Add the record of a recall."""
    with suppress(FieldError):  # a damaged handle identifies no message
        tracer.add(
            Recalled(
                at_ms=int(session.clock.wall() * 1000),
                region=region or DEFAULT_REGION,
                group=without_namespace(session.namespace, group),
                topic=without_namespace(session.namespace, topic),
                message_id=decode_recall_handle(recall_handle).unique_id,
                success=success,
            )
        )
