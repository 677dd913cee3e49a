"""The list of topics, and the actions that create, change and delete a topic."""

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
from skyroute.console.access.sessions import Visitor
from skyroute.console.cluster_data.diagnostics import (
    CHOOSABLE,
    MESSAGE_TYPE,
    ClusterFacts,
    Kind,
    diagnose_all,
)
from skyroute.console.cluster_data.monitor import ClusterSnapshot, Inventory
from skyroute.console.cluster_data.problems import PROBLEMS, Finding, Problem, Severity
from skyroute.console.errors import ConsoleError
from skyroute.console.texts import translatable
from skyroute.console.web.actions import Done, Fields, action, done
from skyroute.console.web.forms import read_int
from skyroute.console.web.page_context import PageContext, Paging, context_of, page_number
from skyroute.routing.topology import MASTER_ID, QUEUES_MAX, Permission, TopicFlag
from skyroute.wire.calls.topics import TopicConfig

KIND_LABELS: Final = {
    Kind.NORMAL: translatable("Normal"),
    Kind.DELAY: translatable("Delay"),
    Kind.FIFO: translatable("FIFO"),
    Kind.TRANSACTION: translatable("Transaction"),
    Kind.MIXED: translatable("Mixed"),
    Kind.UNSPECIFIED: translatable("Unspecified"),
    Kind.RETRY: translatable("Retry"),
    Kind.DEAD_LETTER: translatable("Dead letter"),
    Kind.SYSTEM: translatable("System"),
}
LABELS: Final = {
    "kind_labels": KIND_LABELS,
    "permission_labels": {
        6: translatable("Read and write"),
        4: translatable("Read only"),
        2: translatable("Write only"),
        0: translatable("No access"),
    },
    "severity_classes": {Severity.FAILURE: "bad", Severity.WARNING: "warn", Severity.NOTE: "quiet"},
}
"""Labels and classes for templates."""
ALL_KINDS: Final = "ALL"

CLUSTER_MARK: Final = "cluster:"
BROKER_MARK: Final = "broker:"


class Row(NamedTuple):
    """One row of the list."""

    topic: str
    kind: Kind
    brokers: int
    read_queues: int
    """Sum over all brokers."""
    write_queues: int
    permission: int
    """On the first broker."""
    findings: tuple[Finding, ...]


class Catalogue:
    """All topics with their problems, computed once per inventory."""

    def __init__(self, inventory: Inventory, facts: ClusterFacts) -> None:
        self.inventory = inventory
        self.facts = facts
        self.rows = [
            _row(topic, kind, inventory.topics[topic], findings)
            for topic, kind, findings in diagnose_all(inventory, facts)
        ]
        self.kinds = Counter(row.kind for row in self.rows)
        with_problems = [row.findings for row in self.rows if row.findings]
        counts = Counter(key for findings in with_problems for key in {finding.problem.key for finding in findings})
        self.problems: list[tuple[Problem, int]] = [
            (problem, counts[problem.key]) for problem in PROBLEMS if counts[problem.key]
        ]


def _row(topic: str, kind: Kind, configs: Mapping[str, TopicConfig], findings: tuple[Finding, ...]) -> Row:
    settings = list(configs.values())
    read, write = sum(map(_read_queues, settings)), sum(map(_write_queues, settings))
    return Row(topic, kind, len(settings), read, write, int(settings[0].permission), findings)


_read_queues, _write_queues = attrgetter("read_queues"), attrgetter("write_queues")


def catalogue_of(request: Request) -> Catalogue:
    """Return all topics of the latest inventory."""
    monitor, state = context_of(request).monitor, request.app.state
    facts = ClusterFacts.of(monitor.snapshot, monitor.inventory)
    kept: Catalogue | None = getattr(state, "catalogue", None)
    if kept is None or kept.inventory is not monitor.inventory or kept.facts != facts:
        kept = state.catalogue = Catalogue(monitor.inventory, facts)
    return kept


_SORTS: Final = {
    "queues": lambda row: (row.write_queues, row.read_queues),
    "brokers": lambda row: row.brokers,
    "problems": lambda row: (max((finding.severity for finding in row.findings), default=0), len(row.findings)),
}


async def topics(request: Request) -> Response:
    """Show the topics that match the search."""
    context = context_of(request)
    catalogue = catalogue_of(request)
    query = request.query_params
    rows = _matching(catalogue.rows, query.get("q", ""), query.get("kind", ""), query.get("problem", ""))
    sort = query.get("sort", "")
    if (key := _SORTS.get(sort.removeprefix("-"))) is not None:
        rows.sort(key=key, reverse=sort.startswith("-"))
    elif sort == "-topic":
        rows.reverse()
    paging = Paging(len(rows), page_number(request))
    return context.render(
        request,
        "topics.html",
        rows=rows[paging.start : paging.stop],
        paging=paging,
        catalogue=catalogue,
        is_filtered=any(query.get(name) for name in ("q", "kind", "problem")),
        sort=sort,
        all_kinds=ALL_KINDS,
        **LABELS,
        **form_values(context.monitor.snapshot),
    )


