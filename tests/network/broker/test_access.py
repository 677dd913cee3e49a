"""Access control of a broker: clients, operators, and requests that find a message by its position."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skyroute.client.admin import Admin
from skyroute.client.errors import NoPermissionError
from skyroute.client.producing.producer import Producer
from skyroute.client.session.signing import Credentials
from skyroute.message.message import Message
from tests.network.broker.clusters import Cluster
from tests.network.broker.pops import pop
from tests.support.apache import free_port
from tests.support.connections import AsyncConnection
from tests.support.raw import Request
from tests.support.servers import running
from tests.support.signing import ALICE, ROOT, Key, allow, create_user
from tests.support.waiting import eventually

NO_PERMISSION = 16
GUARDED: dict[str, Any] = {"authentication_enabled": True, "authorization_enabled": True, "init_user": ROOT.json}


@pytest.fixture
async def guarded(empty_cluster: Cluster) -> Cluster:
    await empty_cluster.start_live(**GUARDED)
    return empty_cluster


@pytest.fixture
async def line(guarded: Cluster) -> AsyncConnection:
    line = await guarded.line()
    for request in (create_user(ALICE), allow(ALICE, "Topic:orders", "Pub", "Sub"), allow(ALICE, "Group:g", "Sub")):
        assert (await line.call(request)).code == 0
    await guarded.add_topic("orders")
    await guarded.add_topic("secrets")
    return line


def sent(key: Key, topic: str, body: bytes = b"hello") -> Request:
    fields = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": "", "j": "0"}
    return key.sign(Request(310, fields, body))


def pulled(topic: str, *, group: str = "g", offset: int = 0, suspend_ms: int = 0) -> Request:
    fields = {
        **{"consumerGroup": group, "topic": topic, "queueId": "0", "queueOffset": str(offset), "maxMsgNums": "32"},
        **{"sysFlag": "6", "commitOffset": "0", "suspendTimeoutMillis": str(suspend_ms), "subscription": "*"},
        **{"subVersion": "0", "expressionType": "TAG"},
    }
    return Request(11, fields)


async def refusal(line: AsyncConnection, request: Request) -> str | None:
    """Return why access control refuses a request; None if it does not."""
    answer = await line.call(request)
    return answer.remark if answer.code == NO_PERMISSION else None


async def test_sends_are_allowed_by_policy_only(line: AsyncConnection, guarded: Cluster) -> None:
    assert await refusal(line, sent(ALICE, "orders")) is None
    text = "User:alice has no permission to access Topic:secrets from 127.0.0.1, no matched policies."
    assert await refusal(line, sent(ALICE, "secrets")) == text
    unsigned = Request(310, {name: text for name, text in sent(ALICE, "orders").fields.items() if len(name) == 1})
    assert await refusal(line, unsigned) == "username cannot be null."
    forged = sent(ALICE, "orders")
    assert await refusal(line, Request(310, forged.fields, b"other")) == "check signature failed."
    assert guarded.stored("orders") == [b"hello"]
    assert guarded.stored("secrets") == []


async def test_the_fast_port_is_guarded_as_well(empty_cluster: Cluster) -> None:
    port = free_port()
    await empty_cluster.start_live(**GUARDED, listen_port=port)
    line = await empty_cluster.line(address=f"127.0.0.1:{port - 2}")
    assert await refusal(line, sent(ALICE, "orders")) == "User:alice is not found."
    assert await refusal(line, Request(34, body=b'{"clientID":"c"}')) == "username cannot be null."


@pytest.mark.parametrize("code", [17, 25, 26, 28, 30, 34, 36, 41, 200, 202, 206, 215, 3001, 3005, 9999])
async def test_unsigned_requests_are_refused_whatever_they_ask(line: AsyncConnection, code: int) -> None:
    assert await refusal(line, Request(code)) == "username cannot be null."


async def test_a_message_of_a_forbidden_topic_is_not_found_by_its_position(
    line: AsyncConnection, guarded: Cluster
) -> None:
    for topic in ("orders", "secrets"):
        assert (await line.call(sent(ROOT, topic))).code == 0
    await line.call(allow(ALICE, "Topic:orders", "Pub", "Sub", "Get"))
    units = [guarded.broker.components.store.unit(topic, 0, 0) for topic in ("orders", "secrets")]
    mine, theirs = (str(unit[0]) for unit in units if unit is not None)
    assert await refusal(line, ALICE.call(33, offset=mine, topic="orders")) is None
    for request in (
        ALICE.call(33, offset=theirs, topic="orders"),
        ALICE.call(33, offset=theirs),
        ALICE.call(36, offset=theirs, group="g", delayLevel="0", originTopic="orders"),
    ):
        assert (await refusal(line, request) or "").startswith("User:alice has no permission to access")
    assert await refusal(line, ALICE.call(36, offset=mine, group="g", delayLevel="0", originTopic="orders")) is None
    assert await refusal(line, ROOT.call(33, offset=theirs, topic="orders")) is None


async def test_a_suspended_pull_is_refused_after_the_right_was_taken_away(
    line: AsyncConnection, guarded: Cluster
) -> None:
    await line.call(ROOT.sign(Request(200, body=json.dumps({"groupName": "g"}).encode())))
    waiting = await line.send(ALICE.sign(pulled("orders", suspend_ms=15_000)))
    other = await guarded.line()
    assert (await other.call(allow(ALICE, "Topic:orders", "Sub", decision="Deny"))).code == 0
    assert (await other.call(sent(ROOT, "orders"))).code == 0
    answer = await line.answer(waiting)
    assert (answer.code, answer.body) == (NO_PERMISSION, b"")


def notified(topic: str) -> Request:
    fields = {"consumerGroup": "g", "topic": topic, "queueId": "-1", "pollTime": "15000", "bornTime": "0"}
    return Request(200054, fields)


@pytest.mark.parametrize("asked", [pop("orders", pollTime=15_000), notified("orders")], ids=["pop", "notification"])
@pytest.mark.parametrize("change", ["deny", "disable", "delete", "new password"])
async def test_a_waiting_pop_is_refused_after_the_right_was_taken_away(
    line: AsyncConnection, guarded: Cluster, asked: Request, change: str
) -> None:
    await line.call(ROOT.sign(Request(200, body=json.dumps({"groupName": "g"}).encode())))
    waiting = await line.send(ALICE.sign(asked))
    await eventually(lambda: len(guarded.broker.components.pop_polling) == 1)
    other = await guarded.line()
    user = {"username": ALICE.name, "password": "another" if change == "new password" else ALICE.secret}
    user |= {"userType": "Normal", "userStatus": "disable" if change == "disable" else "enable"}
    request = {
        "deny": allow(ALICE, "Topic:orders", "Sub", decision="Deny"),
        "delete": ROOT.call(3003, username=ALICE.name),
    }.get(change, ROOT.call(3002, json.dumps(user).encode(), username=ALICE.name))
    assert (await other.call(request)).code == 0
    assert (await other.call(sent(ROOT, "orders"))).code == 0
    answer = await line.answer(waiting)
    assert (answer.code, answer.body) == (NO_PERMISSION, b"")
    if asked.code == 200050:  # nothing was popped for it: another member gets the message at once
        assert len((await other.call(ROOT.sign(pop("orders")))).body) > 0


async def test_a_suspended_pull_survives_a_change_that_does_not_concern_it(
    line: AsyncConnection, guarded: Cluster
) -> None:
    await line.call(ROOT.sign(Request(200, body=json.dumps({"groupName": "g"}).encode())))
    waiting = await line.send(ALICE.sign(pulled("orders", suspend_ms=15_000)))
    other = await guarded.line()
    assert (await other.call(allow(ALICE, "Topic:more", "Sub"))).code == 0
    assert (await other.call(sent(ROOT, "orders"))).code == 0
    assert (await line.answer(waiting)).code == 0


async def test_keys_are_not_forwarded_to_consumers(line: AsyncConnection, guarded: Cluster) -> None:
    consumer: dict[str, Any] = {"groupName": "g", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}
    consumer |= {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [], "unitMode": False}
    beat = {"clientID": "c1", "producerDataSet": [], "consumerDataSet": [consumer]}
    assert (await line.call(ALICE.sign(Request(34, body=json.dumps(beat).encode())))).code == 0
    operator = await guarded.line()
    asked = asyncio.create_task(operator.call(ROOT.call(307, consumerGroup="g", clientId="c1", jstackEnable="false")))
    forwarded = await line.receive()
    while forwarded.code != 307:
        forwarded = await line.receive()
    assert not {"AccessKey", "Signature"} & set(forwarded.fields)
    asked.cancel()


async def test_our_client_signs(guarded: Cluster, line: AsyncConnection) -> None:
    alice = Credentials(ALICE.name, ALICE.secret)
    async with Producer("p", guarded.name_server_address, credentials=alice) as producer:
        await producer.send(Message("orders", b"signed"))
        with pytest.raises(NoPermissionError, match="no permission to access Topic:secrets"):
            await producer.send(Message("secrets", b"signed"))
    async with Producer("p", guarded.name_server_address) as producer:
        with pytest.raises(NoPermissionError, match="username cannot be null"):
            await producer.send(Message("orders", b"unsigned"))
    async with Admin(guarded.name_server_address, credentials=Credentials(ROOT.name, ROOT.secret)) as admin:
        assert await admin.topics()
    assert guarded.stored("orders") == [b"signed"]


# Our broker at a name server with access control


@pytest.fixture
async def guarded_names(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running(tmp_path, **GUARDED) as name_server:
        cluster = Cluster(name_server, tmp_path)
        yield cluster
        await cluster.close()


def own_credentials(key: Key) -> dict[str, Any]:
    return {"own_credentials": key.credentials_json}


async def test_a_broker_signs_its_registration(guarded_names: Cluster) -> None:
    await guarded_names.start_live(**own_credentials(ROOT))
    await guarded_names.add_topic("orders")
    assert guarded_names.has_route("orders")
    await guarded_names.stop()
    assert not guarded_names.has_route("orders")


@pytest.mark.parametrize("key", [None, ALICE, Key("root", "wrong-secret")])
async def test_a_broker_without_the_right_key_is_not_registered(guarded_names: Cluster, key: Key | None) -> None:
    await guarded_names.start_live(**({} if key is None else own_credentials(key)))
    assert not guarded_names.has_route("broker-a")
    assert not guarded_names.broker.components.registrar.has_registered


async def test_credentials_come_from_a_file(guarded_names: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "credentials.yml"
    path.write_text(f"accessKey: {ROOT.name}\nsecretKey: {ROOT.secret}\n")
    path.chmod(0o600)
    await guarded_names.start_live(own_credentials_file=str(path))
    assert guarded_names.broker.components.registrar.has_registered
