"""Brokers: which there are and how they are, and for each its state, its settings and what can be done to it."""

import asyncio
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skyroute.client.admin.broker_load import read_load
from skyroute.client.admin.cluster import BrokerInfo, ServerProperties
from skyroute.console.cluster_data.settings_table import check_took, find_settings, read_change
from skyroute.console.errors import ConsoleError
from skyroute.console.guard.visitors import Visitor
from skyroute.console.pages.actions import Done, Fields, action, done, refuse
from skyroute.console.pages.page_context import PageContext, Paging, desk_of, page_number
from skyroute.console.pages.text import translator
from skyroute.errors import SkyrouteError
from skyroute.routing.topology import Permission

NO_BROKER = "The name servers know no broker {name} with number {id}"
TABS = (("", "State"), ("settings", "Settings"))


async def brokers(request: Request) -> Response:
    """List brokers, cluster by cluster."""
    desk = desk_of(request)
    look = desk.watcher.look
    query = request.query_params
    wanted, cluster = query.get("q", "").strip().lower(), query.get("cluster", "")
    loads = [
        load
        for load in map(read_load, look.brokers)
        if (not cluster or load.broker.cluster == cluster)
        and (wanted in load.broker.name.lower() or wanted in load.broker.address)
        and (query.get("state") != "trouble" or load.broker.failure or load.disk_nearly_full or load.damaged_ranges)
    ]
    paging = Paging(len(loads), page_number(request))
    return desk.show(
        request,
        "cluster.html",
        clusters=sorted({broker.cluster for broker in look.brokers}),
        loads=loads[paging.start : paging.stop],
        paging=paging,
    )


async def broker(request: Request) -> Response:
    """Show one broker."""
    desk = desk_of(request)
    name, broker_id = request.path_params["name"], request.path_params["broker_id"]
    found = _find(desk, name, broker_id)
    if found is None:
        why = translator(request.state.visitor.language)(NO_BROKER, name=name, id=broker_id)
        return refuse(request, why, HTTPStatus.NOT_FOUND, "/cluster")
    tab = request.query_params.get("tab", "")
    writable, texts = await asyncio.gather(_is_writable(desk, name), _settings(desk, found, tab))
    wanted = request.query_params.get("q", "").strip().lower()
    state = [(key, text) for key, text in found.state.items() if wanted in key.lower() or wanted in text.lower()]
    rows = find_settings(texts, wanted)
    paging = Paging(len(rows if tab == "settings" else state), page_number(request))
    return desk.show(
        request,
        "cluster_broker.html",
        load=read_load(found),
        rates=list(desk.watcher.rates.get(found.address, ())),
        topics=sum(name in on_brokers for on_brokers in desk.watcher.inventory.topics.values()),
        writable=writable,
        tabs=TABS,
        tab=tab,
        state=state[paging.start : paging.stop],
        settings=rows[paging.start : paging.stop],
        change=next((row for row in rows if row.key == request.query_params.get("change")), None),
        failures=texts.failures,
        paging=paging,
    )


def _find(desk: PageContext, name: str, broker_id: str) -> BrokerInfo | None:
    """Return the broker of a name, and of a number as an address or a form has it."""
    wanted = name, broker_id
    return next((each for each in desk.watcher.look.brokers if (each.name, str(each.broker_id)) == wanted), None)


async def _is_writable(desk: PageContext, name: str) -> bool | None:
    """Return whether name servers send producers to a broker, by the topic that each has under its own name."""
    if desk.watcher.look.failure is not None:  # nobody would say
        return None
    try:
        route = await desk.admin.route(name)
    except SkyrouteError:
        return None
    return any(queues.broker_name == name and queues.settings.permission & Permission.WRITE for queues in route.queues)


async def _settings(desk: PageContext, found: BrokerInfo, tab: str) -> ServerProperties:
    if tab != "settings":
        return ServerProperties({}, {})
    try:
        return await desk.admin.broker_settings(broker=found.address)
    except SkyrouteError as error:
        return ServerProperties({}, {found.address: error})


# What can be done to a broker


def _named(desk: PageContext, fields: Fields) -> BrokerInfo:
    """Return the broker that a form is about: where it is, the name servers say, not the form."""
    name, broker_id = fields.get("name", ""), fields.get("id", "")
    found = _find(desk, name, broker_id)
    if found is None:
        raise ConsoleError(f"{NO_BROKER.format(name=name, id=broker_id)}: reload the list of brokers")
    return found


def _page(broker: BrokerInfo, query: str = "") -> str:
    return f"/cluster/{quote(broker.name, safe='')}/{broker.broker_id}{query}"


@action(
    "/cluster/change-setting",
    "broker.change_setting",
    question="Set {key} of the broker {name} to “{value}”?",
    warning="It is changed while the broker runs, and kept in its file. Some settings take effect after a restart.",
)
async def change_setting(desk: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Change one setting of one broker."""
    found = _named(desk, fields)
    key, value = read_change(fields)
    await desk.admin.update_broker_settings({key: value}, broker=found.address)
    check_took(await desk.admin.broker_settings(broker=found.address), key, value)
    await desk.watcher.take_look()
    return done(
        "{key} of {name} is “{value}” now",
        _page(found, f"?tab=settings&q={quote(key)}"),
        key=key, name=found.name, value=value,
    )  # fmt: skip


@action(
    "/cluster/forbid-writes",
    "broker.forbid_writes",
    question="Have all name servers show the topics of the broker {name} as not writable?",
    warning="Producers go to other brokers within half a minute; topics that are on this broker alone can no longer be "
    "sent to. It lasts until writes are allowed again, or the broker tells of a change of its topics.",
)
async def forbid_writes(desk: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Keep producers away from a broker."""
    found = _named(desk, fields)
    topics = max((await desk.admin.forbid_writes(found.name)).values(), default=0)
    return done("{topics} topics of {name} are not writable now", _page(found), topics=topics, name=found.name)


@action(
    "/cluster/allow-writes",
    "broker.allow_writes",
    question="Have all name servers show the topics of the broker {name} as writable again?",
)
async def allow_writes(desk: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Let producers come back to a broker."""
    found = _named(desk, fields)
    topics = max((await desk.admin.allow_writes(found.name)).values(), default=0)
    return done(
        "{topics} topics of {name} are as the broker has them again", _page(found), topics=topics, name=found.name
    )


@action(
    "/cluster/clean-queues",
    "broker.clean_expired_queues",
    question="Have the broker {name} ({id}) drop the files of queues whose messages are gone?",
)
async def clean_queues(desk: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Drop what is left of queues without messages."""
    return await _clean(desk, fields, desk.admin.clean_expired_queues)


@action(
    "/cluster/clean-topics",
    "broker.clean_unused_topics",
    question="Have the broker {name} ({id}) drop the queues of topics that it no longer has?",
)
async def clean_topics(desk: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Drop what is left of topics that were deleted."""
    return await _clean(desk, fields, desk.admin.clean_unused_topics)


async def _clean(desk: PageContext, fields: Fields, order: Callable[..., Awaitable[list[str]]]) -> Done:
    found = _named(desk, fields)
    await order(broker=found.address)
    return done("{name} has cleaned up", _page(found), name=found.name)


ROUTES = [
    Route("/cluster", brokers),
    change_setting,
    forbid_writes,
    allow_writes,
    clean_queues,
    clean_topics,
    Route("/cluster/{name:path}/{broker_id}", broker),
]
