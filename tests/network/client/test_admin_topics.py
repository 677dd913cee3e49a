"""The admin's calls about topics and clusters, beyond what the commands show."""

from __future__ import annotations

import json

import pytest

from skyroute.client.admin import Admin
from skyroute.client.admin.base import CONCURRENT_CALLS_MAX, SomeFailedError, UnknownClusterError, call_all, call_each
from skyroute.client.admin.topics import RESTARTS_MAX
from skyroute.client.errors import ClientError, ServerFailedError
from skyroute.client.session.session import Session
from skyroute.errors import SkyrouteError
from skyroute.wire.calls.topics import TopicConfig
from tests.support.fake_broker import BROKER, CLUSTER, NAME_SERVER, FakeCluster, Peer, Reply, fake_cluster
from tests.support.raw import Command


def tell_clusters(cluster: FakeCluster, *names: str) -> None:
    """Have the name server answer 106: every cluster has the same brokers."""
    brokers = {
        server.name: {"brokerName": server.name, "cluster": CLUSTER, "brokerAddrs": {0: server.address}}
        for server in cluster.brokers
    }
    info = {"brokerAddrTable": brokers, "clusterAddrTable": {name: list(brokers) for name in names}}
    reply = Reply(body=json.dumps(info).encode())
    cluster.on(106, lambda _command, _peer: reply, broker=NAME_SERVER)


class Topics:
    """A broker's table of topics, told in pages as Apache's brokers do."""

    def __init__(self, count: int, page: int) -> None:
        self.names = [f"T{number:02}" for number in range(count)]
        self.version = 1
        self.asked: list[int] = []
        self._page = page

    def __call__(self, command: Command, _peer: Peer) -> Reply:
        start = int(command.fields["topicSeq"])
        if command.fields["dataVersion"] and json.loads(command.fields["dataVersion"])["counter"] != self.version:
            start = 0
        self.asked.append(start)
        table = {name: {"topicName": name, "perm": 6} for name in self.names[start : start + self._page]}
        body = {"topicConfigTable": table, "dataVersion": {"counter": self.version, "stateVersion": 0, "timestamp": 5}}
        self.after_page()
        return Reply(fields={"totalTopicNum": str(len(self.names))}, body=json.dumps(body).encode())

    def after_page(self) -> None:
        pass


async def test_topics_come_in_pages() -> None:
    async with fake_cluster() as cluster, Admin(cluster.address) as admin:
        topics = Topics(count=7, page=3)
        cluster.on(21, topics, broker=BROKER)
        found = await admin.topic_configs(cluster.broker().address)
    assert list(found) == topics.names
    assert found["T00"] == TopicConfig("T00")
    assert topics.asked == [0, 3, 6]


async def test_a_table_that_changes_between_pages_is_read_anew() -> None:
    class Changing(Topics):
        def after_page(self) -> None:
            if self.asked == [0, 3]:
                self.names = ["A", *self.names[1:]]
                self.version += 1

    async with fake_cluster() as cluster, Admin(cluster.address) as admin:
        topics = Changing(count=7, page=3)
        cluster.on(21, topics, broker=BROKER)
        found = await admin.topic_configs(cluster.broker().address)
    assert list(found) == topics.names
    assert topics.asked == [0, 3, 0, 3, 6]


async def test_a_broker_that_tells_less_than_it_promised_is_not_asked_for_ever() -> None:
    class Short(Topics):
        def __call__(self, command: Command, peer: Peer) -> Reply:
            return Reply(fields={"totalTopicNum": "99"}, body=super().__call__(command, peer).body)

    async with fake_cluster() as cluster, Admin(cluster.address) as admin:
        cluster.on(21, Short(count=4, page=3), broker=BROKER)
        assert len(await admin.topic_configs(cluster.broker().address)) == 4


async def test_a_table_that_never_stops_changing_is_given_up() -> None:
    class Restless(Topics):
        def after_page(self) -> None:
            self.version += 1

    async with fake_cluster() as cluster, Admin(cluster.address) as admin:
        topics = Restless(count=7, page=3)
        cluster.on(21, topics, broker=BROKER)
        with pytest.raises(ClientError, match="change faster than they can be read"):
            await admin.topic_configs(cluster.broker().address)
    assert len(topics.asked) == RESTARTS_MAX + 2


async def test_a_broker_that_repeats_itself_is_not_asked_for_ever() -> None:
    class Deaf(Topics):
        def __call__(self, command: Command, peer: Peer) -> Reply:
            command.fields["topicSeq"] = "0"
            return super().__call__(command, peer)

    async with fake_cluster() as cluster, Admin(cluster.address) as admin:
        cluster.on(21, Deaf(count=7, page=3), broker=BROKER)
        assert len(await admin.topic_configs(cluster.broker().address)) == 3


async def test_a_new_topic_goes_to_the_only_cluster() -> None:
    async with fake_cluster(brokers=("a", "b")) as cluster, Admin(cluster.address) as admin:
        tell_clusters(cluster, CLUSTER)
        cluster.on(17, lambda _command, _peer: Reply())
        assert await admin.create_topic("New") == [server.address for server in cluster.brokers]


@pytest.mark.parametrize(("names", "known"), [((), "none at all"), (("East", "West"), "East, West")])
async def test_which_cluster_must_be_said_if_there_is_not_just_one(names: tuple[str, ...], known: str) -> None:
    async with fake_cluster() as cluster, Admin(cluster.address) as admin:
        tell_clusters(cluster, *names)
        with pytest.raises(UnknownClusterError, match=f"say which cluster; the name servers know {known}"):
            await admin.create_topic("New")
        assert not cluster.seen(17)


async def test_a_broker_and_a_cluster_are_one_too_many() -> None:
    async with fake_cluster() as cluster, Admin(cluster.address) as admin:
        with pytest.raises(ClientError, match="one of the two"):
            await admin.create_topic("New", broker=cluster.broker().address, cluster=CLUSTER)


async def test_a_session_of_others_is_left_running() -> None:
    async with fake_cluster({"T": 1}) as cluster, Session(cluster.address) as session:
        async with Admin(session=session) as admin:
            assert (await admin.route("T")).queues
        assert (await session.routes.refresh("T")).queues


async def test_who_failed_is_told_and_who_did_not() -> None:
    async def ask(name: str) -> str:
        if name in "bd":
            raise ServerFailedError(1, "no", name)
        return name.upper()

    assert await call_each("ac", ask) == ({"a": "A", "c": "C"}, {})
    answers, failures = await call_each("abc", ask)
    assert (answers, list(failures)) == ({"a": "A", "c": "C"}, ["b"])
    with pytest.raises(ServerFailedError):
        await call_each("b", ask)
    with pytest.raises(SomeFailedError, match="2 of 2 failed: b: "):
        await call_each("bd", ask)
    with pytest.raises(SomeFailedError, match="1 of 3 failed: b: ") as raised:
        await call_all("abc", ask)
    assert raised.value.done == ("a", "c")
    assert isinstance(raised.value.failures["b"], SkyrouteError)


async def test_not_all_are_asked_at_the_same_time() -> None:
    busy = most = 0

    async def ask(_name: str) -> None:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await admin.route("T")
        busy -= 1

    async with fake_cluster({"T": 1}) as cluster, Admin(cluster.address) as admin:
        await call_all(map(str, range(3 * CONCURRENT_CALLS_MAX)), ask)
    assert most == CONCURRENT_CALLS_MAX
