"""The conformance scenarios of a name server, as plays: each asks one server over raw sockets and notes the answers.

An `assert` here holds for Apache's server and for ours. What ours does better stands behind `stage.is_ours`; that the
two may differ there is said, with the reason, in the table of `test_scenarios.py`.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.peers.transcript import OUR_KEYS, PLACES, Stage, ids, properties_of
from tests.support.codes import (
    DELETE_KV,
    DELETE_TOPIC,
    FORBID_WRITES,
    GET_CLUSTERS,
    GET_CONFIG,
    GET_KV,
    GET_MEMBERS,
    GET_ROUTE,
    HEARTBEAT,
    LIST_KV,
    LIST_TOPICS,
    NO_TOPIC,
    NON_UNIT_SUBSCRIPTION_TOPICS,
    NOT_FOUND,
    NOTIFY_MIN_ID,
    PUT_KV,
    QUERY_VERSION,
    REGISTER,
    REGISTER_TOPIC,
    RESTORE_WRITES,
    SUCCESS,
    SYSTEM_TOPICS,
    TOPICS_OF_CLUSTER,
    UNIT_SUBSCRIPTION_TOPICS,
    UNIT_TOPICS,
    UPDATE_CONFIG,
)
from tests.support.raw import (
    ClosedError,
    DataVersion,
    RawConnection,
    Request,
    Topic,
    compact,
    encode,
    frame,
    loads,
    mapping,
)
from tests.support.waiting import wait_until

Play = Callable[[Stage], None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A play, and the settings under which it runs."""

    number: int
    title: str
    play: Play
    in_binary_too: bool
    settings: Mapping[str, str]

    def run(self, stage: Stage) -> None:
        with stage.settings(**self.settings):
            self.play(stage)


SCENARIOS: list[Scenario] = []


def scenario(number: int, title: str, *, in_binary_too: bool = True, **settings: str) -> Callable[[Play], Play]:
    def register(play: Play) -> Play:
        SCENARIOS.append(Scenario(number, title, play, in_binary_too, settings))
        return play

    return register


OLDER, NEWER = DataVersion(1), DataVersion(2)


@scenario(1, "a master registers, and registers again")
def master_registers(stage: Stage) -> None:
    line, master = stage.line(), stage.registration()
    assert stage.version_query("unknown-version", line, master, OLDER).fields == {"changed": "true"}
    registered = stage.ask("register", line, master)
    assert (registered.code, registered.fields) == (0, {})
    route = stage.route("route", line, "T1")
    assert ids(route) == {stage.name("a"): {"0": "127.0.0.1:10911"}}
    stage.ask("topics", line, LIST_TOPICS)
    assert stage.body("topics") == {"topicList": [stage.name("T1"), stage.name("T2")]}
    stage.ask("cluster", line, GET_CLUSTERS)
    assert stage.body("cluster")["clusterAddrTable"] == {stage.cluster: [stage.name("a")]}
    stage.ask("members", line, GET_MEMBERS, {"clusterName": stage.cluster, "brokerName": stage.name("a")})
    stage.ask(
        "members-by-another-cluster", line, GET_MEMBERS, {"clusterName": "elsewhere", "brokerName": stage.name("a")}
    )
    stage.ask("members-unknown", line, GET_MEMBERS, {"clusterName": stage.cluster, "brokerName": stage.name("nobody")})
    assert stage.ask("register-again", line, master).code == SUCCESS
    assert stage.route("route-again", line, "T1").text == route.text
    assert stage.version_query("same-version", line, master, OLDER).fields == {"changed": "false"}
    assert stage.version_query("newer-version", line, master, NEWER).fields == {"changed": "true"}
    stage.ask("no-version", line, QUERY_VERSION, master.identity)
    stage.ask("heartbeat", line, HEARTBEAT, master.identity)
    stage.ask("heartbeat-of-nobody", line, HEARTBEAT, master.but(address="127.0.0.9:1").identity)
    stage.route("no-such-topic", line, "T9")


@scenario(2, "a broker's first registration must not hold one topic alone")
def partial_first_registration(stage: Stage) -> None:
    line = stage.line()
    alone = stage.ask("one-topic", line, stage.registration(topics="T1"))
    assert (alone.code, alone.remark) == (1, "register broker failed")
    assert stage.route("route-after-refusal", line, "T1").code == NO_TOPIC
    stage.ask("cluster-after-refusal", line, GET_CLUSTERS)
    if stage.is_ours:
        assert stage.body("cluster-after-refusal") == {"brokerAddrTable": {}, "clusterAddrTable": {}}
    assert stage.ask("two-topics", line, stage.registration()).code == SUCCESS
    assert stage.ask("one-more", line, stage.registration(topics="T3", data_version=NEWER)).code == SUCCESS
    for topic in ("T1", "T2", "T3"):
        assert stage.route(f"route-{topic}", line, topic).code == SUCCESS
    no_topic = stage.registration("empty", 2, topics="")
    assert stage.ask("no-topic", line, no_topic).code == SUCCESS
    assert stage.members(line, "empty") == {"0": "127.0.0.2:10911"}


@scenario(3, "an old slave is told its master, and its topics are not recorded")
def old_slave(stage: Stage) -> None:
    line = stage.line()
    stage.ask("master", line, stage.registration(generation=4))
    slave = stage.registration(host=2, topics="T1 T2 T3", broker_id=1, generation=4)
    told = stage.ask("slave", line, slave)
    assert told.fields == {"masterAddr": "127.0.0.1:10911", "haServerAddr": "127.0.0.1:10912"}
    assert stage.route("only-at-slave", line, "T3").code == NO_TOPIC
    both = {"0": "127.0.0.1:10911", "1": "127.0.0.2:10911"}
    assert ids(stage.route("route", line, "T1")) == {stage.name("a"): both}
    stage.ask("cluster", line, GET_CLUSTERS)
    stage.ask("slave-without-master", line, stage.registration("b", 3, broker_id=1, generation=4))
    assert stage.route("route-legacy", line, "T1", version=399).code == SUCCESS


