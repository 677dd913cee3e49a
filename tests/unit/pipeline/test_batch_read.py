"""Batch reads from real brokers."""

import json
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThan, LessThanOrEqual

from skyroute import Compression
from skyroute.blocking import Admin, Producer
from skyroute.message.flags import COMPRESSED
from skyroute.message.message import Message, StoredMessage
from skyroute.message.queue_ref import QueueRef
from skyroute.pipeline.connections import close_all, connect
from skyroute.pipeline.options import ConnectionOptions
from skyroute.pipeline.source.errors import BrokerLostError, DataLossError, RejectedRecordError, SourceError
from skyroute.pipeline.source.offset_lookup import OffsetLookup
from skyroute.pipeline.source.options import read_options
from skyroute.pipeline.source.planning import QueueRange, ReadPartition
from skyroute.routing.registration import Registration
from skyroute.testing import Cluster
from skyroute.testing import cluster as started_cluster
from skyroute.wire.calls.groups import GroupConfig
from skyroute.wire.calls.registration import encode_registration
from skyroute.wire.calls.send import encode_send
from tests.support.shown import ROOT
from tests.support.waiting import wait_until
from tests.unit.pipeline.reading import bodies, make_topic, read, rows_of, send, source


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with started_cluster(brokers=2, in_memory=True) as started:
        yield started


@pytest.fixture(autouse=True)
def _no_connections_left() -> Iterator[None]:
    yield
    close_all()


def numbers(first: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, stop)]


# -------------------------------------------------------------------------------------------------------------- columns


