"""Dead-letter queues: list, export and resend their messages."""

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
from skyroute.console.access.sessions import Visitor
from skyroute.console.cluster_data.message_listing import newest_first, origin_of, parse_position
from skyroute.console.errors import ConsoleError
from skyroute.console.pages.message import as_file, message_at, send_copy
from skyroute.console.pages.messages import topics_of, typed_span
from skyroute.console.pages.topic import producer_of
from skyroute.console.texts import translatable
from skyroute.console.web.actions import Done, Fields, action, done, return_path
from skyroute.console.web.forms import in_field
from skyroute.console.web.page_context import PageContext, Paging, context_of, error_page, page_number
from skyroute.errors import SkyrouteError
from skyroute.message.message import StoredMessage
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import DLQ_PREFIX, dead_letter_topic

LISTED_MAX: Final = 5
"""Copies or failures that a notice lists."""


async def dead_letters(request: Request) -> Response:
    """Show the groups that have a dead-letter queue, or the messages of one."""
    context = context_of(request)
    params = {name: value.strip() for name, value in request.query_params.items()}
    group = params.get("group", "")
    if not group:
        wanted = params.get("q", "").lower()
        groups = [
            name
            for topic in sorted(topics_of(context.monitor.snapshot))
            if topic.startswith(DLQ_PREFIX) and wanted in (name := topic.removeprefix(DLQ_PREFIX)).lower()
        ]
        paging = Paging(len(groups), page_number(request))
        return context.render(request, "dead_letters.html", groups=groups[paging.start : paging.stop], paging=paging)
    begin_ms, end_ms = typed_span(params, context.clock.wall())
    before = parse_position(params["before"]) if params.get("before") else None
    try:
        queues = await _queues(context.admin, group)
    except (NoRouteError, ConsoleError) as error:
        return error_page(request, str(error), HTTPStatus.NOT_FOUND, "/messages/dead-letters")
    return context.render(
        request,
        "dead_letters_of.html",
        group=group,
        topic=dead_letter_topic(group),
        params=params,
        found=await newest_first(context.admin, queues, begin_ms, end_ms, before),
        begin=in_field(begin_ms),
        end=in_field(end_ms),
    )


async def _queues(admin: Admin, group: str) -> list[QueueRef]:
    topic = dead_letter_topic(group)
    queues = await admin.queues_of(topic)
    if not queues:
        raise ConsoleError(
            f"the dead-letter queue of {group} is not readable: give {topic} read permission in its settings"
        )
    return queues


async def export(request: Request) -> Response:
    """Stream the messages of a dead-letter queue, one JSON object per line.

    If reading fails, the download ends early and the browser reports that it is incomplete.
    """
    context = context_of(request)
    admin = context.admin
    params = {name: value.strip() for name, value in request.query_params.items()}
    begin_ms, end_ms = typed_span(params, context.clock.wall())
    group = params.get("group", "")
    try:
        queues = await _queues(admin, group)
    except (NoRouteError, ConsoleError) as error:
        return error_page(request, str(error), HTTPStatus.NOT_FOUND, "/messages/dead-letters")
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
    except SkyrouteError as error:  # a damaged message must not stop the export
        return line | {"failure": str(error), "stored_body_base64": base64.b64encode(message.stored_body).decode()}
    try:
        return line | {"body": body.decode()}
    except UnicodeDecodeError:
        return line | {"body_base64": base64.b64encode(body).decode()}


# Actions

_WARNING: Final = translatable(
    "All consumer groups of these topics receive the copies. The messages stay in the dead-letter queue."
)


@action(
    "/messages/dead-letters/resend-selected",
    "dead_letters.resend_selected",
    question=translatable("Send copies of the selected dead-letter messages of {group} to their original topics?"),
    warning=_WARNING,
)
async def resend_selected(context: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Resend the selected messages."""
    return await _send(
        context, fields, [name for name in fields if name.startswith("message") and f"select-{name}" in fields]
    )


@action(
    "/messages/dead-letters/resend-all",
    "dead_letters.resend_all",
    question=translatable(
        "Send copies of all {count} dead-letter messages of {group} on this page to their original topics?"
    ),
    warning=_WARNING,
)
async def resend_all(context: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Resend all messages of the page."""
    return await _send(context, fields, [name for name in fields if name.startswith("message")])


async def _send(context: PageContext, fields: Fields, names: list[str]) -> Done:
    """Send copies, oldest first.

    Raises:
        ConsoleError: not all could be sent; the text says which.
    """
    if not names:
        raise ConsoleError("no messages are selected: select the messages to resend")
    topic = dead_letter_topic(fields.get("group", ""))
    sent, failures = [], []
    async with producer_of(context) as producer:
        for position in sorted(parse_position(fields[name]) for name in names):
            try:
                sent.append(await send_copy(context.admin, producer, await message_at(context.admin, topic, position)))
            except SkyrouteError as error:
                failures.append(f"queue {position.queue_id} offset {position.offset}: {error}")
    where = _list(sent)
    if failures:
        raise ConsoleError(f"copies sent: {len(sent)} ({where}); not sent: {len(failures)} ({_list(failures)})")
    return done("Copies sent: {count}. {where}", return_path(fields), count=len(sent), where=where)


def _list(items: list[str]) -> str:
    more = len(items) - LISTED_MAX
    return "; ".join(items[:LISTED_MAX]) + (f"; and {more} more" if more > 0 else "")


ROUTES = [
    resend_selected,
    resend_all,
    Route("/messages/dead-letters", dead_letters),
    Route("/messages/dead-letters/export", export),
]
