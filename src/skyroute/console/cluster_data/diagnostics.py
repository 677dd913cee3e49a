"""Finds problems of topics. Pure functions from settings and routes to findings, sorted by severity."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final

from skyroute.client.admin.route_comparison import compare_routes, compare_views
from skyroute.console.cluster_data.monitor import ClusterSnapshot, Inventory
from skyroute.console.cluster_data.problems import (
    DIFFERENT,
    NAME_SERVERS,
    NO_MASTER,
    READ_WRITE,
    SINGLE_BROKER,
    SKEW,
    UNEVEN,
    UNREADABLE,
    UNWRITABLE,
    Finding,
    Severity,
    worst_first,
)
from skyroute.console.texts import translatable
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import is_dead_letter_topic, is_retry_topic, is_system_topic, reply_topic
from skyroute.routing.topology import MASTER_ID, ClusterView, Permission, TopicRoute
from skyroute.wire.calls.topics import QueueSpan, TopicConfig

MESSAGE_TYPE: Final = "message.type"
"""The attribute with a topic's message type, in brokers from 5.0 on."""
NAMES_MAX: Final = 5
"""Brokers that a finding names; the others are counted."""
SKEW_MESSAGES_MIN: Final = 1_000
"""With fewer messages, queues differ by chance."""
SKEW_TIMES: Final = 3
"""A queue with this many times its share, or less than one in as many, is reported."""

# Plain numbers: operations on flags are slow, and there are many topics.
_READ: Final = int(Permission.READ)
_WRITE: Final = int(Permission.WRITE)
_OPEN: Final = _READ | _WRITE


class Kind(StrEnum):
    """The type of a topic, from its name or its settings."""

    NORMAL = "NORMAL"
    DELAY = "DELAY"
    FIFO = "FIFO"
    TRANSACTION = "TRANSACTION"
    MIXED = "MIXED"
    UNSPECIFIED = "UNSPECIFIED"
    RETRY = "RETRY"
    DEAD_LETTER = "DEAD_LETTER"
    SYSTEM = "SYSTEM"


_BROKER_MADE: Final = (Kind.RETRY, Kind.DEAD_LETTER)
"""Brokers create them where a group fails."""
CHOOSABLE: Final = (Kind.UNSPECIFIED, Kind.NORMAL, Kind.FIFO, Kind.DELAY, Kind.TRANSACTION, Kind.MIXED)
"""Types that a user can select; the others follow from the name."""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """Facts about the cluster that the findings of all topics depend on. Equal as long as none of them changes."""

    clusters: Mapping[str, str]
    """The cluster of each broker, by the broker's name."""
    masters: frozenset[str]
    """Names of brokers whose master responds."""
    complete: bool
    """Whether the topics of all brokers could be read."""
    known: Mapping[str, frozenset[str]]
    """The topics of each name server that responds."""
    old: frozenset[str] = frozenset()
    """Names of brokers before 5.0: they have no attributes."""

    @classmethod
    def of(cls, snapshot: ClusterSnapshot, inventory: Inventory) -> "ClusterFacts":
        """Return the facts in a snapshot and an inventory."""
        return cls(
            {broker.name: broker.cluster for broker in snapshot.brokers},
            frozenset(b.name for b in snapshot.brokers if b.broker_id == MASTER_ID and b.failure is None),
            not inventory.failures,
            {server.address: server.topics for server in snapshot.name_servers if server.failure is None},
            frozenset(
                b.name for b in snapshot.brokers if b.state.get("brokerVersionDesc", "").startswith(("V3", "V4"))
            ),
        )

    @property
    def own_topics(self) -> frozenset[str]:
        """Topics named after brokers and clusters, which brokers create."""
        clusters = set(self.clusters.values())
        return frozenset(self.clusters) | clusters | set(map(reply_topic, clusters))

    @property
    def sizes(self) -> Counter[str]:
        """Number of brokers by cluster."""
        return Counter(self.clusters.values())


def kind_of(topic: str, configs: Mapping[str, TopicConfig], own_topics: Collection[str]) -> Kind:
    """Return the type of a topic; if brokers differ, the first type that one has."""
    if is_retry_topic(topic):
        return Kind.RETRY
    if is_dead_letter_topic(topic):
        return Kind.DEAD_LETTER
    if is_system_topic(topic) or topic in own_topics:
        return Kind.SYSTEM
    found = next(
        (config.attributes[MESSAGE_TYPE] for config in configs.values() if MESSAGE_TYPE in config.attributes), ""
    )
    return Kind(found) if found in CHOOSABLE else Kind.UNSPECIFIED


# From the settings on brokers


