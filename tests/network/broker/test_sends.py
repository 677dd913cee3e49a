"""Sends: which are stored, which are refused and with which text, and when the response comes."""

import asyncio
import json
from collections.abc import Coroutine

import pytest

from skyroute.broker.handlers.send_batch import BATCH_MESSAGES_A_STEP
from skyroute.broker.request_handlers import request_handlers
from skyroute.message.message_id import decode_offset_id
from skyroute.message.reserved_topics import HALF_TOPIC
from skyroute.remoting.dispatch import Peer
from skyroute.wire.calls.groups import GroupConfig
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.header import decode_command
from tests.network.broker.calls import batch_body, found, found_bodies, heartbeat, pull, send
from tests.network.broker.clusters import Cluster
from tests.support.connections import AsyncConnection
from tests.support.disks import BlockingDisk, FailingSyncDisk, FullDisk, read_all
from tests.support.raw import Form, Request, compact, encode, frame
from tests.support.waiting import eventually

LOCK_BODY = {"clientId": "c", "consumerGroup": "g", "mqSet": [{"brokerName": "broker-a", "queueId": 0, "topic": "T"}]}
ILLEGAL = (
    "the message is illegal, maybe msg body or properties length not matched. "
    "msg body length limit 4194304B, msg properties length limit 32KB."
)
TOO_LARGE = 4 * 1024 * 1024 + 1
SEND_CODES = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
)


@pytest.fixture
async def cluster(cluster: Cluster) -> Cluster:
    await cluster.add_topic("T", 2)
    return cluster


def properties_of(cluster: Cluster, topic: str = "T", queue_id: int = 0) -> list[dict[str, str]]:
    return [dict(message.properties) for message in read_all(cluster.broker.components.store, topic, queue_id)]


# ------------------------------------------------------------------------------------------------------------ receipts


@pytest.mark.parametrize("form", ["json", "binary"])
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE])
async def test_a_message_is_stored_as_it_was_sent(cluster: Cluster, code: int, form: Form) -> None:
    line = await cluster.line(form=form)
    text = "KEYS\x01k\x02UNIQ_KEY\x010A\x02"
    answer = await line.call(send(body=b"coffee", code=code, queue_id=1, properties=text, h=7, j=2))
    assert (answer.code, answer.remark, answer.body) == (ResponseCode.SUCCESS, None, b"")
    assert answer.form == form
    offset_id = answer.fields.pop("msgId")
    assert answer.fields == {
        **{"queueId": "1", "queueOffset": "0", "transactionId": "0A"},
        **{"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"},
    }
    (stored,) = read_all(cluster.broker.components.store, "T", 1)
    assert (stored.body, stored.flag, stored.reconsume_times, stored.born_at_ms) == (b"coffee", 7, 2, 1758275000000)
    assert stored.stored_at_ms == int(cluster.clock.wall() * 1000)
    assert stored.log_position == decode_offset_id(offset_id).log_position
    assert f"{stored.store_host.ip}:{stored.store_host.port}" == cluster.broker.address
    assert f"{stored.born_host.ip}:{stored.born_host.port}" == line.local_address
    assert dict(stored.properties) == {
        **{"KEYS": "k", "UNIQ_KEY": "0A", "MSG_REGION": "DefaultRegion"},
        **{"TRACE_ON": "true", "CLUSTER": "DefaultCluster"},
    }


async def test_a_message_without_a_unique_id_gets_one(cluster: Cluster, line: AsyncConnection) -> None:
    answers = [await line.call(send()) for _ in range(2)]
    ids = [properties["UNIQ_KEY"] for properties in properties_of(cluster)]
    assert ids == [answer.fields["transactionId"] for answer in answers]
    assert len(set(ids)) == 2


async def test_the_broker_chooses_a_queue_for_a_negative_queue_id(cluster: Cluster, line: AsyncConnection) -> None:
    chosen = {(await line.call(send(queue_id=-1))).fields["queueId"] for _ in range(40)}
    assert chosen == {"0", "1"}


