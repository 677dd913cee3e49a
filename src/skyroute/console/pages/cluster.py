"""The list of brokers, one broker's state and settings, and the actions on a broker."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skyroute.client.admin.broker_load import read_load
from skyroute.client.admin.cluster import BrokerInfo, ServerProperties
from skyroute.console.access.sessions import Visitor
from skyroute.console.cluster_data.settings_table import check_applied, find_settings, read_change
from skyroute.console.errors import ConsoleError
from skyroute.console.texts import translatable, translator
from skyroute.console.web.actions import Done, Fields, action, done
from skyroute.console.web.page_context import PageContext, Paging, context_of, error_page, page_number
from skyroute.errors import SkyrouteError
from skyroute.routing.topology import MASTER_ID, Permission

NO_BROKER = translatable("Broker {name} with id {id} is not registered")
TABS = (("", translatable("State")), ("settings", translatable("Settings")))


async def brokers(request: Request) -> Response:
    """Show the brokers by cluster."""
    context = context_of(request)
    snapshot = context.monitor.snapshot
    query = request.query_params
    wanted, cluster = query.get("q", "").strip().lower(), query.get("cluster", "")
    loads = [
        load
        for load in map(read_load, snapshot.brokers)
        if (not cluster or load.broker.cluster == cluster)
        and (wanted in load.broker.name.lower() or wanted in load.broker.address)
        and (query.get("state") != "trouble" or load.broker.failure or load.disk_nearly_full or load.damaged_ranges)
    ]
    paging = Paging(len(loads), page_number(request))
    return context.render(
        request,
        "cluster.html",
        has_controllers=context.config.controllers is not None,
        clusters=sorted({broker.cluster for broker in snapshot.brokers}),
        loads=loads[paging.start : paging.stop],
        paging=paging,
    )


async def broker(request: Request) -> Response:
    """Show one broker."""
    context = context_of(request)
    name, broker_id = request.path_params["name"], request.path_params["broker_id"]
    found = _find(context, name, broker_id)
    if found is None:
        why = translator(request.state.visitor.language)(NO_BROKER, name=name, id=broker_id)
        return error_page(request, why, HTTPStatus.NOT_FOUND, "/cluster")
    tab = request.query_params.get("tab", "")
    writable, texts = await asyncio.gather(_is_writable(context, name), _settings(context, found, tab))
    wanted = request.query_params.get("q", "").strip().lower()
    state = [(key, text) for key, text in found.state.items() if wanted in key.lower() or wanted in text.lower()]
    rows = find_settings(texts, wanted)
    paging = Paging(len(rows if tab == "settings" else state), page_number(request))
    return context.render(
        request,
        "cluster_broker.html",
        load=read_load(found),
        rates=list(context.monitor.rates.get(found.address, ())),
        replicas=_replicas(context, found),
        topics=sum(name in on_brokers for on_brokers in context.monitor.inventory.topics.values()),
        writable=writable,
        tabs=TABS,
        tab=tab,
        state=state[paging.start : paging.stop],
        settings=rows[paging.start : paging.stop],
        change=next((row for row in rows if row.key == request.query_params.get("change")), None),
        failures=texts.failures,
        paging=paging,
    )


def _find(context: PageContext, name: str, broker_id: str) -> BrokerInfo | None:
    """Return the broker with a name and an id, as an address or a form has them."""
    wanted = name, broker_id
    return next((each for each in context.monitor.snapshot.brokers if (each.name, str(each.broker_id)) == wanted), None)


@dataclass(frozen=True, slots=True)
class Replica:
    """A slave on the picture of its group."""

    broker: BrokerInfo
    behind_bytes: int | None
    """Bytes of the master's log that it lacks; None if one of both does not say."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """A broker group with slaves; `master` is None while it is away."""

    master: BrokerInfo | None
    slaves: tuple[Replica, ...]


def _replicas(context: PageContext, of: BrokerInfo) -> Replicas | None:
    """Return who follows whom in the group of a broker, and how far behind; None if it has no slaves."""
    group = [each for each in context.monitor.snapshot.brokers if (each.cluster, each.name) == (of.cluster, of.name)]
    master = next((each for each in group if each.broker_id == MASTER_ID), None)
    end = None if master is None else _log_end(master)
    slaves = []
    for slave in sorted((each for each in group if each is not master), key=lambda each: each.broker_id):
        reached = _log_end(slave)
        behind = None if end is None or reached is None else max(end - reached, 0)
        slaves.append(Replica(slave, behind))
    return Replicas(master, tuple(slaves)) if slaves else None


