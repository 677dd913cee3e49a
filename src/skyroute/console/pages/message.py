"""One message: all that is known of it, what is in it, who has had it; and having it handled or sent once more."""

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
from skyroute.console.cluster_data.body_preview import Form, harmless, show_body
from skyroute.console.cluster_data.message_listing import Place, origin_of, read_place, row_of
from skyroute.console.errors import ConsoleError
from skyroute.console.guard.visitors import Visitor
from skyroute.console.pages.actions import Done, Fields, action, done, refuse
from skyroute.console.pages.messages import messages_with_id
from skyroute.console.pages.page_context import PageContext, desk_of
from skyroute.console.pages.topic import producer_of
from skyroute.errors import SkyrouteError
from skyroute.message.flags import TransactionState, compression_of
from skyroute.message.message import Message, StoredMessage
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import TRACE_TOPIC, group_of, is_dead_letter_topic
from skyroute.wire.calls.transaction import TransactionOutcome

TRACK_S: Final = 5.0
"""How long it may take to find out who has had a message, and what its trace says."""
GROUPS_MAX: Final = 32
"""Groups whose members are offered to have a message handled."""
MEMBERS_MAX: Final = 100
"""Members of one group that are offered."""
TRACES_MAX: Final = 64
"""Messages of the trace topic that are read for one message."""

STATES: Final = {
    Tracking.CONSUMED: "Consumed",
    Tracking.CONSUMED_BUT_FILTERED: "Passed over, because it does not want the tag",
    Tracking.PULL: "Only its members know: they pull",
    Tracking.NOT_CONSUME_YET: "Not consumed yet",
    Tracking.NOT_ONLINE: "Nobody is connected",
    Tracking.CONSUME_BROADCASTING: "Only its members know: each has its own offsets",
    Tracking.UNKNOWN: "Not known",
}
TRANSACTIONS: Final = {
    TransactionState.PREPARED: "Prepared",
    TransactionState.COMMITTED: "Committed",
    TransactionState.ROLLED_BACK: "Rolled back",
}
GIVEN_UP: Final = "Given up after too many tries"
ENDINGS: Final = {
    TransactionOutcome.COMMIT: "Transaction committed",
    TransactionOutcome.ROLLBACK: "Transaction rolled back",
    TransactionOutcome.UNKNOWN: "Transaction left open",
}
ABLE_TO_HANDLE: Final = frozenset(Tracking) - {Tracking.PULL, Tracking.NOT_ONLINE, Tracking.UNKNOWN}


@dataclass(frozen=True, slots=True)
class Reader:
    """A group that has had a message, or will, and its members to whom it can be handed."""

    group: str
    state: str
    remark: str | None = None
    members: Sequence[str] = ()


async def message(request: Request) -> Response:
    """Show a message."""
    desk = desk_of(request)
    try:
        found, *others = await _find(desk.admin, request)
    except (MessageNotFoundError, NoRouteError) as error:
        return _no_such(request, error)
    (readers, failure), trace = await asyncio.gather(_readers(desk.admin, found), _trace(desk.admin, found))
    body_failure = None
    try:
        body = found.body
    except SkyrouteError as error:
        body, body_failure = found.stored_body, error
    chosen = request.query_params.get("as", "")
    form = Form(chosen) if chosen in list(Form) else None
    return desk.show(
        request,
        "message.html",
        message=found,
        row=row_of(found),
        others=[row_of(other) for other in others],
        compression=compression_of(found.sys_flag) if body_failure is None else None,
        transaction=TRANSACTIONS.get(found.transaction),
        properties={harmless(name): harmless(value) for name, value in sorted(found.properties.items())},
        wanted=form,
        shown=show_body(body, form),
        body_bytes=len(body),
        body_failure=body_failure,
        readers=readers,
        readers_failure=failure,
        trace=trace,
    )


async def body(request: Request) -> Response:
    """Hand out a whole body as a file, which no browser shall take for a page of ours."""
    try:
        found = (await _find(desk_of(request).admin, request))[0]
    except (MessageNotFoundError, NoRouteError) as error:
        return _no_such(request, error)
    content = found.stored_body if request.query_params.get("stored") else found.body
    return Response(content, media_type="application/octet-stream", headers=as_file(f"{found.message_id}.bin"))