async def test_a_batch_is_stored_as_single_messages(cluster: Cluster, line: AsyncConnection) -> None:
    body = batch_body([(b"1", "UNIQ_KEY\x01A\x02"), (b"2", "UNIQ_KEY\x01B\x02TAGS\x01red\x02"), (b"3", "")])
    await line.call(send(body=b"0"))
    answer = await line.call(send(body=body, code=320))
    assert answer.code == ResponseCode.SUCCESS
    assert answer.fields["queueOffset"] == "1"
    stored = read_all(cluster.broker.components.store)
    assert [message.body for message in stored] == [b"0", b"1", b"2", b"3"]
    assert stored[2].properties["TAGS"] == "red"
    positions = [decode_offset_id(one).log_position for one in answer.fields["msgId"].split(",")]
    assert positions == [message.log_position for message in stored[1:]]


LONG_BATCH = 4 * BATCH_MESSAGES_A_STEP + 1


class StepPauses:
    """Replaces the pauses between steps of long work; blocks at one until the test continues."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, stop_at: int) -> None:
        self._store = cluster.broker.components.store
        self._stop_at = stop_at
        self.stopped, self.resume = asyncio.Event(), asyncio.Event()
        self.ends: list[int] = []
        """Max offset of the queue at each pause."""
        monkeypatch.setattr(cluster.broker.components.prompt_runner, "_pause", self._pause)

    async def _pause(self, step_s: float) -> None:
        self.ends.append(self._store.max_offset("T", 0))
        if len(self.ends) == self._stop_at:
            self.stopped.set()
            await self.resume.wait()
        await asyncio.sleep(0)


@pytest.mark.parametrize("stop_at", [1, 5])
async def test_a_long_batch_is_one_write_and_other_requests_run_before_it(
    cluster: Cluster, line: AsyncConnection, monkeypatch: pytest.MonkeyPatch, stop_at: int
) -> None:
    other, store, pauses = (
        await cluster.line(),
        cluster.broker.components.store,
        StepPauses(cluster, monkeypatch, stop_at),
    )
    batch = await line.send(send(body=batch_body((b"%d" % number, "") for number in range(LONG_BATCH)), code=320))
    await pauses.stopped.wait()
    answers = [(await other.call(send(body=b"before"))).fields["queueOffset"] for _ in range(3)]
    assert answers == ["0", "1", "2"]
    pauses.resume.set()
    receipt = await line.answer(batch)
    assert (receipt.code, receipt.fields["queueOffset"]) == (ResponseCode.SUCCESS, "3")
    assert (await other.call(send(body=b"later"))).fields["queueOffset"] == str(LONG_BATCH + 3)
    assert set(pauses.ends) == {0, 3, LONG_BATCH + 3} - ({3} if stop_at == 5 else set())
    stored = read_all(store, "T", 0)
    wanted = [*[b"before"] * 3, *(b"%d" % number for number in range(LONG_BATCH)), b"later"]
    assert [message.body for message in stored] == wanted
    positions = [decode_offset_id(text).log_position for text in receipt.fields["msgId"].split(",")]
    assert positions == [message.log_position for message in stored[3:-1]]


async def test_a_batch_of_few_messages_with_many_keys_is_encoded_in_steps(
    cluster: Cluster, line: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = StepPauses(cluster, monkeypatch, -1)
    items = [(b"x", "KEYS\x01" + "k " * 10_000)] * 20
    assert (await line.call(send(body=batch_body(items), code=320))).code == ResponseCode.SUCCESS
    assert len(pauses.ends) > len(items)
    assert cluster.broker.components.store.max_offset("T", 0) == len(items)
    refused = await line.call(send(body=batch_body(items * 3), code=320))
    assert (refused.code, refused.remark) == (ResponseCode.MESSAGE_ILLEGAL, ILLEGAL)


async def test_a_long_batch_with_an_invalid_end_is_refused_whole(cluster: Cluster, line: AsyncConnection) -> None:
    body = batch_body([(b"x", "")] * LONG_BATCH)
    answer = await line.call(send(body=body[:-1], code=320))
    assert (answer.code, "ends inside" in (answer.remark or "") or "announces" in (answer.remark or "")) == (
        ResponseCode.MESSAGE_ILLEGAL,
        True,
    )
    assert cluster.broker.components.store.max_offset("T", 0) == 0
    assert (await line.call(send(body=body, code=320))).fields["queueOffset"] == "0"


@pytest.mark.parametrize("stop_at", [1, 5])
async def test_nothing_of_a_long_batch_is_stored_if_its_topic_is_deleted_first(
    cluster: Cluster, line: AsyncConnection, monkeypatch: pytest.MonkeyPatch, stop_at: int
) -> None:
    admin, store, pauses = (
        await cluster.line(),
        cluster.broker.components.store,
        StepPauses(cluster, monkeypatch, stop_at),
    )
    batch = await line.send(send(body=batch_body([(b"x", "")] * LONG_BATCH), code=320))
    await pauses.stopped.wait()
    assert (await admin.call(215, {"topic": "T"})).code == ResponseCode.SUCCESS
    pauses.resume.set()
    refused = await line.answer(batch)
    assert (refused.code, refused.fields["MSG_REGION"]) == (ResponseCode.TOPIC_NOT_EXIST, "DefaultRegion")
    assert refused.remark == "topic[T] was deleted before the message was stored"
    assert (store.topics(), store.max_position) == (set(), 0)
    assert not (store.folder / "consumequeue" / "T").exists()


async def test_a_long_batch_is_stored_even_if_its_producer_disconnects(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, store, pauses = await cluster.line(), cluster.broker.components.store, StepPauses(cluster, monkeypatch, 1)
    await sender.send(send(body=batch_body([(b"x", "")] * LONG_BATCH), code=320))
    await pauses.stopped.wait()
    await sender.close()
    pauses.resume.set()
    await eventually(lambda: store.max_offset("T", 0) > 0)
    assert store.max_offset("T", 0) == LONG_BATCH


async def test_a_long_batch_may_be_the_first_message_of_its_topic(cluster: Cluster, line: AsyncConnection) -> None:
    answer = await line.call(send("Fresh", batch_body([(b"x", "")] * LONG_BATCH), code=320))
    assert answer.code == ResponseCode.SUCCESS
    assert cluster.broker.components.store.max_offset("Fresh", 0) == LONG_BATCH


async def test_the_batch_field_and_not_the_code_marks_a_batch(cluster: Cluster, line: AsyncConnection) -> None:
    body = batch_body([(b"1", ""), (b"2", "")])
    assert (await line.call(send(body=body, code=310, m="true"))).code == ResponseCode.SUCCESS
    assert (await line.call(send(body=body, code=320, m="false"))).code == ResponseCode.SUCCESS
    assert cluster.stored() == [b"1", b"2", body]


async def test_one_way_sends_are_stored_without_a_response(cluster: Cluster, line: AsyncConnection) -> None:
    await line.send_oneway(send(body=b"1"))
    await line.send_oneway(send(body=b"", queue_id=99))
    await line.send_oneway(send("Made", b"2"))
    assert (await line.call(send(body=b"3"))).code == ResponseCode.SUCCESS
    await eventually(lambda: cluster.stored("Made") == [b"2"])
    assert cluster.stored() == [b"1", b"3"]
    assert (await line.call(310)).code == ResponseCode.SYSTEM_ERROR
    assert line.strays == []


# -------------------------------------------------------------------------------------------------------------- checks


@pytest.mark.parametrize(
    ("topic", "code", "text"),
    [
        (
            "a b",
            ResponseCode.INVALID_PARAMETER,
            "The specified topic: a b, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
        (
            "../T",
            ResponseCode.INVALID_PARAMETER,
            "The specified topic: ../T, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
        (
            "x" * 128,
            ResponseCode.INVALID_PARAMETER,
            f"The specified topic: {'x' * 128}, is longer than topic max length: 127",
        ),
        (" ", ResponseCode.INVALID_PARAMETER, "The specified topic is blank."),
        (
            "SCHEDULE_TOPIC_XXXX",
            ResponseCode.NO_PERMISSION,
            "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden.",
        ),
        (HALF_TOPIC, ResponseCode.NO_PERMISSION, f"Sending message to topic[{HALF_TOPIC}] is forbidden."),
        ("", ResponseCode.INVALID_PARAMETER, "The specified topic is blank."),
    ],
)
async def test_sends_to_closed_and_invalid_topics_are_refused(
    cluster: Cluster, line: AsyncConnection, topic: str, code: int, text: str
) -> None:
    answer = await line.call(send(topic))
    assert (answer.code, answer.remark) == (code, text)
    assert cluster.broker.components.topics.get(topic) is None or code == ResponseCode.NO_PERMISSION


async def test_a_topic_is_created_and_registered_before_the_response_to_its_first_message(
    cluster: Cluster, line: AsyncConnection
) -> None:
    assert (await line.call(send("Made", d=3, queue_id=2))).code == ResponseCode.SUCCESS
    assert cluster.has_route("Made")
    made = cluster.broker.components.topics.get("Made")
    assert made is not None
    assert (made.read_queues, made.write_queues, int(made.permission)) == (3, 3, 6)
    await cluster.kill()
    again = await cluster.start()
    assert again.components.topics.get("Made") == made
    assert cluster.stored("Made", 2) == [b"body"]


async def test_a_send_queued_during_the_creation_of_its_topic_does_not_announce_it_again(
    cluster: Cluster,
) -> None:
    take = request_handlers(cluster.broker.components)[310]
    first, second = (take(decode_command(encode(send("Made"), number)), Peer(1, "10.0.0.1:5")) for number in (1, 2))
    assert isinstance(first, Coroutine)
    assert isinstance(second, Coroutine)
    assert (await first).code == ResponseCode.SUCCESS
    with pytest.raises(StopIteration) as answered:  # at once: nothing to wait for
        second.send(None)
    assert answered.value.value.code == ResponseCode.SUCCESS
    assert cluster.stored("Made", 0) == [b"body"] * 2


async def test_a_send_is_refused_if_its_topic_may_not_be_created(empty_cluster: Cluster) -> None:
    await empty_cluster.start(auto_create_topics=False)
    line = await empty_cluster.line()
    answer = await line.call(send("Made"))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert (answer.remark or "").startswith("topic[Made] not exist, apply first please!")
    assert (await line.call(send("Made", c="Nothing"))).code == ResponseCode.TOPIC_NOT_EXIST
    assert not empty_cluster.has_route("Made")


async def test_a_broker_refuses_sends_before_its_accept_time(cluster: Cluster, line: AsyncConnection) -> None:
    opens_at_ms = int(cluster.clock.wall() * 1000) + 5000
    cluster.broker.config.accept_sends_from_ms = opens_at_ms
    for request in (send(), send("a b"), send("Made"), send(code=325)):
        answer = await line.call(request)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith(f"broker unable to service, until {opens_at_ms} ms")
    told = json.loads((await line.call(28)).body)["table"]
    assert told["startAcceptSendRequestTimeStamp"] == str(opens_at_ms)
    cluster.clock.advance(5)
    assert (await line.call(send())).code == ResponseCode.SUCCESS
    assert cluster.stored() == [b"body"]


async def test_a_refusal_has_the_fields_for_region_and_trace(cluster: Cluster, line: AsyncConnection) -> None:
    cluster.broker.config.auto_create_topics = False
    refused = [send("a b"), send(body=b""), send("Made"), send(queue_id=9), send("Made", code=325), send(code=325)]
    for request in refused:
        answer = await line.call(request)
        assert answer.code != ResponseCode.SUCCESS
        assert answer.fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


async def test_a_send_to_a_missing_queue_is_refused(cluster: Cluster, line: AsyncConnection) -> None:
    answer = await line.call(send(queue_id=2))
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "queueId[2] is illegal" in (answer.remark or "")
    assert cluster.stored() == []


async def test_a_read_only_broker_accepts_all_but_ordered_messages(cluster: Cluster) -> None:
    await cluster.add_topic("Ordered", ordered=True)
    cluster.broker.config.broker_permission = 4
    line = await cluster.line()
    answer = await line.call(send("Ordered"))
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "the broker[127.0.0.1] sending message is forbidden",
    )
    assert (await line.call(send("T"))).code == ResponseCode.SUCCESS


async def test_the_write_permission_of_a_topic_is_not_checked(cluster: Cluster, line: AsyncConnection) -> None:
    await cluster.add_topic("ReadOnly", permission=4)
    assert (await line.call(send("ReadOnly"))).code == ResponseCode.SUCCESS


async def test_a_compaction_topic_requires_keys(cluster: Cluster, line: AsyncConnection) -> None:
    await cluster.add_topic("Table", attributes={"cleanup.policy": "COMPACTION"})
    answer = await line.call(send("Table"))
    assert (answer.code, answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, "Required message key is missing")
    assert (await line.call(send("Table", properties={"KEYS": "k"}))).code == ResponseCode.SUCCESS


# ------------------------------------------------------------------------------------------------------------- retries


async def test_a_send_to_the_retry_topic_of_an_unknown_group_is_refused(empty_cluster: Cluster) -> None:
    await empty_cluster.start(auto_create_groups=False)
    line = await empty_cluster.line()
    answer = await line.call(send("%RETRY%g"))
    assert (answer.code, answer.remark) == (
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        "subscription group not exist, g",
    )


@pytest.mark.parametrize(("version", "tries"), [(121, 2), (120, 5)])
async def test_a_message_without_retries_left_becomes_a_dead_letter_with_a_route(
    cluster: Cluster, line: AsyncConnection, version: int, tries: int
) -> None:
    cluster.broker.components.groups.put(GroupConfig("g", retry_times_max=5))
    assert (await line.call(send("%RETRY%g", b"again", j=tries, l=2, version=version))).code == ResponseCode.SUCCESS
    assert not cluster.has_route("%DLQ%g")
    answer = await line.call(send("%RETRY%g", b"never", j=tries + 1, l=2, version=version, properties={"DELAY": "3"}))
    assert answer.code == ResponseCode.SUCCESS
    assert cluster.has_route("%DLQ%g")
    assert cluster.stored("%RETRY%g") == [b"again"]
    assert cluster.stored("%DLQ%g") == [b"never"]
    assert properties_of(cluster, "%DLQ%g")[0]["DELAY"] == "-1"
    await cluster.kill()
    assert (await cluster.start()).components.topics.get("%DLQ%g") is not None


async def test_a_retry_of_a_group_with_a_queue_lock_becomes_a_dead_letter(
    cluster: Cluster, line: AsyncConnection
) -> None:
    assert (await line.call(41, body=compact(LOCK_BODY).encode())).code == ResponseCode.SUCCESS
    assert (await line.call(send("%RETRY%g", b"1"))).code == ResponseCode.SUCCESS
    cluster.clock.advance(61)
    assert (await line.call(send("%RETRY%g", b"2"))).code == ResponseCode.SUCCESS
    assert (cluster.stored("%DLQ%g"), cluster.stored("%RETRY%g")) == ([b"1"], [b"2"])


async def test_a_batch_for_a_retry_topic_is_refused(cluster: Cluster, line: AsyncConnection) -> None:
    answer = await line.call(send("%RETRY%g", batch_body([(b"1", "")]), code=320))
    assert (answer.code, answer.remark) == (
        ResponseCode.MESSAGE_ILLEGAL,
        "batch request does not support retry group %RETRY%g",
    )


async def test_transaction_messages_can_be_forbidden(cluster: Cluster, line: AsyncConnection) -> None:
    cluster.broker.config.reject_transactions = True
    answer = await line.call(send(properties={"TRAN_MSG": "true", "PGROUP": "p"}, f=4))
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "the broker[127.0.0.1] sending transaction message is forbidden",
    )


# ----------------------------------------------------------------------------------------------------------- properties


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("a\x011\x02b\x012", {"a": "1", "b": "2"}),
        ("a\x011\x02\x02\x02b\x012\x02", {"a": "1", "b": "2"}),
        ("a\x01\x02b\x012\x02", {"b": "2"}),
        ("nothing", {}),
        ("a\x011\x01x\x02b\x012\x02", {"a": "1\x01x", "b": "2"}),
        ("POP_CK\x01receipt\x02a\x011\x02", {"a": "1"}),
        ("a\x011\x02POP_CK\x01receipt", {"a": "1"}),
        ("CLUSTER\x01elsewhere\x02MSG_REGION\x01there\x02TRACE_ON\x01false\x02", {}),
        ("MYCLUSTER\x01mine\x02", {"MYCLUSTER": "mine"}),
        ("emoji\x01\U0001f600\x02", {"emoji": "\U0001f600"}),
        ("a\x011\x02a\x012\x02", {"a": "2"}),
    ],
)
async def test_properties_of_any_form_are_stored(
    cluster: Cluster, line: AsyncConnection, text: str, stored: dict[str, str]
) -> None:
    assert (await line.call(send(properties=text))).code == ResponseCode.SUCCESS
    answer = await line.call(pull())
    properties = dict(found(answer)[0].properties)
    broker = [properties.pop(name) for name in ("MSG_REGION", "TRACE_ON", "CLUSTER", "UNIQ_KEY")]
    assert broker[:3] == ["DefaultRegion", "true", "DefaultCluster"]
    assert properties == stored


async def test_a_lone_surrogate_is_stored_as_java_stores_it(cluster: Cluster, line: AsyncConnection) -> None:
    request = send(properties="a\x01?\x02")
    header = {"code": 310, "extFields": dict(request.fields), "flag": 0, "language": "JAVA", "opaque": 77, "version": 1}
    text = json.dumps(header).replace("?", "\\ud83d")
    await line.write(frame(text.encode(), b"body"))
    assert (await line.answer(77)).code == ResponseCode.SUCCESS
    assert properties_of(cluster)[0]["a"] == "?"


async def test_messages_up_to_the_size_limit_are_stored_and_larger_ones_refused(
    cluster: Cluster, line: AsyncConnection
) -> None:
    own = len("UNIQ_KEY\x01u\x02MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02")
    room = 32767 - own - len("a\x01\x02")

    def padded(size: int) -> dict[str, str]:
        return {"UNIQ_KEY": "u", "a": "x" * size}

    refused = [
        send(body=b""),
        send(body=bytes(TOO_LARGE)),
        send(properties=padded(room + 1)),
        send(properties={"a": "x" * 40_000}),
        send(body=batch_body([(bytes(TOO_LARGE), "")]), code=320),
        send(body=b"", code=320),
    ]
    for request in refused:
        answer = await line.call(request)
        assert (answer.code, answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, ILLEGAL)
    delayed = await line.call(send(properties=padded(room - 20) | {"DELAY": "3"}))
    assert (delayed.code, "expected at most 32767" in (delayed.remark or "")) == (ResponseCode.MESSAGE_ILLEGAL, True)
    assert cluster.broker.components.store.max_position == 0
    assert (await line.call(send(body=bytes(TOO_LARGE - 1)))).code == ResponseCode.SUCCESS
    assert (await line.call(send(properties=padded(room)))).code == ResponseCode.SUCCESS
    # Unlike a single message, a batch may have items with an empty body.
    assert (await line.call(send(body=batch_body([(b"1", ""), (b"", "")]), code=320))).code == ResponseCode.SUCCESS
    assert cluster.stored()[-2:] == [b"1", b""]


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS"])
async def test_a_delay_level_that_is_not_a_number_is_refused(
    cluster: Cluster, line: AsyncConnection, name: str
) -> None:
    answer = await line.call(send(properties={name: "soon"}))
    assert (answer.code, answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, f"{name} is not a number: 'soon'")


async def test_every_bit_of_the_sys_flag_leaves_a_readable_queue(cluster: Cluster, line: AsyncConnection) -> None:
    for bit in [*(1 << shift for shift in range(31)), 0x7FFFFFFF, -1]:
        assert (await line.call(send(body=b"%d" % bit, queue_id=1, f=bit))).code in (
            ResponseCode.SUCCESS,
            ResponseCode.MESSAGE_ILLEGAL,
        )
        assert (await line.call(send(body=b"plain"))).code == ResponseCode.SUCCESS
    count = len(cluster.stored())
    assert cluster.stored() == [b"plain"] * 33
    await cluster.kill()
    await cluster.start()
    assert len(cluster.stored()) == count
    line = await cluster.line()
    assert (await line.call(pull(queue_id=1))).code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY)


async def test_a_batch_cut_at_any_byte_is_refused_whole(cluster: Cluster, line: AsyncConnection) -> None:
    first, second = batch_body([(b"one", "a\x011\x02")]), batch_body([(b"two", "")])
    whole = first + second
    for size in range(len(whole)):
        answer = await line.call(send(body=whole[:size], code=320))
        expected = 0 if size == len(first) else 13
        assert answer.code == expected, size
        assert answer.code == ResponseCode.SUCCESS or answer.remark
    assert cluster.stored() == [b"one"]


@pytest.mark.parametrize("word", range(5))
@pytest.mark.parametrize("value", [-1, 0, 3, 0x7FFFFFFF])
async def test_a_batch_with_a_wrong_length_is_refused(
    cluster: Cluster, line: AsyncConnection, word: int, value: int
) -> None:
    body = bytearray(batch_body([(b"one", "a\x011\x02")]))
    if word == 4:
        body[-6:-4] = (value & 0xFFFF).to_bytes(2, "big")
    else:
        body[word * 4 : word * 4 + 4] = (value & 0xFFFFFFFF).to_bytes(4, "big")
    answer = await line.call(send(body=bytes(body), code=320))
    assert answer.code in (ResponseCode.SUCCESS, ResponseCode.MESSAGE_ILLEGAL)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL or word in (1, 2, 3, 4)
    assert (await line.call(send(body=b"next"))).code == ResponseCode.SUCCESS
    assert cluster.stored()[-1] == b"next"


# ----------------------------------------------------------------------------------------------------- the disk's pace


async def test_the_response_and_readers_wait_for_the_flush(empty_cluster: Cluster) -> None:
    cluster, disk = empty_cluster, BlockingDisk()
    await cluster.start(disk=disk, flush_disk_type="SYNC_FLUSH")
    await cluster.add_topic("T")
    line, reader = await cluster.line(), await cluster.line()
    suspended = await reader.send(pull(flag=6))
    await eventually(lambda: len(cluster.broker.components.long_polling) == 1)
    disk.block()
    try:
        sent = await line.send(send(body=b"1"))
        await eventually(lambda: cluster.broker.components.store.max_position > 0)
        more = [await line.send(send(body=batch_body([(b"2", ""), (b"3", "")]), code=320)), await line.send(send())]
        without_wait = await line.call(send(body=b"5", properties={"WAIT": "false"}))
        assert without_wait.code == ResponseCode.SUCCESS  # it does not wait for the flush; the others do
        assert cluster.broker.components.store.max_offset("T", 0) == 0
        assert line.strays == reader.strays == []
    finally:
        disk.unblock()
    answers = [await line.answer(opaque) for opaque in (sent, *more)]
    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 3
    assert found_bodies(await reader.answer(suspended))[0] == b"1"
    assert cluster.stored() == [b"1", b"2", b"3", b"body", b"5"]


async def test_a_message_stored_during_a_flush_wakes_pulls_after_the_next_one(empty_cluster: Cluster) -> None:
    cluster, disk = empty_cluster, BlockingDisk()
    await cluster.start(disk=disk, flush_disk_type="SYNC_FLUSH")
    await cluster.add_topic("T", 2)
    line, reader = await cluster.line(), await cluster.line()
    suspended = await reader.send(pull(queue_id=1, flag=6))
    await eventually(lambda: len(cluster.broker.components.long_polling) == 1)
    disk.block()
    try:
        first = await line.send(send(body=b"1"))
        await eventually(lambda: cluster.broker.components.store.max_position > 0)
        second = await line.send(send(body=b"2", queue_id=1))
        await eventually(lambda: cluster.broker.components.flushing.waiting_count == 2)
    finally:
        disk.unblock()
    assert [(await line.answer(opaque)).code for opaque in (first, second)] == [ResponseCode.SUCCESS] * 2
    assert found_bodies(await reader.answer(suspended)) == [b"2"]


async def test_a_slow_flush_is_reported_within_its_time_limit(empty_cluster: Cluster) -> None:
    cluster, disk = empty_cluster, BlockingDisk()
    await cluster.start(disk=disk, flush_disk_type="SYNC_FLUSH", sync_flush_timeout_s=0.05)
    await cluster.add_topic("T")
    line = await cluster.line()
    disk.block()
    try:
        first = await line.call(send(body=b"1"))
        # The first flush still runs; none has begun for this message.
        second = await line.call(send(body=b"2"))
    finally:
        disk.unblock()
    assert [first.code, second.code] == [10, 10]
    assert [answer.fields["queueOffset"] for answer in (first, second)] == ["0", "1"]
    assert first.fields["msgId"]
    cluster.broker.config.sync_flush_timeout_s = 10.0
    assert (await line.call(send(body=b"3"))).code == ResponseCode.SUCCESS
    assert cluster.stored() == [b"1", b"2", b"3"]


@pytest.mark.usefixtures("expects_errors")
async def test_after_a_failed_flush_sends_are_refused_and_pulls_served(empty_cluster: Cluster) -> None:
    cluster, disk = empty_cluster, FailingSyncDisk()
    await cluster.start(disk=disk, flush_disk_type="SYNC_FLUSH")
    await cluster.add_topic("T")
    line = await cluster.line()
    assert (await line.call(send(body=b"1"))).code == ResponseCode.SUCCESS
    disk.fails = True
    for body in (b"2", b"3"):
        answer = await line.call(send(body=body))
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert (answer.remark or "").startswith("service not available now.")
    disk.fails = False
    assert (await line.call(send(body=b"4"))).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert found_bodies(await line.call(pull())) == [b"1"]
    await cluster.kill()
    await cluster.start()
    assert cluster.stored()[0] == b"1"
    assert (await (await cluster.line()).call(send(body=b"5"))).code == ResponseCode.SUCCESS


async def test_a_full_disk_refuses_messages_and_new_topics(empty_cluster: Cluster) -> None:
    cluster, disk = empty_cluster, FullDisk()
    await cluster.start(disk=disk)
    await cluster.add_topic("T")
    line = await cluster.line()
    assert (await line.call(send(body=b"1"))).code == ResponseCode.SUCCESS
    disk.is_full = True
    for request in (send("Made"), send("T", bytes(1 << 22))):
        answer = await line.call(request)
        if request.fields["b"] == "Made":
            assert (answer.code, (answer.remark or "")[:26]) == (
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "service not available now.",
            )
    assert found_bodies(await line.call(pull())) == [b"1"]
    disk.is_full = False
    assert (await line.call(send("Made"))).code == ResponseCode.SUCCESS


async def test_sends_of_one_turn_share_a_flush(empty_cluster: Cluster) -> None:
    cluster, disk = empty_cluster, CountingDisk()
    await cluster.start(disk=disk, flush_disk_type="SYNC_FLUSH", flush_interval_s=100.0)
    await cluster.add_topic("T")
    lines = [await cluster.line() for _ in range(4)]
    before = disk.syncs
    answers = await asyncio.gather(*(line.call(send()) for line in lines for _ in range(1)))
    assert [answer.code for answer in answers] == [ResponseCode.SUCCESS] * 4
    assert 1 <= disk.syncs - before <= 4


class CountingDisk(FullDisk):
    syncs = 0

    def sync(self, descriptor: int) -> None:
        self.syncs += 1


async def test_a_heartbeat_between_sends_is_answered_in_order(cluster: Cluster, line: AsyncConnection) -> None:
    sent = [await line.send(request) for request in (send(), heartbeat(), send("Made"), send())]
    assert [(await line.answer(opaque)).code for opaque in sent] == [ResponseCode.SUCCESS] * 4
    assert cluster.stored() == [b"body", b"body"]


async def test_a_request_without_any_field_is_refused_with_a_reason(line: AsyncConnection) -> None:
    for code in SEND_CODES:
        answer = await line.call(Request(code))
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, "producerGroup is required")


@pytest.mark.parametrize("code", SEND_CODES)
async def test_the_refusal_of_a_send_names_a_missing_field(cluster: Cluster, line: AsyncConnection, code: int) -> None:
    whole = send(code=code)
    names = ["producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp"]
    for letter, name in zip("abcdefgh", [*names, "flag"], strict=True):
        missing = {letter, name}
        fields = {key: value for key, value in whole.fields.items() if key not in missing}
        answer = await line.call(Request(code, fields, whole.body))
        assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"{name} is required")
    assert cluster.stored() == []


@pytest.mark.parametrize(("said", "is_batch"), [("1", False), ("TRUE", True), ("True", True), ("yes", False)])
async def test_only_the_text_true_marks_a_batch(
    cluster: Cluster, line: AsyncConnection, said: str, is_batch: bool
) -> None:
    body = batch_body([(b"1", ""), (b"2", "")])
    assert (await line.call(send(body=body, m=said))).code == ResponseCode.SUCCESS
    assert cluster.stored() == ([b"1", b"2"] if is_batch else [body])
