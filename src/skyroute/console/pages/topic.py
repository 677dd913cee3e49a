"""One topic: its queues, its route and what ails it, who reads it, sending to it, and its settings."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final, TypeVar
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skyroute.client.admin.base import call_each
from skyroute.client.errors import ArgumentError, NoRouteError, TopicNotFoundError, UnsupportedError
from skyroute.client.producing.producer import Producer
from skyroute.console.cluster_data.diagnostics import (
    Kind,
    Surroundings,
    diagnose,
    diagnose_queues,
    diagnose_routes,
    kind_of,
)
from skyroute.console.cluster_data.problems import NAME_SERVERS, Finding, Severity, worst_first
from skyroute.console.errors import ConsoleError
from skyroute.console.guard.visitors import Visitor
from skyroute.console.pages.actions import Done, Fields, action, done, refuse
from skyroute.console.pages.forms import whole
from skyroute.console.pages.page_context import PageContext, Paging, desk_of, page_number
from skyroute.console.pages.text import translator
from skyroute.console.pages.topics import LABELS, address_of, form_values
from skyroute.errors import SkyrouteError
from skyroute.message.message import Message
from skyroute.routing.topology import TopicRoute
from skyroute.wire.calls.route import decode_route, encode_route_query
from skyroute.wire.calls.topics import TopicConfig, decode_topic_readers, encode_topic_readers_query

T = TypeVar("T")
Configs = Mapping[str, TopicConfig]

ANSWER_S: Final = 8.0
"""How long a page waits for each thing that a topic's brokers are asked."""
GROUPS_A_PAGE: Final = 20
"""Every one of them is asked about."""
DELAY_LEVEL_MAX: Final = 1_000
_NUMBERS: Final = itertools.count(1)
"""Of the producers of this console."""

TABS: Final = {
    "queues": "Queue status",
    "route": "Route and health",
    "rates": "Rates",
    "consumers": "Consumers",
    "send": "Send",
    "settings": "Settings",
}


async def topic_page(request: Request) -> Response:
    """Show one topic, one side of it at a time."""
    desk, topic = desk_of(request), request.path_params["topic"]
    watcher = desk.watcher
    tab = request.query_params.get("tab", "")
    tab = tab if tab in TABS else next(iter(TABS))
    if tab == "settings" and topic not in watcher.inventory.topics:  # nobody may change what they have not seen
        await watcher.take_inventory()
    configs = watcher.inventory.topics.get(topic)
    if configs is None:
        try:
            configs = _configs_in(topic, await desk.admin.route(topic))
        except (NoRouteError, ArgumentError):
            configs = {}
    if not configs:
        why = translator(request.state.visitor.language)("There is no topic {topic}", topic=topic)
        return refuse(request, why, HTTPStatus.NOT_FOUND, "/topics")
    around = Surroundings.of(watcher.look, watcher.inventory)
    kind = kind_of(topic, configs, around.own_topics)
    values = {"findings": diagnose(topic, configs, around), **await _SIDES[tab](request, topic, configs, around)}
    return desk.show(
        request,
        "topic.html",
        topic=topic,
        address=address_of(topic),
        configs=configs,
        kind=kind,
        is_system=kind is Kind.SYSTEM,
        trouble=sum(finding.severity > Severity.NOTE for finding in values["findings"]),
        tab=tab,
        tabs=TABS,
        **LABELS,
        **values,
    )


def _configs_in(topic: str, route: TopicRoute) -> dict[str, TopicConfig]:
    """Return the settings of a topic that was not there yet when brokers last told theirs."""
    return {
        queues.broker_name: TopicConfig(topic, *queues.settings[:3], sys_flag=queues.settings.sys_flag)
        for queues in route.queues
    }


