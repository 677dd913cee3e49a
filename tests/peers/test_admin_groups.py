"""Our admin commands about groups and messages, and the real mqadmin's, say the same of the same cluster.

One group has a consumer of ours and a Java one in it. What both tools print is read into plain facts, and these must be
equal; what one of them changes, the other must see.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from skyroute import Admin, Message, Producer
from skyroute.cli.main import main
from skyroute.wire.calls.groups import GroupConfig
from tests.peers.client.java_client import JavaClients, JavaConsumer, Place, until
from tests.peers.client.python_client import Inbox, consuming
from tests.peers.test_mqadmin import MqAdmin
from tests.support.apache import ApacheBroker, NameServerProcess

TOPIC = "AdminGroupTopic"
GROUP = "admin-group"
QUEUES = 4


@pytest.fixture(scope="module")
def java(lib: Path, java_classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClients]:
    with JavaClients("Java's clients", tmp_path_factory.mktemp("java"), lib, java_classes) as clients:
        yield clients


class Tools:
    """Both admin tools, on one cluster. Neither blocks the loop, on which our own clients live."""

    def __init__(self, mqadmin: MqAdmin, name_servers: str) -> None:
        self._mqadmin = mqadmin
        self.name_servers = name_servers

    async def theirs(self, *words: str) -> str:
        return await asyncio.to_thread(self._mqadmin.run, *words, "-n", self.name_servers)

    async def ours(self, *words: str) -> Any:
        """What our command prints for programs."""
        command = ["admin", *words, "-n", self.name_servers, "--json"]
        run = await asyncio.to_thread(CliRunner().invoke, main, command)
        assert run.exit_code == 0, run.output
        return json.loads(run.stdout)

    async def our_text(self, *words: str) -> str:
        """What our command prints for people, from a process of its own."""
        command = [sys.executable, "-m", "skyroute", "admin", *words, "-n", self.name_servers]
        run = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        return str(run.stdout)


@pytest.fixture(scope="module")
def tools(
    lib: Path,
    java_classes: Path,
    apache: NameServerProcess,
    broker: ApacheBroker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Tools]:
    mqadmin = MqAdmin(lib, java_classes, tmp_path_factory.mktemp("mqadmin"))
    try:
        mqadmin.run("clusterList", "-n", apache.address)  # the first command also prints how logging was set up
        yield Tools(mqadmin, apache.address)
    finally:
        mqadmin.close()


@pytest.fixture
async def admin(tools: Tools, broker: ApacheBroker) -> AsyncIterator[Admin]:
    async with Admin(tools.name_servers) as admin:
        await admin.create_topic(TOPIC, broker=broker.address, read_queues=QUEUES, write_queues=QUEUES)

        async def is_there() -> bool:
            return TOPIC in await admin.topics()

        await until(is_there, what="the topic is registered")
        yield admin


@asynccontextmanager
async def two_members(
    tools: Tools, broker: ApacheBroker, java: JavaClients
) -> AsyncIterator[tuple[Inbox, JavaConsumer]]:
    """A group with one consumer of each language, which have shared out the queues."""
    place = Place.at(tools.name_servers, broker.address)
    async with consuming(place, GROUP, TOPIC) as ours, java.consumer(place, GROUP, TOPIC) as theirs:

        async def is_shared() -> bool:
            held = [len([q for q in ours.consumer.assignment if q.topic == TOPIC])]
            held.append(len([q for q in await theirs.owned() if q[0] == TOPIC]))
            return held == [QUEUES // 2] * 2

        await until(is_shared, what="both have half of the queues")
        yield ours, theirs


# --------------------------------------------------------------------------------------------------------- settings


async def test_either_tool_makes_the_same_group(tools: Tools, admin: Admin, broker: ApacheBroker) -> None:
    words = f"-b {broker.address} -s true -m true -o true -q 2 -r 7 -w 0 -a false".split()
    policy = ("-p", '{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[1000,5000]}}')
    assert "success" in await tools.theirs("updateSubGroup", "-g", "made-by-java", *words, *policy)
    assert "success" in await tools.our_text("updateSubGroup", "-g", "made-by-us", *words, *policy)
    groups = await admin.group_configs(broker.address)
    theirs, ours = groups["made-by-java"], groups["made-by-us"]
    assert as_facts(ours) == as_facts(theirs)
    assert (ours.retry_times_max, ours.retry_queues, ours.ordered, ours.broadcast) == (7, 2, True, False)
    assert await admin.group_config("made-by-us", broker.address) == ours

    gone = ("-r", "true")  # a group whose offsets stay, a broker that makes groups of its own accord makes again
    assert "success" in await tools.our_text("deleteSubGroup", "-g", "made-by-java", "-c", broker.cluster, *gone)
    await tools.ours("deleteSubGroup", "-g", "made-by-us", "-b", broker.address, *gone)
    assert not {"made-by-java", "made-by-us"} & set(await admin.group_configs(broker.address))


async def test_what_is_not_said_of_a_group_is_what_mqadmin_makes_it(
    tools: Tools, admin: Admin, broker: ApacheBroker
) -> None:
    await tools.theirs("updateSubGroup", "-g", "plain-by-java", "-c", broker.cluster)
    await tools.ours("updateSubGroup", "-g", "plain-by-us", "-c", broker.cluster)
    groups = await admin.group_configs(broker.address)
    assert as_facts(groups["plain-by-us"]) == as_facts(groups["plain-by-java"])


# ------------------------------------------------------------------------------------------------ a group at work


async def test_both_tools_see_a_group_at_work(
    tools: Tools, admin: Admin, broker: ApacheBroker, java: JavaClients
) -> None:
    place = Place.at(tools.name_servers, broker.address)
    async with (
        two_members(tools, broker, java) as (ours, theirs),
        Producer("admin-producers", tools.name_servers) as producer,
        java.producer(place, "admin-java-producers") as java_producer,
    ):
        for number in range(8):
            await producer.send(Message(TOPIC, b"%d" % number))
        await java_producer.send(TOPIC, b"from Java")
        await until(lambda: all_told(ours, theirs, 9), what="all messages are consumed")
        await producer.session.heartbeats.send()

        await connections_agree(tools)
        await producers_agree(tools, "admin-producers")
        await progress_agrees(tools)
        await owners_agree(tools, theirs)
        for client_id in (theirs.client_id, ours.consumer.session.client_id):
            await status_agrees(tools, client_id)
        everybody = await tools.ours("consumerStatus", "-g", GROUP)
        assert len(everybody["consumers"]) == 2
        assert everybody["same_subscription"] is True

        sent = await producer.send(Message(TOPIC, b"again", keys="again"))
        await until(lambda: all_told(ours, theirs, 10), what="one more is consumed")
        for client_id in (theirs.client_id, ours.consumer.session.client_id):
            outcome = await tools.ours("queryMsgById", "-t", TOPIC, "-i", sent.message_id, "-g", GROUP, "-d", client_id)
            assert outcome["result"] == "CR_SUCCESS"
        assert [each.body for each in theirs.received].count(b"again") >= 1
        assert [each.body for each in ours.received].count(b"again") >= 1

    offline = await asyncio.to_thread(
        CliRunner().invoke, main, ["admin", "consumerConnection", "-g", GROUP, "-n", tools.name_servers]
    )
    assert offline.exit_code == 1
    assert "not online" in offline.stderr
    assert "\n" not in offline.stderr.strip()


async def all_told(ours: Inbox, theirs: JavaConsumer, count: int) -> bool:
    return len(ours.received) + len(theirs.received) >= count


async def connections_agree(tools: Tools) -> None:
    said = await tools.theirs("consumerConnection", "-g", GROUP)
    told = await tools.ours("consumerConnection", "-g", GROUP)
    members, subscriptions = said.split("Below is subscription:")
    assert facts(told["connections"]) == {tuple(row) for row in rows(members)}
    assert {language for *_, language, _ in facts(told["connections"])} == {"JAVA", "PYTHON"}
    wanted = {(each["topic"], each["expression"]) for each in told["subscriptions"]}
    assert wanted == {tuple(row) for row in rows(subscriptions) if not row[0].endswith(":")}
    for name, value in (("ConsumeType", "consume_type"), ("MessageModel", "message_model")):
        assert f"{name}: {told[value]}" in said


async def producers_agree(tools: Tools, group: str) -> None:
    said = await tools.theirs("producerConnection", "-g", group, "-t", TOPIC)
    told = await tools.ours("producerConnection", "-g", group, "-t", TOPIC)
    assert facts(told) == {tuple(row[1:]) for row in rows(said)}
    java = await tools.ours("producerConnection", "-g", "admin-java-producers", "-t", TOPIC)
    assert [each["language"] for each in java] == ["JAVA"]


async def progress_agrees(tools: Tools) -> None:
    """ConnectedClients say how far they are every second, so that the tools may look at different moments."""

    async def is_equal() -> bool:
        said = await tools.theirs("consumerProgress", "-g", GROUP)
        told = await tools.ours("consumerProgress", "-g", GROUP)
        table = {tuple(row[:7]) for row in rows(said) if len(row) >= 8}
        ours = {tuple(map(str, list(each.values())[:7])) for each in told["queues"]}
        return ours == table and told["diff_total"] == 0 and "Consume Diff Total: 0" in said and len(ours) >= QUEUES

    await until(is_equal, what="both tools print the same progress, and no message is left")
    said = [row for row in rows(await tools.theirs("consumerProgress")) if row[0] == GROUP]
    told = [each for each in await tools.ours("consumerProgress") if each["group"] == GROUP]
    assert [said[0][0], *said[0][2:5]] == [told[0]["group"], *list(told[0].values())[2:5]]
    assert (said[0][1], said[0][-1]) == (str(told[0]["count"]), str(told[0]["diff_total"])) == ("2", "0")


async def owners_agree(tools: Tools, theirs: JavaConsumer) -> None:
    told = await tools.ours("consumerProgress", "-g", GROUP, "-s", "true")
    owners = {(q["topic"], q["broker_name"], q["queue_id"]): q["client_id"] for q in told["queues"]}
    owned = await theirs.owned()
    assert {queue for queue, owner in owners.items() if owner == theirs.client_id} == owned & set(owners)
    assert len({owner for queue, owner in owners.items() if queue[0] == TOPIC}) == 2
    said = await tools.theirs("consumerProgress", "-g", GROUP, "-s", "true")
    ips = {(row[0], row[1], int(row[2])): row[5] for row in rows(said) if len(row) >= 9}
    assert ips == {queue: owner.partition("@")[0] for queue, owner in owners.items()}


async def status_agrees(tools: Tools, client_id: str) -> None:
    said = await tools.theirs("consumerStatus", "-g", GROUP, "-i", client_id)
    told = await tools.ours("consumerStatus", "-g", GROUP, "-i", client_id)
    for name in ("PROP_CONSUME_TYPE", "PROP_CLIENT_VERSION", "PROP_CONSUMER_START_TIMESTAMP"):
        assert re.search(rf"{name} *: {told['properties'][name]}$", said, re.MULTILINE)
    offsets = said.partition("#Consumer Offset#")[2].partition("#Consumer MQ Detail#")[0]
    queues = {tuple(row[:3]) for row in rows(offsets)}
    assert {(q["topic"], q["broker_name"], str(q["queue_id"])) for q in told["queues"]} == queues
    text = await tools.our_text("consumerStatus", "-g", GROUP, "-i", client_id, "-s")
    assert "#Consumer jstack#" in text


# --------------------------------------------------------------------------------------------------- moving groups


async def test_what_one_tool_moves_the_other_sees(tools: Tools, admin: Admin, broker: ApacheBroker) -> None:
    group = "moved-group"
    await admin.create_group(GroupConfig(group), broker=broker.address)
    async with Producer("moving-producers", tools.name_servers) as producer:
        for queue in await producer.queues(TOPIC):
            await producer.send(Message(TOPIC, b"x"), queue=queue)
    ends = {q.queue_id: span.max_offset for q, span in (await admin.topic_status(TOPIC)).queues.items()}

    words = ("-g", group, "-t", TOPIC)
    moved = await tools.ours("resetOffsetByTime", *words, "-s", "-1")
    assert {each["queue_id"]: each["offset"] for each in moved} == ends
    assert await their_offsets(tools, group) == ends
    said = await tools.theirs("resetOffsetByTime", *words, "-s", "2020-01-01#00:00:00:000")
    assert {int(row[1]): int(row[2]) for row in rows(said) if row[0] == broker.broker_name} == dict.fromkeys(ends, 0)
    assert await our_offsets(admin, group) == dict.fromkeys(ends, 0)
    await tools.ours("resetOffsetByTime", *words, "-s", "now", "-b", broker.address, "-q", "1", "-o", "1")
    assert await their_offsets(tools, group) == dict.fromkeys(ends, 0) | {1: 1}

    await admin.create_group(GroupConfig("cloned-group"), broker=broker.address)
    assert "brokerName" in await tools.our_text("cloneGroupOffset", "-s", group, "-d", "cloned-group", "-t", TOPIC)
    assert await their_offsets(tools, "cloned-group") == await our_offsets(admin, group)
    for name in (group, "cloned-group"):
        await tools.ours("deleteSubGroup", "-g", name, "-b", broker.address, "-r", "true")


async def our_offsets(admin: Admin, group: str) -> dict[int, int]:
    queues = (await admin.progress(group, TOPIC)).queues
    return {queue.queue_id: progress.consumer_offset for queue, progress in queues.items() if queue.topic == TOPIC}


async def their_offsets(tools: Tools, group: str) -> dict[int, int]:
    said = await tools.theirs("consumerProgress", "-g", group, "-t", TOPIC)
    return {int(row[2]): int(row[4]) for row in rows(said) if len(row) >= 8 and row[0] == TOPIC}


# --------------------------------------------------------------------------------------------------------- messages


async def test_both_tools_find_the_same_messages(tools: Tools, admin: Admin, broker: ApacheBroker) -> None:
    words = ("-t", TOPIC, "-k", "found-key", "-c", "Tag", "-b", broker.broker_name, "-i", "2")
    (their_row,) = rows(await tools.theirs("sendMessage", *words, "-p", "from Java"))
    ours = await tools.ours("sendMessage", *words, "-p", "from us")
    assert their_row[:3] == [ours["broker_name"], str(ours["queue_id"]), ours["send_result"]]
    ids = {their_row[3], ours["message_id"]}

    async def are_indexed() -> bool:
        said = await tools.theirs("queryMsgByKey", "-t", TOPIC, "-k", "found-key")
        return {row[0] for row in rows(said) if len(row) == 4} == ids

    await until(are_indexed, what="mqadmin finds both by their key")
    found = await tools.ours("queryMsgByKey", "-t", TOPIC, "-k", "found-key")
    places = {row[3] for row in rows(await tools.theirs("queryMsgByKey", "-t", TOPIC, "-k", "found-key"))}
    assert {each["index_key"] for each in found} == places
    assert {each["message_id"]: each["body"] for each in found} == {
        their_row[3]: "from Java",
        ours["message_id"]: "from us",
    }
    place = ("-b", ours["broker_name"], "-i", str(ours["queue_id"]), "-o", str(ours["queue_offset"]))
    for command, *which in (
        ("queryMsgById", "-i", ours["message_id"]),
        ("queryMsgById", "-i", ours["offset_id"]),
        ("queryMsgByUniqueKey", "-i", ours["message_id"]),
        ("queryMsgByOffset", *place),
    ):
        said = labels(await tools.theirs(command, "-t", TOPIC, *which))
        await asyncio.to_thread(Path(said.pop("Message Body Path")).unlink, missing_ok=True)
        told = labels(await tools.our_text(command, "-t", TOPIC, *which))
        for name in said.keys() - {"Properties", "Born Timestamp", "Store Timestamp"}:
            assert told[name] == said[name], name
        # Mqadmin has a comma between seconds and milliseconds.
        assert told["Store Timestamp"] == said["Store Timestamp"].replace(",", ".")
        assert set(told["Properties"].split(", ")) <= set(said["Properties"].strip("{}").split(", "))

    printed = re.findall(r"MSGID: (\w+)", await tools.theirs("printMsg", "-t", TOPIC))
    text = await tools.our_text("printMsg", "-t", TOPIC)
    assert sorted(re.findall(r"^MSGID: (\w+)", text, re.MULTILINE)) == sorted(printed)
    assert ids <= set(printed)
    consumed = await tools.our_text("consumeMessage", "-t", TOPIC, *place, "-c", "1")
    assert ours["message_id"] in consumed
    assert "from us" in consumed
    assert ours["message_id"] in await tools.theirs("consumeMessage", "-t", TOPIC, *place, "-c", "1")
    timed = await tools.ours("checkMsgSendRT", "-t", TOPIC, "-a", "3")
    assert [each["ok"] for each in timed["sends"]] == [True] * 3


# ------------------------------------------------------------------------------------------------------ plain facts


def rows(text: str) -> list[list[str]]:
    """The words of a table's lines."""
    return [line.split(maxsplit=9) for line in text.splitlines() if line.strip() and not line.startswith("#")]


def facts(connections: list[dict[str, str]]) -> set[tuple[str, ...]]:
    return {tuple(each.values()) for each in connections}


def labels(text: str) -> dict[str, str]:
    """What stands behind labels such as `Queue ID:`."""
    found = re.findall(r"^([A-Z][A-Za-z ]+):[ \t]+(.*?)\s*$", text, re.MULTILINE)
    return dict(found)


def as_facts(config: GroupConfig) -> dict[str, object]:
    return {name: getattr(config, name) for name in config.__struct_fields__ if name != "name"}
