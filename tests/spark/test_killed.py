"""Brokers and drivers that are killed in mid-stream and in mid-write: nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from skyroute import Message
from skyroute.blocking import Admin, Producer
from tests.spark.killing import kill_driver_once, limit_of_batches
from tests.spark.test_stream import STREAM_TIMEOUT_S, offsets_read
from tests.spark.test_write import key_of, stored
from tests.support.apache import SkyrouteNameServer
from tests.support.our_broker import SkyrouteBroker
from tests.support.waiting import wait_until

PATIENT = {"fetchOffset.numRetries": "60", "fetchOffset.retryIntervalMs": "200"}


@dataclass
class Place:
    """A cluster of processes with one broker, which tests kill."""

    name_server_address: str
    broker: SkyrouteBroker

    def restart(self) -> None:
        self.broker.kill()
        self.broker.start()

    def count(self, topic: str) -> int:
        """Return the messages of a topic; 0 while the broker is away."""
        with Admin(self.name_server_address) as admin:
            return sum(known.max_offset for known in admin.topic_status(topic).queues.values())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    home = tmp_path_factory.mktemp("killed")
    with (
        SkyrouteNameServer("name server", home / "ns") as server,
        SkyrouteBroker("broker-a", home / "broker", [server.address]) as broker,
    ):
        with Admin(server.address) as admin:
            for topic in ("Streamed", "Written", "Twice"):
                admin.create_topic(topic, read_queues=2, write_queues=2)
        yield Place(server.address, broker)


def test_a_stream_reads_every_message_once_when_the_broker_is_killed(
    spark: SparkSession, place: Any, tmp_path: Path
) -> None:
    with Producer("senders", place.name_server_address) as producer:
        for first in range(0, 2_000, 100):
            producer.send_batch([Message("Streamed", b"%d" % number) for number in range(first, first + 100)])
    options = {"topic": "Streamed", "startingOffsets": "earliest", **limit_of_batches(200), **PATIENT}
    rows = spark.readStream.format("rocketmq").options(nameServer=place.name_server_address, **options).load()
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "rows"))
    wait_until((tmp_path / "checkpoint" / "offsets" / "0").exists, "the first batch", timeout_s=STREAM_TIMEOUT_S)
    place.restart()
    assert query.awaitTermination(STREAM_TIMEOUT_S)
    assert query.exception() is None
    found = offsets_read(spark, tmp_path)
    assert {queue: len(offsets) for queue, offsets in found.items()} == {
        queue: len(set(offsets)) for queue, offsets in found.items()
    }
    assert sum(map(len, found.values())) == 2_000


def test_a_write_stores_every_row_when_the_broker_is_killed(spark: SparkSession, place: Any, tmp_path: Path) -> None:
    go_on = str(tmp_path / "go on")

    def pause(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        ends = time.monotonic() + STREAM_TIMEOUT_S
        for number, batch in enumerate(batches):
            while number == 5 and not Path(go_on).exists() and time.monotonic() < ends:
                time.sleep(0.05)
            yield batch

    def kill_in_mid_write() -> None:
        try:
            wait_until(lambda: place.count("Written") > 0, "the first rows", timeout_s=STREAM_TIMEOUT_S)
            place.restart()
        finally:
            Path(go_on).touch()

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "20")
    try:
        # Large rows, so that buffers flush the first ones.
        rows = spark.range(0, 400, 1, 1).selectExpr("RPAD(CAST(id AS STRING), 10000, ' ') AS body")
        writer = rows.mapInArrow(pause, "body string").write.format("rocketmq").mode("append")
        writer = writer.options(nameServer=place.name_server_address, topic="Written", batchBytes="20000", **PATIENT)
        with ThreadPoolExecutor(1) as pool:
            killing = pool.submit(kill_in_mid_write)
            writer.save()
            killing.result()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    each_once_by_key("Written", place, 400)


def test_a_stream_writes_every_row_when_its_driver_is_killed(place: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("\n".join(f"{number:1000}" for number in range(20_000)))
    run = ("stream_writer", place.name_server_address, "Twice", str(tmp_path))
    committed, log = tmp_path / "checkpoint" / "commits" / "0", tmp_path / "driver.log"
    kill_driver_once(*run, log=log, until=lambda: place.count("Twice") > 0, timeout_s=STREAM_TIMEOUT_S)
    assert not committed.exists(), "the driver was killed too late"
    kill_driver_once(*run, log=log, until=committed.exists, timeout_s=STREAM_TIMEOUT_S)
    assert place.count("Twice") > 20_000
    each_once_by_key("Twice", place, 20_000)


def each_once_by_key(topic: str, place: Any, count: int) -> None:
    """Check that every row is there, and that rows that were sent twice have one key."""
    messages = stored(place, topic)
    rows = {key_of(message): int(message.body) for message in messages}
    assert sorted(rows.values()) == list(range(count))
    assert all(rows[key_of(message)] == int(message.body) for message in messages)