@scenario(4, "master and slave swap roles without acting master")
def role_swap(stage: Stage) -> None:
    line, a, b = stage.line(), stage.registration(), stage.registration(host=2, broker_id=1)
    line.call(a.request)
    line.call(b.request)
    assert stage.ask("unregister-a", line, a.unregistration).code == SUCCESS
    stage.until(lambda: stage.members(line) == {"1": "127.0.0.2:10911"}, "the slave is left")
    alone = stage.route("slave-alone", line, "T1")
    assert stage.perms(line, "T1") == {"a": 6}
    assert ids(alone) == {stage.name("a"): {"1": "127.0.0.2:10911"}}
    stage.ask("b-becomes-master", line, b.but(broker_id=0))
    assert ids(stage.route("b-master", line, "T1")) == {stage.name("a"): {"0": "127.0.0.2:10911"}}
    told = stage.ask("a-becomes-slave", line, a.but(broker_id=1))
    assert told.fields["masterAddr"] == "127.0.0.2:10911"
    swapped = {"0": "127.0.0.2:10911", "1": "127.0.0.1:10911"}
    assert ids(stage.route("swapped", line, "T1")) == {stage.name("a"): swapped}
    stage.ask("unregister-nobody", line, stage.registration("nobody", 9).unregistration)
    assert stage.ask("unregister-both-a", line, a.but(broker_id=1).unregistration).code == SUCCESS
    assert stage.ask("unregister-both-b", line, b.but(broker_id=0).unregistration).code == SUCCESS
    stage.gone(line)
    assert stage.route("both-gone", line, "T1").code == NO_TOPIC
    stage.ask("cluster-empty", line, GET_CLUSTERS)


@scenario(5, "a slave acts as master while the master is away", supportActingMaster="true")
def acting_master(stage: Stage) -> None:
    members_topic = f"rmq_sys_SYNC_BROKER_MEMBER_{stage.name('a')}"
    line, a = stage.line(), stage.registration(topics="T1 T2", acting=True)
    a = a.but(topics=(*a.topics, Topic(members_topic, 1, 1, perm=5)))
    b = a.but(address="127.0.0.2:10911", broker_id=1)
    stage.ask("a", line, a)
    stage.ask("b", line, b)
    assert stage.perms(line, "T1") == {"a": 6}
    line.call(a.unregistration)
    stage.until(lambda: stage.perms(line, "T1") == {"a": 4}, "the route loses its write bit")
    assert ids(stage.route("acting", line, "T1")) == {stage.name("a"): {"0": "127.0.0.2:10911"}}
    true_ids = stage.note("true-members", line.call(GET_ROUTE, {"topic": members_topic}), strict=True)
    assert ids(true_ids) == {stage.name("a"): {"1": "127.0.0.2:10911"}}
    stage.ask("cluster-while-acting", line, GET_CLUSTERS)
    stage.ask("b-again", line, b)
    stage.route("still-acting", line, "T1")
    stage.ask("a-returns", line, a)
    both = {"0": "127.0.0.1:10911", "1": "127.0.0.2:10911"}
    assert ids(stage.route("master-again", line, "T1")) == {stage.name("a"): both}
    assert stage.perms(line, "T1") == {"a": 6}


@scenario(6, "a slave alone: what its acting flag says decides")
def lone_slave(stage: Stage) -> None:
    line = stage.line()
    for number, (flag, perms) in enumerate([(True, {"true": 4}), (False, {"false": 6}), (None, {})], start=1):
        name = str(flag).lower()
        slave = stage.registration(name, number, f"T{name} U{name}", broker_id=1, acting=flag)
        assert stage.ask(f"register-{name}", line, slave).code == SUCCESS
        assert stage.perms(line, f"T{name}") == perms
        stage.route(f"route-{name}", line, f"T{name}")
        with stage.settings(supportActingMaster="true"):
            stage.route(f"route-{name}-acting-on", line, f"T{name}")
    stage.ask("cluster", line, GET_CLUSTERS)


@scenario(7, "two addresses claim one id: the larger state version wins")
def state_version(stage: Stage) -> None:
    line, old = stage.line(), stage.registration(data_version=DataVersion(1, state=5))
    line.call(old.request)
    newcomer = old.but(address="127.0.0.2:10911", data_version=DataVersion(2, state=4))
    refused = stage.ask("smaller", line, newcomer)
    assert (refused.code, refused.fields) == (0, {})
    assert ids(stage.route("kept", line, "T1")) == {stage.name("a"): {"0": "127.0.0.1:10911"}}
    stage.version_query("refused-is-unknown", line, newcomer, newcomer.data_version)
    equal = newcomer.but(data_version=DataVersion(2, state=5))
    stage.ask("equal", line, equal)
    assert ids(stage.route("replaced", line, "T1")) == {stage.name("a"): {"0": "127.0.0.2:10911"}}
    stage.ask("larger", line, old.but(data_version=DataVersion(3, state=6)))
    stage.route("replaced-again", line, "T1")
    stage.version_query("loser", line, equal, equal.data_version)


@scenario(8, "the checksum is checked when there is one")
def checksum(stage: Stage) -> None:
    line, right = stage.line(), stage.registration()
    wrong = stage.ask("wrong", line, right.but(crc=12345))
    assert (wrong.code, wrong.remark) == (1, "crc32 not match")
    assert stage.route("nothing-registered", line, "T1").code == NO_TOPIC
    assert stage.ask("zero", line, right.but(crc=0)).code == SUCCESS
    assert stage.ask("right", line, right).code == SUCCESS
    stage.route("registered", line, "T1")
    empty = right.request
    stage.ask("no-body-but-a-checksum", line, Request(REGISTER, {**empty.fields, "bodyCrc32": "7"}))
    stage.ask("no-body-no-checksum", line, Request(REGISTER, {**empty.fields, "bodyCrc32": "0"}))


@scenario(9, "compressed registrations, one of them mislabelled", returnOrderTopicConfigToBroker="false")
def compressed(stage: Stage) -> None:
    line = stage.line()
    static = {stage.name("S"): mapping(stage.name("S"), stage.name("five"), 2)}
    four = stage.registration("four", 1, "F1 F2", generation=4, deflate=True)
    assert stage.ask("four", line, four).code == SUCCESS
    assert stage.route("route-four", line, "F1").code == SUCCESS
    five = stage.registration("five", 2, "V1 V2 S", deflate=True, mappings=static, filter_servers=["127.0.0.2:5"])
    assert stage.ask("five", line, five).code == SUCCESS
    stage.route("route-five", line, "V1")
    assert "topicQueueMappingByBroker" in stage.route("route-static", line, "S").value
    stage.route("route-static-legacy", line, "S", version=399)
    plain = five.but(broker=stage.name("plain"), address="127.0.0.3:10911", deflate=False)
    assert stage.ask("bare-keys-in-json", line, plain).code == SUCCESS
    three = stage.registration("three", 5, "Y1 Y2", generation=3)
    assert stage.ask("generation-three", line, three).code == SUCCESS
    stage.route("route-generation-three", line, "Y1")
    lied = stage.registration("lied", 4, "L1 L2", deflate=True, flag_compressed=False)
    answer = stage.ask("zlib-flagged-plain", line, lied)
    if stage.is_ours:
        assert answer.code == SUCCESS
    stage.route("route-zlib-flagged-plain", line, "L1")


