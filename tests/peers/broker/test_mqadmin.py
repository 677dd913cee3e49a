"""The real mqadmin says the same of a cluster of ours and of a cluster of Apache's.

Both have one name server, one broker of the same name, the same topics and messages, and a Java consumer each. Every
command is run on the one and then on the other, and what it prints must be equal once times, addresses, ids and
releases are taken out, but for what the end of this file names.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from skyroute.wire.codes import RequestCode
from tests.network.broker.calls import send
from tests.network.broker.pops import Got, got, pop
from tests.peers.broker.conftest import TARGET
from tests.peers.client.conftest import SETTINGS
from tests.peers.client.java_client import JavaClients, JavaConsumer, Place
from tests.peers.test_mqadmin import MqAdmin, in_order, messages_only
from tests.support.apache import ApacheBroker, ApacheNameServer, NameServerProcess, SkyrouteNameServer
from tests.support.codes import GET_ROUTE, SUCCESS
from tests.support.raw import RawConnection
from tests.support.waiting import eventually, wait_until

CLUSTER, BROKER = "AdminCluster", "admin-broker"
TOPIC, GROUP, QUEUES = "AdminFacts", "admin-facts", 4
SENDS = 5
LOST_CONNECTION = "RemotingSendRequestException"


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two clusters."""

    name: str
    name_server: NameServerProcess
    broker: ApacheBroker

    @property
    def place(self) -> Place:
        return Place.at(self.name_server.address, self.broker.address)


class Both:
    """Runs a command on both clusters, and checks that both print the same."""

    def __init__(self, mqadmin: MqAdmin, apache: Side, ours: Side) -> None:
        self._mqadmin = mqadmin
        self.apache, self.ours = self.sides = (apache, ours)

    def say(self, side: Side, *words: str) -> str:
        """Run a command on one cluster, and return what it prints; {broker} in an argument is its broker's address."""
        line = [*(word.replace("{broker}", side.broker.address) for word in words), "-n", side.name_server.address]
        said = self._mqadmin.run(*line)
        # The tool may write to a connection that is being closed; seen with Apache's cluster only.
        return self._mqadmin.run(*line) if LOST_CONNECTION in said else said

    def check(self, *words: str, neutral: Callable[[str], str] = str, allowed: Iterable[str] = ()) -> str:
        theirs, mine = (plain(neutral(self.say(side, *words)), side) for side in self.sides)
        for pattern in allowed:
            theirs, mine = (re.sub(pattern, "", text, flags=re.MULTILINE) for text in (theirs, mine))
        assert mine == theirs
        return mine

    async def check_later(self, *words: str, has: str, **options: object) -> str:
        """Check the same once both clusters print `has`."""

        async def have_both() -> bool:
            said = [await asyncio.to_thread(self.say, side, *words) for side in self.sides]
            return all(re.search(has, text) for text in said)

        await eventually(have_both, what=f"{words} says {has}")
        return self.check(*words, **options)  # type: ignore[arg-type]  # whatever it takes

    def until_topic(self, topic: str, *, is_there: bool = True) -> None:
        for side in self.sides:
            with RawConnection(side.name_server.address) as line:
                wait_until(
                    lambda: (line.call(GET_ROUTE, {"topic": topic}).code == SUCCESS) == is_there,
                    timeout_s=40,
                    what=topic,
                )


def plain(text: str, side: Side) -> str:
    """Replace what differs between clusters and runs: addresses, ids, times and versions."""
    text = text.replace(side.broker.address, "BROKER").replace(side.name_server.address, "NAMESERVER")
    text = re.sub(r"\b127\.0\.0\.1:\d+", "ADDRESS", text)
    text = re.sub(r"\b[\d.]+@[\w.-]+(#\d+)?", "CLIENT", text)
    text = re.sub(r"\b[0-9A-F]{32,}\b", "ID", text)
    text = re.sub(r"\b\d{4}-\d\d-\d\d[ #]\d\d:\d\d:\d\d([,:.]\d{3})?", "TIME", text)
    text = re.sub(r"\b1[6-9]\d{11}\b", "MS", text)
    text = re.sub(r"\bV\d+_\d+_\d+(_SNAPSHOT)?\b", "VERSION", text)
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