def as_file(name: str) -> dict[str, str]:
    """Return what has a browser save an answer under a name."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    return {"Content-Disposition": f'attachment; filename="{plain}"'}


def _no_such(request: Request, error: SkyrouteError) -> Response:
    back = f"/messages?topic={quote(request.path_params['topic'], safe='')}"
    return refuse(request, str(error), HTTPStatus.NOT_FOUND, back)


async def _find(admin: Admin, request: Request) -> list[StoredMessage]:
    """Return the message that an address names, and others with its id after it."""
    topic, message_id = request.path_params["topic"], request.path_params["message_id"]
    if at := request.query_params.get("at"):
        with suppress(MessageNotFoundError, NoBrokerError):
            found = await message_at(admin, topic, read_place(at))
            if message_id in (found.message_id, found.offset_id):
                return [found]
    return await messages_with_id(admin, topic, message_id)


async def message_at(admin: Admin, topic: str, place: Place) -> StoredMessage:
    """Return the message at a place.

    Raises:
        MessageNotFoundError: there is none, or no more.
    """
    queue = QueueRef(topic, place.broker_name, place.queue_id)
    if place.offset < 0 or place.queue_id < 0 or not place.broker_name:
        raise MessageNotFoundError(f"there is no message at offset {place.offset} of {queue}")
    return await admin.message_at(queue, place.offset)


# Who has had it


async def _readers(admin: Admin, found: StoredMessage) -> tuple[list[Reader], SkyrouteError | None]:
    """Return what became of a message in each group, and why not all is known."""
    failure: SkyrouteError | None = None
    tracks: list[MessageTrack] = []
    try:
        async with asyncio.timeout(TRACK_S):
            tracks = await admin.track(found)
    except TimeoutError:
        failure = ConsoleError(f"the groups did not say within {TRACK_S:.0f} s how far they are: try again later")
    except SkyrouteError as error:
        failure = error
    readers = [Reader(track.group, STATES[track.tracking], track.remark) for track in tracks]
    able = [track.group for track in tracks if track.tracking in ABLE_TO_HANDLE]
    owner = group_of(found.topic)
    if owner and is_dead_letter_topic(found.topic):
        readers.insert(0, Reader(owner, GIVEN_UP))
        able.insert(0, owner)
    members = dict(
        zip(able, await asyncio.gather(*(_members(admin, group) for group in able[:GROUPS_MAX])), strict=False)
    )
    return [
        Reader(reader.group, reader.state, reader.remark, members.get(reader.group, ())) for reader in readers
    ], failure


async def _members(admin: Admin, group: str) -> list[str]:
    try:
        connections = (await admin.consumers(group)).connections
    except SkyrouteError:  # nobody is connected, or nobody tells: then there is nobody to choose
        return []
    return sorted({connection.client_id for connection in connections})[:MEMBERS_MAX]


class Traced(NamedTuple):
    """A line of the message trace."""

    at_ms: int
    what: str
    group: str
    where: str
    cost_ms: int | None
    ok: bool | None


async def _trace(admin: Admin, found: StoredMessage) -> list[Traced]:
    """Return what clients wrote to the trace topic about a message, in the order of time; most write nothing."""
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


def _traced(record: TraceRecord, trace: StoredMessage) -> Traced:
    client = str(trace.born_host)
    match record:
        case Sent():
            return Traced(record.at_ms, "Sent", record.group, client, record.cost_ms, record.success)
        case ConsumeStarted():
            return Traced(record.at_ms, "Given to a handler", record.group, client, None, None)
        case ConsumeEnded():
            at_ms = record.at_ms or trace.born_at_ms
            return Traced(at_ms, "Handler done", record.group, client, record.cost_ms, record.success)
        case TransactionEnded():
            return Traced(record.at_ms, ENDINGS[record.outcome], record.group, client, None, None)
        case Recalled():
            return Traced(record.at_ms, "Recalled", record.group, client, None, record.success)


# Having it handled, or sent, once more


@action(
    "/messages/hand-over",
    "message.hand_over",
    question="Have {client_id} of the group {group} handle the message {message_id} now?",
    warning="It may have had this message before. Its offsets do not change.",
)
async def hand_over(desk: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Have one member of a group handle a message."""
    topic, group, client_id = fields.get("topic", ""), fields.get("group", ""), fields.get("client_id", "")
    if not topic or not group or not client_id:
        raise ConsoleError("choose a group and one of its members")
    place = read_place(fields.get("at", ""))
    found = await message_at(desk.admin, topic, place)
    outcome = await desk.admin.consume_directly(group, client_id, found)
    return done(
        "{client} says {result} after {spent} ms. {remark}",
        then=address_of(found, place),
        client=client_id,
        result=outcome.result,
        spent=outcome.spent_ms,
        remark=outcome.remark or "",
    )


@action(
    "/messages/send-again",
    "message.send_again",
    question="Send a copy of the message {message_id} to the topic {origin}?",
    warning="Every group that reads the topic gets the copy, also those that have had the message already.",
)
async def send_again(desk: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Send a copy of a message to the topic that it was first sent to."""
    place = read_place(fields.get("at", ""))
    found = await message_at(desk.admin, fields.get("topic", ""), place)
    async with producer_of(desk) as producer:
        where = await send_copy(desk.admin, producer, found)
    return done("A copy was sent: {where}", then=address_of(found, place), where=where)


async def send_copy(admin: Admin, producer: Producer, found: StoredMessage) -> str:
    """Send a message anew, with its body, keys, tag and properties, to the topic it was first sent to; return where.

    Raises:
        SkyrouteError: it cannot be unpacked, holds what no producer may send, or nobody takes it.
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
    await admin.route(copy.topic)  # a topic that is gone must not come back because we send to it
    sent = await producer.send(copy)
    return f"{sent.queue} offset {sent.queue_offset}, id {sent.message_id}"


def address_of(found: StoredMessage, place: Place) -> str:
    """Return where the page of a message is."""
    return f"/messages/{quote(found.topic, safe='')}/{quote(found.message_id, safe='')}?at={quote(str(place))}"


ROUTES = [
    hand_over,
    send_again,
    Route("/messages/{topic}/{message_id}/body", body),
    Route("/messages/{topic}/{message_id:path}", message),
]
