"""Route history from the journals of name servers: a timeline, and the routes at any point in time."""

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from skyroute.console.cluster_data.journals import Entry, Point, Routes
from skyroute.console.errors import ConsoleError
from skyroute.console.texts import translatable
from skyroute.console.web.forms import read_time_ms
from skyroute.console.web.page_context import PageContext, Paging, context_of, page_number
from skyroute.nameserver.journal.lines import details
from skyroute.nameserver.journal.reader import Damage
from skyroute.nameserver.journal.schema import Kind
from skyroute.nameserver.journal.selection import Selection
from skyroute.routing.events import Cause
from skyroute.routing.group_state import GroupState
from skyroute.routing.topology import MASTER_ID, Permission, QueueSettings

BROKERS_MAX: Final = 200
DIFFERENCES_MAX: Final = 500
REPORT_BYTES_MAX: Final = 32 << 20
REPORT_POLICY: Final = "sandbox; default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
"""The report has styles of its own, and neither scripts nor anything to load."""

KINDS: Final[Mapping[str, str]] = {
    Kind.SERVER_STARTED: translatable("Name server started"),
    Kind.SERVER_STOPPED: translatable("Name server stopped"),
    Kind.GAP: translatable("Gap in the journal"),
    Kind.BROKER_JOINED: translatable("Broker joined"),
    Kind.BROKER_LEFT: translatable("Broker left"),
    Kind.BROKER_CHANGED: translatable("Broker changed"),
    Kind.BROKER_CONFIRMED: translatable("Broker confirmed"),
    Kind.LEASE_HELD: translatable("Lease extended"),
    Kind.GROUP_CHANGED: translatable("Broker group changed"),
    Kind.TOPICS_CHANGED: translatable("Topics changed"),
    Kind.WRITES_CHANGED: translatable("Write permission changed"),
    Kind.MAPPINGS_CHANGED: translatable("Static topic changed"),
    Kind.FILTER_SERVERS_CHANGED: translatable("Filter servers changed"),
    Kind.SMALLEST_ID_CHANGED: translatable("Minimum broker id changed"),
    Kind.MASTER_ELECTED: translatable("Master elected"),
    Kind.MASTER_LOST: translatable("Master lost"),
    Kind.SYNC_SET_CHANGED: translatable("Sync state set changed"),
    Kind.REPLICA_ADDED: translatable("Replica added"),
    Kind.REPLICA_MOVED: translatable("Replica address changed"),
    Kind.REPLICAS_REMOVED: translatable("Replicas removed"),
    Kind.KV_CHANGED: translatable("Key-value entry changed"),
    Kind.SETTINGS_CHANGED: translatable("Settings changed"),
}
CAUSES: Final[Mapping[str, str]] = {
    Cause.REGISTERED: translatable("registered"),
    Cause.UNREGISTERED: translatable("unregistered"),
    Cause.CONNECTION_CLOSED: translatable("connection closed"),
    Cause.LEASE_EXPIRED: translatable("lease expired"),
    Cause.NOT_CONFIRMED: translatable("no heartbeat since the restart"),
    Cause.ADDRESS_REPLACED: translatable("replaced by another broker"),
    Cause.TOPIC_REGISTERED: translatable("topic registered"),
    Cause.TOPIC_DELETED: translatable("topic deleted by an operator"),
    Cause.WRITES_FORBIDDEN: translatable("writes disabled by an operator"),
    Cause.WRITES_RESTORED: translatable("writes enabled by an operator"),
    Cause.GROUP_GONE: translatable("last broker left"),
    Cause.RESTORED: translatable("restored after the restart"),
    Cause.HEARTBEAT: translatable("heartbeat"),
    Cause.MASS_EXPIRY: translatable("too many leases expired at once"),
    "broker_request": translatable("broker request"),
    "operator_request": translatable("operator request"),
    "master_disconnected": translatable("master disconnected"),
    "master_silent": translatable("no heartbeat from the master"),
    "master_not_alive": translatable("master not alive"),
}


async def history(request: Request) -> Response:
    """Show the timeline, newest first."""
    context = context_of(request)
    if not context.journals.names:
        return context.render(request, "history_none.html", has_report=context.config.report is not None)
    params = request.query_params
    journal = params.get("journal") or None
    if journal is not None and journal not in context.journals.names:
        raise ConsoleError(f"unknown journal {journal!r} (expected one of {', '.join(context.journals.names)})")
    topic, broker, kind = (params.get(name, "").strip() or None for name in ("topic", "broker", "kind"))
    since_ms, until_ms = _time_ms(context, request, "since"), _time_ms(context, request, "until")
    timeline = await context.journals.timeline(
        [journal] if journal else context.journals.names,
        lambda: Selection(topic, broker, kind, since_ms, until_ms),
    )
    paging = Paging(len(timeline.entries), page_number(request))
    return context.render(
        request,
        "history.html",
        journals=context.journals.names,
        has_report=context.config.report is not None,
        kinds=KINDS,
        rows=[_Row.of(entry) for entry in timeline.entries[paging.start : paging.stop]],
        timeline=timeline,
        paging=paging,
    )


class _Row(NamedTuple):
    """One row of the timeline."""

    entry: Entry
    kind: str
    broker: str
    cause: str
    details: str
    is_record: bool

    @classmethod
    def of(cls, entry: Entry) -> "_Row":
        what = entry.what
        if isinstance(what, Damage):
            return cls(entry, "", "", "", str(what), is_record=False)
        broker = what.broker or ""
        if what.broker_id is not None:
            broker += f"[{what.broker_id}]"
        cause = CAUSES.get(what.cause or "", what.cause or "")
        return cls(entry, KINDS.get(what.kind, what.kind), broker, cause, " ".join(details(what)), is_record=True)


