"""Rows reach brokers: a broker that stands still is passed by, and keeps nobody from sending in order or in bounds."""

from collections.abc import Iterator

import pyarrow as pa
import pytest

from skyroute import StoredMessage
from skyroute.blocking import Admin
from skyroute.pipeline.connections import Connection
from skyroute.pipeline.options import ConnectionOptions
from skyroute.pipeline.sink.options import WriteOptions
from skyroute.pipeline.sink.rows import IDEMPOTENCY_KEY
from skyroute.pipeline.sink.sending import IN_FLIGHT_BYTES_MAX, Sending
from skyroute.remoting.errors import CallTimeoutError
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
def connection(two: Cluster) -> Iterator[Connection]:
    made = Connection(ConnectionOptions(two.name_server_address, retries=2, retry_interval_s=0.01))
    yield made
    made.close()


def sending(connection: Connection, timeout_s: float = 10.0) -> Sending:
    options = WriteOptions(connection.options, TOPIC, send_timeout_s=timeout_s, batch_bytes_max=1_000)
    return Sending(connection.session, options, "write/0/")


def stored(two: Cluster) -> list[StoredMessage]:
    with Admin(two.name_server_address) as admin:
        spans = admin.topic_status(TOPIC).queues
        return [
            message
            for queue, span in sorted(spans.items())
            for messages in admin.read(queue, span.min_offset, span.max_offset)
            for message in messages
        ]


def test_a_broker_that_stands_still_is_passed_by_and_no_row_is_lost(two: Cluster, connection: Connection) -> None:
    rows = pa.record_batch({"body": [b"%d" % number for number in range(500)]})
    two.pause_broker(1)
    try:
        assert connection.run(sending(connection, timeout_s=0.5).send(iter([rows]))) == 500
    finally:
        two.resume_broker(1)
    messages = stored(two)
    assert {int(message.body) for message in messages} == set(range(500))
    # What the broker took when it woke came twice, and can be told.
    assert len({message.find_property(IDEMPOTENCY_KEY) for message in messages}) == 500


def test_rows_of_a_queue_arrive_in_order_though_many_requests_are_under_way(
    two: Cluster, connection: Connection
) -> None:
    numbers = list(range(2_000))
    rows = pa.record_batch({"body": [b"%d" % number for number in numbers], "sharding_key": ["one"] * 2_000})
    connection.run(sending(connection).send(iter([rows.slice(0, 1_000), rows.slice(1_000)])))
    messages = stored(two)
    assert [int(message.body) for message in messages] == numbers
    assert len({(message.broker_name, message.queue_id) for message in messages}) == 1


def test_no_more_rows_are_taken_than_may_be_under_way(two: Cluster, connection: Connection) -> None:
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
        with pytest.raises(CallTimeoutError):
            connection.run(sending(connection, timeout_s=0.5).send(endless()))
    finally:
        for number in range(2):
            two.resume_broker(number)
    bound = IN_FLIGHT_BYTES_MAX // BODY_BYTES
    assert bound <= taken <= bound + 2
