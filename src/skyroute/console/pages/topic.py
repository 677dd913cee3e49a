"""One topic: its queues, route, problems, rates, consumer groups and settings, and a form to send a message."""

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
from skyroute.console.access.sessions import Visitor
from skyroute.console.cluster_data.diagnostics import (
    ClusterFacts,
    Kind,
    diagnose,
    diagnose_queues,
    diagnose_routes,
    kind_of,
)
from skyroute.console.cluster_data.monitor import configs_in_route
from skyroute.console.cluster_data.problems import NAME_SERVERS, Finding, Severity, worst_first
from skyroute.console.errors import ConsoleError
from skyroute.console.pages.topics import LABELS, form_values, topic_path
from skyroute.console.texts import translatable, translator
from skyroute.console.web.actions import Done, Fields, action, done
from skyroute.console.web.forms import read_int
from skyroute.console.web.page_context import PageContext, Paging, context_of, error_page, page_number
from skyroute.errors import SkyrouteError
from skyroute.message.message import Message
from skyroute.routing.topology import TopicRoute
from skyroute.wire.calls.route import decode_route, encode_route_query
from skyroute.wire.calls.topics import TopicConfig, decode_topic_readers, encode_topic_readers_query

T = TypeVar("T")
Configs = Mapping[str, TopicConfig]

REQUEST_S: Final = 8.0
"""How long the page waits for each request to brokers and name servers."""
GROUPS_A_PAGE: Final = 20
"""The page reads the progress of each."""
DELAY_LEVEL_MAX: Final = 1_000
_NUMBERS: Final = itertools.count(1)
"""Numbers the producers of this console: a session has a producer group only once."""

TABS: Final = {
    "queues": translatable("Queue status"),
    "route": translatable("Route and health"),
    "rates": translatable("Rates"),
    "consumers": translatable("Consumer groups"),
    "send": translatable("Send"),
    "settings": translatable("Settings"),
}


async def topic_page(request: Request) -> Response:
    """Show one tab of a topic."""
    context, topic = context_of(request), request.path_params["topic"]
    monitor = context.monitor
    tab = request.query_params.get("tab", "")
    tab = tab if tab in TABS else next(iter(TABS))
    if tab == "settings" and topic not in monitor.inventory.topics:  # the form must show current settings
        await monitor.refresh_inventory()
    configs = monitor.inventory.topics.get(topic)
    if configs is None:
        try:
            configs = configs_in_route(topic, await context.admin.route(topic))
        except (NoRouteError, ArgumentError):
            configs = {}
    if not configs:
        why = translator(request.state.visitor.language)(translatable("Topic {topic} not found"), topic=topic)
        return error_page(request, why, HTTPStatus.NOT_FOUND, "/topics")
    facts = ClusterFacts.of(monitor.snapshot, monitor.inventory)
    kind = kind_of(topic, configs, facts.own_topics)
    values = {"findings": diagnose(topic, configs, facts), **await _TAB_DATA[tab](request, topic, configs, facts)}
    return context.render(
        request,
        "topic.html",
        topic=topic,
        address=topic_path(topic),
        configs=configs,
        kind=kind,
        is_system=kind is Kind.SYSTEM,
        problem_count=sum(finding.severity > Severity.NOTE for finding in values["findings"]),
        tab=tab,
        tabs=TABS,
        **LABELS,
        **values,
    )


async def attempt(request: Awaitable[T]) -> tuple[T | None, str]:
    """Return the result of a request, or None and the error text."""
    try:
        async with asyncio.timeout(REQUEST_S):
            return await request, ""
    except TimeoutError:
        return None, translatable("The request timed out.")
    except UnsupportedError:
        return None, translatable("This broker does not support the request.")
    except SkyrouteError as error:
        return None, str(error)


# The tabs: each function returns the values for its template


async def _queues(request: Request, topic: str, _configs: Configs, _facts: ClusterFacts) -> dict[str, Any]:
    status, failure = await attempt(context_of(request).admin.topic_status(topic))
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


