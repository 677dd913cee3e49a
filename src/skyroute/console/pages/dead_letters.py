"""Dead letters: what groups failed too often, to look at, to send again, and to take along."""

import base64
from collections.abc import AsyncIterator
from contextlib import aclosing
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from skyroute.client.admin import Admin
from skyroute.client.errors import NoRouteError
from skyroute.console.cluster_data.message_listing import newest_first, origin_of, read_place
from skyroute.console.errors import ConsoleError
from skyroute.console.guard.visitors import Visitor
from skyroute.console.pages.actions import Done, Fields, action, back_of, done, refuse
from skyroute.console.pages.forms import in_field
from skyroute.console.pages.message import as_file, message_at, send_copy
from skyroute.console.pages.messages import topics_of, typed_span
from skyroute.console.pages.page_context import PageContext, Paging, desk_of, page_number
from skyroute.console.pages.topic import producer_of
from skyroute.errors import SkyrouteError
from skyroute.message.message import StoredMessage
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import DLQ_PREFIX, dead_letter_topic

TOLD_MAX: Final = 5
"""Copies, or failures, that are told of one by one."""


async def dead_letters(request: Request) -> Response:
    """Show which groups have dead letters, or those of one."""
    desk = desk_of(request)
    asked = {name: value.strip() for name, value in request.query_params.items()}
    group = asked.get("group", "")
    if not group:
        wanted = asked.get("q", "").lower()
        groups = [
            name
            for topic in sorted(topics_of(desk.watcher.look))
            if topic.startswith(DLQ_PREFIX) and wanted in (name := topic.removeprefix(DLQ_PREFIX)).lower()
        ]
        paging = Paging(len(groups), page_number(request))
        return desk.show(request, "dead_letters.html", groups=groups[paging.start : paging.stop], paging=paging)
    begin_ms, end_ms = typed_span(asked, desk.clock.wall())
    before = read_place(asked["before"]) if asked.get("before") else None
    try:
        queues = await _queues(desk.admin, group)
    except (NoRouteError, ConsoleError) as error:
        return refuse(request, str(error), HTTPStatus.NOT_FOUND, "/messages/dead-letters")
    return desk.show(
        request,
        "dead_letters_of.html",
        group=group,
        topic=dead_letter_topic(group),
        asked=asked,
        found=await newest_first(desk.admin, queues, begin_ms, end_ms, before),
        begin=in_field(begin_ms),
        end=in_field(end_ms),
    )


async def _queues(admin: Admin, group: str) -> list[QueueRef]:
    topic = dead_letter_topic(group)
    queues = await admin.queues_of(topic)
    if not queues:
        raise ConsoleError(f"the dead letters of {group} cannot be read: allow reading in the settings of {topic}")
    return queues


async def export(request: Request) -> Response:
    """Hand out the dead letters of a group, one JSON object a line, as they are read.

    A download that breaks off is one of which something could not be read; browsers say so.
    """
    desk = desk_of(request)
    admin = desk.admin
    asked = {name: value.strip() for name, value in request.query_params.items()}
    begin_ms, end_ms = typed_span(asked, desk.clock.wall())
    group = asked.get("group", "")
    try:
        queues = await _queues(admin, group)
    except (NoRouteError, ConsoleError) as error:
        return refuse(request, str(error), HTTPStatus.NOT_FOUND, "/messages/dead-letters")
    spans = [(queue, *await admin.span(queue, begin_ms, end_ms)) for queue in queues]

    async def lines() -> AsyncIterator[bytes]:
        for queue, begin, end in spans:
            async with aclosing(admin.read(queue, begin, end)) as parts:
                async for messages in parts:
                    for message in messages:
                        yield msgspec.json.encode(_line(message)) + b"\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=as_file(f"dead-letters-{group}.jsonl"))


def _line(message: StoredMessage) -> dict[str, object]:
    line: dict[str, object] = {
        "message_id": message.message_id,
        "offset_id": message.offset_id,
        "topic": message.topic,
        "origin_topic": origin_of(message),
        "broker_name": message.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "born_at_ms": message.born_at_ms,
        "stored_at_ms": message.stored_at_ms,
        "reconsume_times": message.reconsume_times,
        "tag": message.tag,
        "keys": message.keys,
        "properties": message.properties,
    }
    try:
        body = message.body
    except SkyrouteError as error:  # a damaged one must not keep the others from being exported
        return line | {"failure": str(error), "stored_body_base64": base64.b64encode(message.stored_body).decode()}
    try:
        return line | {"body": body.decode()}
    except UnicodeDecodeError:
        return line | {"body_base64": base64.b64encode(body).decode()}


# Sending them again

_WARNING: Final = "Every group that reads their topics gets the copies. The dead letters stay where they are."


@action(
    "/messages/dead-letters/send-chosen",
    "dead_letters.send_chosen",
    question="Send copies of the chosen dead letters of {group} to the topics they were first sent to?",
    warning=_WARNING,
)
async def send_chosen(desk: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Send copies of those that were ticked."""
    return await _send(
        desk, fields, [name for name in fields if name.startswith("letter") and f"pick-{name}" in fields]
    )


@action(
    "/messages/dead-letters/send-all",
    "dead_letters.send_all",
    question="Send copies of all {count} dead letters of {group} on this page to the topics they were first sent to?",
    warning=_WARNING,
)
async def send_all(desk: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Send copies of all that the page showed."""
    return await _send(desk, fields, [name for name in fields if name.startswith("letter")])


async def _send(desk: PageContext, fields: Fields, names: list[str]) -> Done:
    """Send copies, the oldest first.

    Raises:
        ConsoleError: not all could be sent; the text says what was.
    """
    if not names:
        raise ConsoleError("none was chosen: tick the dead letters to send again")
    topic = dead_letter_topic(fields.get("group", ""))
    sent, failures = [], []
    async with producer_of(desk) as producer:
        for place in sorted(read_place(fields[name]) for name in names):
            try:
                sent.append(await send_copy(desk.admin, producer, await message_at(desk.admin, topic, place)))
            except SkyrouteError as error:
                failures.append(f"queue {place.queue_id} offset {place.offset}: {error}")
    where = _told(sent)
    if failures:
        raise ConsoleError(f"copies sent: {len(sent)} ({where}); not sent: {len(failures)} ({_told(failures)})")
    return done("Copies sent: {count}. {where}", then=back_of(fields), count=len(sent), where=where)


def _told(things: list[str]) -> str:
    more = len(things) - TOLD_MAX
    return "; ".join(things[:TOLD_MAX]) + (f"; and {more} more" if more > 0 else "")


ROUTES = [
    send_chosen,
    send_all,
    Route("/messages/dead-letters", dead_letters),
    Route("/messages/dead-letters/export", export),
]
