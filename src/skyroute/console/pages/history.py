"""What name servers recorded: a timeline of what happened, and the routes as they were at any instant."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skyroute.console.cluster_data.journals import Entry, Point, Routes
from skyroute.console.errors import ConsoleError
from skyroute.console.pages.forms import moment
from skyroute.console.pages.page_context import PageContext, Paging, desk_of, page_number
from skyroute.nameserver.journal.lines import details
from skyroute.nameserver.journal.reader import Damage
from skyroute.nameserver.journal.schema import Kind
from skyroute.nameserver.journal.selection import Selection
from skyroute.routing.events import Cause
from skyroute.routing.group_state import GroupState
from skyroute.routing.topology import MASTER_ID, Permission, QueueSettings

BROKERS_MAX: Final = 200
DIFFERENCES_MAX: Final = 500

KINDS: Final[Mapping[str, str]] = {
    Kind.SERVER_STARTED: "Name server started",
    Kind.SERVER_STOPPED: "Name server stopped",
    Kind.GAP: "Gap in the journal",
    Kind.BROKER_JOINED: "Broker joined",
    Kind.BROKER_LEFT: "Broker left",
    Kind.BROKER_CHANGED: "Broker changed",
    Kind.BROKER_CONFIRMED: "Broker confirmed",
    Kind.LEASE_HELD: "Lease held",
    Kind.GROUP_CHANGED: "Broker group changed",
    Kind.TOPICS_CHANGED: "Topics changed",
    Kind.WRITES_CHANGED: "Write permission changed",
    Kind.MAPPINGS_CHANGED: "Static topic changed",
    Kind.FILTER_SERVERS_CHANGED: "Filter servers changed",
    Kind.SMALLEST_ID_CHANGED: "Smallest id changed",
    Kind.KV_CHANGED: "Key-value entry changed",
    Kind.SETTINGS_CHANGED: "Settings changed",
}
CAUSES: Final[Mapping[str, str]] = {
    Cause.REGISTERED: "registered",
    Cause.UNREGISTERED: "said goodbye",
    Cause.CONNECTION_CLOSED: "connection closed",
    Cause.LEASE_EXPIRED: "silent for too long",
    Cause.NOT_CONFIRMED: "not heard from since the restart",
    Cause.ADDRESS_REPLACED: "replaced by another broker",
    Cause.TOPIC_REGISTERED: "topic announced",
    Cause.TOPIC_DELETED: "topic deleted by an operator",
    Cause.WRITES_FORBIDDEN: "writing forbidden by an operator",
    Cause.WRITES_RESTORED: "writing allowed by an operator",
    Cause.GROUP_GONE: "last broker left",
    Cause.RESTORED: "known from before the restart",
    Cause.HEARTBEAT: "heartbeat",
    Cause.MASS_EXPIRY: "too many silent at once",
}


async def history(request: Request) -> Response:
    """Show what happened, the newest first."""
    desk = desk_of(request)
    if not desk.journals.names:
        return desk.show(request, "history_none.html")
    asked = request.query_params
    journal = asked.get("journal") or None
    if journal is not None and journal not in desk.journals.names:
        raise ConsoleError(f"there is no journal {journal!r} here")
    topic, broker, kind = (asked.get(name, "").strip() or None for name in ("topic", "broker", "kind"))
    since_ms, until_ms = _moment(desk, request, "since"), _moment(desk, request, "until")
    timeline = await desk.journals.timeline(
        [journal] if journal else desk.journals.names,
        lambda: Selection(topic, broker, kind, since_ms, until_ms),
    )
    paging = Paging(len(timeline.entries), page_number(request))
    return desk.show(
        request,
        "history.html",
        journals=desk.journals.names,
        kinds=KINDS,
        rows=[_Row.of(entry) for entry in timeline.entries[paging.start : paging.stop]],
        timeline=timeline,
        paging=paging,
    )


class _Row(NamedTuple):
    """An entry as the timeline shows it."""

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


# The routes of an instant


class _Queues(NamedTuple):
    """A topic's queues on a group, as they were."""

    topic: str
    group: GroupState
    settings: QueueSettings
    note: str


class _Difference(NamedTuple):
    """Something that was not the same at two instants; None: it was not there."""

    group: str
    broker_id: int | None
    topic: str | None
    before: object
    after: object


async def routes(request: Request) -> Response:
    """Show the route table as a name server had it, and what was different at another time."""
    desk = desk_of(request)
    names = desk.journals.names
    if not names:
        return desk.show(request, "history_none.html")
    asked = request.query_params
    name = asked.get("journal") or names[0]
    topic, broker = (asked.get(field, "").strip() or None for field in ("topic", "broker"))
    points = [_point(desk, request, "at") or Point(time_ms=int(desk.clock.wall() * 1000))]
    if other := _point(desk, request, "than"):
        points.append(other)
    found, *others = await desk.journals.routes(name, *points)
    groups = list(_groups(found, topic, broker))
    brokers = [(group, member) for group in groups for member in group.by_id()]
    queues = list(_queues(groups, topic)) if topic or broker else []
    paging = Paging(len(queues), page_number(request))
    differences = list(islice(_differences(found, others[0], topic, broker), DIFFERENCES_MAX + 1)) if others else []
    return desk.show(
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
    """Return the groups that a page is about."""
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
        return "writing forbidden by an operator"
    if group.acting_master and MASTER_ID not in group.members:
        return "no master: only to be read"
    return "no master" if group.master is None else ""


def _differences(one: Routes, other: Routes, topic: str | None, broker: str | None) -> Iterator[_Difference]:
    """Return what the later of two tables has otherwise than the earlier one."""
    earlier, later = sorted((one, other), key=lambda routes: routes.last.seq)
    before = {group.name: group for group in _groups(earlier, topic, broker)}
    after = {group.name: group for group in _groups(later, topic, broker)}
    for name in sorted({*before, *after}):
        # A topic may be on the group at one of the two only: its brokers are no news then.
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
    """Return what clients may do with a queue: RW, R, W or nothing."""
    return "".join(letter for bit, letter in ((Permission.READ, "R"), (Permission.WRITE, "W")) if permission & bit)


# What was asked for


def _moment(desk: PageContext, request: Request, name: str) -> int | None:
    return moment(request.query_params, name, "Time", desk.clock.wall())


def _point(desk: PageContext, request: Request, name: str) -> Point | None:
    """Return a point of a journal: a moment, or #123 for the record of that number."""
    text = request.query_params.get(name, "").strip()
    if text.startswith("#"):
        if not (text[1:].isascii() and text[1:].isdigit() and len(text) < 20):
            raise ConsoleError(f"{text!r} is no record's number: write #123")
        return Point(seq=int(text[1:]))
    time_ms = _moment(desk, request, name)
    return None if time_ms is None else Point(time_ms=time_ms)


ROUTES = [Route("/history", history), Route("/history/routes", routes)]
