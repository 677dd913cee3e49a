"""All topics: finding one among many, what ails them, and making, changing and deleting them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Final, NamedTuple
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skyroute.client.admin.topics import QUEUES_OF_NEW_TOPIC
from skyroute.client.errors import NoRouteError
from skyroute.console.cluster_data.diagnostics import (
    CHOOSABLE,
    MESSAGE_TYPE,
    Kind,
    Surroundings,
    diagnose_all,
)
from skyroute.console.cluster_data.problems import PROBLEMS, Finding, Problem, Severity
from skyroute.console.cluster_data.watcher import Inventory, Look
from skyroute.console.errors import ConsoleError
from skyroute.console.guard.visitors import Visitor
from skyroute.console.pages.actions import Done, Fields, action, done
from skyroute.console.pages.forms import whole
from skyroute.console.pages.page_context import PageContext, Paging, desk_of, page_number
from skyroute.routing.topology import MASTER_ID, QUEUES_MAX, Permission, TopicFlag
from skyroute.wire.calls.topics import TopicConfig

KIND_LABELS: Final = {
    Kind.NORMAL: "Normal",
    Kind.DELAY: "Delay",
    Kind.FIFO: "FIFO",
    Kind.TRANSACTION: "Transaction",
    Kind.MIXED: "Mixed",
    Kind.UNSPECIFIED: "Unspecified",
    Kind.RETRY: "Retry",
    Kind.DEAD_LETTER: "Dead letter",
    Kind.SYSTEM: "System",
}
LABELS: Final = {
    "kind_labels": KIND_LABELS,
    "permission_labels": {6: "Read and write", 4: "Read only", 2: "Write only", 0: "Neither"},
    "severity_classes": {Severity.FAILURE: "bad", Severity.WARNING: "warn", Severity.NOTE: "quiet"},
}
"""What templates call things."""
ALL_KINDS: Final = "ALL"

CLUSTER_MARK: Final = "cluster:"
BROKER_MARK: Final = "broker:"


class Row(NamedTuple):
    """A topic in the list."""

    topic: str
    kind: Kind
    brokers: int
    read_queues: int
    """On all brokers."""
    write_queues: int
    permission: int
    """On the first broker."""
    findings: tuple[Finding, ...]


class Catalogue:
    """Every topic with what ails it, worked out once for each inventory."""

    def __init__(self, inventory: Inventory, around: Surroundings) -> None:
        self.inventory = inventory
        self.around = around
        self.rows = [
            _row(topic, kind, inventory.topics[topic], findings)
            for topic, kind, findings in diagnose_all(inventory, around)
        ]
        self.kinds = Counter(row.kind for row in self.rows)
        ailing = [row.findings for row in self.rows if row.findings]
        counts = Counter(key for findings in ailing for key in {finding.problem.key for finding in findings})
        self.problems: list[tuple[Problem, int]] = [
            (problem, counts[problem.key]) for problem in PROBLEMS if counts[problem.key]
        ]


def _row(topic: str, kind: Kind, configs: Mapping[str, TopicConfig], findings: tuple[Finding, ...]) -> Row:
    settings = list(configs.values())
    read, write = sum(map(_read_queues, settings)), sum(map(_write_queues, settings))
    return Row(topic, kind, len(settings), read, write, int(settings[0].permission), findings)


_read_queues, _write_queues = attrgetter("read_queues"), attrgetter("write_queues")


def catalogue_of(request: Request) -> Catalogue:
    """Return all topics, as they were last seen."""
    watcher, state = desk_of(request).watcher, request.app.state
    around = Surroundings.of(watcher.look, watcher.inventory)
    kept: Catalogue | None = getattr(state, "catalogue", None)
    if kept is None or kept.inventory is not watcher.inventory or kept.around != around:
        kept = state.catalogue = Catalogue(watcher.inventory, around)
    return kept


_SORTS: Final = {
    "queues": lambda row: (row.write_queues, row.read_queues),
    "brokers": lambda row: row.brokers,
    "problems": lambda row: (max((finding.severity for finding in row.findings), default=0), len(row.findings)),
}


async def topics(request: Request) -> Response:
    """List topics, as wanted."""
    desk = desk_of(request)
    catalogue = catalogue_of(request)
    query = request.query_params
    rows = _wanted(catalogue.rows, query.get("q", ""), query.get("kind", ""), query.get("problem", ""))
    sort = query.get("sort", "")
    if (key := _SORTS.get(sort.removeprefix("-"))) is not None:
        rows.sort(key=key, reverse=sort.startswith("-"))
    elif sort == "-topic":
        rows.reverse()
    paging = Paging(len(rows), page_number(request))
    return desk.show(
        request,
        "topics.html",
        rows=rows[paging.start : paging.stop],
        paging=paging,
        catalogue=catalogue,
        sort=sort,
        all_kinds=ALL_KINDS,
        **LABELS,
        **form_values(desk.watcher.look),
    )


def _wanted(rows: Iterable[Row], text: str, kind: str, problem: str) -> list[Row]:
    """Return the topics to show: of all kinds but the system's, unless others are asked for."""
    text = text.strip().lower()
    return [
        row
        for row in rows
        if (row.kind == kind if kind in KIND_LABELS else kind == ALL_KINDS or row.kind is not Kind.SYSTEM)
        and text in row.topic.lower()
        and (not problem or any(finding.problem.key == problem for finding in row.findings))
    ]


