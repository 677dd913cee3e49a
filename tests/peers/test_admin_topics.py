"""`skyroute admin` and Apache's mqadmin print the same about one cluster, and each sees the other's changes.

The cluster is Apache's broker with Apache's name server; commands that only read also run with ours.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from skyroute.cli.main import main
from skyroute.client.producing.producer import Producer
from skyroute.message.message import Message
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.peers.test_mqadmin import MqAdmin
from tests.support.apache import ApacheBroker, NameServerProcess
from tests.support.raw import RawConnection
from tests.support.waiting import wait_until

TOPIC = "AdminFacts"
QUEUES = 4
SENT = 6


class Both:
    """Our admin and Apache's, with one name server."""

    def __init__(self, mqadmin: MqAdmin, server: NameServerProcess, broker: ApacheBroker) -> None:
        self._mqadmin = mqadmin
        self.address = server.address
        self.broker = broker

    def java(self, *arguments: str) -> str:
        return self._mqadmin.run(*arguments, "-n", self.address)

    def java_rows(self, *arguments: str) -> list[list[str]]:
        """Return the cells of mqadmin's table; the first row is the header."""
        return [line.split() for line in self.java(*arguments).splitlines() if line.strip()]

    def ours(self, *arguments: str) -> str:
        """Return what our command prints; it must succeed."""
        result = CliRunner().invoke(main, ["admin", *arguments, "-n", self.address])
        assert (result.exit_code, result.stderr) == (0, "")
        return result.stdout

    def value(self, *arguments: str) -> Any:
        return json.loads(self.ours(*arguments, "--json"))

    def failure(self, *arguments: str) -> str:
        """Run our command as a process and return its one-line error."""
        done = subprocess.run(
            [sys.executable, "-m", "skyroute", "admin", *arguments, "-n", self.address],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.count("\n") == 1
        return done.stderr

    def until_topic(self, topic: str, *, is_there: bool = True) -> None:
        with RawConnection(self.address) as line:
            wait_until(
                lambda: (
                    (line.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).code == ResponseCode.SUCCESS)
                    == is_there
                ),
                timeout_s=40,
                what=topic,
            )


@pytest.fixture(scope="module")
def mqadmin(
    lib: Path, java_classes: Path, apache: NameServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MqAdmin]:
    admin = MqAdmin(lib, java_classes, tmp_path_factory.mktemp("mqadmin"))
    try:
        admin.run("getNamesrvConfig", "-n", apache.address)  # the first command also prints how logging was set up
        yield admin
    finally:
        admin.close()


@pytest.fixture(scope="module")
def both(mqadmin: MqAdmin, apache: NameServerProcess, ours: NameServerProcess, broker: ApacheBroker) -> Both:
    """A topic with messages, created by our command and registered with both name servers."""
    both = Both(mqadmin, apache, broker)
    both.until_topic(broker.broker_name)
    both.ours("updateTopic", "-c", broker.cluster, "-t", TOPIC, "-r", str(QUEUES), "-w", str(QUEUES))
    for server in (apache, ours):
        Both(mqadmin, server, broker).until_topic(TOPIC)
    asyncio.run(send(apache.address))
    return both


async def send(name_server: str) -> None:
    async with Producer("admin-facts", name_server) as producer:
        for _ in range(SENT):
            await producer.send(Message(TOPIC, b"body"))


@pytest.fixture(params=["apache", "ours"])
def looking(request: pytest.FixtureRequest, mqadmin: MqAdmin, broker: ApacheBroker, both: Both) -> Both:
    """The same cluster, through each name server."""
    server = request.getfixturevalue(request.param)
    assert isinstance(server, NameServerProcess)
    return Both(mqadmin, server, broker)


# ------------------------------------------------------------------------------------------------------------ looking


def test_cluster_list(looking: Both) -> None:
    java_head, java = looking.java_rows("clusterList")
    head, row = (line.split() for line in looking.ours("clusterList").splitlines())
    assert (head, row[:5], row[-1]) == (java_head, java[:5], "true")
    (ours,) = looking.value("clusterList", "-c", looking.broker.cluster)
    identity = [ours["cluster"], ours["broker"], str(ours["broker_id"]), ours["address"], ours["version"]]
    assert (identity, ours["active"]) == (java[:5], True)


def test_cluster_list_with_totals(both: Both) -> None:
    ours = [line.split() for line in both.ours("clusterList", "-m").splitlines()]
    assert ours == both.java_rows("clusterList", "-m")


def test_topic_list(looking: Both) -> None:
    topics = looking.ours("topicList").splitlines()
    assert topics == sorted(looking.java("topicList").split())
    assert TOPIC in topics
    head, *ours = (line.split() for line in looking.ours("topicList", "-c").splitlines())
    java_head, *java = looking.java_rows("topicList", "-c")
    assert (head, ours) == (java_head, sorted(java, key=lambda row: (row[1], row[2:])))


