"""What is wrong with a topic, or may go wrong. Pure: from what was seen to a list of findings, worst first."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final

from skyroute.client.admin.route_comparison import compare_routes, compare_views
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
from skyroute.console.cluster_data.watcher import Inventory, Look
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import is_dead_letter_topic, is_retry_topic, is_system_topic, reply_topic
from skyroute.routing.topology import MASTER_ID, ClusterView, Permission, TopicRoute
from skyroute.wire.calls.topics import QueueSpan, TopicConfig

MESSAGE_TYPE: Final = "message.type"
"""The attribute in which brokers from 5.0 on keep what messages a topic is for."""
NAMES_MAX: Final = 5
"""Brokers that a finding names; of the others it tells how many."""
SKEW_MESSAGES_MIN: Final = 1_000
"""In fewer messages than that, queues differ by chance."""
SKEW_TIMES: Final = 3
"""A queue that holds so many times its share is not chance."""

# As plain numbers: operations on flags take time, and there are many topics.
_READ: Final = int(Permission.READ)
_WRITE: Final = int(Permission.WRITE)
_OPEN: Final = _READ | _WRITE


class Kind(StrEnum):
    """What a topic is for, as its name or its settings say."""

    NORMAL = "NORMAL"
    DELAY = "DELAY"
    FIFO = "FIFO"
    TRANSACTION = "TRANSACTION"
    MIXED = "MIXED"
    UNSPECIFIED = "UNSPECIFIED"
    RETRY = "RETRY"
    DEAD_LETTER = "DEAD_LETTER"
    SYSTEM = "SYSTEM"


_BY_THE_WAY: Final = (Kind.RETRY, Kind.DEAD_LETTER)
"""Brokers make them wherever a group happens to fail."""
CHOOSABLE: Final = (Kind.UNSPECIFIED, Kind.NORMAL, Kind.FIFO, Kind.DELAY, Kind.TRANSACTION, Kind.MIXED)
"""Kinds that a topic can be given; the others follow from its name."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """All that the health of topics depends on besides their own settings. Equal as long as nothing of it changes."""

    clusters: Mapping[str, str]
    """The cluster of each broker, by the broker's name."""
    masters: frozenset[str]
    """Brokers, by name, whose master answers."""
    complete: bool
    """Every broker has told its topics."""
    known: Mapping[str, frozenset[str]]
    """The topics of each name server that answers."""
    old: frozenset[str] = frozenset()
    """Brokers, by name, from before 5.0: they keep no attributes."""

    @classmethod
    def of(cls, look: Look, inventory: Inventory) -> "Surroundings":
        """Take from what was seen."""
        return cls(
            {broker.name: broker.cluster for broker in look.brokers},
            frozenset(b.name for b in look.brokers if b.broker_id == MASTER_ID and b.failure is None),
            not inventory.failures,
            {server.address: server.topics for server in look.name_servers if server.failure is None},
            frozenset(b.name for b in look.brokers if b.state.get("brokerVersionDesc", "").startswith(("V3", "V4"))),
        )

    @property
    def own_topics(self) -> frozenset[str]:
        """Topics that brokers make of their own and their cluster's name."""
        clusters = set(self.clusters.values())
        return frozenset(self.clusters) | clusters | set(map(reply_topic, clusters))

    @property
    def sizes(self) -> Counter[str]:
        """How many brokers each cluster has."""
        return Counter(self.clusters.values())


def kind_of(topic: str, configs: Mapping[str, TopicConfig], own_topics: Collection[str]) -> Kind:
    """Return what a topic is for; where brokers say different things, what the first says that does."""
    if is_retry_topic(topic):
        return Kind.RETRY
    if is_dead_letter_topic(topic):
        return Kind.DEAD_LETTER
    if is_system_topic(topic) or topic in own_topics:
        return Kind.SYSTEM
    said = next(
        (config.attributes[MESSAGE_TYPE] for config in configs.values() if MESSAGE_TYPE in config.attributes), ""
    )
    return Kind(said) if said in CHOOSABLE else Kind.UNSPECIFIED


# From what every broker says of all its topics


