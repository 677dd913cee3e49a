"""Search messages by topic and time, by key, or by message id."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skyroute.client.admin import Admin
from skyroute.client.admin.messages import MessageNotFoundError
from skyroute.console.cluster_data.message_listing import Found, newest_first, parse_position, row_of
from skyroute.console.cluster_data.monitor import ClusterSnapshot
from skyroute.console.errors import ConsoleError
from skyroute.console.web.forms import in_field, read_time_ms
from skyroute.console.web.page_context import context_of
from skyroute.errors import SkyrouteError
from skyroute.message.message import StoredMessage
from skyroute.message.reserved_topics import is_system_topic
from skyroute.wire.calls.query import FOREVER_MS

SUGGESTIONS_MAX: Final = 200
"""Topics that the search field suggests."""
BY_KEY_MAX: Final = 200
"""Messages with the same key read from each broker."""


async def messages(request: Request) -> Response:
    """Show the search form and the messages found."""
    context = context_of(request)
    params = {name: value.strip() for name, value in request.query_params.items()}
    topic = params.get("topic", "")
    found: Found | None = None
    failure: SkyrouteError | None = None
    begin_ms = end_ms = None
    try:
        begin_ms, end_ms = typed_span(params, context.clock.wall())
        if topic:
            found = await _search(context.admin, topic, params, begin_ms, end_ms)
    except SkyrouteError as error:
        failure = error
    if found and params.get("id") and len(found.rows) == 1:
        row = found.rows[0]
        return context.redirect(
            f"/messages/{quote(topic, safe='')}/{quote(row.message_id, safe='')}?at={quote(str(row.position))}"
        )
    return context.render(
        request,
        "messages.html",
        params=params,
        found=found,
        failure=failure,
        begin=in_field(begin_ms),
        end=in_field(end_ms),
        suggested=_suggested(context.monitor.snapshot, ""),
        by_key_max=BY_KEY_MAX,
    )


async def suggest(request: Request) -> Response:
    """Return the topics whose names contain the typed text."""
    context = context_of(request)
    typed = request.query_params.get("topic", "").strip()
    return context.render(request, "messages_topics.html", suggested=_suggested(context.monitor.snapshot, typed))


def topics_of(snapshot: ClusterSnapshot) -> set[str]:
    """Return the topics that any name server knew at the last poll."""
    return {topic for server in snapshot.name_servers for topic in server.topics}


def _suggested(snapshot: ClusterSnapshot, typed: str) -> list[str]:
    like = [topic for topic in topics_of(snapshot) if typed.lower() in topic.lower()]
    return sorted(like, key=lambda topic: (is_system_topic(topic), topic))[:SUGGESTIONS_MAX]


async def _search(
    admin: Admin, topic: str, params: Mapping[str, str], begin_ms: int | None, end_ms: int | None
) -> Found:
    if message_id := params.get("id"):
        return _all_of(await messages_with_id(admin, topic, message_id))
    if key := params.get("key"):
        end_ms = FOREVER_MS if end_ms is None else end_ms
        return _all_of(
            await admin.messages_by_key(topic, key, count_max=BY_KEY_MAX, begin_ms=begin_ms or 0, end_ms=end_ms)
        )
    broker, number = params.get("broker"), params.get("queue")
    queues = [
        queue
        for queue in await admin.queues_of(topic)
        if (not broker or broker == queue.broker_name) and (not number or number == str(queue.queue_id))
    ]
    if not queues:
        raise ConsoleError(f"no queue of {topic} matches and is readable: check its route and its permission")
    before = parse_position(params["before"]) if params.get("before") else None
    return await newest_first(admin, queues, begin_ms, end_ms, before)


async def messages_with_id(admin: Admin, topic: str, message_id: str) -> list[StoredMessage]:
    """Return the messages with a unique id, or the one with an offset message id.

    Raises:
        MessageNotFoundError: there is none.
        SkyrouteError: a broker does not respond.
    """
    try:
        return await admin.messages_by_unique_id(topic, message_id)
    except MessageNotFoundError:
        return [await admin.find_message(topic, message_id)]


def _all_of(messages: list[StoredMessage]) -> Found:
    rows = sorted(map(row_of, messages), key=lambda row: row.position, reverse=True)
    return Found(rows, len(rows), None, is_cut=False, queues=0, failures={})


def typed_span(params: Mapping[str, str], now_s: float) -> tuple[int | None, int | None]:
    """Return the begin and end that were typed, in milliseconds; None for an empty field.

    Raises:
        ConsoleError: one is not a time, or the end is not after the begin.
    """
    begin_ms = read_time_ms(params, "begin", "Stored from", now_s)
    end_ms = read_time_ms(params, "end", "Stored before", now_s)
    if begin_ms is not None and end_ms is not None and begin_ms >= end_ms:
        raise ConsoleError("“Stored before” is not after “Stored from”: change one of them")
    return begin_ms, end_ms


ROUTES = [Route("/messages", messages), Route("/messages/topics", suggest)]