@scenario(10, "write permission is wiped, survives heartbeats, and comes back")
def write_permission(stage: Stage) -> None:
    line, a, b = stage.line(), stage.registration(), stage.registration("b", 2)
    line.call(a.request)
    line.call(b.request)
    wiped = stage.ask("wipe", line, FORBID_WRITES, {"brokerName": stage.name("a")})
    assert wiped.fields == {"wipeTopicCount": "2"}
    stage.route("wiped", line, "T1")
    assert stage.perms(line, "T1") == {"a": 4, "b": 6}
    line.call(a.request)
    assert stage.perms(line, "T1") == {"a": 4, "b": 6}
    stage.route("after-heartbeat", line, "T1")
    line.call(a.but(data_version=NEWER).request)
    assert stage.perms(line, "T1") == {"a": 6, "b": 6}
    stage.route("after-new-version", line, "T1")
    stage.ask("wipe-again", line, FORBID_WRITES, {"brokerName": stage.name("a")})
    added = stage.ask("add", line, RESTORE_WRITES, {"brokerName": stage.name("a")})
    assert added.fields == {"addTopicCount": "2"}
    stage.route("added", line, "T1")
    assert stage.perms(line, "T1") == {"a": 6, "b": 6}
    assert stage.ask("wipe-nobody", line, FORBID_WRITES, {"brokerName": stage.name("x")}).fields == {
        "wipeTopicCount": "0"
    }
    assert stage.ask("add-nobody", line, RESTORE_WRITES, {"brokerName": stage.name("x")}).fields == {
        "addTopicCount": "0"
    }
    odd = stage.registration("odd", 3).but(topics=stage.topics("P1", "P2", perm=13))
    line.call(odd.request)
    stage.ask("add-to-inherited", line, RESTORE_WRITES, {"brokerName": stage.name("odd")})
    stage.route("added-to-inherited", line, "P1")


@scenario(11, "a closed connection takes its brokers with it, at once")
def closed_connection(stage: Stage) -> None:
    asker = stage.line()
    alone = stage.line()
    alone.call(stage.registration().request)
    assert stage.members(asker) == {"0": "127.0.0.1:10911"}
    alone.close()
    closed_at = time.monotonic()
    stage.gone(asker)
    assert time.monotonic() - closed_at < 1.0
    assert stage.route("route", asker, "T1").code == NO_TOPIC
    stage.ask("cluster", asker, GET_CLUSTERS)
    stage.ask("topics", asker, LIST_TOPICS)
    assert stage.body("topics") == {"topicList": []}

    container = stage.line()
    for name, host in (("one", 1), ("two", 2)):
        container.call(stage.registration(name, host, f"C{name} D{name}").request)
    marker = stage.line()
    marker.call(stage.registration("marker", 3, "M1 M2").request)
    container.close()
    marker.close()  # connections end in this order, so once the second has left, the first has been dealt with
    stage.gone(asker, "marker")
    left = sum(bool(stage.members(asker, name)) for name in ("one", "two"))
    stage.remember("brokers-left-of-two", left)
    if stage.is_ours:
        assert left == 0


@scenario(12, "the close of an old connection does not harm a broker that moved to a new one")
def moved_connection(stage: Stage) -> None:
    old, new, marker = stage.line(), stage.line(), stage.line()
    old.call(stage.registration().request)
    stage.ask("register-anew", new, stage.registration())
    marker.call(stage.registration("marker", 3, "M1 M2").request)
    old.close()
    marker.close()
    stage.gone(new, "marker")
    assert stage.members(new) == {"0": "127.0.0.1:10911"}
    stage.route("still-there", new, "T1")
    stage.ask("cluster", new, GET_CLUSTERS)


@scenario(13, "a silent broker leaves after its own time-out; one-way heartbeats keep the others", in_binary_too=False)
def heartbeats(stage: Stage) -> None:
    silent_line, asker = stage.line(), stage.line()
    silent = stage.registration("silent", 1, heartbeat_ms=3000)
    queries = stage.registration("queries", 2, heartbeat_ms=3000)
    beats = stage.registration("beats", 3, heartbeat_ms=3000)
    started = time.monotonic()
    silent_line.call(silent.request)
    asker.call(queries.request)
    asker.call(beats.request)
    counter = 10

    def beat_and_look() -> bool:
        nonlocal counter
        counter += 1
        asker.send_oneway(QUERY_VERSION, queries.identity, compact(DataVersion(counter).wire()).encode())
        asker.send_oneway(HEARTBEAT, beats.identity)
        return not stage.members(asker, "silent")

    wait_until(beat_and_look, timeout_s=12, what="the silent broker leaves")
    assert time.monotonic() - started > 3.0
    assert silent_line.is_closed_by_peer()
    stage.ask("cluster", asker, GET_CLUSTERS)
    assert set(stage.body("cluster")["brokerAddrTable"]) == {stage.name("queries"), stage.name("beats")}
    assert not asker.strays
    stage.version_query("version-is-as-registered", asker, queries, OLDER)


@scenario(14, "a topic is deleted in one cluster, then everywhere")
def delete_topic(stage: Stage) -> None:
    line = stage.line()
    line.call(stage.registration().request)
    other = stage.registration("b", 2).but(cluster=stage.name("other"))
    line.call(other.request)
    stage.ask("unknown-cluster", line, DELETE_TOPIC, {"topic": stage.name("T1"), "clusterName": stage.name("x")})
    assert stage.perms(line, "T1") == {"a": 6, "b": 6}
    stage.ask("in-cluster", line, DELETE_TOPIC, {"topic": stage.name("T1"), "clusterName": stage.cluster})
    assert stage.perms(line, "T1") == {"b": 6}
    stage.route("other-cluster-left", line, "T1")
    stage.ask("everywhere", line, DELETE_TOPIC, {"topic": stage.name("T2")})
    assert stage.route("nowhere", line, "T2").code == NO_TOPIC
    stage.ask("in-last-cluster", line, DELETE_TOPIC, {"topic": stage.name("T1"), "clusterName": stage.name("other")})
    assert stage.route("last-cluster", line, "T1").code == NO_TOPIC
    stage.ask("unknown-topic", line, DELETE_TOPIC, {"topic": stage.name("T9")})
    line.call(other.request)
    stage.route("back-with-the-next-registration", line, "T1")
    assert stage.perms(line, "T1") == {"b": 6}


