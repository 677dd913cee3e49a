from pathlib import Path

import pytest

from skyroute.access.needs import CHECKED_BODY_BYTES_MAX, NEEDS, SENT_TO_CLIENTS, Door, Server
from skyroute.broker.components import Components
from skyroute.broker.config import BrokerConfig
from skyroute.broker.identity import Identity
from skyroute.broker.request_handlers import request_handlers
from skyroute.message.queue_ref import QueueRef
from skyroute.nameserver.config import NameServerConfig
from skyroute.nameserver.server import NameServer
from skyroute.wire.calls.clients import (
    ConsumerData,
    ConsumeType,
    MessageModel,
    StartFrom,
    Subscription,
    encode_heartbeat,
    encode_lock,
)
from skyroute.wire.calls.watch import WatchQuery, encode_watch
from skyroute.wire.codes import READ_CODES, RequestCode
from skyroute.wire.command import Request
from skyroute.wire.errors import WireError
from tests.support.clock import ManualClock
from tests.support.controllers import running
from tests.support.disks import HERE


def needs(request: Request) -> set[str]:
    return {str(need) for need in NEEDS[request.code].needs(request, "c1")}


async def test_every_request_that_a_broker_handles_has_a_row(tmp_path: Path) -> None:
    config = BrokerConfig(
        store_path=str(tmp_path),
        commit_log_file_bytes=1 << 20,
        index_slots=16,
        index_entries=64,
        broker_name="broker-a",
    )
    identity = Identity("DefaultCluster", "broker-a", 0, "127.0.0.1:10911", HERE)
    components = Components(config, identity, ManualClock(), lambda _connection: None)
    try:
        handled = request_handlers(components)
    finally:
        await components.kill()
    without = [code for code in handled if code not in NEEDS or Server.BROKER not in NEEDS[code].servers]
    assert without == [], "add a row to skyroute/access/needs.py"


def test_every_request_that_a_name_server_handles_has_a_row(tmp_path: Path) -> None:
    handled = NameServer(NameServerConfig(kv_config_path=str(tmp_path / "kv.json")))._handlers()
    without = [code for code in handled if code not in NEEDS or Server.NAME_SERVER not in NEEDS[code].servers]
    assert without == [], "add a row to skyroute/access/needs.py"


async def test_every_request_that_a_controller_handles_has_a_row(tmp_path: Path) -> None:
    async with running(tmp_path) as controller:
        assert controller.server._server is not None
        handled = set(controller.server._server._context.dispatcher._handlers)
    assert RequestCode.CONTROLLER_ELECT_MASTER in handled
    without = [code for code in handled if code not in NEEDS or Server.CONTROLLER not in NEEDS[code].servers]
    assert without == [], "add a row to skyroute/access/needs.py"


def test_every_known_code_has_a_row_or_is_sent_to_clients_only() -> None:
    assert set(NEEDS) | set(map(int, SENT_TO_CLIENTS)) == set(map(int, RequestCode))
    assert not set(NEEDS) & set(map(int, SENT_TO_CLIENTS))