async def _route(request: Request, topic: str, configs: Configs, facts: ClusterFacts) -> dict[str, Any]:
    context = context_of(request)
    (status, _), answers = await asyncio.gather(
        attempt(context.admin.topic_status(topic)),
        context.admin.session.ask_every_name_server(encode_route_query(topic), REQUEST_S),
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
    views = {server.address: server.view for server in context.monitor.snapshot.name_servers if server.view is not None}
    both = routes.keys() & views.keys()
    found: list[Finding] = [
        # The routes read now are newer than those of the last poll.
        *(finding for finding in diagnose(topic, configs, facts) if finding.problem is not NAME_SERVERS),
        *diagnose_routes(
            topic,
            {server: routes[server] for server in sorted(both)},
            {server: views[server] for server in sorted(both)},
            configs,
            facts,
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


async def _rates(request: Request, topic: str, _configs: Configs, _facts: ClusterFacts) -> dict[str, Any]:
    traffic, failure = await attempt(context_of(request).admin.topic_traffic(topic))
    return {"traffic": traffic, "failure": failure}


async def _consumers(request: Request, topic: str, _configs: Configs, _facts: ClusterFacts) -> dict[str, Any]:
    admin = context_of(request).admin

    async def ask(address: str) -> list[str]:
        return decode_topic_readers((await admin.session.ask(address, encode_topic_readers_query(topic))).body)

    async def ask_brokers() -> tuple[dict[str, list[str]], dict[str, SkyrouteError]]:
        return await call_each(await admin.serving(topic), ask)

    answers, failure = await attempt(ask_brokers())
    by_broker, failures = answers or ({}, {})
    groups = sorted({group for named in by_broker.values() for group in named})
    paging = Paging(len(groups), page_number(request), GROUPS_A_PAGE)
    shown = groups[paging.start : paging.stop]
    progress = await asyncio.gather(*(attempt(admin.progress(group, topic)) for group in shown))
    return {
        "groups": dict(zip(shown, progress, strict=True)),
        "failures": failures,
        "failure": failure,
        "paging": paging,
    }


async def _send(_request: Request, _topic: str, _configs: Configs, _facts: ClusterFacts) -> dict[str, Any]:
    return {"delay_level_max": DELAY_LEVEL_MAX}


async def _settings(request: Request, topic: str, configs: Configs, facts: ClusterFacts) -> dict[str, Any]:
    context = context_of(request)
    status, _ = await attempt(context.admin.topic_status(topic))
    spans = status.queues.values() if status else ()
    return {
        "config": next(iter(configs.values())),
        "is_known": topic in context.monitor.inventory.topics,
        "clusters": sorted({facts.clusters[name] for name in configs if name in facts.clusters}),
        "messages": sum(span.max_offset - span.min_offset for span in spans) if status else "?",
        **form_values(context.monitor.snapshot),
    }


_TAB_DATA: Final[Mapping[str, Callable[[Request, str, Configs, ClusterFacts], Awaitable[dict[str, Any]]]]] = {
    "queues": _queues,
    "route": _route,
    "rates": _rates,
    "consumers": _consumers,
    "send": _send,
    "settings": _settings,
}


# Actions


@action("/topics/send", "topic.send")
async def send(context: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Send one message."""
    topic = fields.get("topic", "")
    message = Message(
        topic,
        fields.get("body", "").replace("\r\n", "\n").encode(),
        tag=fields.get("tag") or None,
        keys=fields.get("keys", "").split(),
        sharding_key=fields.get("sharding_key") or None,
        delay_level=read_int(fields, "delay_level", "Delay level", 0, DELAY_LEVEL_MAX),
        properties=_properties(fields.get("properties", "")),
    )
    await context.admin.route(topic)  # sending must not create a topic that was deleted
    async with producer_of(context) as producer:
        sent = await producer.send(message)
    place = {
        "tab": "send",
        "sent": sent.message_id,
        "status": sent.status.name,
        "broker": sent.queue.broker_name,
        "queue": sent.queue.queue_id,
        "offset": sent.queue_offset,
    }
    return done("Message sent to {topic}", f"{topic_path(topic)}?{urlencode(place)}", topic=topic)


def producer_of(context: PageContext) -> Producer:
    """Return a producer for one action."""
    return Producer(f"skyroute-console-{next(_NUMBERS)}", session=context.admin.session)


def _properties(text: str) -> dict[str, str]:
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        name, equals, value = line.partition("=")
        if not equals and line.strip():
            raise ConsoleError(f"Properties: line {number} is “{line[:40]}” (expected name=value).")
        if equals:
            found[name.strip()] = value.strip()
    return found


ROUTES = [Route("/topics/{topic:path}", topic_page), send]