def diagnose_all(inventory: Inventory, facts: ClusterFacts) -> Iterator[tuple[str, Kind, tuple[Finding, ...]]]:
    """Return name, type and findings of every topic."""
    own_topics, sizes = facts.own_topics, facts.sizes
    for topic, configs in inventory.topics.items():
        kind = kind_of(topic, configs, own_topics)
        yield topic, kind, tuple(_diagnose(topic, kind, configs, facts, sizes))


def diagnose(topic: str, configs: Mapping[str, TopicConfig], facts: ClusterFacts) -> list[Finding]:
    """Return the findings of one topic from its settings on brokers."""
    return _diagnose(topic, kind_of(topic, configs, facts.own_topics), configs, facts, facts.sizes)


def _diagnose(
    topic: str, kind: Kind, configs: Mapping[str, TopicConfig], facts: ClusterFacts, sizes: Mapping[str, int]
) -> list[Finding]:
    if kind is Kind.SYSTEM:  # brokers create them as they need them
        return []
    found: list[Finding] = []
    if not configs.keys() <= facts.masters:
        found += _without_master(configs.keys() - facts.masters)
    found += _unknown(topic, facts.known)
    if configs and kind not in _BROKER_MADE:
        settings = list(configs.values())
        first = settings[0]
        # There may be a million settings; most are valid and the same on all brokers.
        alike = settings.count(first) == len(settings)
        if not (alike and first.permission & _OPEN == _OPEN and first.read_queues == first.write_queues > 0):
            differing = dict(islice(configs.items(), 1)) if alike else configs
            found += _closed(differing, writes=True)
            found += _closed(differing, writes=False)
            found += _read_and_write(differing, configs)
        if not alike:
            found += _differences(settings, [config for name, config in configs.items() if name not in facts.old])
        if len(settings) == 1:
            found += _single(next(iter(configs)), facts, sizes)
    return worst_first(found)


def _without_master(names: Iterable[str]) -> list[Finding]:
    text = translatable("The masters of {brokers} do not respond: producers cannot send there.")
    return [Finding(NO_MASTER, Severity.FAILURE, text, {"brokers": _names(names)})]


def _unknown(topic: str, known: Mapping[str, frozenset[str]]) -> list[Finding]:
    lacking = [server for server, topics in known.items() if topic not in topics]
    if not lacking:
        return []
    text = translatable("{count} of {total} name servers have no route for it: {servers}.")
    values = {"count": len(lacking), "total": len(known), "servers": _names(lacking)}
    return [Finding(NAME_SERVERS, Severity.FAILURE, text, values)]


def _closed(configs: Mapping[str, TopicConfig], *, writes: bool) -> list[Finding]:
    """Find brokers that do not allow writes, or reads."""
    if writes:
        closed = [name for name, each in configs.items() if not each.permission & _WRITE or each.write_queues < 1]
    else:
        closed = [name for name, each in configs.items() if not each.permission & _READ or each.read_queues < 1]
    if not closed:
        return []
    problem = UNWRITABLE if writes else UNREADABLE
    if len(closed) == len(configs):
        text = (
            translatable("No broker allows writes: producers cannot send to the topic.")
            if writes
            else translatable("No broker allows reads: consumers cannot read the topic.")
        )
        return [Finding(problem, Severity.FAILURE, text, {})]
    text = (
        translatable("{brokers}: writes are not allowed.")
        if writes
        else translatable("{brokers}: reads are not allowed.")
    )
    return [Finding(problem, Severity.WARNING, text, {"brokers": _names(closed)})]


def _read_and_write(differing: Mapping[str, TopicConfig], configs: Mapping[str, TopicConfig]) -> Iterator[Finding]:
    unread = [name for name, config in differing.items() if 0 < config.read_queues < config.write_queues]
    unwritten = [name for name, config in differing.items() if 0 < config.write_queues < config.read_queues]
    everywhere = len(differing) < len(configs)
    if unread:
        text = translatable(
            "{brokers}: there are more write queues than read queues. Messages in the other queues are not consumed."
        )
        values = {"brokers": _names(configs if everywhere else unread)}
        yield Finding(READ_WRITE, Severity.FAILURE, text, values)
    if unwritten:
        text = translatable(
            "{brokers}: there are more read queues than write queues. The other queues receive no new messages."
        )
        values = {"brokers": _names(configs if everywhere else unwritten)}
        yield Finding(READ_WRITE, Severity.NOTE, text, values)


_Compared = tuple[tuple[str, Callable[[TopicConfig], object]], ...]
_SETTINGS: Final[_Compared] = (
    (translatable("Brokers have different permissions."), lambda config: config.permission),
    (translatable("The topic is ordered on some brokers only."), lambda config: config.ordered),
    (translatable("Brokers have different flags."), lambda config: (config.sys_flag, config.filter_type)),
)
_ATTRIBUTES: Final[_Compared] = (
    (
        translatable("Brokers have different message types."),
        lambda config: config.attributes.get(MESSAGE_TYPE, Kind.UNSPECIFIED),
    ),
    (
        translatable("Brokers have different attributes."),
        lambda config: {name: value for name, value in config.attributes.items() if name != MESSAGE_TYPE},
    ),
)