def test_readers_only_read_and_changes_of_operators_need_more_than_a_look() -> None:
    for code, row in NEEDS.items():
        if row.door is Door.READER:
            assert code in READ_CODES
        elif row.door is Door.OPERATOR:
            is_read = code in READ_CODES or code == RequestCode.CONSUME_MESSAGE_DIRECTLY
            changes = any(word in row.text for word in ("Create", "Update", "Delete"))
            assert is_read or changes, RequestCode(code).name
        assert row.text


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (105, {"topic": "t"}, {"Topic:t Get/Pub/Sub"}),
        (105, {"topic": "%RETRY%g"}, {"Group:g Get/Sub"}),
        (310, {"b": "t"}, {"Topic:t Pub"}),
        (310, {"b": "%RETRY%g"}, {"Group:g Sub"}),
        (10, {"topic": "t"}, {"Topic:t Pub"}),
        (325, {"b": "c_REPLY_TOPIC"}, {"Topic:c_REPLY_TOPIC Pub"}),
        (11, {"topic": "t", "consumerGroup": "g"}, {"Topic:t Sub", "Group:g Sub"}),
        # Apache's broker does not look at the retry topic, which may be that of another group.
        (11, {"topic": "%RETRY%h", "consumerGroup": "g"}, {"Group:h Sub", "Group:g Sub"}),
        (15, {"topic": "t", "consumerGroup": "g"}, {"Topic:t Sub/Update", "Group:g Sub/Update"}),
        (35, {"clientID": "c", "producerGroup": "p"}, set()),
        (35, {"clientID": "c", "consumerGroup": "g"}, {"Group:g Sub"}),
        (37, {}, set()),
        (37, {"topic": "t"}, {"Topic:t Pub"}),
        (33, {"topic": "t"}, {"Topic:t Get"}),
        (33, {}, set()),
        (25, {}, {"Cluster:c1 Update"}),
        (17, {"topic": "t"}, {"Topic:t Create"}),
        (21, {}, {"Topic:* Get/List"}),
        (208, {"consumerGroup": "g", "topicList": "t;u;"}, {"Group:g Get", "Topic:t Get", "Topic:u Get"}),
        # The handler strips blanks as well: a literal Deny cannot be bypassed with one.
        (208, {"consumerGroup": "g", "topic": " t "}, {"Group:g Get", "Topic:t Get"}),
        (314, {"srcGroup": "a", "destGroup": "b"}, {"Group:a Get", "Group:b Update", "Topic:* Update"}),
        (103, {"clusterName": "other"}, {"Cluster:other Update"}),
        (216, {"topic": "t"}, {"Cluster:c1 Update"}),
        (318, {}, {"Cluster:c1 Update"}),
        (3001, {"username": "u"}, {"Cluster:c1 Update"}),
        (3004, {"username": "u"}, {"Cluster:c1 Get"}),
    ],
)
def test_needs_of_fields(code: int, fields: dict[str, str], expected: set[str]) -> None:
    assert needs(Request(code, fields)) == expected


def test_needs_of_bodies() -> None:
    consumer = ConsumerData(
        "g",
        ConsumeType.PUSH,
        MessageModel.CLUSTERING,
        StartFrom.LAST_OFFSET,
        (Subscription("t"), Subscription("%RETRY%g")),
    )
    assert needs(encode_heartbeat("client", ["pg"], [consumer])) == {"Group:g Sub", "Topic:t Sub"}
    assert needs(encode_heartbeat("client", ["pg"], [])) == set()
    assert needs(encode_lock("client", "g", [QueueRef("t", "b", 0), QueueRef("t", "b", 1)])) == {
        "Group:g Sub",
        "Topic:t Sub",
    }
    assert needs(encode_watch(WatchQuery(("t",), None, 0))) == {"Topic:t Get/Pub/Sub"}
    assert needs(encode_watch(WatchQuery(None, None, 0))) == {"Topic:* Get/List"}
    assert needs(Request(18, body=b'{"topicConfigList":[{"topicName":"t"},{"topicName":"u"}]}')) == {
        "Topic:t Create",
        "Topic:u Create",
    }
    assert needs(Request(200, body=b'{"groupName":"g"}')) == {"Group:g Create/Update"}
    assert needs(Request(200151, body=b'{"acks":[{"c":"g","t":"t"}]}')) == {"Group:g Sub", "Topic:t Sub"}


def test_a_request_without_the_name_has_no_needs_but_an_error() -> None:
    for code in (105, 310, 10, 11, 17, 215, 207):
        with pytest.raises(WireError):
            needs(Request(code))


def test_a_body_with_too_many_names_is_refused() -> None:
    long = b'{"clientID":"c","consumerDataSet":[]}' + b" " * CHECKED_BODY_BYTES_MAX
    with pytest.raises(WireError, match="send several requests"):
        needs(Request(RequestCode.HEART_BEAT, body=long))
