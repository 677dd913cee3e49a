"""One message: its fields, body and trace, its state in each consumer group, and actions to deliver or resend it."""

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, NamedTuple
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skyroute.client.admin import Admin
from skyroute.client.admin.messages import MessageNotFoundError, MessageTrack, Tracking
from skyroute.client.errors import NoBrokerError, NoRouteError
from skyroute.client.producing.producer import Producer
from skyroute.client.trace.records import (
    ConsumeEnded,
    ConsumeStarted,
    Recalled,
    Sent,
    TraceRecord,
    TransactionEnded,
    decode_trace,
)
from skyroute.console.access.sessions import Visitor
from skyroute.console.cluster_data.body_preview import Form, escape_invisible, show_body
from skyroute.console.cluster_data.message_listing import Position, origin_of, parse_position, row_of
from skyroute.console.errors import ConsoleError
from skyroute.console.pages.messages import messages_with_id
from skyroute.console.pages.topic import producer_of
from skyroute.console.texts import translatable
from skyroute.console.web.actions import Done, Fields, action, done
from skyroute.console.web.page_context import PageContext, context_of, error_page
from skyroute.errors import SkyrouteError
from skyroute.message.flags import TransactionState, compression_of
from skyroute.message.message import Message, StoredMessage
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import TRACE_TOPIC, group_of, is_dead_letter_topic
from skyroute.wire.calls.transaction import TransactionOutcome

TRACK_S: Final = 5.0
"""How long the page waits for the state in each group, and for the trace."""
GROUPS_MAX: Final = 32
"""Groups whose consumers the page offers for delivery."""
CONSUMERS_MAX: Final = 100
"""Consumers of one group that the page offers for delivery."""
TRACES_MAX: Final = 64
"""Messages of the trace topic read for one message."""

STATES: Final = {
    Tracking.CONSUMED: translatable("Consumed"),
    Tracking.CONSUMED_BUT_FILTERED: translatable("Filtered out by tag"),
    Tracking.PULL: translatable("Unknown: pull consumers"),
    Tracking.NOT_CONSUME_YET: translatable("Not consumed yet"),
    Tracking.NOT_ONLINE: translatable("Consumers offline"),
    Tracking.CONSUME_BROADCASTING: translatable("Unknown: broadcasting"),
    Tracking.UNKNOWN: translatable("Unknown"),
}
TRANSACTIONS: Final = {
    TransactionState.PREPARED: translatable("Half message"),
    TransactionState.COMMITTED: translatable("Committed"),
    TransactionState.ROLLED_BACK: translatable("Rolled back"),
}
DEAD_LETTER: Final = translatable("In the dead-letter queue after too many retries")
ENDINGS: Final = {
    TransactionOutcome.COMMIT: translatable("Transaction committed"),
    TransactionOutcome.ROLLBACK: translatable("Transaction rolled back"),
    TransactionOutcome.UNKNOWN: translatable("Transaction state unknown"),
}
CAN_CONSUME: Final = frozenset(Tracking) - {Tracking.PULL, Tracking.NOT_ONLINE, Tracking.UNKNOWN}


@dataclass(frozen=True, slots=True)
class GroupState:
    """The state of a message in a consumer group, and the consumers it can be delivered to."""

    group: str
    state: str
    remark: str | None = None
    consumers: Sequence[str] = ()


async def message(request: Request) -> Response:
    """Show a message."""
    context = context_of(request)
    try:
        found, *others = await _find(context.admin, request)
    except (MessageNotFoundError, NoRouteError) as error:
        return _not_found(request, error)
    (group_states, failure), trace = await asyncio.gather(
        _group_states(context.admin, found), _trace(context.admin, found)
    )
    body_failure = None
    try:
        body = found.body
    except SkyrouteError as error:
        body, body_failure = found.stored_body, error
    chosen = request.query_params.get("as", "")
    form = Form(chosen) if chosen in list(Form) else None
    return context.render(
        request,
        "message.html",
        message=found,
        row=row_of(found),
        others=[row_of(other) for other in others],
        compression=compression_of(found.sys_flag) if body_failure is None else None,
        transaction=TRANSACTIONS.get(found.transaction),
        properties={
            escape_invisible(name): escape_invisible(value) for name, value in sorted(found.properties.items())
        },
        wanted=form,
        shown=show_body(body, form),
        body_bytes=len(body),
        body_failure=body_failure,
        group_states=group_states,
        group_states_failure=failure,
        trace=trace,
    )


