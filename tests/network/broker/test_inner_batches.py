"""Batch topics (`queue.type=BatchCQ`), which store a batch as one record."""

import pytest

from skyroute import Message
from skyroute.client.consuming.queue_calls import min_offset
from skyroute.message.batch import unwrap_batches
from skyroute.message.message import StoredMessage
from skyroute.message.message_id import decode_offset_id
from skyroute.message.queue_ref import QueueRef
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.network.broker.calls import batch_body, found, pull, send
from tests.network.broker.clusters import Cluster
from tests.support.connections import AsyncConnection
from tests.support.disks import read_all
from tests.support.waiting import eventually

ITEMS = [(b"1", "UNIQ_KEY\x01A\x02"), (b"2", "UNIQ_KEY\x01B\x02TAGS\x01red\x02"), (b"3", "")]


@pytest.fixture
async def cluster(cluster: Cluster) -> Cluster:
    await cluster.add_topic("T", 1, attributes={"queue.type": "BatchCQ"})
    return cluster


async def test_an_empty_batch_queue_has_min_offset_minus_one(cluster: Cluster, line: AsyncConnection) -> None:
    queue = {"topic": "T", "queueId": "0"}
    assert (await line.call(RequestCode.GET_MIN_OFFSET, queue)).fields["offset"] == "-1"
    assert (await line.call(RequestCode.GET_MAX_OFFSET, queue)).fields["offset"] == "0"
    pulled = await line.call(pull())
    assert (pulled.code, pulled.fields["minOffset"]) == (ResponseCode.PULL_NOT_FOUND, "-1")
    await line.call(send())
    assert (await line.call(RequestCode.GET_MIN_OFFSET, queue)).fields["offset"] == "0"
    assert (await line.call(pull())).fields["minOffset"] == "0"


async def test_our_client_reads_an_empty_batch_queue_from_offset_zero(cluster: Cluster) -> None:
    assert await min_offset(await cluster.session(), QueueRef("T", "broker-a", 0)) == 0


async def test_a_batch_is_one_record_found_by_each_of_its_offsets(cluster: Cluster, line: AsyncConnection) -> None:
    body = batch_body(ITEMS)
    await line.call(send(body=b"0"))
    answer = await line.call(send(body=body, code=320, properties="UNIQ_KEY\x01WHOLE\x02"))
    assert (answer.code, answer.fields["queueOffset"]) == (ResponseCode.SUCCESS, "1")
    assert answer.fields["batchUniqId"] == answer.fields["transactionId"] == "WHOLE"
    single, whole = read_all(cluster.broker.components.store)
    assert (single.body, single.sys_flag) == (b"0", 0)
    assert (whole.stored_body, whole.sys_flag) == (body, 0xC0)
    assert decode_offset_id(answer.fields["msgId"]).log_position == whole.log_position
    assert whole.properties.items() >= {"INNER_NUM": "3", "INNER_BASE": "1", "UNIQ_KEY": "WHOLE"}.items()
    for offset in (1, 2, 3):
        pulled = await line.call(pull(offset=offset))
        assert (pulled.code, pulled.fields["nextBeginOffset"]) == (ResponseCode.SUCCESS, "4")
        assert [message.queue_offset for message in unwrap_batches(found(pulled))] == [1, 2, 3]
    assert (await line.call(send(body=b"4"))).fields["queueOffset"] == "4"


async def test_a_batch_without_a_unique_id_is_stored_as_single_messages(
    cluster: Cluster, line: AsyncConnection
) -> None:
    answer = await line.call(send(body=batch_body(ITEMS), code=320))
    assert answer.code == ResponseCode.SUCCESS
    assert "batchUniqId" not in answer.fields
    assert cluster.stored() == [b"1", b"2", b"3"]


async def test_a_batch_too_large_for_one_record_is_refused(cluster: Cluster, line: AsyncConnection) -> None:
    many = batch_body([(b"x", "")] * 32_768)
    assert (
        await line.call(send(body=many, code=320, properties="UNIQ_KEY\x01M\x02"))
    ).code == ResponseCode.MESSAGE_ILLEGAL
    long = "UNIQ_KEY\x01M\x02k\x01" + "v" * 32_700 + "\x02"
    assert (
        await line.call(send(body=batch_body(ITEMS), code=320, properties=long))
    ).code == ResponseCode.MESSAGE_ILLEGAL
    assert cluster.stored() == []


async def test_our_consumer_receives_the_batches_of_our_producer(cluster: Cluster) -> None:
    async with cluster.producer() as producer:
        await producer.send_batch([Message("T", b"%d" % number) for number in range(5)])
        await producer.send(Message("T", b"5"))
    assert len(read_all(cluster.broker.components.store)) == 2
    got: dict[int, bytes] = {}
    consumer = cluster.consumer()

    @consumer.on("T")
    async def _take(message: StoredMessage) -> None:
        got[message.queue_offset] = message.body

    async with consumer:
        await eventually(lambda: len(got) == 6)
    assert got == {number: b"%d" % number for number in range(6)}


async def test_batches_survive_a_kill_of_the_broker(cluster: Cluster) -> None:
    line = await cluster.line()
    await line.call(send(body=b"0"))
    await line.call(send(body=batch_body(ITEMS), code=320, properties="UNIQ_KEY\x01WHOLE\x02"))
    await cluster.kill()
    await cluster.start()
    line = await cluster.line()
    pulled = await line.call(pull(offset=0))
    assert [message.body for message in unwrap_batches(found(pulled))] == [b"0", b"1", b"2", b"3"]
    assert (await line.call(send(body=b"4"))).fields["queueOffset"] == "4"


async def test_a_batch_passes_a_tag_filter_because_its_messages_have_the_tags(
    cluster: Cluster, line: AsyncConnection
) -> None:
    await line.call(send(body=batch_body(ITEMS), code=320, properties="UNIQ_KEY\x01WHOLE\x02"))
    await line.call(send(body=b"4", properties="TAGS\x01blue\x02"))
    answer = await line.call(pull(expression="red"))
    assert [message.body for message in unwrap_batches(found(answer))] == [b"1", b"2", b"3"]