def form_values(look: Look) -> dict[str, object]:
    """Return what the form of a topic offers."""
    masters = [broker for broker in look.brokers if broker.broker_id == MASTER_ID]
    return {
        "places": [(f"{CLUSTER_MARK}{name}", name) for name in sorted({broker.cluster for broker in masters})]
        + [(f"{BROKER_MARK}{name}", name) for name in sorted(broker.name for broker in masters)],
        "choosable": CHOOSABLE,
        "new_queues": QUEUES_OF_NEW_TOPIC,
        "queues_max": QUEUES_MAX,
    }


# Changes


@action("/topics/create", "topic.create")
async def create(desk: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Make a topic that is not there yet."""
    topic = fields.get("topic", "")
    try:
        await desk.admin.route(topic)
    except NoRouteError:
        await _save(desk, fields, {})
        return done("The topic {topic} was created", address_of(topic), topic=topic)
    raise ConsoleError(f"There is a topic {topic} already: change it on its own page.")


@action(
    "/topics/change",
    "topic.change",
    question="Give the topic {topic} {write_queues} queues to write and {read_queues} to read, on {place}?",
    warning="With fewer queues to read than before, nobody gets what is still in the others. Without a permission, "
    "clients fail at once.",
)
async def change(desk: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Give a topic other settings."""
    topic = fields.get("topic", "")
    if topic not in desk.watcher.inventory.topics:  # it may be younger
        await desk.watcher.take_inventory()
    configs = desk.watcher.inventory.topics.get(topic)
    if configs is None:
        raise ConsoleError(f"There is no topic {topic} (any more): create it on the page of all topics.")
    await _save(desk, fields, configs)
    return done("The topic {topic} was changed", f"{address_of(topic)}?tab=settings", topic=topic)


async def _save(desk: PageContext, fields: Fields, before: Mapping[str, TopicConfig]) -> None:
    kind = fields.get("kind", "")
    if kind not in CHOOSABLE:
        raise ConsoleError(f"Type: one of {', '.join(CHOOSABLE)}, not “{kind}”.")
    # What the form does not ask for stays as it was.
    kept = next(iter(before.values()), TopicConfig(""))
    has_kind = any(MESSAGE_TYPE in config.attributes for config in before.values())
    place = fields.get("place", "")
    if not place.startswith((CLUSTER_MARK, BROKER_MARK)):
        raise ConsoleError("Where: choose a cluster or a broker.")
    await desk.admin.create_topic(
        fields.get("topic", ""),
        broker=master_of(desk, place.removeprefix(BROKER_MARK)) if place.startswith(BROKER_MARK) else None,
        cluster=place.removeprefix(CLUSTER_MARK) if place.startswith(CLUSTER_MARK) else None,
        read_queues=whole(fields, "read_queues", "Read queues", 0, QUEUES_MAX),
        write_queues=whole(fields, "write_queues", "Write queues", 0, QUEUES_MAX),
        permission=whole(fields, "permission", "Permission", 0, 6) | (kept.permission & Permission.INHERIT),
        ordered=fields.get("ordered") == "yes",
        unit=bool(kept.sys_flag & TopicFlag.UNIT),
        has_unit_subscription=bool(kept.sys_flag & TopicFlag.UNIT_SUBSCRIPTION),
        attributes={MESSAGE_TYPE: kind} if has_kind or kind != Kind.UNSPECIFIED else {},
    )
    await see_again(desk)


@action(
    "/topics/delete",
    "topic.delete",
    question="Delete the topic {topic} from the cluster {cluster}, with {messages} messages in {queues} queues?",
    warning="Its messages are gone for good on every broker of the cluster, and so is where each group has got to. "
    "Whoever still sends to it or reads it fails.",
)
async def delete(desk: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Delete a topic with all its messages."""
    topic = fields.get("topic", "")
    await desk.admin.delete_topic(topic, fields.get("cluster", ""))
    await see_again(desk)
    return done("The topic {topic} was deleted", "/topics", topic=topic)


async def see_again(desk: PageContext) -> None:
    """Look at the cluster, so that the next page shows what has just changed."""
    await desk.watcher.take_look()
    await desk.watcher.take_inventory()


def address_of(topic: str) -> str:
    """Return where a topic's page is."""
    return f"/topics/{quote(topic, safe='')}"


def master_of(desk: PageContext, name: str) -> str:
    """Return where the master of a broker's name is.

    Raises:
        ConsoleError: it has none.
    """
    broker = desk.watcher.look.broker(name, MASTER_ID)
    if broker is None:
        raise ConsoleError(f"The broker {name} has no master now: start it, or choose another broker.")
    return broker.address


ROUTES = [Route("/topics", topics), create, change, delete]
