"""Clients and tools of others at brokers with access control: ours allows and refuses what Apache's 5.5.0 does."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Final

import pytest

from skyroute import Consumer, Message, Producer, StartPosition
from skyroute.client.errors import NoPermissionError
from tests.peers.access.conftest import POOR, RIGHT, ROOT, STRANGER, WRONG, mqadmin_of
from tests.peers.client.java_client import JavaClients, JavaError, PeerClients, Place
from tests.peers.test_mqadmin import MqAdmin
from tests.support.apache import (
    APACHE_4_CLIENT,
    ApacheBroker,
    NameServerProcess,
    compile_java,
    fetch_jars,
    run_java,
)
from tests.support.raw import Command, RawConnection, Request
from tests.support.signing import Key

NO_PERMISSION: Final = 16
JAVA_4: Final = Path(__file__).parent.parent / "java4"
KEYS: Final = {"right": RIGHT, "poor": POOR, "wrong": WRONG, "stranger": STRANGER, "unsigned": None}
RECEIVE_S: Final = 20
"""Time in which a consumer with the right must have a message, and one without it must not."""
OUTCOMES: Final = {"right": "ok", "poor": "16", "wrong": "16", "stranger": "16", "unsigned": "16"}


@pytest.fixture(scope="module")
def topics(java: JavaClients, places: dict[str, Place]) -> dict[str, str]:
    """A topic on each broker; each broker has the same users and policies, created by Apache's admin client."""

    async def create() -> None:
        for name, place in places.items():
            await java.create_topic(place, f"Access{name}")
            await java.create_user(place, RIGHT.name, RIGHT.secret, prefix="Access")
            await java.create_user(place, POOR.name, POOR.secret, prefix="Other")

    asyncio.run(create())
    return {name: f"Access{name}" for name in places}


def as_user(place: Place, key: Key | None) -> Place:
    return Place.at(place.name_servers, *place.brokers) if key is None else place.as_user(key.name, key.secret)


async def outcome(clients: PeerClients, place: Place, topic: str) -> str:
    try:
        async with clients.producer(place, "AccessProducers") as producer:
            await producer.send(topic, b"hello")
    except JavaError as error:
        return "16" if error.code == NO_PERMISSION or "16" in str(error) or _is_refusal(str(error)) else str(error)
    return "ok"


def _is_refusal(text: str) -> bool:
    # Node sends four times and gives no reason.
    texts = ("check signature failed", "has no permission", "is not found", "cannot be null", "times, still failed")
    return any(each in text for each in texts)


@pytest.mark.parametrize("language", ["java", "go", "node"])
async def test_clients_of_three_languages_are_allowed_and_refused_as_at_apache(
    language: str, places: dict[str, Place], topics: dict[str, str], request: pytest.FixtureRequest
) -> None:
    clients: PeerClients = request.getfixturevalue(language)
    keys = {name: key for name, key in KEYS.items() if key is not None or language != "node"}  # Node always signs
    for broker, place in places.items():
        found = {name: await outcome(clients, as_user(place, key), topics[broker]) for name, key in keys.items()}
        assert found == {name: OUTCOMES[name] for name in keys}, broker


async def test_our_client_is_allowed_and_refused_as_at_apache(places: dict[str, Place], topics: dict[str, str]) -> None:
    for broker, place in places.items():
        for name, key in KEYS.items():
            async with Producer("AccessPython", retries=0, **as_user(place, key).python) as producer:
                if OUTCOMES[name] == "ok":
                    await producer.send(Message(topics[broker], b"hello"))
                else:
                    with pytest.raises(NoPermissionError):
                        await producer.send(Message(topics[broker], b"hello"))


async def test_a_java_client_of_4_9_8_is_allowed_and_refused_as_at_apache(
    places: dict[str, Place], topics: dict[str, str], tmp_path: Path
) -> None:
    lib = fetch_jars(APACHE_4_CLIENT)
    classes = compile_java(sorted(JAVA_4.glob("*.java")), lib, tmp_path / "classes")
    sends = [
        ",".join((place.name_servers, topics[broker], *((key.name, key.secret) if key else ())))
        for broker, place in places.items()
        for key in KEYS.values()
    ]
    said = await asyncio.to_thread(run_java, lib, tmp_path, "OldSender", *sends, classes=classes)
    found = [line for line in said.splitlines() if line]
    assert found == [OUTCOMES[name] for _ in places for name in KEYS]