def _differences(settings: Sequence[TopicConfig], newer: Sequence[TopicConfig]) -> Iterator[Finding]:
    """Find settings that differ between brokers; `newer` are the settings on brokers with attributes."""
    for compared, among in ((_SETTINGS, settings), (_ATTRIBUTES, newer)):
        for text, take in compared:
            values = [take(config) for config in among]
            if any(each != values[0] for each in values):
                yield Finding(DIFFERENT, Severity.WARNING, text, {})
    counts = [max(config.write_queues, config.read_queues) for config in settings]
    if min(counts) != max(counts):
        text = translatable("One broker has {least} queues, another {most}: messages are not distributed evenly.")
        yield Finding(UNEVEN, Severity.WARNING, text, {"least": min(counts), "most": max(counts)})


def _single(name: str, facts: ClusterFacts, sizes: Mapping[str, int]) -> Iterator[Finding]:
    cluster = facts.clusters.get(name)
    if cluster is None or not facts.complete:  # brokers that could not be read may have it too
        return
    if sizes[cluster] > 1:
        text = translatable("Only {broker} has this topic: it cannot be used while that broker is down.")
        yield Finding(SINGLE_BROKER, Severity.WARNING, text, {"broker": name})
    else:
        text = translatable("{broker} is the only broker of the cluster: the topic cannot be used while it is down.")
        yield Finding(SINGLE_BROKER, Severity.NOTE, text, {"broker": name})


def _names(names: Iterable[str]) -> str:
    """Return the first names as one text, with the number of the others."""
    ordered = sorted(names)
    more = len(ordered) - NAMES_MAX
    return ", ".join(ordered[:NAMES_MAX]) + (f" (+{more})" if more > 0 else "")


# From the routes and queues of one topic


def diagnose_routes(
    topic: str,
    routes: Mapping[str, TopicRoute | None],
    views: Mapping[str, ClusterView],
    configs: Mapping[str, TopicConfig],
    facts: ClusterFacts,
) -> list[Finding]:
    """Compare a topic's routes, by name server address, with each other and with its settings on brokers.

    `routes` and `views` have the same name servers; the route of one without the topic is None.
    """
    queues = [each for route in routes.values() if route is not None for each in route.queues]
    names = {each.broker_name for each in queues}
    found = _without_master(gone) if (gone := names - configs.keys() - facts.masters) else []
    differences = [each for each in compare_views(views) if each.broker in names | configs.keys()]
    for difference in differences + compare_routes(topic, routes, views):
        details = "; ".join(f"{server}: {text or '—'}" for server, text in difference.values.items())
        text = translatable("Name servers differ in “{what}” of {broker}: {details}.")
        values = {"what": difference.what, "broker": difference.broker or topic, "details": details}
        found.append(Finding(NAME_SERVERS, Severity.FAILURE, text, values))
    closed = {
        each.broker_name
        for each in queues
        if not each.settings.permission & _WRITE
        and (config := configs.get(each.broker_name)) is not None
        and config.permission & _WRITE
    }
    if closed:
        text = translatable("{brokers}: the broker allows writes, but the name servers' routes do not.")
        found.append(Finding(UNWRITABLE, Severity.WARNING, text, {"brokers": _names(closed)}))
    return found


def diagnose_queues(queues: Mapping[QueueRef, QueueSpan], configs: Mapping[str, TopicConfig]) -> list[Finding]:
    """Find an uneven distribution of messages over the write queues of a topic."""
    held = {
        queue: span.max_offset - span.min_offset
        for queue, span in queues.items()
        if (config := configs.get(queue.broker_name)) is None or queue.queue_id < config.write_queues
    }
    total = sum(held.values())
    if len(held) < 2 or total < SKEW_MESSAGES_MIN:
        return []
    mean = total / len(held)
    fullest, emptiest = max(held, key=lambda queue: held[queue]), min(held, key=lambda queue: held[queue])
    if held[fullest] < SKEW_TIMES * mean and held[emptiest] * SKEW_TIMES > mean:
        return []
    text = translatable(
        "Queue {full} has {most} messages and queue {empty} has {least}. Distributed evenly, each would have {mean}."
    )
    values = {
        "full": f"{fullest.broker_name}:{fullest.queue_id}",
        "most": held[fullest],
        "empty": f"{emptiest.broker_name}:{emptiest.queue_id}",
        "least": held[emptiest],
        "mean": round(mean),
    }
    return [Finding(SKEW, Severity.WARNING, text, values)]