def diagnose_all(inventory: Inventory, around: Surroundings) -> Iterator[tuple[str, Kind, tuple[Finding, ...]]]:
    """Look at every topic; give its name, what it is for, and what was found."""
    own_topics, sizes = around.own_topics, around.sizes
    for topic, configs in inventory.topics.items():
        kind = kind_of(topic, configs, own_topics)
        yield topic, kind, tuple(_diagnose(topic, kind, configs, around, sizes))


def diagnose(topic: str, configs: Mapping[str, TopicConfig], around: Surroundings) -> list[Finding]:
    """Look at one topic, as its brokers have it."""
    return _diagnose(topic, kind_of(topic, configs, around.own_topics), configs, around, around.sizes)


def _diagnose(
    topic: str, kind: Kind, configs: Mapping[str, TopicConfig], around: Surroundings, sizes: Mapping[str, int]
) -> list[Finding]:
    if kind is Kind.SYSTEM:  # brokers make them as they need them
        return []
    found: list[Finding] = []
    if not configs.keys() <= around.masters:
        found += _without_master(configs.keys() - around.masters)
    found += _unknown(topic, around.known)
    if configs and kind not in _BY_THE_WAY:
        settings = list(configs.values())
        first = settings[0]
        # There may be a million settings, and most of them are like these: sound, and the same on all brokers.
        alike = settings.count(first) == len(settings)
        if not (alike and first.permission & _OPEN == _OPEN and first.read_queues == first.write_queues > 0):
            differing = dict(islice(configs.items(), 1)) if alike else configs
            found += _closed(differing, writes=True)
            found += _closed(differing, writes=False)
            found += _read_and_write(differing, configs)
        if not alike:
            found += _differences(settings, [config for name, config in configs.items() if name not in around.old])
        if len(settings) == 1:
            found += _single(next(iter(configs)), around, sizes)
    return worst_first(found)


def _without_master(names: Iterable[str]) -> list[Finding]:
    text = "No master of {brokers} answers: nobody can send there."
    return [Finding(NO_MASTER, Severity.FAILURE, text, {"brokers": _names(names)})]


def _unknown(topic: str, known: Mapping[str, frozenset[str]]) -> list[Finding]:
    lacking = [server for server, topics in known.items() if topic not in topics]
    if not lacking:
        return []
    text = "{count} of {total} name servers do not know it: {servers}."
    values = {"count": len(lacking), "total": len(known), "servers": _names(lacking)}
    return [Finding(NAME_SERVERS, Severity.FAILURE, text, values)]


def _closed(configs: Mapping[str, TopicConfig], *, writes: bool) -> list[Finding]:
    """Find brokers that do not let clients write, or read."""
    if writes:
        closed = [name for name, each in configs.items() if not each.permission & _WRITE or each.write_queues < 1]
    else:
        closed = [name for name, each in configs.items() if not each.permission & _READ or each.read_queues < 1]
    if not closed:
        return []
    problem = UNWRITABLE if writes else UNREADABLE
    if len(closed) == len(configs):
        text = "Nobody can send to it: no broker allows it." if writes else "Nobody can read it: no broker allows it."
        return [Finding(problem, Severity.FAILURE, text, {})]
    text = "{brokers}: nobody can send to it there." if writes else "{brokers}: nobody can read it there."
    return [Finding(problem, Severity.WARNING, text, {"brokers": _names(closed)})]


def _read_and_write(differing: Mapping[str, TopicConfig], configs: Mapping[str, TopicConfig]) -> Iterator[Finding]:
    unread = [name for name, config in differing.items() if 0 < config.read_queues < config.write_queues]
    unwritten = [name for name, config in differing.items() if 0 < config.write_queues < config.read_queues]
    everywhere = len(differing) < len(configs)
    if unread:
        text = "{brokers}: more queues are written than read, so that what is in the others reaches nobody."
        values = {"brokers": _names(configs if everywhere else unread)}
        yield Finding(READ_WRITE, Severity.FAILURE, text, values)
    if unwritten:
        text = "{brokers}: more queues are read than written; nothing new comes into the others."
        values = {"brokers": _names(configs if everywhere else unwritten)}
        yield Finding(READ_WRITE, Severity.NOTE, text, values)