async def attempt(asking: Awaitable[T]) -> tuple[T | None, str]:
    """Return what the cluster answers, or why it does not."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return await asking, ""
    except TimeoutError:
        return None, "There was no answer in time."
    except UnsupportedError:
        return None, "This broker does not tell."
    except SkyrouteError as error:
        return None, str(error)


# The sides of a topic: each returns what its template shows


async def _queues(request: Request, topic: str, _configs: Configs, _around: Surroundings) -> dict[str, Any]:
    status, failure = await attempt(desk_of(request).admin.topic_status(topic))
    queues = list(status.queues.items()) if status else []
    paging = Paging(len(queues), page_number(request))
    return {
        "status": status,
        "failure": failure,
        "queues": queues[paging.start : paging.stop],
        "paging": paging,
        "messages": sum(span.max_offset - span.min_offset for _, span in queues),
        "last_ms": max((span.updated_at_ms for _, span in queues), default=0),
    }


async def _route(request: Request, topic: str, configs: Configs, around: Surroundings) -> dict[str, Any]:
    desk = desk_of(request)
    (status, _), answers = await asyncio.gather(
        attempt(desk.admin.topic_status(topic)),
        desk.admin.session.ask_every_name_server(encode_route_query(topic), ANSWER_S),
    )
    routes: dict[str, TopicRoute | None] = {}
    failures: dict[str, SkyrouteError] = {}
    for address, answer in answers:
        if isinstance(answer, TopicNotFoundError):
            routes[address] = None
        elif isinstance(answer, SkyrouteError):
            failures[address] = answer
        else:
            routes[address] = decode_route(answer.body)
    views = {server.address: server.view for server in desk.watcher.look.name_servers if server.view is not None}
    both = routes.keys() & views.keys()
    found: list[Finding] = [
        # What all name servers have just been asked about counts more than what they knew at the last look.
        *(finding for finding in diagnose(topic, configs, around) if finding.problem is not NAME_SERVERS),
        *diagnose_routes(
            topic,
            {server: routes[server] for server in sorted(both)},
            {server: views[server] for server in sorted(both)},
            configs,
            around,
        ),
        *(diagnose_queues(status.queues, configs) if status else ()),
    ]
    route = next((route for route in routes.values() if route is not None), None)
    return {
        "findings": worst_first(found),
        "route": route,
        "settings": {queues.broker_name: queues.settings for queues in route.queues} if route else {},
        "servers": dict(sorted((routes | failures).items())),
        "failures": failures,
    }


async def _rates(request: Request, topic: str, _configs: Configs, _around: Surroundings) -> dict[str, Any]:
    traffic, failure = await attempt(desk_of(request).admin.topic_traffic(topic))
    return {"traffic": traffic, "failure": failure}


async def _consumers(request: Request, topic: str, _configs: Configs, _around: Surroundings) -> dict[str, Any]:
    admin = desk_of(request).admin

    async def ask(address: str) -> list[str]:
        return decode_topic_readers((await admin.session.ask(address, encode_topic_readers_query(topic))).body)

    async def ask_brokers() -> tuple[dict[str, list[str]], dict[str, SkyrouteError]]:
        return await call_each(await admin.serving(topic), ask)

    answers, failure = await attempt(ask_brokers())
    told, failures = answers or ({}, {})
    groups = sorted({group for named in told.values() for group in named})
    paging = Paging(len(groups), page_number(request), GROUPS_A_PAGE)
    shown = groups[paging.start : paging.stop]
    progress = await asyncio.gather(*(attempt(admin.progress(group, topic)) for group in shown))
    return {
        "groups": dict(zip(shown, progress, strict=True)),
        "failures": failures,
        "failure": failure,
        "paging": paging,
    }


async def _send(_request: Request, _topic: str, _configs: Configs, _around: Surroundings) -> dict[str, Any]:
    return {"delay_level_max": DELAY_LEVEL_MAX}


async def _settings(request: Request, topic: str, configs: Configs, around: Surroundings) -> dict[str, Any]:
    desk = desk_of(request)
    status, _ = await attempt(desk.admin.topic_status(topic))
    spans = status.queues.values() if status else ()
    return {
        "config": next(iter(configs.values())),
        "is_known": topic in desk.watcher.inventory.topics,
        "clusters": sorted({around.clusters[name] for name in configs if name in around.clusters}),
        "messages": sum(span.max_offset - span.min_offset for span in spans) if status else "?",
        **form_values(desk.watcher.look),
    }


_SIDES: Final[Mapping[str, Callable[[Request, str, Configs, Surroundings], Awaitable[dict[str, Any]]]]] = {
    "queues": _queues,
    "route": _route,
    "rates": _rates,
    "consumers": _consumers,
    "send": _send,
    "settings": _settings,
}


# What can be done with one topic


@action("/topics/send", "topic.send")
async def send(desk: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Send one message, to see what becomes of it."""
    topic = fields.get("topic", "")
    message = Message(
        topic,
        fields.get("body", "").replace("\r\n", "\n").encode(),
        tag=fields.get("tag") or None,
        keys=fields.get("keys", "").split(),
        sharding_key=fields.get("sharding_key") or None,
        delay_level=whole(fields, "delay_level", "Delay level", 0, DELAY_LEVEL_MAX),
        properties=_properties(fields.get("properties", "")),
    )
    await desk.admin.route(topic)  # a topic that is gone must not come back because we send to it
    async with producer_of(desk) as producer:
        sent = await producer.send(message)
    place = {
        "tab": "send",
        "sent": sent.message_id,
        "status": sent.status.name,
        "broker": sent.queue.broker_name,
        "queue": sent.queue.queue_id,
        "offset": sent.queue_offset,
    }
    return done("A message was sent to {topic}", f"{address_of(topic)}?{urlencode(place)}", topic=topic)


def producer_of(desk: PageContext) -> Producer:
    """Return a producer for one action: several people may send at once, and a session has a group only once."""
    return Producer(f"skyroute-console-{next(_NUMBERS)}", session=desk.admin.session)


def _properties(text: str) -> dict[str, str]:
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, equals, value = line.partition("=")
        if not equals and line.strip():
            raise ConsoleError(f"Properties: line {number} is not name=value: “{line[:40]}”.")
        if equals:
            found[name.strip()] = value.strip()
    return found


ROUTES = [Route("/topics/{topic:path}", topic_page), send]