def test_topic_route(looking: Both) -> None:
    head, row, total = looking.ours("topicRoute", "-t", TOPIC, "-l").splitlines()
    java_head, java_row, _, java_total = looking.java("topicRoute", "-t", TOPIC, "-l").splitlines()
    assert head.split() == java_head.split()
    assert row.split() == java_row.replace("{", "").replace("}", "").split()
    assert total.split() == java_total.split()
    java = json.loads(re.sub(r"([{,]\s*)(\d+):", r'\1"\2":', looking.java("topicRoute", "-t", TOPIC)))
    (ours,) = looking.value("topicRoute", "-t", TOPIC)["brokers"]
    assert ours["addresses"] == java["brokerDatas"][0]["brokerAddrs"]
    assert (ours["read_queues"], ours["permission"]) == (QUEUES, java["queueDatas"][0]["perm"])


def test_topic_status(looking: Both) -> None:
    _, *java, java_tps = looking.java_rows("topicStatus", "-t", TOPIC)
    value = looking.value("topicStatus", "-t", TOPIC)
    assert sum(queue["max_offset"] for queue in value["queues"]) == SENT
    for arguments in ((), ("-c", looking.broker.cluster)):
        lines = looking.ours("topicStatus", "-t", TOPIC, *arguments).splitlines()
        rows = [line.split() for line in lines[1:] if line]
        assert [row[:4] for row in rows[:-1]] == [row[:4] for row in java]
        assert rows[-1][:3] == java_tps[:3]
        # mqadmin writes a comma before milliseconds.
        assert [" ".join(row[4:]) for row in rows[:-1]] == [" ".join(row[4:]).replace(",", ".") for row in java]


def test_topic_cluster_list(looking: Both) -> None:
    assert looking.ours("topicClusterList", "-t", TOPIC) == looking.java("topicClusterList", "-t", TOPIC)


def test_allocate_mq(looking: Both) -> None:
    # mqadmin takes clients as they are given and queues as they lie in a hash table; consumers sort both, and so do we.
    arguments = ("allocateMQ", "-t", TOPIC, "-i", "10.0.0.1,10.0.0.2,10.0.0.3")
    java = json.loads(looking.java(*arguments))["result"]
    ours = looking.value(*arguments)
    assert {client: len(queues) for client, queues in ours.items()} == {
        client: len(queues) for client, queues in java.items()
    }
    assert [queue["queue_id"] for queues in ours.values() for queue in queues] == list(range(QUEUES))


def test_stats_all(looking: Both) -> None:
    java_head, *java = looking.java_rows("statsAll")
    head, *ours = (line.split() for line in looking.ours("statsAll").splitlines())
    assert head == java_head
    assert [topic_and_group(row) for row in ours] == sorted(map(topic_and_group, java))
    (one,) = looking.value("statsAll", "-t", TOPIC)
    assert one["group"] is None


def topic_and_group(row: list[str]) -> list[str]:
    """Return the comparable cells: in a row without a group, two are empty."""
    return row[:1] if row[-1] == "NO_CONSUMER" else row[:2]


def test_broker_status(both: Both) -> None:
    java = {line.split(":", 1)[0].strip() for line in both.java("brokerStatus", "-b", both.broker.address).splitlines()}
    ours = both.value("brokerStatus", "-b", both.broker.address)[both.broker.address]
    assert set(ours) == {name for name in java if name}
    assert set(both.value("brokerStatus", "-c", both.broker.cluster)) == {both.broker.address}


def test_settings_are_printed(both: Both) -> None:
    address = both.broker.address
    assert both.value("getBrokerConfig", "-c", both.broker.cluster)[address] == java_settings(
        both.java("getBrokerConfig", "-b", address)
    )
    assert both.value("getNamesrvConfig")[both.address] == java_settings(both.java("getNamesrvConfig"))


def java_settings(text: str) -> dict[str, str]:
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("="))
    return {name.strip(): value.strip() for name, value in pairs}


# ----------------------------------------------------------------------------------------------------------- changing


def test_topics_are_created_changed_and_deleted(both: Both) -> None:
    arguments = ("-c", both.broker.cluster, "-t", "MadeByUs")
    attributes = ("-a", "+message.type=FIFO")
    assert both.ours("updateTopic", *arguments, "-r", "2", "-w", "3", *attributes) == (
        f"create topic to {both.broker.address} success.\n"
    )
    both.until_topic("MadeByUs")
    assert both.java_rows("topicRoute", "-t", "MadeByUs", "-l")[1][-3:] == ["2", "3", "6"]
    assert both.value("updateTopicPerm", *arguments, "-p", "4") == [
        {"address": both.broker.address, "before": 6, "after": 4}
    ]
    assert both.java_rows("topicRoute", "-t", "MadeByUs", "-l")[1][-3:] == ["2", "3", "4"]
    assert "from 4 to 6" in both.java("updateTopicPerm", *arguments, "-p", "6")
    assert both.value("topicRoute", "-t", "MadeByUs")["brokers"][0]["permission"] == 6
    both.ours("deleteTopic", "-c", both.broker.cluster, "-t", "MadeByUs")
    both.until_topic("MadeByUs", is_there=False)
    assert "MadeByUs" not in both.java("topicList").split()
    assert "no broker serves the topic MadeByUs" in both.failure("topicRoute", "-t", "MadeByUs")