@pytest.fixture(scope="module")
def sides(lib: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    made: list[Side] = []
    with ExitStack() as stack:
        for name, name_server, broker in (
            ("apache", ApacheNameServer, ApacheBroker),
            ("ours", SkyrouteNameServer, TARGET),
        ):
            home = tmp_path_factory.mktemp(f"admin-{name}")
            server = stack.enter_context(name_server(f"{name} ns", home / "ns"))
            process = broker(BROKER, home / "broker", [server.address], cluster=CLUSTER, config=SETTINGS)
            stack.enter_context(process)
            made.append(Side(name, server, process))
        yield made[0], made[1]


@pytest.fixture(scope="module")
def both(
    sides: tuple[Side, Side], lib: Path, java_classes: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Both]:
    mqadmin = MqAdmin(lib, java_classes, tmp_path_factory.mktemp("mqadmin"))
    try:
        mqadmin.run("clusterList", "-n", sides[0].name_server.address)  # it also prints how logging was set up
        both = Both(mqadmin, *sides)
        both.check("updateTopic", "-c", CLUSTER, "-t", TOPIC, "-r", str(QUEUES), "-w", str(QUEUES))
        both.until_topic(TOPIC)
        yield both
    finally:
        mqadmin.close()


@pytest.fixture(scope="module")
def sent(both: Both) -> dict[str, str]:
    """Send one message to each queue, and return each side's id of the first."""
    for queue in range(QUEUES):
        words = ("-t", TOPIC, "-p", f"body {queue}", "-k", f"key{queue} every", "-c", f"Tag{queue % 2}")
        said = both.check("sendMessage", *words, "-b", BROKER, "-i", str(queue))
        assert "SEND_OK" in said
    return {side.name: _first_id(both, side) for side in both.sides}


def _first_id(both: Both, side: Side) -> str:
    """Return the id of the first message; a broker indexes a message after it stores it."""
    pattern = re.compile(r"\b[0-9A-F]{32,}\b")
    found: list[str] = wait_until(
        lambda: pattern.findall(both.say(side, "queryMsgByKey", "-t", TOPIC, "-k", "key0")),
        timeout_s=20,
        what="the message is in the index",
    )
    return found[0]


@pytest.fixture
async def members(both: Both, java: JavaClients, sent: dict[str, str]) -> AsyncIterator[list[JavaConsumer]]:
    """A Java consumer on each cluster that has consumed all messages and committed."""
    async with AsyncExitStack() as stack:
        consumers = [await stack.enter_async_context(java.consumer(side.place, GROUP, TOPIC)) for side in both.sides]
        for consumer in consumers:
            await consumer.await_owned(QUEUES)
        await both.check_later("consumerProgress", "-g", GROUP, has=ALL_CONSUMED, allowed=PROGRESS_TIMES)
        yield consumers


ALL_CONSUMED = rf"(?s)\b{TOPIC}\b.*Diff Total: 0"
"""Before a group has said anything there is no line about the topic, and no difference either."""
PROGRESS_TIMES = (r"Consume TPS: .*", r"(TIME|N/A)( \S+)?$")
"""How fast a group is, and when it consumed last: moments, not facts."""


# ----------------------------------------------------------------------------------------------------------- cluster


def test_cluster_list(both: Both) -> None:
    assert BROKER in both.check("clusterList", neutral=measured_columns)
    both.check("clusterList", "-c", "NoSuchCluster", neutral=measured_columns)


def test_cluster_rt(both: Both) -> None:
    said = both.check("+2", "clusterRT", "-a", "10", "-i", "600", neutral=rates_and_errors)
    assert re.search(rf"{CLUSTER} {BROKER} RATE 10 0", said)


def test_broker_status(both: Both) -> None:
    theirs, mine = (facts(both.say(side, "brokerStatus", "-b", "{broker}")) for side in both.sides)
    assert set(theirs) - set(mine) <= STATUS_OF_APACHE_ONLY
    assert set(mine) - set(theirs) <= STATUS_OF_OURS_ONLY
    for key in STATUS_THAT_IS_EQUAL:
        assert mine[key] == theirs[key], key


def test_settings_of_brokers(both: Both) -> None:
    theirs, mine = (settings(both.say(side, "getBrokerConfig", "-b", "{broker}")) for side in both.sides)
    differing = {key for key in theirs.keys() & mine.keys() if theirs[key] != mine[key]}
    assert differing <= SETTINGS_THAT_DIFFER
    assert {"brokerName", "flushDiskType", "fileReservedTime", "autoCreateTopicEnable", "maxMessageSize"} <= set(mine)
    both.check("updateBrokerConfig", "-b", "{broker}", "-k", "maxMessageSize", "-v", "4194305")
    for side in both.sides:
        assert settings(both.say(side, "getBrokerConfig", "-b", "{broker}"))["maxMessageSize"] == "4194305"
    both.check("updateBrokerConfig", "-c", CLUSTER, "-k", "maxMessageSize", "-v", "4194304")


def test_settings_of_name_servers(both: Both) -> None:
    said = both.check("getNamesrvConfig", neutral=shared_settings(both))
    assert "waitSecondsForService" in said
    both.check("updateNamesrvConfig", "-k", "notifyMinBrokerIdChanged", "-v", "true")
    both.check("updateNamesrvConfig", "-k", "notifyMinBrokerIdChanged", "-v", "false")


def test_keys_and_values(both: Both) -> None:
    words = ("-s", "AdminSpace", "-k", "key")
    assert "success" in both.check("updateKvConfig", *words, "-v", "value")
    assert "success" in both.check("deleteKvConfig", *words)


def test_write_permission(both: Both) -> None:
    assert "OK" in both.check("wipeWritePerm", "-b", BROKER, allowed=[r"(?<=OK, )\d+"])
    assert '"perm":4' in both.check("topicRoute", "-t", TOPIC).replace(" ", "")
    assert "OK" in both.check("addWritePerm", "-b", BROKER, allowed=[r"(?<=OK, )\d+"])
    assert '"perm":6' in both.check("topicRoute", "-t", TOPIC).replace(" ", "")


def test_cleaning(both: Both) -> None:
    for command in ("cleanExpiredCQ", "cleanUnusedTopic"):
        assert "success" in both.check(command, "-b", "{broker}")
        assert "success" in both.check(command, "-c", CLUSTER)


# ------------------------------------------------------------------------------------------------------------ topics


def test_topic_list(both: Both) -> None:
    theirs, mine = (set(both.say(side, "topicList").split()) for side in both.sides)
    assert theirs - mine <= TOPICS_OF_APACHE_ONLY
    assert not mine - theirs
    assert {TOPIC, CLUSTER, BROKER, "TBW102"} <= mine
    assert TOPIC in both.check("topicList", "-c", neutral=only(TOPIC))


def test_where_a_topic_is(both: Both, sent: dict[str, str]) -> None:
    both.check("topicRoute", "-t", TOPIC)
    both.check("topicRoute", "-t", TOPIC, "-l")
    both.check("topicRoute", "-t", "NoSuchTopic", neutral=messages_only)
    both.check("topicClusterList", "-t", TOPIC)
    assert "TIME" in both.check("topicStatus", "-t", TOPIC)
    both.check("allocateMQ", "-t", TOPIC, "-i", "10.0.0.1,10.0.0.2,10.0.0.3")


def test_topics_come_and_go(both: Both) -> None:
    words = ("-c", CLUSTER, "-t", "ShortLived")
    assert "success" in both.check("updateTopic", *words, "-r", "2", "-w", "3", "-p", "6")
    both.until_topic("ShortLived")
    assert "from 6 to 4" in both.check("updateTopicPerm", *words, "-p", "4")
    assert "from 4 to 6" in both.check("updateTopicPerm", "-b", "{broker}", "-t", "ShortLived", "-p", "6")
    both.check("updateTopicPerm", *words, "-p", "6")
    assert "success" in both.check(
        "updateTopic", "-b", "{broker}", "-t", "ShortLived", "-r", "5", "-w", "5", "-u", "true"
    )
    both.check("topicRoute", "-t", "ShortLived")
    both.check("updateTopic", *words, "-a", "+message.type=FIFO")
    both.check("updateTopic", *words, "-a", "+no.such=attribute", neutral=messages_only)
    both.check("updateTopic", "-b", "{broker}", "-t", "TBW102", neutral=messages_only)
    both.check("updateTopic", "-b", "{broker}", "-t", "bad name", neutral=messages_only)
    assert "success" in both.check("deleteTopic", *words)
    both.until_topic("ShortLived", is_there=False)


def test_ordered_topics(both: Both) -> None:
    ordered = ("-t", "OrderedTopic")
    assert "orderConf" in both.check("updateTopic", "-c", CLUSTER, *ordered, "-o", "true", "-w", "5")
    assert f"{BROKER}:5" in both.check("updateOrderConf", *ordered, "-m", "get")
    assert "success" in both.check("updateOrderConf", *ordered, "-m", "put", "-v", f"{BROKER}:6")
    assert "success" in both.check("updateOrderConf", *ordered, "-m", "delete")
    assert "success" in both.check("deleteTopic", "-c", CLUSTER, *ordered)


# ---------------------------------------------------------------------------------------------------------- messages


def test_messages_are_found(both: Both, sent: dict[str, str]) -> None:
    assert "ID" in both.check("queryMsgByKey", "-t", TOPIC, "-k", "every", neutral=in_order)
    both.check("queryMsgByKey", "-t", TOPIC, "-k", "key1")
    both.check("queryMsgByKey", "-t", TOPIC, "-k", "no-such-key", neutral=messages_only)
    at = ("-t", TOPIC, "-b", BROKER, "-i")
    for queue in ("0", "3"):
        both.check("queryMsgByOffset", *at, queue, "-o", "0", neutral=without_file, allowed=PLACES)
    both.check("queryMsgByOffset", *at, "0", "-o", "99", neutral=messages_only)
    said = []
    for side in both.sides:
        by_unique_key = both.say(side, "queryMsgByUniqueKey", "-t", TOPIC, "-i", sent[side.name])
        by_id = both.say(side, "queryMsgById", "-t", TOPIC, "-i", sent[side.name])
        texts = (plain(without_file(text), side) for text in (by_unique_key, by_id))
        said.append([re.sub("|".join(PLACES), "", text, flags=re.MULTILINE) for text in texts])
    assert said[1] == said[0]
    assert "key0 every" in said[1][0]


def test_messages_are_printed(both: Both, sent: dict[str, str]) -> None:
    said = both.check("printMsg", "-t", TOPIC, "-d", "true", neutral=in_order, allowed=PLACES)
    assert "body 3" in said
    both.check("printMsg", "-t", TOPIC, "-s", "Tag1", "-d", "true", neutral=in_order, allowed=PLACES)
    both.check("consumeMessage", "-t", TOPIC, "-b", BROKER, "-i", "2", "-o", "0", "-c", "1", allowed=PLACES)
    both.check("consumeMessage", "-t", TOPIC, "-g", "printing", "-c", str(QUEUES), neutral=in_order, allowed=PLACES)


def test_check_msg_send_rt_prints_the_same(both: Both) -> None:
    both.check(
        "checkMsgSendRT",
        "-t",
        TOPIC,
        "-a",
        str(SENDS),
        "-s",
        "100",
        neutral=rates_and_errors,
        allowed=[r"(?<=true )\d+$"],
    )


# ------------------------------------------------------------------------------------------------------------ groups


async def test_the_state_of_a_consuming_group(both: Both, java: JavaClients, members: list[JavaConsumer]) -> None:
    async with AsyncExitStack() as stack:
        for side in both.sides:
            producer = await stack.enter_async_context(java.producer(side.place, "admin-producers"))
            for number in range(QUEUES):  # left to itself, each thread of a Java producer begins somewhere else
                await producer.send(TOPIC, b"at work", order_key=str(number))
        await both.check_later("producerConnection", "-g", "admin-producers", "-t", TOPIC, has="JAVA")
        for consumer in members:
            await consumer.take(2 * QUEUES)
        said = await both.check_later("consumerProgress", "-g", GROUP, has=ALL_CONSUMED, allowed=PROGRESS_TIMES)
        assert f"{TOPIC} {BROKER} 3" in said
        both.check("consumerProgress", "-g", GROUP, "-s", "true", allowed=PROGRESS_TIMES)
        both.check("consumerProgress", neutral=only(GROUP), allowed=[r"(?<=CLUSTERING )\d+"])
        both.check("consumerConnection", "-g", GROUP, neutral=in_order)
        both.check("consumerStatus", "-g", GROUP, neutral=only("CLIENT", "SUBSCRIPTION", TOPIC))
        for side, consumer in zip(both.sides, members, strict=True):
            said = both.say(side, "consumerStatus", "-g", GROUP, "-i", consumer.client_id)
            assert re.search(rf"{TOPIC} +{BROKER} +3", said)
        # Apache's broker counts now and then.
        counted = rf"\b{SENDS + 2 * QUEUES}\s+{SENDS + 2 * QUEUES}\b"
        await both.check_later("statsAll", "-a", "-t", TOPIC, has=counted, neutral=rates_and_errors)
    both.check("producerConnection", "-g", "nobody", "-t", TOPIC, neutral=messages_only)
    both.check("consumerConnection", "-g", "nobody", neutral=messages_only)
    both.check("consumerProgress", "-g", "nobody", neutral=messages_only)


def test_groups_are_created_and_deleted(both: Both) -> None:
    words = ["-s", "true", "-m", "true", "-o", "true", "-q", "2", "-r", "7", "-w", "0", "-a", "false"]
    both.check("updateSubGroup", "-g", "short-lived", "-b", "{broker}", *words)
    both.check("updateSubGroup", "-g", "short-lived", "-c", CLUSTER, neutral=messages_only)
    both.check("deleteSubGroup", "-g", "short-lived", "-b", "{broker}", "-r", "true")
    both.check("deleteSubGroup", "-g", "short-lived", "-c", CLUSTER)


async def test_group_offsets_are_reset_and_cloned(both: Both, sent: dict[str, str], java: JavaClients) -> None:
    group = "admin-moved"
    both.check("updateSubGroup", "-g", group, "-c", CLUSTER, neutral=messages_only)
    words = ("-g", group, "-t", TOPIC)
    both.check("resetOffsetByTime", *words, "-s", "-1", neutral=in_order)
    both.check("consumerProgress", "-g", group, "-t", TOPIC, allowed=PROGRESS_TIMES, neutral=in_order)
    both.check("resetOffsetByTime", *words, "-s", "2020-01-01#00:00:00:000", neutral=in_order)
    both.check("resetOffsetByTime", *words, "-s", "now", "-b", "{broker}", "-q", "1", "-o", "1", neutral=in_order)
    both.check("consumerProgress", "-g", group, "-t", TOPIC, allowed=PROGRESS_TIMES, neutral=in_order)
    both.check("updateSubGroup", "-g", "admin-cloned", "-c", CLUSTER, neutral=messages_only)
    both.check("cloneGroupOffset", "-s", group, "-d", "admin-cloned", "-t", TOPIC, "-o", "false", neutral=in_order)
    both.check("consumerProgress", "-g", "admin-cloned", "-t", TOPIC, allowed=PROGRESS_TIMES, neutral=in_order)


# ------------------------------------------------------------------------------------------------- groups that pop

POPPED, POPPING = "AdminPopped", "admin-popping"
RETRIES = f"%RETRY%{POPPING}_{POPPED}"
LONG_MS, SHORT_MS = 600_000, 3_000


async def test_the_state_of_a_group_that_pops(both: Both, java: JavaClients) -> None:
    both.check("updateTopic", "-c", CLUSTER, "-t", POPPED, "-r", "2", "-w", "2")
    both.until_topic(POPPED)
    both.check("updateSubGroup", "-g", POPPING, "-c", CLUSTER)
    for where in (("-c", CLUSTER), ("-b", "{broker}")):
        words = ("-t", POPPED, "-g", POPPING, "-m", "POP", "-q", "1")
        assert "consume mode[POP]" in both.check("setConsumeMode", *where, *words)
    assert POPPING in both.check("getConsumerConfig", "-g", POPPING)

    fill(both, 3)
    async with AsyncExitStack() as stack:
        for side in both.sides:
            consumer = java.consumer(side.place, POPPING, POPPED, is_server_rebalance=True)
            await (await stack.enter_async_context(consumer)).take(6)
        await check_pop_group(both, {0: (3, 3), 1: (3, 3)})
        assert f"{POPPED} *" in both.check("consumerConnection", "-g", POPPING, neutral=in_order)

    fill(both, 3)
    popped = pop_both(both, 0, 2, LONG_MS)
    await check_pop_group(both, {0: (6, 5), 1: (6, 3)})
    for side, messages in zip(both.sides, popped, strict=True):
        acknowledge(side, messages[0])
    await check_pop_group(both, {0: (6, 5), 1: (6, 3)})

    pop_both(both, 1, 3, SHORT_MS)
    await both.check_later("topicStatus", "-t", RETRIES, has=rf"(?m)^{BROKER} +0 +0 +3\b")
    await check_pop_group(both, {0: (6, 5), 1: (6, 6)}, retries=(3, 0))
    retried = pop_both(both, 1, 3, LONG_MS)
    assert {message.topic for messages in retried for message in messages} == {RETRIES}
    await check_pop_group(both, {0: (6, 5), 1: (6, 6)}, retries=(3, 3))
    # Redelivered messages are counted for the retry topic. Apache's broker counts now and then.
    counted = rf"\b{POPPED} +{POPPING} +1 .* 12 +11\b"
    await both.check_later("statsAll", "-a", "-t", POPPED, has=counted, neutral=rates_and_errors)

    group_and_topic = ("-g", POPPING, "-t", POPPED)
    both.check("updateSubGroup", "-g", "admin-pop-cloned", "-c", CLUSTER, neutral=messages_only)
    both.check("cloneGroupOffset", "-s", POPPING, "-d", "admin-pop-cloned", "-t", POPPED, "-o", "false")
    both.check("consumerProgress", "-g", "admin-pop-cloned", "-t", POPPED, allowed=PROGRESS_TIMES)
    both.check("resetOffsetByTime", *group_and_topic, "-s", "-1", neutral=in_order)
    await check_pop_group(both, {0: (6, 6), 1: (6, 6)}, retries=(3, 3))
    both.check("resetOffsetByTime", *group_and_topic, "-s", "now", "-b", "{broker}", "-q", "1", "-o", "1")
    await check_pop_group(both, {0: (6, 6), 1: (6, 1)}, retries=(3, 3))
    pop_both(both, 1, 4, LONG_MS)
    await check_pop_group(both, {0: (6, 6), 1: (6, 5)}, retries=(3, 3))
    both.check("skipAccumulatedMessage", *group_and_topic, "-f", "true", neutral=in_order)
    await check_pop_group(both, {0: (6, 6), 1: (6, 6)}, retries=(3, 3))

    both.check("deleteSubGroup", "-g", POPPING, "-b", "{broker}", "-r", "true")
    both.check("consumerProgress", "-g", POPPING, neutral=messages_only)
    assert f"{POPPED} {POPPING} " not in both.check("brokerConsumeStats", "-b", "{broker}", neutral=only(POPPED))


async def check_pop_group(
    both: Both, queues: dict[int, tuple[int, int]], *, retries: tuple[int, int] | None = None
) -> None:
    """Check what commands say of the group once it has these queues: number of messages, and offset of the group.

    Our broker moves the offset a few seconds after a pop, as Apache's does with `enablePopBufferMerge`.
    """
    rows = [(POPPED, queue, *numbers) for queue, numbers in queues.items()]
    rows += [] if retries is None else [(RETRIES, 0, *retries)]
    patterns = (
        rf"(?=.*{re.escape(topic)} +{BROKER} +{queue} +{end} +{offset} +{end - offset} +0 )"
        for topic, queue, end, offset in rows
    )
    words = ("consumerProgress", "-g", POPPING)
    await both.check_later(*words, has=f"(?s)^{''.join(patterns)}", allowed=PROGRESS_TIMES)
    both.check(*words, "-t", POPPED, allowed=PROGRESS_TIMES)
    both.check(*words, "-s", "true", allowed=PROGRESS_TIMES)
    both.check("consumerProgress", neutral=only(POPPING), allowed=[r"(?<=CLUSTERING )\d+", r"(?<=OFFLINE )\d+"])
    both.check("brokerConsumeStats", "-b", "{broker}", neutral=only(POPPED))
    both.check("consumerConnection", "-g", POPPING, neutral=lambda text: in_order(messages_only(text)))
    both.check("consumerStatus", "-g", POPPING, neutral=only("CLIENT", "SUBSCRIPTION", POPPED, "Caused by"))
    for topic in (POPPED, RETRIES) if retries else (POPPED,):
        units = ("queryCq", "-t", topic, "-q", "0", "-i", "0", "-c", "2", "-b", "{broker}", "-g", POPPING)
        assert '"subString":"*"' in both.check(*units, allowed=[r"(?<=physicOffset=)\d+", r"(?<=physicSize=)\d+"])


def fill(both: Both, count: int) -> None:
    """Send messages to each queue; mqadmin might send one twice, because it repeats failed sends."""
    for side in both.sides:
        with RawConnection(side.broker.address) as line:
            for queue in (0, 1):
                for number in range(count):
                    answer = line.call(send(POPPED, f"{queue}:{number}".encode(), queue_id=queue, n=BROKER))
                    assert answer.code == SUCCESS


def pop_both(both: Both, queue_id: int, count: int, invisible_ms: int) -> list[list[Got]]:
    """Pop so many messages of a queue, or redelivered ones, from both brokers."""
    popped = []
    for side in both.sides:
        fields = {"consumerGroup": POPPING, "queueId": queue_id, "maxMsgNums": count, "invisibleTime": invisible_ms}
        with RawConnection(side.broker.address) as line:
            messages = got(line.call(pop(POPPED, **fields)), POPPED, POPPING)
        assert len(messages) == count, side.name
        popped.append(messages)
    return popped


def acknowledge(side: Side, message: Got) -> None:
    receipt = message.receipt.replace(" broker-a ", f" {BROKER} ")
    with RawConnection(side.broker.address) as line:
        fields = message.fields(consumerGroup=POPPING, extraInfo=receipt)
        assert line.call(RequestCode.ACK_MESSAGE, fields).code == SUCCESS


# ------------------------------------------------------------------------------------- what may differ, and only that


def measured_columns(text: str) -> str:
    """The rows of clusterList without the columns between version and ACTIVATED: a broker measures those itself."""
    title, *rows = text.splitlines() or [""]
    return "\n".join([title, *(" ".join([*row.split()[:5], row.split()[-1]]) for row in rows if row.split())])


def rates_and_errors(text: str) -> str:
    """Without numbers with a fraction, and without where in the tool an error happened."""
    return re.sub(r"\b\d+\.\d+\b", "RATE", messages_only(text))


def only(*words: str) -> Callable[[str], str]:
    """The lines in which one of the words stands, in order."""
    return lambda text: "\n".join(sorted(line for line in text.splitlines() if any(word in line for word in words)))


def without_file(text: str) -> str:
    """Without the name of the file into which the tool has written the body."""
    return re.sub(r"(?m)^(Message Body Path|bodyPath).*$", "", messages_only(text))


def settings(text: str) -> dict[str, str]:
    pairs = (line.split("=", 1) for line in text.splitlines() if re.match(r"\w.*=", line))
    return {key.strip(): value.strip() for key, value in pairs}


def facts(text: str) -> dict[str, str]:
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {key.strip().partition("_/")[0]: value.strip() for key, value in pairs}  # some keys end with a path


def shared_settings(both: Both) -> Callable[[str], str]:
    """The settings that both name servers have; where their files are is their own."""
    shared = set.intersection(*(set(settings(both.say(side, "getNamesrvConfig"))) for side in both.sides))
    shared -= {"kvConfigPath", "configStorePath", "rocketmqHome", "listenPort"}
    return lambda text: "\n".join(sorted(f"{key} = {value}" for key, value in settings(text).items() if key in shared))


PLACES = (r"(?<=Store Host:).*", r"(?<=Born Host:).*", r"commitLogOffset=\d+", r"storeSize=\d+", r"bodyCRC=\d+")
"""Where a record lies in the log of its broker, and which socket brought it."""

STATUS_THAT_IS_EQUAL = frozenset(
    {
        *("brokerActive", "msgPutTotalYesterdayMorning", "msgGetTotalYesterdayMorning", "msgPutTotalTodayMorning"),
        *("dispatchBehindBytes", "remainTransientStoreBufferNumbs", "timerReadBehind"),
        *("sendThreadPoolQueueSize", "pullThreadPoolQueueSize", "queryThreadPoolQueueSize", "timerCongestNum"),
    }
)

STATUS_OF_APACHE_ONLY = frozenset(
    {
        # Times of the store's inner works, in Apache's own classes of duration.
        *("putMessageEntireTimeMax", "getMessageEntireTimeMax", "putMessageDistributeTime", "putMessageFailedTimes"),
        *("putLatency99", "putLatency999"),
        # The size of a buffer that ours does not have.
        "dispatchMaxBuffer",
    }
)
STATUS_OF_OURS_ONLY = frozenset(
    {"brokerVersion", "commitLogCutBytes", "commitLogDamagedBytes", "commitLogDamagedRanges"}
    | {"popInFlightBatches", "popInFlightMessages", "popWaiting"}
)  # the first as older releases told it

SETTINGS_THAT_DIFFER = frozenset(
    {
        *("haListenPort", "listenPort", "namesrvAddr", "rocketmqHome", "storePathCommitLog", "storePathRootDir"),
        # Apache's come from the number of the machine's cores; ours has no such pools.
        *("endTransactionThreadPoolNums", "heartbeatThreadPoolNums", "litePullMessageThreadPoolNums"),
        *("processReplyMessageThreadPoolNums", "pullMessageThreadPoolNums", "putMessageFutureThreadPoolNums"),
        *("queryMessageThreadPoolNums", "sendMessageThreadPoolNums"),
        # A pull of ours may bring more.
        *("maxTransferBytesOnMessageInMemory", "maxTransferCountOnMessageInMemory"),
        # Settings that do nothing at ours, and are written in another way.
        *("bitMapLengthConsumeQueueExt", "configManagerVersion", "flushLeastPagesWhenWarmMapedFile"),
        "timerCheckMetricsWhen",
    }
)

# Of transactions that are kept in RocksDB, which ours are not.
TOPICS_OF_APACHE_ONLY = frozenset({"RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"})