def test_rows_equal_messages(cluster: Cluster) -> None:
    make_topic(cluster, "Whole")
    with Producer("senders", cluster.name_server_address) as producer:
        for number in range(20):
            message = Message(
                "Whole", b"%d" % number, tag="even", keys=("a", f"b{number}"), properties={"n": str(number)}
            )
            producer.send(message, queue=QueueRef("Whole", f"broker-{number % 2}", number % 4 // 2))
    with Admin(cluster.name_server_address) as admin:
        stored = [
            message
            for queue in sorted(admin.queues_of("Whole"))
            for found in admin.read(queue, 0, 100)
            for message in found
        ]
    rows = read(cluster, topic="Whole", columns="*")
    assert [list(row) for row in rows] == [list(_expected(stored[0]))] * 20
    for row, expected in zip(rows, map(_expected, stored), strict=True):
        assert {**row, "properties": dict(row["properties"])} == expected


def _expected(message: StoredMessage) -> dict[str, Any]:
    return {
        "topic": "Whole",
        "broker_name": message.broker_name,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "commit_log_offset": message.log_position,
        "born_timestamp": message.born_at,
        "store_timestamp": message.stored_at,
        "born_host": str(message.born_host),
        "tags": message.tag,
        "keys": " ".join(message.keys),
        "properties": dict(message.properties),
        "flag": message.flag,
        "message_id": message.message_id,
        "reconsume_times": 0,
        "body": message.body,
    }


def test_a_worker_reads_all_columns_without_pandas(cluster: Cluster) -> None:
    """Importing pandas takes 0.2 s in each new worker."""
    make_topic(cluster, "Light")
    send(cluster, "Light", 3)
    options = {"nameServer": cluster.name_server_address, "topic": "Light", "columns": "*"}
    program = f"""if True:
        import sys
        from pyspark.sql.datasource import CaseInsensitiveDict
        from skyroute.pipeline.data_source import RocketMQSource
        source = RocketMQSource(CaseInsensitiveDict({options!r}))
        reader = source.reader(source.schema())
        rows = sum(batch.num_rows for part in reader.partitions() for batch in reader.read(part))
        print(rows, "pandas" in sys.modules)"""
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ended.stdout == "3 False\n"


def test_only_chosen_columns_are_returned(cluster: Cluster) -> None:
    make_topic(cluster, "Chosen")
    send(cluster, "Chosen", 3)
    assert read(cluster, topic="Chosen", columns="queueOffset,body", legacyColumns="true") == [
        {"queueOffset": number, "body": b"%d" % number} for number in range(3)
    ]


def test_compressed_bodies_are_decompressed(cluster: Cluster) -> None:
    make_topic(cluster, "Packed")
    queue = QueueRef("Packed", "broker-0", 0)
    sent = [b"a" * 5_000, b"small", b"b" * 9_000, b"c" * 5_000]
    for compression, body in zip((Compression.ZLIB, None, Compression.LZ4, Compression.ZSTD), sent, strict=True):
        chosen = {} if compression is None else {"compression": compression}
        with Producer("senders", cluster.name_server_address, **chosen) as producer:
            producer.send(Message("Packed", body), queue=queue)
    assert bodies(read(cluster, topic="Packed")) == sent


@pytest.mark.parametrize("pull_messages", [1, 3, 32])
def test_batches_stored_as_one_record_are_split(cluster: Cluster, pull_messages: int) -> None:
    topic = f"Wrapped{pull_messages}"
    with Admin(cluster.name_server_address) as admin:
        admin.create_topic(
            topic, read_queues=1, write_queues=1, cluster="DefaultCluster", attributes={"queue.type": "BatchCQ"}
        )
    for first, count in ((0, 10), (10, 1), (11, 25), (36, 4)):
        send(cluster, topic, count, first=first)
    rows = read(cluster, topic=topic, pullBatchSize=str(pull_messages), maxRecordsPerPartition="17")
    assert [row["queue_offset"] for row in rows] == list(range(40))
    assert bodies(rows) == numbers(0, 40)


def test_tags_are_found_inside_batches_stored_as_one_record(cluster: Cluster) -> None:
    with Admin(cluster.name_server_address) as admin:
        attributes = {"queue.type": "BatchCQ"}
        admin.create_topic("Tagged", read_queues=1, write_queues=1, cluster="DefaultCluster", attributes=attributes)
    queue = QueueRef("Tagged", "broker-0", 0)
    with Producer("senders", cluster.name_server_address) as producer:
        for first in (0, 10):
            tagged = [
                Message("Tagged", b"%d" % number, tag=("sent", "paid")[number % 2])
                for number in range(first, first + 10)
            ]
            producer.send_batch(tagged, queue=queue)
        producer.send(Message("Tagged", b"20", tag="sent"), queue=queue)
        producer.send(Message("Tagged", b"21", tag="paid"), queue=queue)
    rows = read(cluster, topic="Tagged", tags="paid")
    assert bodies(rows) == [b"%d" % number for number in range(1, 22, 2)]


def test_the_broker_applies_tags_except_to_batch_topics(cluster: Cluster) -> None:
    """Apache's broker compares the tag of a whole batch, and would return none."""
    with Admin(cluster.name_server_address) as admin:
        for topic, attributes in (("Unlike", None), ("Inner", {"queue.type": "BatchCQ"})):
            admin.create_topic(topic, read_queues=1, write_queues=1, cluster="DefaultCluster", attributes=attributes)
            send(cluster, topic, 2)
    for options, expected in (
        ({"tags": "paid"}, {"Unlike": True, "Inner": False}),
        ({}, {"Unlike": True, "Inner": True}),
    ):
        chosen = source(cluster, topic="Unlike,Inner", **options)
        planned = chosen.reader(chosen.schema()).partitions()
        ranges = [each for partition in planned if isinstance(partition, ReadPartition) for each in partition.ranges]
        found = {each.queue.topic: each.broker_filters for each in ranges}
        assert found == expected


def test_all_columns_of_batches_stored_as_one_record_are_read(cluster: Cluster) -> None:
    with Admin(cluster.name_server_address) as admin:
        attributes = {"queue.type": "BatchCQ"}
        admin.create_topic(
            "AllOfBatches", read_queues=1, write_queues=1, cluster="DefaultCluster", attributes=attributes
        )
    queue = QueueRef("AllOfBatches", "broker-0", 0)
    sent = [
        Message("AllOfBatches", b"x" * number, tag=f"t{number}", keys=[f"k{number}"]) for number in (3, 1, 7, 7, 7, 100)
    ]
    with Producer("senders", cluster.name_server_address) as producer:
        producer.send_batch(sent, queue=queue)
        producer.send_batch(sent, queue=queue)
        single = read(cluster, topic="AllOfBatches", columns="*")
        producer.send(Message("AllOfBatches", b"single"), queue=queue)
    both = read(
        cluster, topic="AllOfBatches", columns="*"
    )  # with an ordinary record, each message is decoded by itself
    assert both[:-1] == single
    assert [row["queue_offset"] for row in single] == list(range(12))
    assert [(row["body"], row["tags"], row["keys"]) for row in single[6:]] == [
        (message.body, message.tag, " ".join(message.keys)) for message in sent
    ]


# ----------------------------------------------------------------------------------------------------- topics and tags


def test_several_topics_and_patterns_are_read(cluster: Cluster) -> None:
    for topic in ("Alpha1", "Alpha2", "Beta"):
        make_topic(cluster, topic)
        send(cluster, topic, 2)
    assert {row["topic"] for row in read(cluster, topic="Alpha1,Beta")} == {"Alpha1", "Beta"}
    assert [row["topic"] for row in read(cluster, subscribePattern="Alpha.*")] == ["Alpha1"] * 2 + ["Alpha2"] * 2
    assert read(cluster, subscribePattern="Gamma.*") == []


def test_assign_reads_only_the_named_queues(cluster: Cluster) -> None:
    make_topic(cluster, "Assigned")
    send(cluster, "Assigned", 2, queue_id=0)
    send(cluster, "Assigned", 3, queue_id=1)
    assert len(read(cluster, assign='{"Assigned": ["broker-0:1"]}')) == 3
    with pytest.raises(SourceError, match=r"assign: unknown queues Assigned@broker-0:7"):
        read(cluster, assign='{"Assigned": ["broker-0:7"]}')


def test_an_unknown_topic_is_an_error(cluster: Cluster) -> None:
    with pytest.raises(SourceError, match="no broker serves the topic Nowhere: create it"):
        read(cluster, topic="Nowhere")


def test_rows_do_not_show_the_namespace(cluster: Cluster) -> None:
    make_topic(cluster, "tenant%Orders")
    with Producer("senders", cluster.name_server_address, namespace="tenant") as producer:
        producer.send(Message("Orders", b"one"))
    rows = read(cluster, topic="Orders", namespace="tenant")
    assert [(row["topic"], row["body"]) for row in rows] == [("Orders", b"one")]
    assert read(cluster, subscribePattern="Orders", namespace="tenant") == rows


def test_tags_with_the_same_hash_are_told_apart(cluster: Cluster) -> None:
    make_topic(cluster, "Tagged", queues=1)
    with Producer("senders", cluster.name_server_address) as producer:
        for number in range(300):
            tag = ("Aa", "BB", "other")[number % 3]  # the first two have the same hash
            producer.send(Message("Tagged", b"%d" % number, tag=tag), queue=QueueRef("Tagged", "broker-0", 0))
    assert bodies(read(cluster, topic="Tagged", subExpression="Aa")) == [b"%d" % n for n in range(0, 300, 3)]
    assert len(read(cluster, topic="Tagged", tags="BB || other", pullBatchSize="7")) == 200


# --------------------------------------------------------------------------------------------------- start and end


def offsets(topic: str, **queues: int) -> str:
    return json.dumps({topic: {name.replace("_", "-", 1).replace("_", ":"): n for name, n in queues.items()}})


def test_offsets_set_the_start_and_the_end(cluster: Cluster) -> None:
    make_topic(cluster, "Between", queues=1)
    send(cluster, "Between", 10)
    send(cluster, "Between", 10, broker=1)
    start = offsets("Between", broker_0_0=4, broker_1_0=-1)
    assert bodies(read(cluster, topic="Between", startingOffsets=start)) == numbers(4, 10)
    stop = offsets("Between", broker_0_0=6, broker_1_0=-1)
    start = offsets("Between", broker_0_0=-2, broker_1_0=7)
    assert bodies(read(cluster, topic="Between", startingOffsets=start, endingOffsets=stop)) == numbers(0, 6) + numbers(
        7, 10
    )
    assert read(cluster, topic="Between", startingOffsets="latest") == []


def test_timestamps_set_the_start_and_the_end(cluster: Cluster) -> None:
    make_topic(cluster, "Timed", queues=1)
    send(cluster, "Timed", 5)
    chosen = {"assign": '{"Timed": ["broker-0:0"]}'}
    last_stored = max(row["store_timestamp"] for row in read(cluster, **chosen))
    middle_ms = round(last_stored.timestamp() * 1000) + 1
    wait_until(lambda: time.time() * 1000 > middle_ms, "the next millisecond")
    middle = str(middle_ms)
    send(cluster, "Timed", 5, first=5)
    assert bodies(read(cluster, **chosen, startingTimestamp=middle)) == numbers(5, 10)
    assert bodies(read(cluster, **chosen, endingTimestamp=middle)) == numbers(0, 5)
    by_queue = offsets("Timed", broker_0_0=int(middle))
    assert bodies(read(cluster, **chosen, startingOffsetsByTimestamp=by_queue)) == numbers(5, 10)
    later = "2100-01-01T00:00:00.250"
    with pytest.raises(
        SourceError, match=r"^startingTimestamp: .* has no message stored at 2100-01-01T00:00:00\.250\+00:00"
    ):
        read(cluster, **chosen, startingTimestamp=later)
    assert read(cluster, **chosen, startingTimestamp=later, startingOffsetsByTimestampStrategy="latest") == []


def test_offsets_must_name_every_queue_and_no_other(cluster: Cluster) -> None:
    make_topic(cluster, "Named", queues=1)
    with pytest.raises(SourceError, match=r"startingOffsets: queues are missing: add Named@broker-1:0"):
        read(cluster, topic="Named", startingOffsets=offsets("Named", broker_0_0=0))
    with pytest.raises(SourceError, match=r"startingOffsets: unknown queues Named@broker-7:0"):
        read(cluster, topic="Named", startingOffsets=offsets("Named", broker_0_0=0, broker_1_0=0, broker_7_0=0))


def test_an_offset_out_of_range_is_an_error_or_is_clamped(cluster: Cluster) -> None:
    make_topic(cluster, "Beyond", queues=1)
    send(cluster, "Beyond", 5)
    far = offsets("Beyond", broker_0_0=99, broker_1_0=0)
    with pytest.raises(
        DataLossError, match=r"endingOffsets: offset 99 of Beyond@broker-0:0 is out of .* failOnDataLoss=false"
    ):
        read(cluster, topic="Beyond", endingOffsets=far)
    assert len(read(cluster, topic="Beyond", endingOffsets=far, failOnDataLoss="false")) == 5


# ---------------------------------------------------------------------------------------------- pulls and connections


@pytest.mark.parametrize("pull_messages", [1, 7, 32, 1024])
def test_every_message_is_read_once_in_order_at_any_pull_size(cluster: Cluster, pull_messages: int) -> None:
    topic = f"Cut{pull_messages}"
    make_topic(cluster, topic, queues=1)
    send(cluster, topic, 500)
    rows = read(cluster, topic=topic, pullBatchSize=str(pull_messages), maxRecordsPerPartition="130")
    assert bodies(rows) == numbers(0, 500)


def test_a_broker_with_small_pull_responses_is_read_to_the_end() -> None:
    """Apache's broker returns at most 32 messages for any pull."""
    with started_cluster(in_memory=True, pull_messages_max=32) as small:
        make_topic(small, "Few", queues=1)
        send(small, "Few", 3_000)
        assert bodies(read(small, topic="Few")) == numbers(0, 3_000)


def test_reads_work_over_tls_with_signed_requests(cluster: Cluster) -> None:
    make_topic(cluster, "Secret", queues=1)
    send(cluster, "Secret", 100)
    chosen = {"tls.enable": "true", "accessKey": "me", "secretKey": "12345678", "pullBatchSize": "10"}
    assert bodies(read(cluster, topic="Secret", **chosen)) == numbers(0, 100)


def test_a_forked_process_opens_its_own_connections(cluster: Cluster) -> None:
    make_topic(cluster, "Forked", queues=1)
    send(cluster, "Forked", 100)
    program = """
import os, sys
from tests.support.shown import ROOT
from tests.unit.pipeline.reading import read
class Where: name_server_address = sys.argv[1]
assert len(read(Where, topic="Forked")) == 100
child = os.fork()
assert len(read(Where, topic="Forked")) == 100
if child:
    assert os.waitpid(child, 0)[1] == 0
    assert len(read(Where, topic="Forked")) == 100
"""
    subprocess.run([sys.executable, "-c", program, cluster.name_server_address], cwd=ROOT, check=True, timeout=60)


def test_large_messages_are_read(cluster: Cluster) -> None:
    make_topic(cluster, "Huge", queues=1)
    sent = [bytes([number]) * 1_500_000 for number in range(12)]
    with Producer("senders", cluster.name_server_address, compress_from_bytes=1 << 22) as producer:
        for body in sent:
            producer.send(Message("Huge", body), queue=QueueRef("Huge", "broker-0", 0))
    assert bodies(read(cluster, topic="Huge", columns="queue_offset,body")) == sent


def test_consecutive_tasks_reuse_a_socket(cluster: Cluster) -> None:
    make_topic(cluster, "Again", queues=4)
    for queue_id in range(4):
        send(cluster, "Again", 10, queue_id=queue_id)
    chosen = source(cluster, topic="Again", minPartitions="4")
    connection = connect(read_options(chosen.options).connection)
    borrowed = connection.borrow_socket(cluster.broker_addresses[0], 1.0)
    connection.return_socket(borrowed)
    for _ in range(3):
        assert len(read(cluster, topic="Again", minPartitions="4")) == 40
    assert connection.borrow_socket(cluster.broker_addresses[0], 1.0) is borrowed
    borrowed.close()


def test_a_socket_that_the_broker_closed_is_not_reused(rocketmq: Cluster) -> None:
    make_topic(rocketmq, "Ended", queues=1)
    send(rocketmq, "Ended", 10)
    hasty = {"fetchOffset.numRetries": "0"}
    assert len(read(rocketmq, topic="Ended", **hasty)) == 10
    rocketmq.restart_broker()
    chosen = source(rocketmq, topic="Ended", **hasty)
    reader = chosen.reader(chosen.schema())
    address = rocketmq.broker_addresses[0]
    assert len(rows_of(reader, [ReadPartition([QueueRange(QueueRef("Ended", "broker-0", 0), 0, 10, address)])])) == 10


def test_a_read_works_after_an_abandoned_one(cluster: Cluster) -> None:
    make_topic(cluster, "Left", queues=1)
    send(cluster, "Left", 500)
    chosen = source(cluster, topic="Left", pullBatchSize="8")
    reader = chosen.reader(chosen.schema())
    (partition,) = reader.partitions()
    batches: Any = reader.read(partition)
    next(batches)
    batches.close()  # as with `limit(10)`
    assert bodies(read(cluster, topic="Left")) == numbers(0, 500)


# ------------------------------------------------------------------------------------------------------------- failures


def test_a_read_survives_a_broker_restart(rocketmq: Cluster) -> None:
    make_topic(rocketmq, "Back", queues=1)
    send(rocketmq, "Back", 2_000)
    chosen = source(rocketmq, topic="Back", pullBatchSize="100", **{"fetchOffset.numRetries": "200"})
    reader = chosen.reader(chosen.schema())
    (partition,) = reader.partitions()
    rocketmq.kill_broker()
    restart = threading.Thread(target=rocketmq.restart_broker)
    restart.start()
    rows = rows_of(reader, [partition])
    restart.join()
    assert bodies(rows) == numbers(0, 2_000)


def test_a_dead_broker_is_an_error_after_all_retries(rocketmq: Cluster) -> None:
    make_topic(rocketmq, "Away", queues=1)
    send(rocketmq, "Away", 10)
    chosen = source(rocketmq, topic="Away")
    reader = chosen.reader(chosen.schema())
    (partition,) = reader.partitions()
    rocketmq.kill_broker()
    with pytest.raises(BrokerLostError, match=r"Away@broker-0:0 cannot be read from offset 0 on, tried 4 times"):
        list(reader.read(partition))


def test_messages_that_a_slave_lacks_are_not_lost() -> None:
    with started_cluster(brokers=2, in_memory=True) as own:
        make_topic(own, "Lagging", queues=1)
        send(own, "Lagging", 10)
        chosen = source(own, topic="Lagging", failOnDataLoss="false")
        reader = chosen.reader(chosen.schema())
        (partition,) = reader.partitions()
        slave = Registration("DefaultCluster", "broker-0", 1, own.broker_addresses[1])
        options = ConnectionOptions(own.name_server_address)
        connect(options).run(connect(options).session.ask_name_server(encode_registration(slave)))
        own.kill_broker(0)
        with pytest.raises(BrokerLostError, match="a slave responds, which does not have offset 0: start the master"):
            list(reader.read(partition))
        own.restart_broker(0)
        assert bodies(rows_of(reader, [partition])) == numbers(0, 10)


def test_a_hanging_broker_is_an_error_after_all_retries(rocketmq: Cluster) -> None:
    make_topic(rocketmq, "Still", queues=1)
    send(rocketmq, "Still", 10)
    chosen = source(rocketmq, topic="Still", pullTimeoutMs="100", **{"fetchOffset.numRetries": "1"})
    reader = chosen.reader(chosen.schema())
    (partition,) = reader.partitions()
    rocketmq.pause_broker()
    try:
        with pytest.raises(BrokerLostError, match="tried 2 times"):
            list(reader.read(partition))
    finally:
        rocketmq.resume_broker()


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "sent a frame of"),
        (b"\0\0\0\x08\0\0\0\x04nope", "the header is not JSON"),
        (b"", "closed the connection"),
    ],
)
def test_a_server_that_is_not_a_broker_is_an_error(cluster: Cluster, response: bytes, error: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, _ = server.accept()
            with client:
                client.recv(4096)
                client.sendall(response)

        peer = threading.Thread(target=serve)
        peer.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        chosen = source(cluster, topic="Any", **{"fetchOffset.numRetries": "0"})
        reader = chosen.reader(chosen.schema())
        with pytest.raises(SourceError, match=error):
            list(reader.read(ReadPartition([QueueRange(QueueRef("Any", "broker-0", 0), 0, 10, address)])))
        peer.join()


def test_deleted_messages_are_an_error_or_are_skipped() -> None:
    with started_cluster(in_memory=True, commit_log_file_bytes=16_384) as small:
        make_topic(small, "Old", queues=1)
        for first in range(0, 300, 50):
            send(small, "Old", 50, first=first)
        strict, lenient = (source(small, topic="Old", failOnDataLoss=word) for word in ("true", "false"))
        readers = [each.reader(each.schema()) for each in (strict, lenient)]
        planned = [reader.partitions() for reader in readers]
        small.stop_broker()
        logs = sorted((small.folder / "broker-0" / "commitlog").iterdir())
        assert len(logs) > 2
        logs[0].unlink()
        small.restart_broker()
        with pytest.raises(DataLossError, match=r"offsets 0 to \d+ of Old@broker-0:0 are missing"):
            list(readers[0].read(planned[0][0]))
        rows = rows_of(readers[1], planned[1])
        first = rows[0]["queue_offset"]
        assert 0 < first < 300
        assert bodies(rows) == numbers(first, 300)


def send_raw(cluster: Cluster, queue: QueueRef, body: bytes, sys_flag: int) -> None:
    connection = connect(ConnectionOptions(cluster.name_server_address))
    request = encode_send("senders", queue, body, properties="", born_at_ms=0, sys_flag=sys_flag)
    connection.run(connection.session.ask(cluster.broker_addresses[0], request))


def test_a_body_that_cannot_be_decompressed_is_rejected_and_counted(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    make_topic(cluster, "Rotten", queues=1)
    send(cluster, "Rotten", 2)
    send_raw(cluster, QueueRef("Rotten", "broker-0", 0), b"not compressed", COMPRESSED)
    send_raw(cluster, QueueRef("Rotten", "broker-0", 0), zlib.compress(b"3"), COMPRESSED)
    with pytest.raises(RejectedRecordError, match=r"record at offset 2 of Rotten@broker-0:0 .* rejects=column"):
        read(cluster, topic="Rotten")
    rows = read(cluster, topic="Rotten", rejects="column")
    assert bodies(rows) == [b"0", b"1", b"not compressed", b"3"]
    assert [row["reject"] is not None for row in rows] == [False, False, True, False]
    assert "not a zlib body" in rows[2]["reject"]
    assert "records rejected queue=Rotten@broker-0:0 count=1" in caplog.text


@pytest.mark.parametrize("damaged", [0, 7, 19])
def test_a_damaged_record_is_rejected_alone(rocketmq: Cluster, damaged: int) -> None:
    make_topic(rocketmq, "Torn", queues=1)
    send(rocketmq, "Torn", 20)
    position = read(rocketmq, topic="Torn", columns="*")[damaged]["commit_log_offset"]
    log = next((rocketmq.folder / "broker-0" / "commitlog").iterdir())
    _overwrite(log, position + 4, b"\0\0\0\0")
    with pytest.raises(RejectedRecordError, match=rf"record at offset {damaged} of .* cannot be decoded: no record at"):
        read(rocketmq, topic="Torn")
    rows = read(rocketmq, topic="Torn", rejects="column")
    assert [row["queue_offset"] for row in rows] == list(range(20))
    assert [row["queue_offset"] for row in rows if row["reject"]] == [damaged]
    assert bodies(rows[:damaged] + rows[damaged + 1 :]) == numbers(0, damaged) + numbers(damaged + 1, 20)
    assert len(rows[damaged]["body"]) > 88, "the row has all bytes of the record"


def test_a_damaged_record_is_rejected_in_a_read_by_tag(rocketmq: Cluster) -> None:
    make_topic(rocketmq, "Torn", queues=1)
    with Producer("senders", rocketmq.name_server_address) as producer:
        for number in range(20):
            producer.send(Message("Torn", b"%d" % number, tag="even" if number % 2 == 0 else "odd"))
    position = read(rocketmq, topic="Torn", columns="*")[14]["commit_log_offset"]
    _overwrite(next((rocketmq.folder / "broker-0" / "commitlog").iterdir()), position + 4, b"\0\0\0\0")
    rows = read(rocketmq, topic="Torn", subExpression="even", rejects="column")
    assert [row["queue_offset"] for row in rows] == list(range(0, 20, 2))
    assert [row["queue_offset"] for row in rows if row["reject"]] == [14]


def _overwrite(path: Path, at: int, what: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(what)


def test_a_group_without_permission_is_an_error(cluster: Cluster) -> None:
    make_topic(cluster, "Closed", queues=1)
    send(cluster, "Closed", 1)
    with Admin(cluster.name_server_address) as admin:
        for address in cluster.broker_addresses:
            admin.create_group(GroupConfig("locked", enabled=False), broker=address)
    with pytest.raises(SourceError, match="subscription group no permission, locked"):
        read(cluster, topic="Closed", groupId="locked")


def test_a_wrong_option_is_an_error_before_any_request(cluster: Cluster) -> None:
    with pytest.raises(ValueError, match="unknown option toppic"):
        source(cluster, toppic="A").schema()


def test_an_unreachable_name_server_is_an_error() -> None:
    options = read_options(
        {"nameServer": "127.0.0.1:1", "topic": "A", "fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "1"}
    )
    with pytest.raises(BrokerLostError, match="request failed 2 times: no name server"):
        OffsetLookup(options).queues()


def test_json_bodies_are_columns_and_wrong_ones_are_rejects(cluster: Cluster) -> None:
    make_topic(cluster, "Json", queues=1)
    queue = QueueRef("Json", "broker-0", 0)
    with Producer("senders", cluster.name_server_address) as producer:
        for body in (b'{"id": 1, "price": 2.5}', b"{", b'{"id": 3}'):
            producer.send(Message("Json", body), queue=queue)
    options = {"topic": "Json", "bodyFormat": "json", "bodySchema": "id INT, price DOUBLE"}
    rows = read(cluster, **options, rejects="column")
    assert [row["body"] for row in rows] == [{"id": 1, "price": 2.5}, None, {"id": 3, "price": None}]
    assert [bool(row["reject"]) for row in rows] == [False, True, False]
    with pytest.raises(
        RejectedRecordError, match=r"offset 1 of Json@broker-0:0 cannot be decoded: the body is not JSON"
    ):
        read(cluster, **options)
    assert [row["body"] for row in read(cluster, topic="Json", bodyFormat="string")][1] == "{"


def test_pushed_conditions_narrow_what_is_read(cluster: Cluster) -> None:
    make_topic(cluster, "Pushed", queues=2)
    for queue_id in (0, 1):
        send(cluster, "Pushed", 5, queue_id=queue_id)
    last = max(row["store_timestamp"] for row in read(cluster, topic="Pushed"))
    chosen = source(cluster, topic="Pushed", pushFilters="true")
    for conditions, expected in (
        ([EqualTo(("queue_id",), 1)], 5),
        ([In(("queue_id",), (1, 7))], 5),
        ([GreaterThan(("store_timestamp",), last + timedelta(seconds=1))], 0),
        ([LessThanOrEqual(("store_timestamp",), last)], 10),
        ([LessThan(("store_timestamp",), last - timedelta(hours=1))], 0),
        ([EqualTo(("tags",), "paid")], 0),
        ([EqualTo(("body",), b"1")], 10),
    ):
        reader: Any = chosen.reader(chosen.schema())
        assert list(reader.pushFilters(conditions)) == conditions, "Spark checks all of them again"
        assert len(rows_of(reader, reader.partitions())) == expected, conditions
