"""Runs reads in this process as Spark does: plan on the driver, pickle, read on a worker."""

import pickle
from collections.abc import Iterable
from typing import Any

from pyspark.sql.datasource import CaseInsensitiveDict

from skyroute.blocking import Admin, Producer
from skyroute.message.message import Message
from skyroute.message.queue_ref import QueueRef
from skyroute.pipeline.data_source import RocketMQSource
from skyroute.testing import Cluster

Row = dict[str, Any]


def source(cluster: Cluster, **given: str) -> RocketMQSource:
    quick = {"fetchOffset.retryIntervalMs": "20", "requestTimeoutMs": "1000", "pullTimeoutMs": "1000"}
    return RocketMQSource(CaseInsensitiveDict({"nameServer": cluster.name_server_address, **quick, **given}))


def rows_of(reader: Any, partitions: Iterable[Any]) -> list[Row]:
    worker = pickle.loads(pickle.dumps(reader))
    return [
        row
        for partition in partitions
        for batch in worker.read(pickle.loads(pickle.dumps(partition)))
        for row in batch.to_pylist()
    ]


def read(cluster: Cluster, **given: str) -> list[Row]:
    """Return all rows of a batch read, in the order of queues and offsets."""
    chosen = source(cluster, **given)
    reader = pickle.loads(pickle.dumps(chosen)).reader(chosen.schema())
    rows = rows_of(reader, reader.partitions())
    return sorted(rows, key=lambda row: (row.get("topic"), row.get("broker_name"), row.get("queue_id"), _place(row)))


def _place(row: Row) -> int:
    return int(row["queue_offset"] if "queue_offset" in row else row["queueOffset"])


def bodies(rows: Iterable[Row]) -> list[bytes]:
    return [row["body"] for row in rows]


def send(cluster: Cluster, topic: str, count: int, *, queue_id: int = 0, broker: int = 0, first: int = 0) -> None:
    """Send the bodies `0`, `1`, ... to one queue, and wait until they are stored."""
    queue = QueueRef(topic, f"broker-{broker}", queue_id)
    with Producer("senders", cluster.name_server_address) as producer:
        producer.send_batch([Message(topic, b"%d" % number) for number in range(first, first + count)], queue=queue)


def make_topic(cluster: Cluster, topic: str, queues: int = 2, broker: int | None = None) -> None:
    with Admin(cluster.name_server_address) as admin:
        where = None if broker is None else cluster.broker_addresses[broker]
        admin.create_topic(topic, read_queues=queues, write_queues=queues, broker=where)
