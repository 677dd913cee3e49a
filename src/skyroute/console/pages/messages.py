"""Looking for messages: by topic and time, by key, by either id."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skyroute.client.admin import Admin
from skyroute.client.admin.messages import MessageNotFoundError
from skyroute.console.cluster_data.message_listing import Found, newest_first, read_place, row_of
from skyroute.console.cluster_data.watcher import Look
from skyroute.console.errors import ConsoleError
from skyroute.console.pages.forms import in_field, moment
from skyroute.console.pages.page_context import desk_of
from skyroute.errors import SkyrouteError
from skyroute.message.message import StoredMessage
from skyroute.message.reserved_topics import is_system_topic
from skyroute.wire.calls.query import FOREVER_MS

SUGGESTIONS_MAX: Final = 200
"""Topics that a field suggests; typing narrows them down."""
BY_KEY_MAX: Final = 200
"""Messages with one key that each broker is asked for."""


async def messages(request: Request) -> Response:
    """Show the messages that somebody looks for."""
    desk = desk_of(request)
    asked = {name: value.strip() for name, value in request.query_params.items()}
    topic = asked.get("topic", "")
    found: Found | None = None
    failure: SkyrouteError | None = None
    begin_ms = end_ms = None
    try:
        begin_ms, end_ms = typed_span(asked, desk.clock.wall())
        if topic:
            found = await _search(desk.admin, topic, asked, begin_ms, end_ms)
    except SkyrouteError as error:
        failure = error
    if found and asked.get("id") and len(found.rows) == 1:
        row = found.rows[0]
        return desk.go(f"/messages/{quote(topic, safe='')}/{quote(row.message_id, safe='')}?at={quote(str(row.place))}")
    return desk.show(
        request,
        "messages.html",
        asked=asked,
        found=found,
        failure=failure,
        begin=in_field(begin_ms),
        end=in_field(end_ms),
        suggested=_suggested(desk.watcher.look, ""),
        by_key_max=BY_KEY_MAX,
    )


async def suggest(request: Request) -> Response:
    """Show the topics whose names hold what was typed so far."""
    desk = desk_of(request)
    typed = request.query_params.get("topic", "").strip()
    return desk.show(request, "messages_topics.html", suggested=_suggested(desk.watcher.look, typed))


def topics_of(look: Look) -> set[str]:
    """Return the topics that any of the name servers knew when they were last asked."""
    return {topic for server in look.name_servers for topic in server.topics}


def _suggested(look: Look, typed: str) -> list[str]:
    like = [topic for topic in topics_of(look) if typed.lower() in topic.lower()]
    return sorted(like, key=lambda topic: (is_system_topic(topic), topic))[:SUGGESTIONS_MAX]


async def _search(
    admin: Admin, topic: str, asked: Mapping[str, str], begin_ms: int | None, end_ms: int | None
) -> Found:
    if message_id := asked.get("id"):
        return _all_of(await messages_with_id(admin, topic, message_id))
    if key := asked.get("key"):
        end_ms = FOREVER_MS if end_ms is None else end_ms
        return _all_of(
            await admin.messages_by_key(topic, key, count_max=BY_KEY_MAX, begin_ms=begin_ms or 0, end_ms=end_ms)
        )
    broker, number = asked.get("broker"), asked.get("queue")
    queues = [
        queue
        for queue in await admin.queues_of(topic)
        if (not broker or broker == queue.broker_name) and (not number or number == str(queue.queue_id))
    ]
    if not queues:
        raise ConsoleError(f"no queue of {topic} that was asked for can be read: see its route and its permission")
    before = read_place(asked["before"]) if asked.get("before") else None
    return await newest_first(admin, queues, begin_ms, end_ms, before)


async def messages_with_id(admin: Admin, topic: str, message_id: str) -> list[StoredMessage]:
    """Return the messages with an id of their sender's, or the one at the place that the id says.

    Raises:
        MessageNotFoundError: there is none.
        SkyrouteError: not all brokers answer.
    """
    try:
        return await admin.messages_by_unique_id(topic, message_id)
    except MessageNotFoundError:
        return [await admin.find_message(topic, message_id)]


def _all_of(messages: list[StoredMessage]) -> Found:
    rows = sorted(map(row_of, messages), key=lambda row: row.place, reverse=True)
    return Found(rows, len(rows), None, is_cut=False, queues=0, failures={})


def typed_span(asked: Mapping[str, str], now_s: float) -> tuple[int | None, int | None]:
    """Return from when and until when, in milliseconds; None: not said.

    Raises:
        ConsoleError: they are no times, or the wrong way round.
    """
    begin_ms, end_ms = moment(asked, "begin", "Stored from", now_s), moment(asked, "end", "Stored before", now_s)
    if begin_ms is not None and end_ms is not None and begin_ms >= end_ms:
        raise ConsoleError("the time until which to look is not after the one from which to look: change one of them")
    return begin_ms, end_ms


ROUTES = [Route("/messages", messages), Route("/messages/topics", suggest)]