async def test_java_and_our_client_consume_signed(
    java: JavaClients, places: dict[str, Place], topics: dict[str, str]
) -> None:
    for broker, place in places.items():
        right = as_user(place, RIGHT)
        async with (
            java.consumer(right, f"AccessJava{broker}", topics[broker]) as consumer,
            Producer("AccessMore", **right.python) as producer,
        ):
            await producer.send(Message(topics[broker], b"for you"))
            await consumer.find(lambda got: got.body == b"for you")


@pytest.mark.long
@pytest.mark.parametrize("language", ["java", "go", "node", "python"])
async def test_consumers_of_every_language_receive_with_the_right_only(
    language: str, places: dict[str, Place], topics: dict[str, str], request: pytest.FixtureRequest
) -> None:
    clients: PeerClients | None = None if language == "python" else request.getfixturevalue(language)
    for broker, place in places.items():
        right, body = as_user(place, RIGHT), f"for {language}".encode()
        async with Producer("AccessMore", **right.python) as producer:
            await producer.send(Message(topics[broker], body))
        for name in ("right", "poor", "wrong", "stranger"):
            here, group = as_user(place, KEYS[name]), f"Access{language}{broker}{name}"
            found = await _receives(clients, here, group, topics[broker], body)
            assert found == (OUTCOMES[name] == "ok"), (broker, name)


async def _receives(clients: PeerClients | None, place: Place, group: str, topic: str, body: bytes) -> bool:
    """Whether a new group gets a message that is there already."""
    try:
        async with asyncio.timeout(RECEIVE_S):
            if clients is not None:
                async with clients.consumer(place, group, topic) as consumer:
                    await consumer.find(lambda got: got.body == body)
            else:
                ours = Consumer(group, start=StartPosition.FIRST, **place.python)
                ours.subscribe(topic)
                async with ours:
                    async for message in ours:
                        if message.body == body:
                            break
    except (TimeoutError, AssertionError, JavaError, NoPermissionError):
        return False
    return True


# Requests one by one

