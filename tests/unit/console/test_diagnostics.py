"""What is found wrong with a topic, and what is not."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from skyroute.client.admin.cluster import BrokerInfo
from skyroute.console.chinese import WORDS
from skyroute.console.cluster_data.diagnostics import (
    MESSAGE_TYPE,
    NAMES_MAX,
    Kind,
    Surroundings,
    diagnose,
    diagnose_all,
    diagnose_queues,
    diagnose_routes,
    kind_of,
)
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
from skyroute.console.cluster_data.watcher import Inventory, Look, NameServerView
from skyroute.errors import SkyrouteError
from skyroute.message.queue_ref import QueueRef
from skyroute.routing.topology import BrokerGroup, BrokerQueues, ClusterView, QueueSettings, TopicRoute
from skyroute.wire.calls.topics import QueueSpan, TopicConfig

FAILURE, WARNING, NOTE = Severity.FAILURE, Severity.WARNING, Severity.NOTE


def around(*topics: str, brokers: str = "ab") -> Surroundings:
    """A cluster of brokers, each with its master, and two name servers that know some topics."""
    known = frozenset(topics or ("T",))
    return Surroundings(dict.fromkeys(brokers, "c"), frozenset(brokers), True, {"n1": known, "n2": known})


def config(read: int = 4, write: int = 4, permission: int = 6, **more: object) -> TopicConfig:
    return TopicConfig("T", read, write, permission, **more)  # type: ignore[arg-type]  # named by each test


def told(findings: list[Finding]) -> list[tuple[Problem, Severity]]:
    """Which problems were found; every text must take its values, and be known in Chinese."""
    for finding in findings:
        for text in (finding.text, WORDS[finding.text]):
            assert "{" not in text.format(**finding.values)
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
def test_settings_tell_what_is_wrong(
    configs: Mapping[str, TopicConfig], expected: list[tuple[Problem, Severity]]
) -> None:
    assert told(diagnose("T", configs, around())) == expected


def test_brokers_before_5_keep_no_attributes_and_are_not_blamed_for_it() -> None:
    configs = {"a": config(attributes={MESSAGE_TYPE: "FIFO"}), "b": config()}
    seen = replace(around(), old=frozenset("b"))
    assert diagnose("T", configs, seen) == []
    assert told(diagnose("T", configs | {"b": config(ordered=True)}, seen)) == [(DIFFERENT, WARNING)]
    assert kind_of("T", dict(reversed(configs.items())), ()) is Kind.FIFO


def test_the_only_broker_of_a_cluster_is_a_note_and_who_did_not_tell_leaves_it_open() -> None:
    alone = around(brokers="a")
    assert told(diagnose("T", {"a": config()}, alone)) == [(SINGLE_BROKER, NOTE)]
    assert diagnose("T", {"a": config()}, replace(around(), complete=False)) == []


def test_name_servers_that_do_not_know_a_topic_are_named() -> None:
    [found] = diagnose("U", {"a": config(), "b": config()}, around("T"))
    assert (found.problem, found.severity) == (NAME_SERVERS, FAILURE)
    assert found.text.format(**found.values) == "2 of 2 name servers do not know it: n1, n2."


def test_the_worst_comes_first_and_many_brokers_are_counted() -> None:
    names = [f"broker-{number}" for number in range(NAMES_MAX + 3)]
    configs = {name: config(4, 8, attributes={"k": name}) for name in names}
    found = diagnose("T", configs, around(brokers="a"))
    assert told(found) == [(NO_MASTER, FAILURE), (READ_WRITE, FAILURE), (DIFFERENT, WARNING)]
    assert str(found[0].values["brokers"]).endswith("broker-4 (+3)")


def test_what_brokers_make_themselves_is_not_held_against_them() -> None:
    """A retry topic lies where a group failed; a system topic is as the broker needs it."""
    seen = around("%RETRY%g", "%DLQ%g", "b", "rmq_sys_x", "c_REPLY_TOPIC")
    for topic in ("%RETRY%g", "%DLQ%g", "b", "rmq_sys_x", "c_REPLY_TOPIC"):
        assert diagnose(topic, {"a": config(1, 2, 2)}, seen) == []
    assert told(diagnose("%RETRY%g", {"gone": config()}, seen)) == [(NO_MASTER, FAILURE)]


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
def test_a_topic_is_what_its_name_or_its_settings_say(topic: str, attributes: dict[str, str], kind: Kind) -> None:
    assert kind_of(topic, {"a": config(attributes=attributes)}, around().own_topics) is kind


def test_surroundings_come_from_a_look() -> None:
    """A slave is no master, and neither is one that does not answer; equal looks make equal surroundings."""
    brokers = (
        BrokerInfo("c", "a", 0, "1:1", {}),
        BrokerInfo("c", "b", 1, "1:2", {"brokerVersionDesc": "V4_9_7"}),
        BrokerInfo("c", "d", 0, "1:3", {}, SkyrouteError("silent")),
    )
    servers = (
        NameServerView("n1", ClusterView((), {}), frozenset({"T"})),
        NameServerView("n2", failure=SkyrouteError("gone")),
    )
    seen = Surroundings.of(Look(1, 0.0, brokers, servers), Inventory(failures={"1:3": SkyrouteError("silent")}))
    clusters, known = {"a": "c", "b": "c", "d": "c"}, {"n1": frozenset({"T"})}
    assert seen == Surroundings(clusters, frozenset({"a"}), False, known, frozenset({"b"}))
    assert Surroundings.of(Look(2, 5.0, brokers, servers), Inventory(failures={"1:3": SkyrouteError("else")})) == seen


def test_all_topics_are_looked_at_as_each_is() -> None:
    topics = {"T": {"a": config(), "b": config()}, "U": {"a": config()}}
    seen = around("T", "U")
    assert [(topic, list(found)) for topic, _, found in diagnose_all(Inventory(topics=topics), seen)] == [
        (topic, diagnose(topic, configs, seen)) for topic, configs in topics.items()
    ]


# From what was asked about one topic


def view(*names: str, address: str = "1:1") -> ClusterView:
    return ClusterView(tuple(BrokerGroup(name, "c", {0: address}) for name in names), {"c": names})


def route(settings: Mapping[str, QueueSettings]) -> TopicRoute:
    groups = tuple(BrokerGroup(name, "c", {0: "1:1"}) for name in settings)
    return TopicRoute(groups, tuple(BrokerQueues(name, each) for name, each in settings.items()))


OPEN = QueueSettings(4, 4, 6)
BOTH = {"a": config(), "b": config()}


def test_routes_that_agree_are_no_finding() -> None:
    same = route({"a": OPEN, "b": OPEN})
    views = {"n1": view("a", "b"), "n2": view("a", "b")}
    assert diagnose_routes("T", {"n1": same, "n2": same}, views, BOTH, around()) == []


def test_routes_that_differ_tell_who_says_what() -> None:
    views = {"n1": view("a", "b"), "n2": view("a", "b")}
    routes = {"n1": route({"a": OPEN, "b": OPEN}), "n2": route({"a": OPEN, "b": QueueSettings(4, 8, 6)})}
    [found] = diagnose_routes("T", routes, views, BOTH, around())
    assert told([found]) == [(NAME_SERVERS, FAILURE)]
    assert found.values == {"what": "write queues", "broker": "b", "said": "n1: 4; n2: 8"}
    assert told(diagnose_routes("T", {"n1": routes["n1"], "n2": None}, views, BOTH, around())) == [
        (NAME_SERVERS, FAILURE),
        (NAME_SERVERS, FAILURE),
    ]


def test_a_name_server_that_lacks_a_broker_disagrees_on_its_topics() -> None:
    views = {"n1": view("a", "b", "elsewhere"), "n2": view("a")}
    routes = {"n1": route({"a": OPEN, "b": OPEN}), "n2": route({"a": OPEN})}
    [found] = diagnose_routes("T", routes, views, BOTH, around())
    assert (found.problem, found.values["broker"]) == (NAME_SERVERS, "b")


def test_writes_that_only_name_servers_forbid_are_found() -> None:
    closed = route({"a": OPEN, "b": OPEN.read_only()})
    assert told(diagnose_routes("T", {"n1": closed}, {"n1": view("a", "b")}, BOTH, around())) == [(UNWRITABLE, WARNING)]


def test_a_broker_in_the_route_that_answers_nobody_has_no_master() -> None:
    silent = replace(around(), masters=frozenset("a"))
    found = diagnose_routes("T", {"n1": route({"a": OPEN, "b": OPEN})}, {"n1": view("a", "b")}, {"a": config()}, silent)
    assert told(found) == [(NO_MASTER, FAILURE)]


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
def test_messages_that_crowd_in_one_queue_are_found(held: tuple[int, ...], skewed: bool) -> None:
    queues = {QueueRef("T", "a", number): QueueSpan(7, 7 + count) for number, count in enumerate(held)}
    assert told(diagnose_queues(queues, {"a": config(8, 8)})) == ([(SKEW, WARNING)] if skewed else [])


def test_queues_that_are_no_longer_written_may_run_empty() -> None:
    queues = {QueueRef("T", "a", number): QueueSpan(0, 1000 if number < 2 else 0) for number in range(4)}
    assert diagnose_queues(queues, {"a": config(4, 2)}) == []


def test_every_problem_has_a_key_of_its_own_and_chinese() -> None:
    assert len({problem.key for problem in PROBLEMS}) == len(PROBLEMS)
    for problem in PROBLEMS:
        assert {problem.label, problem.advice} <= WORDS.keys()