def test_ordered_topics(both: Both) -> None:
    name = both.broker.broker_name
    arguments = ("updateOrderConf", "-t", "OrderedByUs", "-m")
    made = both.value("updateTopic", "-b", both.broker.address, "-t", "OrderedByUs", "-o", "true", "-w", "5")
    assert made["order_config"] == f"{name}:5"
    assert f"orderConf=[{name}:5]" in both.java(*arguments, "get")
    both.java(*arguments, "put", "-v", f"{name}:6")
    assert f"orderConf=[{name}:6]" in both.ours(*arguments, "get")
    both.ours(*arguments, "put", "-v", f"{name}:7")
    assert f"orderConf=[{name}:7]" in both.java(*arguments, "get")
    both.ours(*arguments, "delete")
    assert "has no order config" in both.failure(*arguments, "get")
    both.ours("deleteTopic", "-c", both.broker.cluster, "-t", "OrderedByUs")


def test_settings_are_changed(both: Both) -> None:
    address = both.broker.address
    before = both.value("getBrokerConfig", "-b", address)[address]["maxMessageSize"]
    for where in (("-b", address), ("-c", both.broker.cluster, "-a", "true")):
        both.ours("updateBrokerConfig", *where, "-k", "maxMessageSize", "-v", "4194305")
        assert java_settings(both.java("getBrokerConfig", "-b", address))["maxMessageSize"] == "4194305"
        both.java("updateBrokerConfig", "-b", address, "-k", "maxMessageSize", "-v", before)
        assert both.value("getBrokerConfig", "-b", address)[address]["maxMessageSize"] == before
    assert "NO_PERMISSION" in both.failure("updateBrokerConfig", "-b", address, "-k", "brokerConfigPath", "-v", "x")
    both.ours("updateNamesrvConfig", "-k", "notifyMinBrokerIdChanged", "-v", "true")
    assert java_settings(both.java("getNamesrvConfig"))["notifyMinBrokerIdChanged"] == "true"
    both.ours("updateNamesrvConfig", "-k", "notifyMinBrokerIdChanged", "-v", "false")


def test_key_value_config(both: Both) -> None:
    arguments = ("-s", "OurSpace", "-k", "key")
    with RawConnection(both.address) as line:
        both.ours("updateKvConfig", *arguments, "-v", "value;with=marks")
        assert line.call(RequestCode.GET_KV_CONFIG, {"namespace": "OurSpace", "key": "key"}).fields == {
            "value": "value;with=marks"
        }
        both.ours("deleteKvConfig", *arguments)
        assert (
            line.call(RequestCode.GET_KV_CONFIG, {"namespace": "OurSpace", "key": "key"}).code
            == ResponseCode.QUERY_NOT_FOUND
        )


def test_write_permission(both: Both) -> None:
    name = both.broker.broker_name
    try:
        ours = both.value("wipeWritePerm", "-b", name)
        assert both.java_rows("topicRoute", "-t", TOPIC, "-l")[1][-1] == "4"
    finally:
        text = both.java("addWritePerm", "-b", name)
    assert f"OK, {ours[0]['topics']}" in text
    assert both.java_rows("topicRoute", "-t", TOPIC, "-l")[1][-1] == "6"
    assert both.value("addWritePerm", "-b", name) == [{"name_server": both.address, "topics": ours[0]["topics"]}]
    assert both.value("wipeWritePerm", "-b", "NoSuchBroker")[0]["topics"] == 0


def test_cleaning(both: Both) -> None:
    for command in ("cleanExpiredCQ", "cleanUnusedTopic"):
        assert both.java(command).strip() == "success"
        assert both.value(command) == {"brokers": [both.broker.address]}
        assert both.value(command, "-b", both.broker.address) == {"brokers": [both.broker.address]}


def test_cluster_rt(both: Both) -> None:
    # mqadmin would go on for ever.
    (value,) = both.value("clusterRT", "-a", "10", "-c", both.broker.cluster)
    assert (value["broker"], value["successes"], value["failures"]) == (both.broker.broker_name, 10, 0)
    assert value["rt_ms"] > 0


def test_errors_are_printed_in_one_line(both: Both) -> None:
    cluster = both.broker.cluster
    assert f"know {cluster}" in both.failure("clusterList", "-c", "NoSuchCluster")
    assert "INVALID_PARAMETER" in both.failure("updateTopic", "-b", both.broker.address, "-t", "TBW102")
    assert "unsupported key" in both.failure("updateTopic", "-c", cluster, "-t", "Odd", "-a", "+odd=1")
    assert "cannot be reached" in both.failure("brokerStatus", "-b", "127.0.0.1:1")