def _matching(rows: Iterable[Row], text: str, kind: str, problem: str) -> list[Row]:
    """Return the topics that match; system topics only if their kind is selected."""
    text = text.strip().lower()
    return [
        row
        for row in rows
        if (row.kind == kind if kind in KIND_LABELS else kind == ALL_KINDS or row.kind is not Kind.SYSTEM)
        and text in row.topic.lower()
        and (not problem or any(finding.problem.key == problem for finding in row.findings))
    ]


def form_values(snapshot: ClusterSnapshot) -> dict[str, object]:
    """Return the choices and limits of the topic form."""
    masters = [broker for broker in snapshot.brokers if broker.broker_id == MASTER_ID]
    return {
        "places": [(f"{CLUSTER_MARK}{name}", name) for name in sorted({broker.cluster for broker in masters})]
        + [(f"{BROKER_MARK}{name}", name) for name in sorted(broker.name for broker in masters)],
        "choosable": CHOOSABLE,
        "new_queues": QUEUES_OF_NEW_TOPIC,
        "queues_max": QUEUES_MAX,
    }


# Changes


@action("/topics/create", "topic.create")
async def create(context: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Create a topic that does not exist."""
    topic = fields.get("topic", "")
    try:
        await context.admin.route(topic)
    except NoRouteError:
        await _save(context, fields, {})
        return done("Topic {topic} created", topic_path(topic), topic=topic)
    raise ConsoleError(f"Topic {topic} already exists: change it on its own page.")


@action(
    "/topics/change",
    "topic.change",
    question=translatable(
        "Change topic {topic} to {write_queues} write queues and {read_queues} read queues on {place}?"
    ),
    warning=translatable(
        "With fewer read queues, messages in the other queues are no longer delivered. Without a "
        "permission, clients fail at once."
    ),
)
async def change(context: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Change the settings of a topic."""
    topic = fields.get("topic", "")
    if topic not in context.monitor.inventory.topics:  # it may be newer than the inventory
        await context.monitor.refresh_inventory()
    configs = context.monitor.inventory.topics.get(topic)
    if configs is None:
        raise ConsoleError(f"Topic {topic} does not exist: create it on the topics page.")
    await _save(context, fields, configs)
    return done("Topic {topic} changed", f"{topic_path(topic)}?tab=settings", topic=topic)


async def _save(context: PageContext, fields: Fields, before: Mapping[str, TopicConfig]) -> None:
    kind = fields.get("kind", "")
    if kind not in CHOOSABLE:
        raise ConsoleError(f"Type: unknown type “{kind}” (expected one of {', '.join(CHOOSABLE)}).")
    # Settings that the form does not have stay as they are.
    kept = next(iter(before.values()), TopicConfig(""))
    has_kind = any(MESSAGE_TYPE in config.attributes for config in before.values())
    place = fields.get("place", "")
    if not place.startswith((CLUSTER_MARK, BROKER_MARK)):
        raise ConsoleError("Cluster or broker: nothing is selected; choose one.")
    await context.admin.create_topic(
        fields.get("topic", ""),
        broker=master_of(context, place.removeprefix(BROKER_MARK)) if place.startswith(BROKER_MARK) else None,
        cluster=place.removeprefix(CLUSTER_MARK) if place.startswith(CLUSTER_MARK) else None,
        read_queues=read_int(fields, "read_queues", "Read queues", 0, QUEUES_MAX),
        write_queues=read_int(fields, "write_queues", "Write queues", 0, QUEUES_MAX),
        permission=read_int(fields, "permission", "Permission", 0, 6) | (kept.permission & Permission.INHERIT),
        ordered=fields.get("ordered") == "yes",
        unit=bool(kept.sys_flag & TopicFlag.UNIT),
        has_unit_subscription=bool(kept.sys_flag & TopicFlag.UNIT_SUBSCRIPTION),
        attributes={MESSAGE_TYPE: kind} if has_kind or kind != Kind.UNSPECIFIED else {},
    )
    await refresh(context)


@action(
    "/topics/delete",
    "topic.delete",
    question=translatable("Delete topic {topic} from cluster {cluster}, with {messages} messages in {queues} queues?"),
    warning=translatable(
        "Every broker of the cluster deletes the topic's messages and the offsets of its consumer groups. "
        "Producers and consumers that still use the topic fail."
    ),
)
async def delete(context: PageContext, fields: Fields, _visitor: Visitor) -> Done:
    """Delete a topic and its messages from a cluster."""
    topic = fields.get("topic", "")
    await context.admin.delete_topic(topic, fields.get("cluster", ""))
    await refresh(context)
    return done("Topic {topic} deleted", "/topics", topic=topic)


async def refresh(context: PageContext) -> None:
    """Read the cluster again, so that the next page shows the change."""
    await context.monitor.refresh_snapshot()
    await context.monitor.refresh_inventory()


def topic_path(topic: str) -> str:
    """Return the address of a topic's page."""
    return f"/topics/{quote(topic, safe='')}"


def master_of(context: PageContext, name: str) -> str:
    """Return the address of a broker group's master.

    Raises:
        ConsoleError: it has no master.
    """
    broker = context.monitor.snapshot.broker(name, MASTER_ID)
    if broker is None:
        raise ConsoleError(f"Broker {name} has no master: start it, or choose another broker.")
    return broker.address


ROUTES = [Route("/topics", topics), create, change, delete]
