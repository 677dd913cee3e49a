"""`skyroute admin` and Apache's mqadmin print the same about groups and messages, and each sees the other's changes.

One group has a Python consumer and a Java consumer. The output of both tools is parsed and compared.
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
from tests.peers.client.java_client import JavaClients, JavaConsumer, Place
from tests.peers.client.python_client import Inbox, consuming
from tests.peers.test_mqadmin import MqAdmin
from tests.support.apache import ApacheBroker, NameServerProcess
from tests.support.waiting import eventually

TOPIC = "AdminGroupTopic"
GROUP = "admin-group"
QUEUES = 4


@pytest.fixture(scope="module")
def java(lib: Path, java_classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClients]:
    with JavaClients("Java's clients", tmp_path_factory.mktemp("java"), lib, java_classes) as clients:
        yield clients


class Tools:
    """Both admin tools, with one cluster. They run in threads: Python clients run on the event loop."""

    def __init__(self, mqadmin: MqAdmin, name_servers: str) -> None:
        self._mqadmin = mqadmin
        self.name_servers = name_servers

    async def theirs(self, *arguments: str) -> str:
        return await asyncio.to_thread(self._mqadmin.run, *arguments, "-n", self.name_servers)

    async def ours(self, *arguments: str) -> Any:
        """Return the JSON value that our command prints."""
        command = ["admin", *arguments, "-n", self.name_servers, "--json"]
        run = await asyncio.to_thread(CliRunner().invoke, main, command)
        assert run.exit_code == 0, run.output
        return json.loads(run.stdout)

    async def our_text(self, *arguments: str) -> str:
        """Return the text that our command prints, run as a process."""
        command = [sys.executable, "-m", "skyroute", "admin", *arguments, "-n", self.name_servers]
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

        await eventually(is_there, what="the topic is registered")
        yield admin


@asynccontextmanager
async def two_members(
    tools: Tools, broker: ApacheBroker, java: JavaClients
) -> AsyncIterator[tuple[Inbox, JavaConsumer]]:
    """A group with a Python consumer and a Java consumer, after the rebalance."""
    place = Place.at(tools.name_servers, broker.address)
    async with consuming(place, GROUP, TOPIC) as ours, java.consumer(place, GROUP, TOPIC) as theirs:

        async def is_shared() -> bool:
            held = [len([q for q in ours.consumer.assignment if q.topic == TOPIC])]
            held.append(len([q for q in await theirs.owned() if q[0] == TOPIC]))
            return held == [QUEUES // 2] * 2

        await eventually(is_shared, what="both have half of the queues")
        yield ours, theirs


# --------------------------------------------------------------------------------------------------------- settings


async def test_both_tools_create_the_same_group(tools: Tools, admin: Admin, broker: ApacheBroker) -> None:
    arguments = f"-b {broker.address} -s true -m true -o true -q 2 -r 7 -w 0 -a false".split()
    policy = ("-p", '{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[1000,5000]}}')
    assert "success" in await tools.theirs("updateSubGroup", "-g", "made-by-java", *arguments, *policy)
    assert "success" in await tools.our_text("updateSubGroup", "-g", "made-by-us", *arguments, *policy)
    groups = await admin.group_configs(broker.address)
    theirs, ours = groups["made-by-java"], groups["made-by-us"]
    assert as_facts(ours) == as_facts(theirs)
    assert (ours.retry_times_max, ours.retry_queues, ours.ordered, ours.broadcast) == (7, 2, True, False)
    assert await admin.group_config("made-by-us", broker.address) == ours

    gone = ("-r", "true")  # a group whose offsets stay, a broker that makes groups of its own accord makes again
    assert "success" in await tools.our_text("deleteSubGroup", "-g", "made-by-java", "-c", broker.cluster, *gone)
    await tools.ours("deleteSubGroup", "-g", "made-by-us", "-b", broker.address, *gone)
    assert not {"made-by-java", "made-by-us"} & set(await admin.group_configs(broker.address))


async def test_default_settings_of_a_group_are_those_of_mqadmin(
    tools: Tools, admin: Admin, broker: ApacheBroker
) -> None:
    await tools.theirs("updateSubGroup", "-g", "plain-by-java", "-c", broker.cluster)
    await tools.ours("updateSubGroup", "-g", "plain-by-us", "-c", broker.cluster)
    groups = await admin.group_configs(broker.address)
    assert as_facts(groups["plain-by-us"]) == as_facts(groups["plain-by-java"])


# ------------------------------------------------------------------------------------------------ a group at work


async def test_both_tools_print_the_same_about_a_running_group(
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
        await eventually(lambda: all_received(ours, theirs, 9), what="all messages are consumed")
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
        await eventually(lambda: all_received(ours, theirs, 10), what="one more is consumed")
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


async def all_received(ours: Inbox, theirs: JavaConsumer, count: int) -> bool:
    return len(ours.received) + len(theirs.received) >= count


async def connections_agree(tools: Tools) -> None:
    text = await tools.theirs("consumerConnection", "-g", GROUP)
    value = await tools.ours("consumerConnection", "-g", GROUP)
    members, subscriptions = text.split("Below is subscription:")
    assert facts(value["connections"]) == {tuple(row) for row in rows(members)}
    assert {language for *_, language, _ in facts(value["connections"])} == {"JAVA", "PYTHON"}
    wanted = {(each["topic"], each["expression"]) for each in value["subscriptions"]}
    assert wanted == {tuple(row) for row in rows(subscriptions) if not row[0].endswith(":")}
    for name, key in (("ConsumeType", "consume_type"), ("MessageModel", "message_model")):
        assert f"{name}: {value[key]}" in text


async def producers_agree(tools: Tools, group: str) -> None:
    text = await tools.theirs("producerConnection", "-g", group, "-t", TOPIC)
    value = await tools.ours("producerConnection", "-g", group, "-t", TOPIC)
    assert facts(value) == {tuple(row[1:]) for row in rows(text)}
    java = await tools.ours("producerConnection", "-g", "admin-java-producers", "-t", TOPIC)
    assert [each["language"] for each in java] == ["JAVA"]


async def progress_agrees(tools: Tools) -> None:
    """Wait until both tools print the same: members report their offsets every second."""

    async def is_equal() -> bool:
        text = await tools.theirs("consumerProgress", "-g", GROUP)
        value = await tools.ours("consumerProgress", "-g", GROUP)
        table = {tuple(row[:7]) for row in rows(text) if len(row) >= 8}
        ours = {tuple(map(str, list(each.values())[:7])) for each in value["queues"]}
        return ours == table and value["diff_total"] == 0 and "Consume Diff Total: 0" in text and len(ours) >= QUEUES

    await eventually(is_equal, what="both tools print the same progress, and no message is left")
    text = [row for row in rows(await tools.theirs("consumerProgress")) if row[0] == GROUP]
    value = [each for each in await tools.ours("consumerProgress") if each["group"] == GROUP]
    assert [text[0][0], *text[0][2:5]] == [value[0]["group"], *list(value[0].values())[2:5]]
    assert (text[0][1], text[0][-1]) == (str(value[0]["count"]), str(value[0]["diff_total"])) == ("2", "0")


async def owners_agree(tools: Tools, theirs: JavaConsumer) -> None:
    value = await tools.ours("consumerProgress", "-g", GROUP, "-s", "true")
    owners = {(q["topic"], q["broker_name"], q["queue_id"]): q["client_id"] for q in value["queues"]}
    owned = await theirs.owned()
    assert {queue for queue, owner in owners.items() if owner == theirs.client_id} == owned & set(owners)
    assert len({owner for queue, owner in owners.items() if queue[0] == TOPIC}) == 2
    text = await tools.theirs("consumerProgress", "-g", GROUP, "-s", "true")
    ips = {(row[0], row[1], int(row[2])): row[5] for row in rows(text) if len(row) >= 9}
    assert ips == {queue: owner.partition("@")[0] for queue, owner in owners.items()}


async def status_agrees(tools: Tools, client_id: str) -> None:
    text = await tools.theirs("consumerStatus", "-g", GROUP, "-i", client_id)
    value = await tools.ours("consumerStatus", "-g", GROUP, "-i", client_id)
    for name in ("PROP_CONSUME_TYPE", "PROP_CLIENT_VERSION", "PROP_CONSUMER_START_TIMESTAMP"):
        assert re.search(rf"{name} *: {value['properties'][name]}$", text, re.MULTILINE)
    offsets = text.partition("#Consumer Offset#")[2].partition("#Consumer MQ Detail#")[0]
    queues = {tuple(row[:3]) for row in rows(offsets)}
    assert {(q["topic"], q["broker_name"], str(q["queue_id"])) for q in value["queues"]} == queues
    text = await tools.our_text("consumerStatus", "-g", GROUP, "-i", client_id, "-s")
    assert "#Consumer jstack#" in text


# --------------------------------------------------------------------------------------------------- moving groups


async def test_each_tool_sees_offsets_that_the_other_reset(tools: Tools, admin: Admin, broker: ApacheBroker) -> None:
    group = "moved-group"
    await admin.create_group(GroupConfig(group), broker=broker.address)
    async with Producer("moving-producers", tools.name_servers) as producer:
        for queue in await producer.queues(TOPIC):
            await producer.send(Message(TOPIC, b"x"), queue=queue)
    ends = {q.queue_id: span.max_offset for q, span in (await admin.topic_status(TOPIC)).queues.items()}

    arguments = ("-g", group, "-t", TOPIC)
    moved = await tools.ours("resetOffsetByTime", *arguments, "-s", "-1")
    assert {each["queue_id"]: each["offset"] for each in moved} == ends
    assert await their_offsets(tools, group) == ends
    text = await tools.theirs("resetOffsetByTime", *arguments, "-s", "2020-01-01#00:00:00:000")
    assert {int(row[1]): int(row[2]) for row in rows(text) if row[0] == broker.broker_name} == dict.fromkeys(ends, 0)
    assert await our_offsets(admin, group) == dict.fromkeys(ends, 0)
    await tools.ours("resetOffsetByTime", *arguments, "-s", "now", "-b", broker.address, "-q", "1", "-o", "1")
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
    text = await tools.theirs("consumerProgress", "-g", group, "-t", TOPIC)
    return {int(row[2]): int(row[4]) for row in rows(text) if len(row) >= 8 and row[0] == TOPIC}


# --------------------------------------------------------------------------------------------------------- messages


async def test_both_tools_find_the_same_messages(tools: Tools, admin: Admin, broker: ApacheBroker) -> None:
    arguments = ("-t", TOPIC, "-k", "found-key", "-c", "Tag", "-b", broker.broker_name, "-i", "2")
    (their_row,) = rows(await tools.theirs("sendMessage", *arguments, "-p", "from Java"))
    ours = await tools.ours("sendMessage", *arguments, "-p", "from us")
    assert their_row[:3] == [ours["broker_name"], str(ours["queue_id"]), ours["send_result"]]
    ids = {their_row[3], ours["message_id"]}

    async def are_indexed() -> bool:
        text = await tools.theirs("queryMsgByKey", "-t", TOPIC, "-k", "found-key")
        return {row[0] for row in rows(text) if len(row) == 4} == ids

    await eventually(are_indexed, what="mqadmin finds both by their key")
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
        theirs_printed = labels(await tools.theirs(command, "-t", TOPIC, *which))
        await asyncio.to_thread(Path(theirs_printed.pop("Message Body Path")).unlink, missing_ok=True)
        ours_printed = labels(await tools.our_text(command, "-t", TOPIC, *which))
        for name in theirs_printed.keys() - {"Properties", "Born Timestamp", "Store Timestamp"}:
            assert ours_printed[name] == theirs_printed[name], name
        # Mqadmin has a comma between seconds and milliseconds.
        assert ours_printed["Store Timestamp"] == theirs_printed["Store Timestamp"].replace(",", ".")
        assert set(ours_printed["Properties"].split(", ")) <= set(theirs_printed["Properties"].strip("{}").split(", "))

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
    """Return the cells of each line of a table."""
    return [line.split(maxsplit=9) for line in text.splitlines() if line.strip() and not line.startswith("#")]


def facts(connections: list[dict[str, str]]) -> set[tuple[str, ...]]:
    return {tuple(each.values()) for each in connections}


def labels(text: str) -> dict[str, str]:
    """Return the values of labels such as `Queue ID:`."""
    found = re.findall(r"^([A-Z][A-Za-z ]+):[ \t]+(.*?)\s*$", text, re.MULTILINE)
    return dict(found)


def as_facts(config: GroupConfig) -> dict[str, object]:
    return {name: getattr(config, name) for name in config.__struct_fields__ if name != "name"}