_Compared = tuple[tuple[str, Callable[[TopicConfig], object]], ...]
_SETTINGS: Final[_Compared] = (
    ("Brokers differ in what clients may do with it.", lambda config: config.permission),
    ("Brokers differ in whether it is ordered.", lambda config: config.ordered),
    ("Brokers differ in its flags.", lambda config: (config.sys_flag, config.filter_type)),
)
_ATTRIBUTES: Final[_Compared] = (
    (
        "Brokers differ in what messages it is for.",
        lambda config: config.attributes.get(MESSAGE_TYPE, Kind.UNSPECIFIED),
    ),
    (
        "Brokers differ in its other attributes.",
        lambda config: {name: value for name, value in config.attributes.items() if name != MESSAGE_TYPE},
    ),
)


def _differences(settings: Sequence[TopicConfig], newer: Sequence[TopicConfig]) -> Iterator[Finding]:
    """Find what is not the same on all brokers; `newer` are the settings on those that keep attributes."""
    for compared, among in ((_SETTINGS, settings), (_ATTRIBUTES, newer)):
        for text, take in compared:
            said = [take(config) for config in among]
            if any(each != said[0] for each in said):
                yield Finding(DIFFERENT, Severity.WARNING, text, {})
    counts = [max(config.write_queues, config.read_queues) for config in settings]
    if min(counts) != max(counts):
        text = "One broker has {least} queues of it, another {most}: messages do not spread evenly."
        yield Finding(UNEVEN, Severity.WARNING, text, {"least": min(counts), "most": max(counts)})


def _single(name: str, around: Surroundings, sizes: Mapping[str, int]) -> Iterator[Finding]:
    cluster = around.clusters.get(name)
    if cluster is None or not around.complete:  # who did not tell may have it as well
        return
    if sizes[cluster] > 1:
        text = "Only {broker} has it: without that, nobody can send to it or read it."
        yield Finding(SINGLE_BROKER, Severity.WARNING, text, {"broker": name})
    else:
        text = "The cluster has no other broker than {broker}: without that, nobody can send to it or read it."
        yield Finding(SINGLE_BROKER, Severity.NOTE, text, {"broker": name})


def _names(names: Iterable[str]) -> str:
    """Return names as one text, the first few of them."""
    ordered = sorted(names)
    more = len(ordered) - NAMES_MAX
    return ", ".join(ordered[:NAMES_MAX]) + (f" (+{more})" if more > 0 else "")


# From what was asked about one topic


def diagnose_routes(
    topic: str,
    routes: Mapping[str, TopicRoute | None],
    views: Mapping[str, ClusterView],
    configs: Mapping[str, TopicConfig],
    around: Surroundings,
) -> list[Finding]:
    """Compare what name servers say of a topic, by their address, with each other and with what its brokers say.

    `routes` and `views` are of the same name servers; who knows no route has None.
    """
    queues = [each for route in routes.values() if route is not None for each in route.queues]
    names = {each.broker_name for each in queues}
    found = _without_master(gone) if (gone := names - configs.keys() - around.masters) else []
    differences = [each for each in compare_views(views) if each.broker in names | configs.keys()]
    for difference in differences + compare_routes(topic, routes, views):
        said = "; ".join(f"{server}: {text or '—'}" for server, text in difference.values.items())
        text = "They differ in “{what}” of {broker}: {said}."
        values = {"what": difference.what, "broker": difference.broker or topic, "said": said}
        found.append(Finding(NAME_SERVERS, Severity.FAILURE, text, values))
    closed = {
        each.broker_name
        for each in queues
        if not each.settings.permission & _WRITE
        and (config := configs.get(each.broker_name)) is not None
        and config.permission & _WRITE
    }
    if closed:
        text = "{brokers}: the broker takes messages, but name servers tell clients that it does not."
        found.append(Finding(UNWRITABLE, Severity.WARNING, text, {"brokers": _names(closed)}))
    return found


def diagnose_queues(queues: Mapping[QueueRef, QueueSpan], configs: Mapping[str, TopicConfig]) -> list[Finding]:
    """Look at how messages are spread over those queues of a topic that are written."""
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
    text = "The queue {full} holds {most} messages and {empty} holds {least}; evenly spread, each would hold {mean}."
    values = {
        "full": f"{fullest.broker_name}:{fullest.queue_id}",
        "most": held[fullest],
        "empty": f"{emptiest.broker_name}:{emptiest.queue_id}",
        "least": held[emptiest],
        "mean": round(mean),
    }
    return [Finding(SKEW, Severity.WARNING, text, values)]
