"""Real Apache brokers of both lines register with our name server, and leave it in every way a broker can leave."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.peers.transcript import run_time_settings
from tests.support.apache import APACHE, APACHE_4, REGISTERED_S, ApacheBroker, NameServerProcess
from tests.support.codes import GET_CLUSTERS, GET_ROUTE, LIST_TOPICS, NO_TOPIC, SUCCESS
from tests.support.raw import RawConnection, Request, canonical
from tests.support.waiting import wait_until

AT_ONCE_S = 2.0  # far below the two minutes of a lease


def members(server: NameServerProcess, broker: str) -> dict[str, str]:
    """Broker id to address, as 106 tells it; empty when the group is unknown."""
    with RawConnection(server.address) as line:
        groups: dict[str, Any] = line.call(GET_CLUSTERS).value["brokerAddrTable"]
    addresses: dict[str, str] = groups.get(broker, {}).get("brokerAddrs", {})
    return addresses


def route(server: NameServerProcess, topic: str) -> dict[str, dict[str, str]] | None:
    """Broker name to members of one topic's route; None when there is no route."""
    with RawConnection(server.address) as line:
        reply = line.call(GET_ROUTE, {"topic": topic})
    if reply.code == NO_TOPIC:
        return None
    assert reply.code == SUCCESS
    return {data["brokerName"]: data["brokerAddrs"] for data in reply.value["brokerDatas"]}


def wait_for_members(server: NameServerProcess, broker: str, expected: dict[str, str]) -> None:
    wait_until(
        lambda: members(server, broker) == expected, timeout_s=REGISTERED_S, what=f"members of {broker}: {expected}"
    )


def is_writable(server: NameServerProcess, topic: str, broker: str) -> bool:
    with RawConnection(server.address) as line:
        queues = line.call(GET_ROUTE, {"topic": topic}).value["queueDatas"]
    (perm,) = (queue["perm"] for queue in queues if queue["brokerName"] == broker)
    return bool(perm & 2)


def test_one_broker_at_two_name_servers_has_the_same_routes_at_both(
    apache: NameServerProcess, ours: NameServerProcess, broker: ApacheBroker
) -> None:
    with RawConnection(apache.address) as theirs, RawConnection(ours.address) as mine:
        assert canonical(mine.call(GET_CLUSTERS).text) == canonical(theirs.call(GET_CLUSTERS).text)
        topics = sorted(theirs.call(LIST_TOPICS).value["topicList"])
        assert sorted(mine.call(LIST_TOPICS).value["topicList"]) == topics
        assert {"TBW102", broker.cluster, broker.broker_name} <= set(topics)
        for topic in topics:
            for version, strict in ((399, False), (479, True)):
                question = Request(GET_ROUTE, {"topic": topic}, version=version)
                expected = canonical(theirs.call(question).text, strict=strict)
                assert canonical(mine.call(question).text, strict=strict) == expected


@pytest.fixture(scope="module", params=[APACHE, APACHE_4])
def pair(
    request: pytest.FixtureRequest, ours: NameServerProcess, lib_4: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ApacheBroker, ApacheBroker]]:
    """A master and a slave that know no name server but ours."""
    version = request.param
    name = f"pair-{version}"
    master, slave = (
        ApacheBroker(
            name, tmp_path_factory.mktemp(f"broker{number}"), [ours.address], version=version, broker_id=number
        )
        for number in (0, 1)
    )
    with master, slave:
        yield master, slave


Pair = tuple[ApacheBroker, ApacheBroker]


class TestMasterAndSlave:
    """The tests of this class run in order: each leaves the pair as the next one needs it."""

    def test_both_are_registered_under_their_ids(self, pair: Pair, ours: NameServerProcess) -> None:
        master, slave = pair
        both = {"0": master.address, "1": slave.address}
        wait_for_members(ours, master.broker_name, both)
        for topic in ("TBW102", master.cluster, master.broker_name):
            found = route(ours, topic)
            assert found is not None
            assert found[master.broker_name] == both

    def test_the_slave_replicates_from_the_master_in_our_response(self, pair: Pair) -> None:
        master, _ = pair
        assert wait_until(lambda: established_to(master.port + 1), "the slave replicates", timeout_s=REGISTERED_S)

    def test_a_killed_master_is_gone_at_once_and_the_slave_stays(self, pair: Pair, ours: NameServerProcess) -> None:
        master, slave = pair
        master.kill()
        killed_at = time.monotonic()
        wait_for_members(ours, master.broker_name, {"1": slave.address})
        assert time.monotonic() - killed_at < AT_ONCE_S
        found = route(ours, master.broker_name)
        assert found is not None
        assert found[master.broker_name] == {"1": slave.address}

    def test_the_master_comes_back_with_a_compressed_table(
        self, pair: Pair, ours: NameServerProcess, ours_is_apache: bool
    ) -> None:
        """5.x deflates the body and says that it did not, so that Apache's own name server refuses it."""
        master, slave = pair
        master.configure(compressedRegister="false" if ours_is_apache else "true")
        master.start()
        both = {"0": master.address, "1": slave.address}
        wait_for_members(ours, master.broker_name, both)
        found = route(ours, "TBW102")
        assert found is not None
        assert found[master.broker_name] == both

    def test_a_stopping_broker_unregisters(self, pair: Pair, ours: NameServerProcess) -> None:
        master, slave = pair
        for process, left in ((slave, {"0": master.address}), (master, {})):
            process.ask_to_stop()
            wait_for_members(ours, master.broker_name, left)
            assert process.is_running  # so it was its word, not the end of its connection
        assert route(ours, master.broker_name) is None
        for process in pair:
            process.wait()


def test_a_slave_acts_as_master_while_the_master_is_down(lib: Path, ours: NameServerProcess, tmp_path: Path) -> None:
    """Brokers in this mode are silent for at most a second, and read the true member list from a topic of their own."""
    acting = {"enableSlaveActingMaster": "true", "enableRemotingLocalEscape": "false", "inSyncReplicas": "1"}
    name = "acting"
    master, slave = (
        ApacheBroker(name, tmp_path / f"broker{number}", [ours.address], broker_id=number, config=acting)
        for number in (0, 1)
    )
    with run_time_settings(ours, supportActingMaster="true"), master, slave:
        both = {"0": master.address, "1": slave.address}
        wait_for_members(ours, name, both)
        assert is_writable(ours, name, name)
        master.kill()
        wait_until(lambda: route(ours, name) == {name: {"0": slave.address}}, timeout_s=10)
        assert members(ours, name) == {"1": slave.address}
        assert route(ours, f"rmq_sys_SYNC_BROKER_MEMBER_{name}") == {name: {"1": slave.address}}
        assert not is_writable(ours, name, name)


def established_to(port: int) -> bool:
    """Whether some process of this machine holds a connection to the port; from the kernel's own table."""
    established, wanted = "01", f"{port:04X}"
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, _, remote, state, *_ = line.split()
            if state == established and remote.rpartition(":")[2] == wanted:
                return True
    return False