TOPIC: Final = {"topic": "AccessRaw"}
GROUP: Final = {"consumerGroup": "AccessGroup"}
HEARTBEAT: Final = json.dumps(
    {
        "clientID": "raw",
        "producerDataSet": [{"groupName": "AccessProducers"}],
        "consumerDataSet": [
            {
                **{"groupName": "AccessGroup", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"},
                **{"consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "unitMode": False},
                "subscriptionDataSet": [{"topic": "AccessRaw", "subString": "*", "subVersion": 1}],
            }
        ],
    }
).encode()
LOCKS: Final = json.dumps(
    {
        **{"consumerGroup": "AccessGroup", "clientId": "raw"},
        "mqSet": [{"topic": "AccessRaw", "brokerName": "b", "queueId": 0}],
    }
).encode()
SENT: Final = {"a": "p", "b": "AccessRaw", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "j": "0"}
LONG: Final = {
    **{"producerGroup": "p", "topic": "AccessRaw", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4"},
    **{"queueId": "0", "sysFlag": "0", "bornTimestamp": "0", "flag": "0", "reconsumeTimes": "0"},
}
HALF: Final = {"producerGroup": "p", "tranStateTableOffset": "0", "commitLogOffset": "0", "commitOrRollback": "8"}
QUEUE: Final = {**TOPIC, "queueId": "0"}
REQUESTS: Final = {
    "send": Request(310, SENT, b"x"),
    "send to another topic": Request(310, SENT | {"b": "NoAccess"}, b"x"),
    "send to a retry topic": Request(310, SENT | {"a": "AccessGroup", "b": "%RETRY%AccessGroup"}, b"x"),
    "send to another retry topic": Request(310, SENT | {"a": "AccessGroup", "b": "%RETRY%Foreign"}, b"x"),
    "send in the long form": Request(10, LONG, b"x"),
    "send in the long form to another topic": Request(10, LONG | {"topic": "NoAccess"}, b"x"),
    "query": Request(12, {**TOPIC, "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "1"}),
    "unregister": Request(35, {**GROUP, "clientID": "raw"}),
    "send back": Request(36, {"offset": "0", "group": "AccessGroup", "delayLevel": "0", "originTopic": "AccessRaw"}),
    "end of a transaction": Request(37, {**TOPIC, **HALF}),
    "end of a transaction of another topic": Request(37, {"topic": "NoAccess", **HALF}),
    "unlock": Request(42, {}, LOCKS),
    "update group": Request(200, {}, b'{"groupName":"OtherGroup"}'),
    "assignment": Request(400, {}, b'{"topic":"NoAccess","consumerGroup":"OtherGroup","strategyName":"AVG"}'),
    "pull": Request(
        11,
        {
            **QUEUE,
            **GROUP,
            **{"queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0"},
            **{"subscription": "*", "subVersion": "0", "expressionType": "TAG"},
        },
    ),
    "offset": Request(14, {**QUEUE, **GROUP}),
    "commit": Request(15, {**QUEUE, **GROUP, "commitOffset": "0"}),
    "create topic": Request(
        17,
        {
            **{"topic": "AccessMade", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1"},
            **{"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"},
        },
    ),
    "list topics": Request(21),
    "offset at time": Request(29, {**QUEUE, "timestamp": "0"}),
    "max offset": Request(30, QUEUE),
    "min offset": Request(31, QUEUE),
    "heartbeat": Request(34, {}, HEARTBEAT),
    "members": Request(38, GROUP),
    "lock": Request(41, {}, LOCKS),
    "settings": Request(26),
    "runtime info": Request(28),
    "list groups": Request(201),
    "topic status": Request(202, TOPIC),
    "connections": Request(203, GROUP),
    "delete group": Request(207, {"groupName": "AccessNone"}),
    "group status": Request(208, {**GROUP, "topic": ""}),
    "delete topic": Request(215, {"topic": "AccessNone"}),
    "groups of a topic": Request(300, TOPIC),
    "get topic": Request(351, TOPIC),
    "get group": Request(352, {"group": "AccessGroup"}),
    "create user": Request(3001, {"username": "x"}, b'{"password":"123456789","userType":"Normal"}'),
    "get user": Request(3004, {"username": "accessible"}),
    "list users": Request(3005),
    "get policies": Request(3009, {"subject": "User:accessible"}),
    "list policies": Request(3010),
}

DIFFERENT: Final = {"settings", "runtime info", "list topics", "list groups", "update group", "assignment"}
"""Requests that ours refuses to users without the right. Apache's have no annotation, so it allows all users them."""


def test_each_request_is_allowed_or_refused_as_at_apache(
    theirs: ApacheBroker, ours_guarded: ApacheBroker, topics: dict[str, str], mqadmin: MqAdmin
) -> None:
    for broker in (theirs, ours_guarded):
        mqadmin.run("updateTopic", "-b", broker.address, "-t", "AccessRaw")
        mqadmin.run("updateSubGroup", "-b", broker.address, "-g", "AccessGroup")
    differences = {}
    with RawConnection(theirs.address) as their_line, RawConnection(ours_guarded.address) as our_line:
        for user in ("right", "poor", "wrong", "unsigned"):
            key = KEYS[user]
            for name, request in REQUESTS.items():
                signed = request if key is None else key.sign(request)
                expected, found = (_refusal(line.call(signed)) for line in (their_line, our_line))
                is_stricter = name in DIFFERENT and key is not None and expected is None and found is not None
                if expected != found and not is_stricter:
                    differences[user, name] = (expected, found)
    assert differences == {}


def _refusal(answer: Command) -> str | None:
    """Why a request was refused; None if it was not."""
    return answer.remark if answer.code == NO_PERMISSION else None


# Tools


def test_mqadmin_manages_users_and_policies_with_the_same_words(
    mqadmin: MqAdmin, unsigned_mqadmin: MqAdmin, theirs: ApacheBroker, ours_guarded: ApacheBroker
) -> None:
    commands = [
        ("createUser", "-u", "carol", "-p", "secret-of-carol"),
        ("createUser", "-u", "carol", "-p", "secret-of-carol"),
        ("updateUser", "-u", "carol", "-s", "disable"),
        ("updateUser", "-u", "carol", "-s", "enable"),
        ("createAcl", "-s", "User:carol", "-r", "Topic:c1,Group:c*", "-a", "Pub,Sub", "-d", "Allow", "-i", "10.0.0.1"),
        ("updateAcl", "-s", "User:carol", "-r", "Topic:c1", "-a", "Pub", "-d", "Deny"),
        ("getAcl", "-s", "User:carol"),
        ("listAcl", "-s", "carol"),
        ("deleteAcl", "-s", "User:carol", "-r", "Topic:c1"),
        ("getAcl", "-s", "User:carol"),
        ("deleteUser", "-u", "carol"),
        ("getAcl", "-s", "User:carol"),
    ]
    brokers = (theirs, ours_guarded)
    mqadmin.run("listUser", "-b", theirs.address)  # the first command also prints how logging was set up
    for words in commands:
        said = [mqadmin.run(*words, "-b", one.address).replace(one.address, "BROKER") for one in brokers]
        assert _lines(said[1]) == _lines(said[0]), words
    listed = [mqadmin.run("listUser", "-b", one.address) for one in brokers]
    assert ROOT.secret in listed[0]  # Apache's broker returns passwords
    assert ROOT.secret not in listed[1]
    assert ROOT.name in listed[1]
    unsigned_mqadmin.run("listUser", "-b", theirs.address)
    refused = [unsigned_mqadmin.run("listUser", "-b", one.address) for one in brokers]
    assert all("username cannot be null" in text for text in refused)


@pytest.mark.long
@pytest.mark.parametrize("user", ["right", "poor", "wrong", "stranger", "unsigned"])
def test_mqadmin_of_others_is_allowed_and_refused_as_at_apache(
    user: str,
    topics: dict[str, str],
    theirs: ApacheBroker,
    ours_guarded: ApacheBroker,
    lib: Path,
    java_classes: Path,
    tmp_path: Path,
) -> None:
    commands = [
        ("listUser",),
        ("createUser", "-u", "eve", "-p", "secret-of-eve"),
        ("getAcl", "-s", f"User:{RIGHT.name}"),
        ("updateTopic", "-t", "AccessByAdmin", "-r", "1", "-w", "1"),
        ("updateTopic", "-t", "NoAccessByAdmin", "-r", "1", "-w", "1"),
    ]
    with mqadmin_of(lib, java_classes, tmp_path, KEYS[user]) as admin:
        admin.run("listUser", "-b", theirs.address)  # the first command also prints how logging was set up
        for words in commands:
            said = [
                _lines(admin.run(*words, "-b", one.address).replace(one.address, "BROKER"))
                for one in (theirs, ours_guarded)
            ]
            assert said[1] == said[0], words
            assert any("no permission" in line or "cannot be null" in line or "CODE: 16" in line for line in said[1])


def test_mqadmin_copies_policies_between_brokers(
    mqadmin: MqAdmin, theirs: ApacheBroker, ours_guarded: ApacheBroker
) -> None:
    for number, (source, target) in enumerate(((theirs, ours_guarded), (ours_guarded, theirs))):
        user = f"copied{number}"
        for one in (source, target):
            assert "success" in mqadmin.run("createUser", "-b", one.address, "-u", user, "-p", "secret-of-copied")
        words = ("-s", f"User:{user}", "-r", "Topic:copied*", "-a", "Pub,Sub", "-d", "Allow", "-i", "10.0.0.0/8")
        assert "success" in mqadmin.run("createAcl", "-b", source.address, *words)
        mqadmin.run("copyAcl", "-f", source.address, "-t", target.address, "-s", f"User:{user}")
        shown = [_lines(mqadmin.run("getAcl", "-b", one.address, "-s", f"User:{user}")) for one in (source, target)]
        assert shown[0] == shown[1]
        assert any("10.0.0.0/8" in line for line in shown[0])


def _lines(text: str) -> list[str]:
    """The lines of an output without stack frames and times, in any order: entries have none at Apache's."""
    return sorted(line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("at "))


def test_mqadmin_manages_users_of_our_name_server(
    mqadmin: MqAdmin, unsigned_mqadmin: MqAdmin, strict: NameServerProcess
) -> None:
    assert "success" in mqadmin.run("createUser", "-b", strict.address, "-u", "dave", "-p", "secret-of-dave")
    assert "dave" in mqadmin.run("listUser", "-b", strict.address)
    assert "success" in mqadmin.run("deleteUser", "-b", strict.address, "-u", "dave")
    changed = unsigned_mqadmin.run("updateKvConfig", "-s", "ns", "-k", "k", "-v", "v", "-n", strict.address)
    assert "username cannot be null" in changed
    assert "success" in mqadmin.run("updateKvConfig", "-s", "ns", "-k", "k", "-v", "v", "-n", strict.address)


# Brokers at our name servers


def test_brokers_that_sign_and_a_4_9_7_broker_by_address_register(
    strict: NameServerProcess,
    mixed: NameServerProcess,
    theirs: ApacheBroker,
    ours_guarded: ApacheBroker,
    old: ApacheBroker,
) -> None:
    def brokers(server: NameServerProcess) -> set[str]:
        with RawConnection(server.address) as line:
            return set(line.call(106).value["brokerAddrTable"])

    assert brokers(strict) == {"theirs", "ours"}
    assert brokers(mixed) == {"theirs", "ours", "old"}
    with RawConnection(mixed.address) as line:
        assert line.call(104, {"brokerName": "old", "clusterName": "Old"}).code != 0
        assert line.call(205, {"brokerName": "theirs"}).code == NO_PERMISSION