async def body(request: Request) -> Response:
    """Return a body as a file, which browsers do not render."""
    try:
        found = (await _find(context_of(request).admin, request))[0]
    except (MessageNotFoundError, NoRouteError) as error:
        return _not_found(request, error)
    content = found.stored_body if request.query_params.get("stored") else found.body
    return Response(content, media_type="application/octet-stream", headers=as_file(f"{found.message_id}.bin"))


def as_file(name: str) -> dict[str, str]:
    """Return the headers that make a browser save a response as a file."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    return {"Content-Disposition": f'attachment; filename="{plain}"'}


def _not_found(request: Request, error: SkyrouteError) -> Response:
    back = f"/messages?topic={quote(request.path_params['topic'], safe='')}"
    return error_page(request, str(error), HTTPStatus.NOT_FOUND, back)


async def _find(admin: Admin, request: Request) -> list[StoredMessage]:
    """Return the message at the request's position, or all messages with its id."""
    topic, message_id = request.path_params["topic"], request.path_params["message_id"]
    if at := request.query_params.get("at"):
        with suppress(MessageNotFoundError, NoBrokerError):
            found = await message_at(admin, topic, parse_position(at))
            if message_id in (found.message_id, found.offset_id):
                return [found]
    return await messages_with_id(admin, topic, message_id)


async def message_at(admin: Admin, topic: str, position: Position) -> StoredMessage:
    """Return the message at a position.

    Raises:
        MessageNotFoundError: it does not exist, or is deleted.
    """
    queue = QueueRef(topic, position.broker_name, position.queue_id)
    if position.offset < 0 or position.queue_id < 0 or not position.broker_name:
        raise MessageNotFoundError(f"there is no message at offset {position.offset} of {queue}")
    return await admin.message_at(queue, position.offset)


# State in each group


async def _group_states(admin: Admin, found: StoredMessage) -> tuple[list[GroupState], SkyrouteError | None]:
    """Return the state of a message in each group, and the error if not all states could be read."""
    failure: SkyrouteError | None = None
    tracks: list[MessageTrack] = []
    try:
        async with asyncio.timeout(TRACK_S):
            tracks = await admin.track(found)
    except TimeoutError:
        failure = ConsoleError(f"the states of the groups could not be read within {TRACK_S:.0f} s: try again later")
    except SkyrouteError as error:
        failure = error
    group_states = [GroupState(track.group, STATES[track.tracking], track.remark) for track in tracks]
    able = [track.group for track in tracks if track.tracking in CAN_CONSUME]
    owner = group_of(found.topic)
    if owner and is_dead_letter_topic(found.topic):
        group_states.insert(0, GroupState(owner, DEAD_LETTER))
        able.insert(0, owner)
    consumers = dict(
        zip(able, await asyncio.gather(*(_consumers(admin, group) for group in able[:GROUPS_MAX])), strict=False)
    )
    return [
        GroupState(state.group, state.state, state.remark, consumers.get(state.group, ())) for state in group_states
    ], failure


async def _consumers(admin: Admin, group: str) -> list[str]:
    try:
        connections = (await admin.consumers(group)).connections
    except SkyrouteError:  # no consumers are online, or the broker does not respond
        return []
    return sorted({connection.client_id for connection in connections})[:CONSUMERS_MAX]


class TraceRow(NamedTuple):
    """One row of the message trace."""

    at_ms: int
    what: str
    group: str
    where: str
    cost_ms: int | None
    ok: bool | None


