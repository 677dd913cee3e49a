"""Problems that are found in topics, and cases that are none."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from skyroute.client.admin.cluster import BrokerInfo
from skyroute.console.cluster_data.diagnostics import (
    MESSAGE_TYPE,
    NAMES_MAX,
    ClusterFacts,
    Kind,
    diagnose,
    diagnose_all,
    diagnose_queues,
    diagnose_routes,
    kind_of,
)
from skyroute.console.cluster_data.monitor import ClusterSnapshot, Inventory, NameServerView
from skyroute.console.cluster_data.problems import (
    DIFFERENT,
    NAME_SERVERS,
    NO_MASTER,
    PROBLEMS,
    READ_WRITE,
    SINGLE_BROKER,
    SKEW,
    UNEVEN,
    UNREADABLE,
    UNWRITABLE,
    Finding,
    Problem,
    Severity,
)
from skyroute.console.texts import LANGUAGES, translator
from skyroute.errors import SkyrouteError
from skyroute.message.queue_ref import QueueRef
from skyroute.routing.topology import BrokerGroup, BrokerQueues, ClusterView, QueueSettings, TopicRoute
from skyroute.wire.calls.topics import QueueSpan, TopicConfig

FAILURE, WARNING, NOTE = Severity.FAILURE, Severity.WARNING, Severity.NOTE


def facts(*topics: str, brokers: str = "ab") -> ClusterFacts:
    """Facts of a cluster of brokers with masters, and two name servers that know some topics."""
    known = frozenset(topics or ("T",))
    return ClusterFacts(dict.fromkeys(brokers, "c"), frozenset(brokers), True, {"n1": known, "n2": known})


def config(read: int = 4, write: int = 4, permission: int = 6, **more: object) -> TopicConfig:
    return TopicConfig("T", read, write, permission, **more)  # type: ignore[arg-type]  # named by each test


def problems(findings: list[Finding]) -> list[tuple[Problem, Severity]]:
    """Return the problems found; every text must have values for its names, also in Chinese."""
    for finding in findings:
        for language in LANGUAGES:
            assert "{" not in translator(language)(finding.text, **finding.values)
    return [(finding.problem, finding.severity) for finding in findings]


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({"a": config(), "b": config()}, []),
        ({"a": config()}, [(SINGLE_BROKER, WARNING)]),
        ({"a": config(permission=4), "b": config(permission=4)}, [(UNWRITABLE, FAILURE)]),
        ({"a": config(permission=2), "b": config(permission=2)}, [(UNREADABLE, FAILURE)]),
        ({"a": config(), "b": config(permission=4)}, [(UNWRITABLE, WARNING), (DIFFERENT, WARNING)]),
        ({"a": config(), "b": config(permission=2)}, [(UNREADABLE, WARNING), (DIFFERENT, WARNING)]),
        ({"a": config(write=0), "b": config(write=0)}, [(UNWRITABLE, FAILURE)]),
        ({"a": config(4, 8), "b": config(4, 8)}, [(READ_WRITE, FAILURE)]),
        ({"a": config(8, 4), "b": config(8, 4)}, [(READ_WRITE, NOTE)]),
        ({"a": config(), "b": config(8, 8)}, [(UNEVEN, WARNING)]),
        ({"a": config(), "b": config(ordered=True)}, [(DIFFERENT, WARNING)]),
        ({"a": config(), "b": config(attributes={MESSAGE_TYPE: "FIFO"})}, [(DIFFERENT, WARNING)]),
        ({"a": config(), "b": config(attributes={"queue.type": "BatchCQ"})}, [(DIFFERENT, WARNING)]),
        ({"a": config(), "b": config(sys_flag=1)}, [(DIFFERENT, WARNING)]),
        ({"a": config(), "b": config(attributes={MESSAGE_TYPE: "UNSPECIFIED"})}, []),
        ({"a": config(), "gone": config()}, [(NO_MASTER, FAILURE)]),
    ],
)
def test_settings_show_problems(configs: Mapping[str, TopicConfig], expected: list[tuple[Problem, Severity]]) -> None:
    assert problems(diagnose("T", configs, facts())) == expected


def test_missing_attributes_of_brokers_before_5_are_no_problem() -> None:
    configs = {"a": config(attributes={MESSAGE_TYPE: "FIFO"}), "b": config()}
    seen = replace(facts(), old=frozenset("b"))
    assert diagnose("T", configs, seen) == []
    assert problems(diagnose("T", configs | {"b": config(ordered=True)}, seen)) == [(DIFFERENT, WARNING)]
    assert kind_of("T", dict(reversed(configs.items())), ()) is Kind.FIFO


def test_a_topic_on_one_broker_is_a_note_in_a_cluster_of_one_and_open_while_a_broker_is_unread() -> None:
    alone = facts(brokers="a")
    assert problems(diagnose("T", {"a": config()}, alone)) == [(SINGLE_BROKER, NOTE)]
    assert diagnose("T", {"a": config()}, replace(facts(), complete=False)) == []


def test_name_servers_without_a_topic_are_named() -> None:
    [found] = diagnose("U", {"a": config(), "b": config()}, facts("T"))
    assert (found.problem, found.severity) == (NAME_SERVERS, FAILURE)
    assert found.text.format(**found.values) == "2 of 2 name servers have no route for it: n1, n2."


def test_findings_are_sorted_by_severity_and_many_brokers_are_counted() -> None:
    names = [f"broker-{number}" for number in range(NAMES_MAX + 3)]
    configs = {name: config(4, 8, attributes={"k": name}) for name in names}
    found = diagnose("T", configs, facts(brokers="a"))
    assert problems(found) == [(NO_MASTER, FAILURE), (READ_WRITE, FAILURE), (DIFFERENT, WARNING)]
    assert str(found[0].values["brokers"]).endswith("broker-4 (+3)")


def test_settings_of_topics_that_brokers_create_are_no_problem() -> None:
    """A retry topic is on brokers where a group failed; a system topic has the settings the broker needs."""
    seen = facts("%RETRY%g", "%DLQ%g", "b", "rmq_sys_x", "c_REPLY_TOPIC")
    for topic in ("%RETRY%g", "%DLQ%g", "b", "rmq_sys_x", "c_REPLY_TOPIC"):
        assert diagnose(topic, {"a": config(1, 2, 2)}, seen) == []
    assert problems(diagnose("%RETRY%g", {"gone": config()}, seen)) == [(NO_MASTER, FAILURE)]


@pytest.mark.parametrize(
    ("topic", "attributes", "kind"),
    [
        ("T", {}, Kind.UNSPECIFIED),
        ("T", {MESSAGE_TYPE: "FIFO"}, Kind.FIFO),
        ("T", {MESSAGE_TYPE: "of a later version"}, Kind.UNSPECIFIED),
        ("T", {MESSAGE_TYPE: "SYSTEM"}, Kind.UNSPECIFIED),
        ("%RETRY%g", {MESSAGE_TYPE: "NORMAL"}, Kind.RETRY),
        ("%DLQ%g", {}, Kind.DEAD_LETTER),
        ("TBW102", {}, Kind.SYSTEM),
        ("c", {}, Kind.SYSTEM),
    ],
)
def test_the_type_of_a_topic_comes_from_its_name_or_settings(
    topic: str, attributes: dict[str, str], kind: Kind
) -> None:
    assert kind_of(topic, {"a": config(attributes=attributes)}, facts().own_topics) is kind


def test_surroundings_come_from_a_look() -> None:
    """A slave is no master, and neither is a broker that does not respond; equal snapshots have equal facts."""
    brokers = (
        BrokerInfo("c", "a", 0, "1:1", {}),
        BrokerInfo("c", "b", 1, "1:2", {"brokerVersionDesc": "V4_9_7"}),
        BrokerInfo("c", "d", 0, "1:3", {}, SkyrouteError("silent")),
    )
    servers = (
        NameServerView("n1", ClusterView((), {}), frozenset({"T"})),
        NameServerView("n2", failure=SkyrouteError("gone")),
    )
    seen = ClusterFacts.of(
        ClusterSnapshot(1, 0.0, brokers, servers), Inventory(failures={"1:3": SkyrouteError("silent")})
    )
    clusters, known = {"a": "c", "b": "c", "d": "c"}, {"n1": frozenset({"T"})}
    assert seen == ClusterFacts(clusters, frozenset({"a"}), False, known, frozenset({"b"}))
    assert (
        ClusterFacts.of(ClusterSnapshot(2, 5.0, brokers, servers), Inventory(failures={"1:3": SkyrouteError("else")}))
        == seen
    )


def test_all_topics_have_the_findings_of_each() -> None:
    topics = {"T": {"a": config(), "b": config()}, "U": {"a": config()}}
    seen = facts("T", "U")
    assert [(topic, list(found)) for topic, _, found in diagnose_all(Inventory(topics=topics), seen)] == [
        (topic, diagnose(topic, configs, seen)) for topic, configs in topics.items()
    ]


# From the routes and queues of one topic


def view(*names: str, address: str = "1:1") -> ClusterView:
    return ClusterView(tuple(BrokerGroup(name, "c", {0: address}) for name in names), {"c": names})


def route(settings: Mapping[str, QueueSettings]) -> TopicRoute:
    groups = tuple(BrokerGroup(name, "c", {0: "1:1"}) for name in settings)
    return TopicRoute(groups, tuple(BrokerQueues(name, each) for name, each in settings.items()))


OPEN = QueueSettings(4, 4, 6)
BOTH = {"a": config(), "b": config()}


def test_equal_routes_are_no_problem() -> None:
    same = route({"a": OPEN, "b": OPEN})
    views = {"n1": view("a", "b"), "n2": view("a", "b")}
    assert diagnose_routes("T", {"n1": same, "n2": same}, views, BOTH, facts()) == []


def test_different_routes_are_shown_by_name_server() -> None:
    views = {"n1": view("a", "b"), "n2": view("a", "b")}
    routes = {"n1": route({"a": OPEN, "b": OPEN}), "n2": route({"a": OPEN, "b": QueueSettings(4, 8, 6)})}
    [found] = diagnose_routes("T", routes, views, BOTH, facts())
    assert problems([found]) == [(NAME_SERVERS, FAILURE)]
    assert found.values == {"what": "write queues", "broker": "b", "details": "n1: 4; n2: 8"}
    assert problems(diagnose_routes("T", {"n1": routes["n1"], "n2": None}, views, BOTH, facts())) == [
        (NAME_SERVERS, FAILURE),
        (NAME_SERVERS, FAILURE),
    ]


def test_a_name_server_without_a_broker_differs_in_its_topics() -> None:
    views = {"n1": view("a", "b", "elsewhere"), "n2": view("a")}
    routes = {"n1": route({"a": OPEN, "b": OPEN}), "n2": route({"a": OPEN})}
    [found] = diagnose_routes("T", routes, views, BOTH, facts())
    assert (found.problem, found.values["broker"]) == (NAME_SERVERS, "b")


def test_writes_that_only_name_servers_disable_are_found() -> None:
    closed = route({"a": OPEN, "b": OPEN.read_only()})
    assert problems(diagnose_routes("T", {"n1": closed}, {"n1": view("a", "b")}, BOTH, facts())) == [
        (UNWRITABLE, WARNING)
    ]


def test_a_broker_in_the_route_that_does_not_respond_has_no_master() -> None:
    silent = replace(facts(), masters=frozenset("a"))
    found = diagnose_routes("T", {"n1": route({"a": OPEN, "b": OPEN})}, {"n1": view("a", "b")}, {"a": config()}, silent)
    assert problems(found) == [(NO_MASTER, FAILURE)]


@pytest.mark.parametrize(
    ("held", "skewed"),
    [
        ((500, 500, 480, 520), False),
        ((0, 10, 900, 0), False),  # too few to tell
        ((4000, 100, 100, 100), True),
        ((1000, 1000, 1000, 0), True),
        ((2000, 0), True),
        ((5000,), False),
    ],
)
def test_uneven_queues_are_found(held: tuple[int, ...], skewed: bool) -> None:
    queues = {QueueRef("T", "a", number): QueueSpan(7, 7 + count) for number, count in enumerate(held)}
    assert problems(diagnose_queues(queues, {"a": config(8, 8)})) == ([(SKEW, WARNING)] if skewed else [])


def test_queues_above_the_write_queues_may_be_empty() -> None:
    queues = {QueueRef("T", "a", number): QueueSpan(0, 1000 if number < 2 else 0) for number in range(4)}
    assert diagnose_queues(queues, {"a": config(4, 2)}) == []


def test_every_problem_has_its_own_key_and_a_translation() -> None:
    assert len({problem.key for problem in PROBLEMS}) == len(PROBLEMS)
    for problem in PROBLEMS:
        assert translator("zh")(problem.advice) != problem.advice