# Routes at a point in time


class _Queues(NamedTuple):
    """The queues of a topic on a broker group."""

    topic: str
    group: GroupState
    settings: QueueSettings
    note: str


class _Difference(NamedTuple):
    """A value that differs between two points in time; None: absent."""

    group: str
    broker_id: int | None
    topic: str | None
    before: object
    after: object


async def routes(request: Request) -> Response:
    """Show the routes of a name server at one point in time, and the differences to another."""
    context = context_of(request)
    names = context.journals.names
    if not names:
        return context.render(request, "history_none.html", has_report=context.config.report is not None)
    params = request.query_params
    name = params.get("journal") or names[0]
    topic, broker = (params.get(field, "").strip() or None for field in ("topic", "broker"))
    points = [_point(context, request, "at") or Point(time_ms=int(context.clock.wall() * 1000))]
    if other := _point(context, request, "than"):
        points.append(other)
    found, *others = await context.journals.routes(name, *points)
    groups = list(_groups(found, topic, broker))
    brokers = [(group, broker) for group in groups for broker in group.by_id()]
    queues = list(_queues(groups, topic)) if topic or broker else []
    paging = Paging(len(queues), page_number(request))
    differences = list(islice(_differences(found, others[0], topic, broker), DIFFERENCES_MAX + 1)) if others else []
    return context.render(
        request,
        "history_routes.html",
        journals=names,
        name=name,
        topic=topic,
        broker=broker,
        found=found,
        other=others[0] if others else None,
        kinds=KINDS,
        brokers=brokers[:BROKERS_MAX],
        broker_count=len(brokers),
        queues=queues[paging.start : paging.stop],
        paging=paging,
        differences=differences[:DIFFERENCES_MAX],
        has_more=len(differences) > DIFFERENCES_MAX,
        letters=letters,
    )


def _groups(found: Routes, topic: str | None, broker: str | None) -> Iterator[GroupState]:
    """Return the broker groups that match a topic and a broker name."""
    for name, group in sorted(found.table.groups.items()):
        if (broker is None or name == broker) and (topic is None or topic in group.queues):
            yield group


def _queues(groups: list[GroupState], topic: str | None) -> Iterator[_Queues]:
    for group in groups:
        for name in sorted(group.queues) if topic is None else (topic,):
            settings = group.settings(name)
            if settings is not None:
                yield _Queues(name, group, settings, _note(group, name))


def _note(group: GroupState, topic: str) -> str:
    if topic in group.forbidden:
        return translatable("writes disabled by an operator")
    if group.acting_master and MASTER_ID not in group.members:
        return translatable("no master: read-only")
    return translatable("no master") if group.master is None else ""


def _differences(one: Routes, other: Routes, topic: str | None, broker: str | None) -> Iterator[_Difference]:
    """Return the differences between two route tables, from the earlier to the later."""
    earlier, later = sorted((one, other), key=lambda routes: routes.last.seq)
    before = {group.name: group for group in _groups(earlier, topic, broker)}
    after = {group.name: group for group in _groups(later, topic, broker)}
    for name in sorted({*before, *after}):
        # A topic may be on the group at only one point in time: its brokers are then no difference.
        old, new = (side.table.groups.get(name, GroupState(name, "")) for side in (earlier, later))
        if (old.cluster, old.zone, old.acting_master) != (new.cluster, new.zone, new.acting_master):
            yield _Difference(name, None, None, old if old.cluster else None, new if new.cluster else None)
        for broker_id in sorted({*old.members, *new.members}):
            addresses = [
                group.members[broker_id].address if broker_id in group.members else None for group in (old, new)
            ]
            if addresses[0] != addresses[1]:
                yield _Difference(name, broker_id, None, *addresses)
        for each in sorted({*old.queues, *new.queues}) if topic is None else (topic,):
            if (settings := old.settings(each)) != (now := new.settings(each)):
                yield _Difference(name, None, each, settings, now)


def letters(permission: int) -> str:
    """Return a permission as letters: RW, R, W or an empty text."""
    return "".join(letter for bit, letter in ((Permission.READ, "R"), (Permission.WRITE, "W")) if permission & bit)


# The report


async def report(request: Request) -> Response:
    """Show the report that `skyroute pipeline report` wrote."""
    path = context_of(request).config.report
    if path is None:
        raise HTTPException(HTTPStatus.NOT_FOUND)
    try:
        content = await run_in_threadpool(_read_report, path)
    except OSError as error:
        raise ConsoleError(
            f"the report {path} cannot be read: {error.strerror}; write it with `skyroute pipeline report`"
        ) from error
    return HTMLResponse(content, headers={"Content-Security-Policy": REPORT_POLICY})


def _read_report(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(REPORT_BYTES_MAX + 1)
    if len(content) > REPORT_BYTES_MAX:
        raise ConsoleError(f"the report {path} is larger than {REPORT_BYTES_MAX:,} bytes")
    return content


# Parameters


def _time_ms(context: PageContext, request: Request, name: str) -> int | None:
    return read_time_ms(request.query_params, name, "Time", context.clock.wall())


def _point(context: PageContext, request: Request, name: str) -> Point | None:
    """Return a point in a journal: a time, or #123 for a record's number."""
    text = request.query_params.get(name, "").strip()
    if text.startswith("#"):
        if not (text[1:].isascii() and text[1:].isdigit() and len(text) < 20):
            raise ConsoleError(f"{text!r} is not a record's number (expected #123)")
        return Point(seq=int(text[1:]))
    time_ms = _time_ms(context, request, name)
    return None if time_ms is None else Point(time_ms=time_ms)


ROUTES = [Route("/history", history), Route("/history/routes", routes), Route("/history/report", report)]
