"""The real mqadmin says the same of both name servers.

One Apache broker is registered at Apache's name server and at ours. Each command is run with `-n` of the one and then
of the other, and what it prints must be equal, but for what the functions at the end of this file take out.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.peers.transcript import OUR_KEYS, PLACES
from tests.support.apache import SMALL_HEAP, ApacheBroker, NameServerProcess, PeerFailedError, java
from tests.support.codes import GET_KV, GET_ROUTE, NOT_FOUND, SUCCESS
from tests.support.raw import RawConnection
from tests.support.waiting import wait_until

TOPIC = "AdminTopic"


class MqAdmin:
    """One JVM with Apache's admin tool in it."""

    def __init__(self, lib: Path, classes: Path, home: Path) -> None:
        self._errors = (home / "errors.log").open("wb")
        self._process = subprocess.Popen(
            java(lib, home, "AdminShell", classes=classes, options=SMALL_HEAP),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=home,  # some commands leave files where they are run
        )

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def run(self, *words: str) -> str:
        """Run one command and give all that it printed."""
        sink, source = self._process.stdin, self._process.stdout
        assert sink is not None
        assert source is not None
        sink.write("\t".join(words).encode() + b"\n")
        sink.flush()
        length = source.readline()
        if not length:
            raise PeerFailedError(f"mqadmin ended while it ran {words}")
        return source.read(int(length)).decode()


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


class Both:
    """Runs a command against both name servers, and checks that both print the same."""

    def __init__(self, mqadmin: MqAdmin, apache: NameServerProcess, ours: NameServerProcess) -> None:
        self._mqadmin = mqadmin
        self.servers = (apache, ours)

    def check(self, command: str, *words: str, neutral: Callable[[str], str] = str) -> str:
        said = []
        for server in self.servers:
            text = self._mqadmin.run(command, *words, "-n", server.address)
            said.append(neutral(text.replace(server.address, "NAMESERVER")))
        assert said[1] == said[0]
        return said[1]

    def until_topic(self, topic: str, *, is_there: bool) -> None:
        """Wait until both know the topic: a broker registers with its name servers concurrently."""
        for server in self.servers:
            with RawConnection(server.address) as line:
                _until_topic(line, topic, is_there=is_there)


def _until_topic(line: RawConnection, topic: str, *, is_there: bool) -> None:
    wait_until(lambda: (line.call(GET_ROUTE, {"topic": topic}).code == SUCCESS) == is_there, timeout_s=40, what=topic)


@pytest.fixture
def both(mqadmin: MqAdmin, apache: NameServerProcess, ours: NameServerProcess, broker: ApacheBroker) -> Both:
    both = Both(mqadmin, apache, ours)
    both.until_topic(broker.broker_name, is_there=True)
    return both


@pytest.fixture
def topic(both: Both, broker: ApacheBroker) -> str:
    """A topic that both know."""
    both.check("updateTopic", "-c", broker.cluster, "-t", TOPIC, "-r", "4", "-w", "4")
    both.until_topic(TOPIC, is_there=True)
    return TOPIC


def test_cluster_list(both: Both, broker: ApacheBroker) -> None:
    said = both.check("clusterList", neutral=identities)
    assert broker.address in said
    assert broker.cluster in said
    both.check("clusterList", "-c", "NoSuchCluster", neutral=identities)


def test_topic_list(both: Both, topic: str) -> None:
    assert topic in both.check("topicList", neutral=in_order).splitlines()
    assert topic in both.check("topicList", "-c", neutral=in_order)


def test_topic_route(both: Both, topic: str, broker: ApacheBroker) -> None:
    assert broker.address in both.check("topicRoute", "-t", topic)
    assert broker.address in both.check("topicRoute", "-t", topic, "-l")
    both.check("topicRoute", "-t", "NoSuchTopic", neutral=messages_only)


def test_topic_cluster_list(both: Both, topic: str, broker: ApacheBroker) -> None:
    assert broker.cluster in both.check("topicClusterList", "-t", topic)