@scenario(15, "with deleteTopicWithBrokerRegistration a topic that is missing next time is dropped for that broker")
def delete_with_registration(stage: Stage) -> None:
    line, a, b = stage.line(), stage.registration(topics="T1 T2 T3"), stage.registration("b", 2, "T1 T2 T3")
    line.call(a.request)
    line.call(b.request)
    fewer = a.but(topics=stage.topics("T1", "T2"), data_version=NEWER)
    line.call(fewer.request)
    assert stage.perms(line, "T3") == {"a": 6, "b": 6}
    with stage.settings(deleteTopicWithBrokerRegistration="true"):
        static = {stage.name("T1"): mapping(stage.name("T1"), stage.name("a"), 1)}
        line.call(fewer.but(mappings=static).request)
        assert stage.perms(line, "T3") == {"a": 6, "b": 6}
        stage.ask("fewer", line, fewer)
        assert stage.perms(line, "T3") == {"b": 6}
        stage.route("left-at-b", line, "T3")
        line.call(b.but(topics=stage.topics("T1", "T2"), data_version=NEWER).request)
        assert stage.route("left-nowhere", line, "T3").code == NO_TOPIC


@scenario(16, "a topic alone is registered for brokers that are known")
def register_topic(stage: Stage) -> None:
    def body(*names: str) -> bytes:
        queue = {"perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4}
        queues = [{"brokerName": stage.name(name), **queue} for name in names]
        return compact({"brokerDatas": [], "filterServerTable": {}, "queueDatas": queues}).encode()

    line = stage.line()
    assert stage.ask("unknown-broker", line, REGISTER_TOPIC, {"topic": stage.name("N1")}, body("a")).code == SUCCESS
    assert stage.route("no-route", line, "N1").code == NO_TOPIC
    line.call(stage.registration().request)
    line.call(stage.registration("b", 2).request)
    assert stage.ask("known-broker", line, REGISTER_TOPIC, {"topic": stage.name("N1")}, body("a")).code == SUCCESS
    assert stage.route("route", line, "N1").code == SUCCESS
    stage.ask("second-broker", line, REGISTER_TOPIC, {"topic": stage.name("N1")}, body("b"))
    stage.route("route-of-two", line, "N1")
    stage.ask("one-of-two-known", line, REGISTER_TOPIC, {"topic": stage.name("N2")}, body("a", "x"))
    stage.route("all-or-nothing-when-new", line, "N2")
    stage.ask("known-then-unknown", line, REGISTER_TOPIC, {"topic": stage.name("T1")}, body("b", "x"))
    stage.route("known-part-stays", line, "T1")
    stage.ask("no-queues", line, REGISTER_TOPIC, {"topic": stage.name("N3")}, body())
    assert stage.route("no-queues-no-route", line, "N3").code == NO_TOPIC


@scenario(17, "settings change at run time, but not those on the black list")
def settings_at_run_time(stage: Stage) -> None:
    line = stage.line()

    def value(key: str) -> str | None:
        return properties_of(line.call(GET_CONFIG).text).get(key)

    def update(step: str, text: str) -> int:
        return stage.ask(step, line, UPDATE_CONFIG, body=text.encode()).code

    for key in ("configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"):
        assert update(f"forbidden-{key}", f"{key}=elsewhere\nproductEnvName=changed\n") == 16
    assert value("productEnvName") == "center"
    assert update("unknown-key", f"{stage.name('key')}=1\n") == 0
    stage.remember("unknown-key-is-listed", value(stage.name("key")))
    before = value("waitSecondsForService")
    update("bad-number", "waitSecondsForService=soon\n")
    assert value("waitSecondsForService") == before
    update("bad-boolean", "enableTopicList=yes\n")
    stage.remember("bad-boolean-reads", value("enableTopicList"))
    update("good-boolean", "enableTopicList=true\n")
    assert update("good", f"productEnvName={stage.name('env')}\nnotifyMinBrokerIdChanged=true\n") == 0
    assert value("productEnvName") == stage.name("env")
    on_disk = properties_of(stage.server.config_file.read_text())
    assert on_disk["productEnvName"] == stage.name("env")
    assert on_disk["notifyMinBrokerIdChanged"] == "true"
    assert stage.server.config_file.with_name("namesrv.properties.bak").exists()
    assert update("put-back", "productEnvName=center\nnotifyMinBrokerIdChanged=false\n") == 0
    assert update("empty", "") == 0
    assert update("comment-only", "# nothing\n") == 0
    stage.note("listed", reply := line.call(GET_CONFIG), body=_comparable_settings(reply.text))
    if stage.is_ours:
        assert properties_of(reply.text).keys() >= OUR_KEYS
    lines = reply.text.splitlines()
    assert lines == sorted(lines, key=lambda text: text.split("=", 1)[0])
    for key in ("enableAllTopicList", "enableTopicList"):
        with stage.settings(**{key: "false"}):
            for code in (
                LIST_TOPICS,
                TOPICS_OF_CLUSTER,
                UNIT_TOPICS,
                UNIT_SUBSCRIPTION_TOPICS,
                NON_UNIT_SUBSCRIPTION_TOPICS,
            ):
                stage.ask(f"{key}-off-{code}", line, code, {"cluster": stage.cluster})


def _comparable_settings(text: str) -> dict[str, str]:
    """Everything that 319 lists, but for what is ours alone and what is a place: a path, a port."""
    return {key: value for key, value in properties_of(text).items() if key not in OUR_KEYS | PLACES}


@scenario(18, "key-value settings survive a restart, and ordered topics are told to brokers", in_binary_too=False)
def kv_config(stage: Stage) -> None:
    line = stage.line()
    space, order = stage.name("space"), "ORDER_TOPIC_CONFIG"
    stage.ask("get-unknown", line, GET_KV, {"namespace": space, "key": "k"})
    stage.ask("list-unknown", line, LIST_KV, {"namespace": space})
    for key, value in (("k", "v"), ("text", 'a "b" \\ / ü 中 =;')):
        assert stage.ask(f"put-{key}", line, PUT_KV, {"namespace": space, "key": key, "value": value}).code == SUCCESS
        assert stage.ask(f"get-{key}", line, GET_KV, {"namespace": space, "key": key}).fields == {"value": value}
    listed = line.call(LIST_KV, {"namespace": space})
    stage.note("list", listed, body=listed.value)
    ordered = {"namespace": order, "key": stage.name("T1")}
    stage.ask("put-order", line, PUT_KV, {**ordered, "value": f"{stage.name('a')}:4"})
    stage.remember("file", loads(stage.server.kv_file.read_text())["configTable"][space])

    stage.server.restart()
    line = stage.line()
    assert stage.ask("get-after-restart", line, GET_KV, {"namespace": space, "key": "k"}).fields == {"value": "v"}
    stage.ask("register", line, stage.registration())
    assert stage.body("register") == {"table": {stage.name("T1"): f"{stage.name('a')}:4"}}
    assert "orderTopicConf" not in stage.route("order-off", line, "T1").value
    with stage.settings(orderMessageEnable="true"):
        assert stage.route("order-on", line, "T1").value["orderTopicConf"] == f"{stage.name('a')}:4"
        assert "orderTopicConf" not in stage.route("order-on-other-topic", line, "T2").value
    with stage.settings(returnOrderTopicConfigToBroker="false"):
        assert not stage.ask("register-untold", line, stage.registration()).body

    for key in ("k", "text"):
        stage.ask(f"delete-{key}", line, DELETE_KV, {"namespace": space, "key": key})
    assert stage.ask("get-deleted", line, GET_KV, {"namespace": space, "key": "k"}).code == NOT_FOUND
    stage.ask("list-empty", line, LIST_KV, {"namespace": space})
    stage.ask("delete-deleted", line, DELETE_KV, {"namespace": space, "key": "k"})
    stage.ask("delete-in-unknown", line, DELETE_KV, {"namespace": stage.name("nowhere"), "key": "k"})
    stage.ask("delete-order", line, DELETE_KV, ordered)


@scenario(19, "the dialect of a route follows the asker")
def dialects(stage: Stage) -> None:
    line = stage.line()
    zone = "z/1\u4e2d\"x\\\xe9\U0001f600<>&'"
    members = [stage.registration(host=host, broker_id=number, zone=zone) for number, host in enumerate((1, 2, 12))]
    for member in [*members, stage.registration(host=11, broker_id=10, zone=zone)]:
        line.call(member.request)
    legacy = stage.route("version-399", line, "T1", version=399)
    assert '{0:"' in legacy.text
    assert stage.route("version-0", line, "T1", version=0).text == legacy.text
    assert stage.route("go-client", line, "T1", version=317).text == legacy.text
    strict = stage.route("version-401", line, "T1", version=401)
    assert '{"0":"' in strict.text
    for step, said in (("asked-for", "true"), ("asked-for-in-capitals", "TRUE")):
        asked = stage.route(step, line, "T1", version=317, acceptStandardJsonOnly=said)
        assert asked.text == strict.text
    assert stage.route("not-asked-for", line, "T1", version=317, acceptStandardJsonOnly="1").text == legacy.text
    assert '"zoneName":"z/1\u4e2d\\"x' in legacy.text
    if not stage.is_ours:  # fastjson, up to 5.3, wrote `z\\/1\\u4E2D` here; fastjson2, in 5.5.0, leaves it as it is
        assert '"zoneName":"z/1\u4e2d\\"x' in strict.text
    stage.ask("cluster-is-legacy", line, GET_CLUSTERS)
    stage.ask("members-are-legacy", line, GET_MEMBERS, {"clusterName": stage.cluster, "brokerName": stage.name("a")})


@scenario(20, "a zone sees its own brokers, and those without a master")
def zones(stage: Stage) -> None:
    line = stage.line()
    line.call(stage.registration("a", 1, zone="z1", filter_servers=["127.0.0.1:7"]).request)
    line.call(stage.registration("b", 2, zone="z2", filter_servers=["127.0.0.2:7"]).request)
    orphan = stage.registration("c", 3, zone="z2", broker_id=1, acting=False)
    line.call(orphan.request)
    zone = {"__ZONE_MODE": "true", "__ZONE_NAME": "z1"}
    stage.route("no-zone", line, "T1")
    near = stage.note("zone", line.call(GET_ROUTE, {"topic": stage.name("T1"), **zone}))
    assert set(ids(near)) == {stage.name("a"), stage.name("c")}
    capitals = line.call(GET_ROUTE, {"topic": stage.name("T1"), "__ZONE_MODE": "TRUE", "__ZONE_NAME": "Z1"})
    assert set(ids(stage.note("zone-in-capitals", capitals))) == {stage.name("a"), stage.name("c")}
    stage.note("zone-elsewhere", line.call(GET_ROUTE, {"topic": stage.name("T1"), **zone, "__ZONE_NAME": "z3"}))
    stage.note("zone-mode-off", line.call(GET_ROUTE, {"topic": stage.name("T1"), **zone, "__ZONE_MODE": "false"}))
    stage.note("zone-blank", line.call(GET_ROUTE, {"topic": stage.name("T1"), **zone, "__ZONE_NAME": " "}))
    stage.note("zone-without-name", line.call(GET_ROUTE, {"topic": stage.name("T1"), "__ZONE_MODE": "true"}))
    stage.note("zone-no-route", line.call(GET_ROUTE, {"topic": stage.name("T9"), **zone}))
    legacy = Request(GET_ROUTE, {"topic": stage.name("T1"), **zone}, version=399)
    stage.note("zone-legacy", line.call(legacy))


@scenario(21, "a server that tells routes cannot be made to wait again from afar")
def readiness(stage: Stage) -> None:
    line = stage.line()
    assert stage.ask("register", line, stage.registration()).code == SUCCESS
    wait = stage.ask("wait", line, UPDATE_CONFIG, body=b"needWaitForService=true\nwaitSecondsForService=3600\n")
    if stage.is_ours:
        assert "needWaitForService=true is refused" in (wait.remark or "")
        assert stage.line().call(GET_ROUTE, {"topic": stage.name("T1")}).code == SUCCESS
    stage.ask("cluster", line, GET_CLUSTERS)
    assert (
        stage.ask("put-back", line, UPDATE_CONFIG, body=b"needWaitForService=false\nwaitSecondsForService=45\n").code
        == SUCCESS
    )
    assert stage.route("never-asked-to-wait", line, "T1").code == SUCCESS


@scenario(22, "an unknown code is refused, one-way it is ignored")
def unknown_code(stage: Stage) -> None:
    line = stage.line()
    refused = stage.ask("unknown", line, 9999)
    assert (refused.code, refused.remark) == (3, " request type 9999 not supported")
    for step, code in (("zero", 0), ("of-a-broker", 10), ("of-a-controller", 1005), ("negative", -5)):
        stage.ask(step, line, code)
    line.send_oneway(9999)
    line.send_oneway(GET_ROUTE, {"topic": stage.name("T9")})
    line.send_oneway(stage.registration(topics="T1").request)
    stage.ask("after-one-way", line, LIST_TOPICS)
    stage.ask("after-one-way-2", line, LIST_TOPICS)
    line.write(encode(Request(0), 77, flag=1))
    stage.ask("after-a-reply-nobody-asked-for", line, LIST_TOPICS)
    assert not line.strays


@scenario(23, "the system list names clusters and brokers; an unknown cluster has no topics")
def system_topics(stage: Stage) -> None:
    line = stage.line()
    line.call(stage.registration().request)
    line.call(stage.registration("b", 2, "T2 T3").but(cluster=stage.name("other")).request)
    reply = line.call(SYSTEM_TOPICS)
    names = sorted(name for name in reply.value["topicList"] if name.startswith(stage.prefix))
    has_address = ":" in reply.value["brokerAddr"]
    stage.note("system-topics", reply, body={"topicList": names, "has an address": has_address})
    assert names == [stage.name("a"), stage.name("b"), stage.name("cluster"), stage.name("other")]
    assert has_address
    for cluster in ("cluster", "other", "unknown"):
        stage.ask(f"topics-of-{cluster}", line, TOPICS_OF_CLUSTER, {"cluster": stage.name(cluster)})
    assert stage.body("topics-of-other") == {"topicList": [stage.name("T2"), stage.name("T3")]}
    assert stage.body("topics-of-unknown") == {"topicList": []}


@scenario(24, "unit lists go by the system flag, which the compressed form does not carry")
def unit_lists(stage: Stage) -> None:
    line = stage.line()
    flagged = stage.registration()
    flagged = flagged.but(topics=tuple(stage.topics(f"U{flag}", sys_flag=flag)[0] for flag in range(4)))
    lists = {UNIT_TOPICS: ["U1", "U3"], UNIT_SUBSCRIPTION_TOPICS: ["U2", "U3"], NON_UNIT_SUBSCRIPTION_TOPICS: ["U2"]}
    line.call(flagged.request)
    for code, expected in lists.items():
        stage.ask(f"json-{code}", line, code)
        assert stage.body(f"json-{code}") == {"topicList": [stage.name(topic) for topic in expected]}
    stage.route("json-route", line, "U3")
    line.call(flagged.unregistration)
    stage.gone(line)
    line.call(flagged.but(deflate=True).request)
    for code in lists:
        stage.ask(f"compressed-{code}", line, code)
        assert stage.body(f"compressed-{code}") == {"topicList": []}


@scenario(25, "members are told when their smallest id changes", notifyMinBrokerIdChanged="true")
def smallest_id(stage: Stage) -> None:
    line = stage.line()
    listeners = [stage.listener(f"address-{number}") for number in range(3)]
    members = [
        stage.registration().but(address=listener.address, ha_address=f"ha-{number}", broker_id=number, acting=True)
        for number, listener in enumerate(listeners)
    ]
    for member in members:
        line.call(member.request)
    line.call(members[0].unregistration)
    for number in (1, 2):
        told = stage.note(f"master-left-told-{number}", listeners[number].receive())
        assert (told.code, told.is_one_way) == (NOTIFY_MIN_ID, True)
        assert told.fields["minBrokerId"] == "1"
        assert told.fields["offlineBrokerAddr"] == listeners[0].address
    line.call(members[0].request)
    for number in (1, 2):
        told = stage.note(f"master-back-told-{number}", listeners[number].receive())
        assert told.fields["haBrokerAddr"] == "ha-0"
        assert (told.fields["minBrokerId"], told.fields["minBrokerAddr"]) == ("0", listeners[0].address)


# ------------------------------------------------------------------------- beyond the list: what peers do get wrong


@scenario(26, "requests that lack a field", returnOrderTopicConfigToBroker="false")
def missing_fields(stage: Stage) -> None:
    line, full = stage.line(), stage.registration()
    space = stage.name("space")
    stage.ask("route-without-topic", line, GET_ROUTE)
    stage.ask("delete-without-topic", line, DELETE_TOPIC)
    stage.ask("register-topic-without-topic", line, REGISTER_TOPIC, body=b'{"queueDatas":[]}')
    stage.ask("put-without-namespace", line, PUT_KV, {"key": "k", "value": "v"})
    stage.ask("put-without-key", line, PUT_KV, {"namespace": space, "value": "v"})
    stage.ask("put-without-value", line, PUT_KV, {"namespace": space, "key": "k"})
    stage.ask("get-without-namespace", line, GET_KV, {"key": "k"})
    stage.ask("delete-kv-without-key", line, DELETE_KV, {"namespace": space})
    stage.ask("list-without-namespace", line, LIST_KV)
    stage.ask("cluster-topics-without-cluster", line, TOPICS_OF_CLUSTER)
    stage.ask("wipe-without-brokerName", line, FORBID_WRITES)
    stage.ask("add-without-brokerName", line, RESTORE_WRITES)
    stage.ask("members-without-brokerName", line, GET_MEMBERS, {"clusterName": stage.cluster})
    said = full.request.fields
    for field in ("brokerName", "brokerAddr", "clusterName", "brokerId"):
        stage.ask(f"register-without-{field}", line, Request(REGISTER, _without(said, field), full.body))
    word = Request(REGISTER, {**said, "brokerId": "x"}, full.body)
    stage.ask("register-without-brokerId-but-a-word", line, word)
    for field in ("brokerAddr", "clusterName"):
        stage.ask(f"beat-without-{field}", line, HEARTBEAT, _without(full.identity, field))
        version = compact(OLDER.wire()).encode()
        stage.ask(f"query-without-{field}", line, QUERY_VERSION, _without(full.identity, field), version)
    if stage.is_ours:
        for step, noted in stage.steps.items():
            assert noted["code"] == 1, step
            assert step.split("-without-")[1].split("-")[0] in noted["remark"], step
    without = Request(REGISTER, _without(said, "haServerAddr"), full.body)
    assert stage.ask("register-without-haServerAddr", line, without).code == SUCCESS
    stage.ask("slave-of-a-master-without-haServerAddr", line, full.but(address="127.0.0.2:10911", broker_id=1))


def _without(fields: Mapping[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in fields.items() if key != name}


@scenario(27, "registrations whose body is broken", returnOrderTopicConfigToBroker="false")
def broken_bodies(stage: Stage) -> None:
    line, good = stage.line(), stage.registration()
    deflated = good.but(deflate=True).body
    bodies = {
        "not-json": b"hello",
        "cut-json": good.body[:-20],
        "a-list": b"[]",
        "empty-object": b"{}",
        "null-table": b'{"filterServerList":[],"topicConfigSerializeWrapper":{"topicConfigTable":null}}',
        "not-zlib": good.body,
        "cut-zlib": deflated[:-9],
        "zlib-with-more-behind": deflated + b"more",
    }
    for number, (step, body) in enumerate(bodies.items(), start=1):
        fields = {**stage.registration(step, number).request.fields, "bodyCrc32": "0"}
        fields["compressed"] = "true" if "zlib" in step else "false"
        stage.ask(step, line, Request(REGISTER, fields, body))
        stage.remember(f"{step}-is-registered", bool(stage.members(line, step)))


@scenario(28, "headers that other languages write", in_binary_too=False)
def odd_headers(stage: Stage) -> None:
    texts = {
        "numbers-as-text": '{"code":"206","version":"479","opaque":"5","flag":"0","language":"GO"}',
        "fraction": '{"code":206.0,"version":479,"opaque":5,"flag":0,"language":"JAVA"}',
        "nulls": '{"code":206,"version":null,"opaque":5,"flag":null,"language":null,"remark":null,"extFields":null}',
        "language-as-number": '{"code":206,"opaque":5,"language":9}',
        "language-in-small": '{"code":206,"opaque":5,"language":"java"}',
        "language-unknown": '{"code":206,"opaque":5,"language":"COBOL"}',
        "blanks": ' { "code" : 206 , "opaque" : 5 } ',
        "unknown-members": '{"code":206,"opaque":5,"suspended":true,"more":{"x":[1]}}',
        "fields-not-text": '{"code":105,"opaque":5,"extFields":{"topic":7,"x":true,"y":null,"z":{"a":1}}}',
        "without-opaque": '{"code":206}',
        "negative-opaque": '{"code":206,"opaque":-5}',
        "single-quotes": "{'code':206,'opaque':5}",
        "bare-names": "{code:206,opaque:5}",
        "comma-at-the-end": '{"code":206,"opaque":5,}',
        "language-out-of-range": '{"code":206,"opaque":5,"language":99}',
        "text-behind": '{"code":206,"opaque":5}x',
        "blank-number": '{"code":206,"opaque":5,"version":""}',
    }
    for step, text in texts.items():
        line = stage.line()
        line.write(frame(text.encode()))
        try:
            command = line.receive()
        except ClosedError:
            stage.remember(step, "closed")
            continue
        # Java numbers a command that has no number from a counter of its own.
        opaque = command.opaque if "opaque" in text else "any"
        stage.remember(step, {"code": command.code, "remark": command.remark, "opaque": opaque})


LARGEST_FRAME = 16_777_212  # as the first word counts it


@scenario(29, "frames that end a connection", in_binary_too=False)
def fatal_frames(stage: Stage) -> None:
    frames = {
        "empty-header": frame(b""),
        "header-is-null": frame(b"null"),
        "header-is-a-list": frame(b"[]"),
        "header-is-garbage": frame(b"hello"),
        "header-longer-than-frame": b"\x00\x00\x00\x08\x00\x00\x00\x40abcd",
        "length-too-small": b"\x00\x00\x00\x03" + b"\x00" * 20,
        "length-too-large": b"\x00\xff\xff\xfd" + b"\x00" * 20,
        "unknown-kind": frame(b'{"code":206,"opaque":5}', kind=7),
        "code-too-large": frame(b'{"code":99999999999,"opaque":5}'),
        "fields-are-a-list": frame(b'{"code":206,"opaque":5,"extFields":[]}'),
        "binary-cut": frame(b"\x00\x69\x00", kind=1),
        "binary-remark-too-long": frame(bytes(13) + b"\x7f\xff\xff\xff" + bytes(4), kind=1),
        "binary-fields-too-long": frame(bytes(17) + b"\x00\x00\x01\x00", kind=1),
    }
    openings = {
        "tls-without-a-handshake": b"\x16" * 64,
        "proxy-v1-broken": b"PROXY nonsense nonsense\r\n" + frame(b'{"code":206,"opaque":5}'),
    }
    for step, data in (frames | openings).items():
        line = stage.line()
        if step in frames:  # nothing is decided on fewer than twelve bytes, and some of these are shorter
            assert line.call(LIST_TOPICS).code == SUCCESS
        line.write(data)
        stage.remember(step, {"closed": line.is_closed_by_peer(), "answers": len(line.strays)})
    line, header = stage.line(), b'{"code":206,"opaque":5}'
    line.write(frame(header, bytes(LARGEST_FRAME - 4 - len(header))))
    stage.note("largest-frame", line.receive())


@scenario(30, "a connection may begin with a PROXY header", in_binary_too=False)
def proxy_header(stage: Stage) -> None:
    v2 = b"\r\n\r\n\x00\r\nQUIT\n" + b"\x21\x11\x00\x0c" + bytes([10, 0, 0, 1, 10, 0, 0, 2]) + b"\x12\x34\x26\x94"
    prologues = {
        "v1": b"PROXY TCP4 10.0.0.1 10.0.0.2 4660 9876\r\n",
        "v1-unknown": b"PROXY UNKNOWN\r\n",
        "v2": v2,
        "v2-local": b"\r\n\r\n\x00\r\nQUIT\n" + b"\x20\x00\x00\x00",
    }
    for step, prologue in prologues.items():
        line = stage.line()
        line.write(prologue)
        assert stage.ask(step, line, LIST_TOPICS).code == SUCCESS


@scenario(31, "a broker moves: same name in another cluster, and a new address for an old id")
def moves(stage: Stage) -> None:
    line, a = stage.line(), stage.registration()
    line.call(a.request)
    stage.ask("new-address", line, a.but(address="127.0.0.7:10911"))
    stage.ask("cluster-after-move", line, GET_CLUSTERS)
    elsewhere = a.but(cluster=stage.name("elsewhere"), address="127.0.0.7:10911")
    stage.ask("new-cluster", line, elsewhere)
    stage.ask("cluster-after-rename", line, GET_CLUSTERS)
    stage.route("route-after-rename", line, "T1")
    for step, cluster in (("old", stage.cluster), ("new", stage.name("elsewhere"))):
        stage.ask(f"topics-of-{step}-cluster", line, TOPICS_OF_CLUSTER, {"cluster": cluster})


@scenario(32, "static topics and filter servers appear in routes")
def extras_of_routes(stage: Stage) -> None:
    line = stage.line()
    static = {stage.name("S"): mapping(stage.name("S"), stage.name("a"), 3)}
    a = stage.registration(topics="S T1", mappings=static, filter_servers=["127.0.0.1:7", "127.0.0.1:8"])
    line.call(a.request)
    assert "topicQueueMappingByBroker" in stage.route("static", line, "S").value
    stage.route("static-legacy", line, "S", version=399)
    assert "topicQueueMappingByBroker" not in stage.route("plain", line, "T1").value
    line.call(a.but(filter_servers=[]).request)
    assert stage.route("filters-removed", line, "T1").value["filterServerTable"] == {}
    changed = {stage.name("S"): mapping(stage.name("S"), stage.name("a"), 2, epoch=1_758_275_150_000)}
    line.call(a.but(mappings=changed).request)
    stage.route("same-version-keeps-mapping", line, "S")
    line.call(a.but(mappings=changed, data_version=NEWER).request)
    stage.route("new-version-merges-mapping", line, "S")
    stage.ask("delete", line, DELETE_TOPIC, {"topic": stage.name("S")})
    assert stage.route("deleted", line, "S").code == NO_TOPIC
    line.call(a.but(mappings={}, data_version=DataVersion(3)).request)
    stage.route("plain-after-delete", line, "S")


@scenario(33, "a large table comes in pieces", in_binary_too=False)
def split_registration(stage: Stage) -> None:
    line = stage.line()
    names = [f"P{number:04}" for number in range(2000)]
    whole = stage.registration()
    for start in range(0, len(names), 800):
        chunk = stage.topics(*names[start : start + 800])
        assert line.call(whole.but(topics=chunk).request).code == SUCCESS
    stage.ask("topics", line, TOPICS_OF_CLUSTER, {"cluster": stage.cluster})
    assert len(stage.body("topics")["topicList"]) == len(names)
    assert stage.ask("wipe", line, FORBID_WRITES, {"brokerName": stage.name("a")}).fields == {"wipeTopicCount": "2000"}
    stage.route("last", line, names[-1])


@scenario(34, "a registration that was overtaken by a newer one")
def overtaken(stage: Stage) -> None:
    line, other_line = stage.line(), stage.line()
    old = stage.registration(data_version=DataVersion(5))
    line.call(old.but(topics=stage.topics("T1", "T2", read=16), data_version=DataVersion(6)).request)
    assert stage.ask("older-on-the-same-line", line, old).code == SUCCESS
    late = stage.route("route", line, "T1")
    if stage.is_ours:
        assert late.value["queueDatas"][0]["readQueueNums"] == 16
    stage.version_query("version", line, old, DataVersion(6))
    assert stage.ask("older-on-a-new-line", other_line, old).code == SUCCESS
    stage.route("route-after-a-new-line", line, "T1")  # a broker that started anew may count from the beginning
    assert stage.perms(line, "T1") == {"a": 6}


@scenario(35, "registrations that leave out, or add, what Java would not mind")
def lenient_bodies(stage: Stage) -> None:
    line = stage.line()
    version = compact(OLDER.wire())

    def topics(*members: str) -> str:
        return ",".join(f'"{stage.name(f"T{number}")}":{{{text}}}' for number, text in enumerate(members))

    def wrapper(table: str, more: str = "") -> str:
        return f'{{"topicConfigSerializeWrapper":{{"dataVersion":{version},"topicConfigTable":{{{table}}}{more}}}}}'

    names = [f'"topicName":"{stage.name(f"T{number}")}"' for number in range(2)]
    plain = topics(*names)
    shared = topics(
        names[0] + ',"attributes":{}',
        names[1]
        + f',"attributes":{{"$ref":"$.topicConfigSerializeWrapper.topicConfigTable.{stage.name("T0")}.attributes"}}',
    )
    bodies = {
        "no-filter-list-and-default-queues": wrapper(plain),
        "null-filter-list": wrapper(plain).replace("{", '{"filterServerList":null,', 1),
        "no-data-version": wrapper(plain).replace(f'"dataVersion":{version},', ""),
        "unknown-members": wrapper(plain, ',"more":[1,{"x":null}]'),
        "numbers-as-text": wrapper(topics(*(f'{name},"perm":"4","readQueueNums":"3"' for name in names))),
        "unknown-filter-type": wrapper(topics(*(f'{name},"topicFilterType":"OTHER"' for name in names))),
        "shared-attributes": wrapper(shared),
        "blanks": wrapper(plain).replace(",", " ,\n ").replace(":", " : "),
        "null-mappings": wrapper(plain, ',"topicQueueMappingInfoMap":null'),
        "no-topic-names": wrapper(topics("", "")),
    }
    for number, (step, body) in enumerate(bodies.items(), start=1):
        fields = {**stage.registration(step, number).request.fields, "bodyCrc32": "0"}
        stage.ask(step, line, Request(REGISTER, fields, body.encode()))
        queues = [queue for queue in _queues(stage, line) if queue["brokerName"] == stage.name(step)]
        stage.remember(f"{step}-queues", queues)


def _queues(stage: Stage, line: RawConnection) -> list[dict[str, Any]]:
    reply = line.call(GET_ROUTE, {"topic": stage.name("T0")})
    queues: list[dict[str, Any]] = reply.value["queueDatas"] if reply.code == SUCCESS else []
    return queues


@scenario(36, "binary headers that only just hold together", in_binary_too=False)
def odd_binary_headers(stage: Stage) -> None:
    def header(code: int, entries: bytes, *, language: int = 0, behind: bytes = b"") -> bytes:
        fixed = struct.pack(">hBhiii", code, language, 479, 5, 0, 0)
        return fixed + struct.pack(">i", len(entries)) + entries + behind

    def entry(key: str, value: str) -> bytes:
        return struct.pack(">h", len(key)) + key.encode() + struct.pack(">i", len(value)) + value.encode()

    topic = entry("topic", stage.name("T9"))
    headers = {
        "plain": header(105, topic),
        "unknown-language": header(105, topic, language=99),
        "bytes-behind-the-fields": header(105, topic, behind=b"more"),
        "entry-without-key": header(105, entry("", "x") + topic),
        "entry-without-value": header(105, topic + entry("acceptStandardJsonOnly", "")),
        "field-twice": header(105, entry("topic", stage.name("T8")) + topic),
    }
    for step, data in headers.items():
        line = stage.line()
        line.write(frame(data, kind=1))
        try:
            command = line.receive()
        except ClosedError:
            stage.remember(step, "closed")
        else:
            stage.remember(step, {"code": command.code, "remark": command.remark, "opaque": command.opaque})


@scenario(37, "names that hold control characters", returnOrderTopicConfigToBroker="false")
def control_characters(stage: Stage) -> None:
    line = stage.line()
    good = stage.registration()
    stage.ask("zone", line, good.but(broker=stage.name("zone"), zone="z\n1"))
    stage.ask("cluster", line, good.but(broker=stage.name("cluster"), cluster=stage.name("c\nd")))
    stage.ask("broker", line, good.but(broker=stage.name("a\nb")))
    stage.ask("topic", line, good.but(broker=stage.name("topic"), topics=stage.topics("T\n1", "T2")))
    stage.ask("route", line, GET_ROUTE, {"topic": stage.name("T\n1")})
    stage.ask("put", line, PUT_KV, {"namespace": stage.name("n\n1"), "key": "k", "value": "v"})
    stage.ask("value", line, PUT_KV, {"namespace": stage.name("n1"), "key": "k", "value": "a\nb"})
    stage.ask("get", line, GET_KV, {"namespace": stage.name("n1"), "key": "k"})