def _log_end(broker: BrokerInfo) -> int | None:
    text = broker.state.get("commitLogMaxOffset", "")
    return int(text) if text.isascii() and text.isdigit() else None


async def _is_writable(context: PageContext, name: str) -> bool | None:
    """Return whether routes to a broker are writable, from the topic that has the broker's name; None: unknown."""
    if context.monitor.snapshot.failure is not None:
        return None
    try:
        route = await context.admin.route(name)
    except SkyrouteError:
        return None
    return any(queues.broker_name == name and queues.settings.permission & Permission.WRITE for queues in route.queues)


async def _settings(context: PageContext, found: BrokerInfo, tab: str) -> ServerProperties:
    if tab != "settings":
        return ServerProperties({}, {})
    try:
        return await context.admin.broker_settings(broker=found.address)
    except SkyrouteError as error:
        return ServerProperties({}, {found.address: error})


# Actions


def _named(context: PageContext, fields: Fields) -> BrokerInfo:
    """Return the broker that a form names; its address comes from the name servers, not from the form."""
    name, broker_id = fields.get("name", ""), fields.get("id", "")
    found = _find(context, name, broker_id)
    if found is None:
        raise ConsoleError(f"{NO_BROKER.format(name=name, id=broker_id)}: reload the list of brokers")
    return found


def _page(broker: BrokerInfo, query: str = "") -> str:
    return f"/cluster/{quote(broker.name, safe='')}/{broker.broker_id}{query}"


@action(
    "/cluster/change-setting",
    "broker.change_setting",
    question=translatable("Set {key} of broker {name} to “{value}”?"),
    warning=translatable(
        "The broker changes the setting at once and writes it to its file. Some settings take effect only "
        "after a restart."
    ),
)
async def change_setting(context: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Change one setting of one broker."""
    found = _named(context, fields)
    key, value = read_change(fields)
    await context.admin.update_broker_settings({key: value}, broker=found.address)
    check_applied(await context.admin.broker_settings(broker=found.address), key, value)
    await context.monitor.refresh_snapshot()
    return done(
        "{key} of {name} set to “{value}”",
        _page(found, f"?tab=settings&q={quote(key)}"),
        key=key, name=found.name, value=value,
    )  # fmt: skip


@action(
    "/cluster/forbid-writes",
    "broker.forbid_writes",
    question=translatable("Disable writes to broker {name} at all name servers?"),
    warning=translatable(
        "Producers switch to other brokers within 30 seconds. Topics that exist only on this broker cannot "
        "be written. This lasts until writes are enabled again, or the broker registers a change of its "
        "topics."
    ),
)
async def forbid_writes(context: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Make the routes to a broker read-only."""
    found = _named(context, fields)
    topics = max((await context.admin.forbid_writes(found.name)).values(), default=0)
    return done("Writes to {topics} topics of {name} disabled", _page(found), topics=topics, name=found.name)


@action(
    "/cluster/allow-writes",
    "broker.allow_writes",
    question=translatable("Enable writes to broker {name} at all name servers?"),
)
async def allow_writes(context: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Make the routes to a broker writable again."""
    found = _named(context, fields)
    topics = max((await context.admin.allow_writes(found.name)).values(), default=0)
    return done(
        "{topics} topics of {name} have the broker's own permissions again",
        _page(found),
        topics=topics,
        name=found.name,
    )


@action(
    "/cluster/clean-queues",
    "broker.clean_expired_queues",
    question=translatable("Delete the consume queue files of broker {name} ({id}) whose messages have expired?"),
)
async def clean_queues(context: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Delete the files of consume queues without messages."""
    return await _clean(context, fields, context.admin.clean_expired_queues)


@action(
    "/cluster/clean-topics",
    "broker.clean_unused_topics",
    question=translatable("Delete the consume queues of topics that broker {name} ({id}) no longer has?"),
)
async def clean_topics(context: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Delete the consume queues of deleted topics."""
    return await _clean(context, fields, context.admin.clean_unused_topics)


async def _clean(context: PageContext, fields: Fields, order: Callable[..., Awaitable[list[str]]]) -> Done:
    found = _named(context, fields)
    await order(broker=found.address)
    return done("{name} finished the cleanup", _page(found), name=found.name)


ROUTES = [
    Route("/cluster", brokers),
    change_setting,
    forbid_writes,
    allow_writes,
    clean_queues,
    clean_topics,
    Route("/cluster/{name:path}/{broker_id}", broker),
]