async def _trace(admin: Admin, found: StoredMessage) -> list[TraceRow]:
    """Return the trace of a message by time; it is empty unless its clients enable tracing."""
    try:
        async with asyncio.timeout(TRACK_S):
            traces = await admin.messages_by_key(TRACE_TOPIC, found.message_id, count_max=TRACES_MAX)
    except (SkyrouteError, TimeoutError):
        return []
    lines = []
    for trace in traces:
        try:
            records = decode_trace(trace.body)
        except SkyrouteError:
            continue
        lines += [_traced(record, trace) for record in records if record.message_id == found.message_id]
    return sorted(set(lines))


def _traced(record: TraceRecord, trace: StoredMessage) -> TraceRow:
    client = str(trace.born_host)
    match record:
        case Sent():
            return TraceRow(record.at_ms, translatable("Sent"), record.group, client, record.cost_ms, record.success)
        case ConsumeStarted():
            return TraceRow(record.at_ms, translatable("Consumption started"), record.group, client, None, None)
        case ConsumeEnded():
            at_ms = record.at_ms or trace.born_at_ms
            return TraceRow(
                at_ms, translatable("Consumption finished"), record.group, client, record.cost_ms, record.success
            )
        case TransactionEnded():
            return TraceRow(record.at_ms, ENDINGS[record.outcome], record.group, client, None, None)
        case Recalled():
            return TraceRow(record.at_ms, translatable("Recalled"), record.group, client, None, record.success)


# Actions


@action(
    "/messages/deliver",
    "message.deliver",
    question=translatable("Deliver message {message_id} to consumer {client_id} of group {group}?"),
    warning=translatable("The consumer may have consumed this message before. Its offsets do not change."),
)
async def deliver(context: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Deliver a message to one consumer of a group."""
    topic, group, client_id = fields.get("topic", ""), fields.get("group", ""), fields.get("client_id", "")
    if not topic or not group or not client_id:
        raise ConsoleError("choose a group and one of its consumers")
    position = parse_position(fields.get("at", ""))
    found = await message_at(context.admin, topic, position)
    outcome = await context.admin.consume_directly(group, client_id, found)
    return done(
        "{client} returned {result} after {spent} ms. {remark}",
        message_path(found, position),
        client=client_id,
        result=outcome.result,
        spent=outcome.spent_ms,
        remark=outcome.remark or "",
    )


@action(
    "/messages/resend",
    "message.resend",
    question=translatable("Send a copy of message {message_id} to topic {origin}?"),
    warning=translatable(
        "All consumer groups of the topic receive the copy, including those that already consumed the message."
    ),
)
async def resend(context: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Send a copy of a message to its original topic."""
    position = parse_position(fields.get("at", ""))
    found = await message_at(context.admin, fields.get("topic", ""), position)
    async with producer_of(context) as producer:
        where = await send_copy(context.admin, producer, found)
    return done("Copy sent: {where}", message_path(found, position), where=where)


async def send_copy(admin: Admin, producer: Producer, found: StoredMessage) -> str:
    """Send a copy of a message, with its body, keys, tag and properties, to its original topic; return where it is.

    Raises:
        SkyrouteError: the body cannot be decompressed, or the copy cannot be sent.
    """
    copy = Message(
        origin_of(found),
        found.body,
        tag=found.tag,
        keys=found.keys,
        properties=found.user_properties,
        sharding_key=found.sharding_key,
        flag=found.flag,
    )
    await admin.route(copy.topic)  # sending must not create a topic that was deleted
    sent = await producer.send(copy)
    return f"{sent.queue} offset {sent.queue_offset}, id {sent.message_id}"


def message_path(found: StoredMessage, position: Position) -> str:
    """Return the address of a message's page."""
    return f"/messages/{quote(found.topic, safe='')}/{quote(found.message_id, safe='')}?at={quote(str(position))}"


ROUTES = [
    deliver,
    resend,
    Route("/messages/{topic}/{message_id}/body", body),
    Route("/messages/{topic}/{message_id:path}", message),
]