def test_kv_config(both: Both) -> None:
    words = ("-s", "AdminSpace", "-k", "key")
    assert "success" in both.check("updateKvConfig", *words, "-v", "value;with=marks")
    for server in both.servers:
        with RawConnection(server.address) as line:
            assert line.call(GET_KV, {"namespace": "AdminSpace", "key": "key"}).fields == {"value": "value;with=marks"}
    assert "success" in both.check("deleteKvConfig", *words)
    for server in both.servers:
        with RawConnection(server.address) as line:
            assert line.call(GET_KV, {"namespace": "AdminSpace", "key": "key"}).code == NOT_FOUND


def test_name_server_settings(both: Both) -> None:
    said = both.check("getNamesrvConfig", neutral=settings)
    assert "orderMessageEnable" in said
    both.check("updateNamesrvConfig", "-k", "notifyMinBrokerIdChanged", "-v", "true")
    assert re.search(r"notifyMinBrokerIdChanged +=  true", both.check("getNamesrvConfig", neutral=settings))
    both.check("updateNamesrvConfig", "-k", "notifyMinBrokerIdChanged", "-v", "false")
    both.check("updateNamesrvConfig", "-k", "kvConfigPath", "-v", "elsewhere", neutral=messages_only)
    assert both.check("getNamesrvConfig", neutral=settings) == said


def test_write_permission(both: Both, topic: str, broker: ApacheBroker) -> None:
    assert "OK" in both.check("wipeWritePerm", "-b", broker.broker_name)
    assert '"perm": 4' in both.check("topicRoute", "-t", topic, neutral=perms)
    assert "OK" in both.check("addWritePerm", "-b", broker.broker_name)
    assert '"perm": 6' in both.check("topicRoute", "-t", topic, neutral=perms)
    assert "OK, 0" in both.check("wipeWritePerm", "-b", "NoSuchBroker")


def test_topics_come_and_go(both: Both, broker: ApacheBroker) -> None:
    words = ("-c", broker.cluster, "-t", "ShortLived")
    assert "success" in both.check("updateTopic", *words, "-r", "2", "-w", "3", "-p", "4")
    both.until_topic("ShortLived", is_there=True)
    assert '"readQueueNums":2' in both.check("topicRoute", "-t", "ShortLived").replace(" ", "")
    assert "success" in both.check("deleteTopic", *words)
    both.until_topic("ShortLived", is_there=False)
    both.check("topicRoute", "-t", "ShortLived", neutral=messages_only)


def test_ordered_topics(both: Both, broker: ApacheBroker) -> None:
    ordered = ("-t", "OrderedTopic")
    assert "orderConf" in both.check("updateTopic", "-c", broker.cluster, *ordered, "-o", "true", "-w", "5")
    assert f"{broker.broker_name}:5" in both.check("updateOrderConf", *ordered, "-m", "get")
    assert "success" in both.check("updateOrderConf", *ordered, "-m", "put", "-v", f"{broker.broker_name}:6")
    assert f"{broker.broker_name}:6" in both.check("updateOrderConf", *ordered, "-m", "get")
    assert "success" in both.check("updateOrderConf", *ordered, "-m", "delete")
    both.check("updateOrderConf", *ordered, "-m", "get", neutral=messages_only)
    assert "success" in both.check("deleteTopic", "-c", broker.cluster, *ordered)


# ------------------------------------------------------------------------------------- what may differ, and only that


def in_order(text: str) -> str:
    """Lists come in hash order."""
    return "\n".join(sorted(text.splitlines()))


def settings(text: str) -> str:
    lines = (line for line in text.splitlines() if line.split("=", 1)[0].strip() not in PLACES | OUR_KEYS)
    return "\n".join(sorted(lines))


def identities(text: str) -> str:
    """The rows of clusterList without the columns between version and ACTIVATED: the broker measures those itself."""
    title, *rows = text.splitlines()
    return "\n".join([title, *(" ".join([*row.split()[:5], row.split()[-1]]) for row in rows)])


def messages_only(text: str) -> str:
    """An error is followed by the places in the tool where it happened, which say nothing of the server."""
    return re.sub(r"^\tat .*\n?", "", text, flags=re.MULTILINE)


def perms(text: str) -> str:
    return re.sub(r'"perm": ?', '"perm": ', text)
