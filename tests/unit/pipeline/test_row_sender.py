"""Rows are sent to real brokers, in order, within bounds, and around a broker that hangs."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from skyroute import StoredMessage
from skyroute.blocking import Admin
from skyroute.pipeline.connections import ClusterConnection
from skyroute.pipeline.options import ConnectionOptions
from skyroute.pipeline.sink.options import WriteOptions
from skyroute.pipeline.sink.row_packer import IDEMPOTENCY_KEY
from skyroute.pipeline.sink.row_sender import IN_FLIGHT_BYTES_MAX, RowSender, UnsafeRowsError
from skyroute.pipeline.source.batch import BatchReader
from skyroute.remoting.errors import CallTimeoutError, ConnectionLostError
from skyroute.testing import Cluster, cluster

TOPIC = "Rows"
BODY_BYTES = 100_000


@pytest.fixture
def two() -> Iterator[Cluster]:
    with cluster(brokers=2, in_memory=True) as started:
        with Admin(started.name_server_address) as admin:
            admin.create_topic(TOPIC, read_queues=2, write_queues=2)
        yield started


@pytest.fixture
def connection(two: Cluster) -> Iterator[ClusterConnection]:
    made = ClusterConnection(ConnectionOptions(two.name_server_address, retries=2, retry_interval_s=0.01))
    yield made
    made.close()


def row_sender(connection: ClusterConnection, timeout_s: float = 10.0) -> RowSender:
    options = WriteOptions(connection.options, TOPIC, send_timeout_s=timeout_s, batch_bytes_max=1_000)
    return RowSender(connection.session, options, "write/0/")


def stored(two: Cluster) -> list[StoredMessage]:
    with Admin(two.name_server_address) as admin:
        ranges = admin.topic_status(TOPIC).queues
        return [
            message
            for queue, known in sorted(ranges.items())
            for messages in admin.read(queue, known.min_offset, known.max_offset)
            for message in messages
        ]


def test_no_row_is_lost_when_a_broker_hangs(two: Cluster, connection: ClusterConnection) -> None:
    rows = pa.record_batch({"body": [b"%d" % number for number in range(500)]})
    two.pause_broker(1)
    try:
        assert connection.run(row_sender(connection, timeout_s=0.5).send(iter([rows]))) == 500
    finally:
        two.resume_broker(1)
    messages = stored(two)
    assert {int(message.body) for message in messages} == set(range(500))
    # Rows that the broker stored after it resumed are duplicates with the same idempotency key.
    assert len({message.find_property(IDEMPOTENCY_KEY) for message in messages}) == 500


@pytest.mark.parametrize("more", [{}, {"queue_id": [0]}])
def test_rows_that_a_broker_stores_less_safely_than_configured_are_an_error(more: dict[str, list[int]]) -> None:
    waiting: dict[str, Any] = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2, "slave_timeout_s": 0.01}
    with cluster(in_memory=True, **waiting) as alone:
        with Admin(alone.name_server_address) as admin:
            admin.create_topic(TOPIC, read_queues=1, write_queues=1)
        options = ConnectionOptions(alone.name_server_address, retries=1, retry_interval_s=0.01)
        connection = ClusterConnection(options)
        try:
            rows = pa.record_batch({"body": [b"1"], **more})
            with pytest.raises(UnsafeRowsError, match=r"broker-0:0 stored rows with the status FLUSH_SLAVE_TIMEOUT, 2"):
                connection.run(row_sender(connection).send(iter([rows])))
        finally:
            connection.close()
        assert len({message.find_property(IDEMPOTENCY_KEY) for message in stored(alone)}) == 1


def test_rows_of_a_queue_arrive_in_order_with_many_requests_in_flight(
    two: Cluster, connection: ClusterConnection
) -> None:
    numbers = list(range(2_000))
    rows = pa.record_batch({"body": [b"%d" % number for number in numbers], "sharding_key": ["one"] * 2_000})
    connection.run(row_sender(connection).send(iter([rows.slice(0, 1_000), rows.slice(1_000)])))
    messages = stored(two)
    assert [int(message.body) for message in messages] == numbers
    assert len({(message.broker_name, message.queue_id) for message in messages}) == 1


def test_rows_are_taken_only_up_to_the_bound_in_flight(two: Cluster, connection: ClusterConnection) -> None:
    taken = 0

    def endless() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        rows = pa.record_batch({"body": [bytes([1]) * BODY_BYTES]})
        while True:
            taken += 1
            yield rows

    for number in range(2):
        two.pause_broker(number)
    try:
        # The first call that times out closes its connection: on a busy machine, the others fail with that instead.
        with pytest.raises((CallTimeoutError, ConnectionLostError)):
            connection.run(row_sender(connection, timeout_s=3.0).send(endless()))
    finally:
        for number in range(2):
            two.resume_broker(number)
    bound = IN_FLIGHT_BYTES_MAX // BODY_BYTES
    assert bound <= taken <= bound + 2


def test_a_new_batch_topic_keeps_batches_whole_and_reads_as_sent(two: Cluster, connection: ClusterConnection) -> None:
    bodies = [b"%d" % number for number in range(500)]
    options = WriteOptions(
        connection.options, "Whole", batch_bytes_max=5_000, new_topic_queues=1, new_topic_is_batch=True
    )
    rows = pa.record_batch({"body": bodies, "tags": ["even", "odd"] * 250})
    assert connection.run(RowSender(connection.session, options, "write/0/").send(iter([rows]))) == 500
    with Admin(two.name_server_address) as admin:
        assert admin.topic_config("Whole", two.broker_addresses[0]).attributes == {"queue.type": "BatchCQ"}
    reader = BatchReader({"nameServer": two.name_server_address, "topic": "Whole"}, StructType().add("body", "binary"))
    found = [body for part in reader.partitions() for batch in reader.read(part) for body in batch["body"].to_pylist()]
    assert sorted(found, key=int) == bodies
