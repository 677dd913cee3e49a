"""Reads, jobs, streams and writes on a Spark cluster whose workers lack skyroute, and which loses a worker."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skyroute import Message
from skyroute.blocking import Producer
from skyroute.pipeline.spark_versions import HAS_READ_LIMITS
from skyroute.testing import Cluster
from tests.spark.cluster_writer import ROWS
from tests.spark.test_write import key_of, stored
from tests.support.spark_cluster import SparkMaster, SparkWorker, python_without_skyroute
from tests.support.waiting import wait_until

MESSAGES = 600


def test_a_read_a_job_and_a_stream_that_loses_a_worker(
    cluster: Cluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic()
    with Producer("cluster-test", cluster.name_server_address) as producer:
        for start in range(0, MESSAGES, 50):
            producer.send_batch([Message(topic, b"%d" % number) for number in range(start, start + 50)])
    with (
        SparkMaster("Spark master", tmp_path / "master") as master,
        SparkWorker("the first worker", tmp_path / "one", master),
        SparkWorker("the second worker", tmp_path / "two", master) as worker,
    ):
        arguments = ["--master", master.url, "--name-server", cluster.name_server_address]
        arguments += ["--topic", topic, "--folder", str(tmp_path)]
        python = python_without_skyroute(tmp_path / "python")
        with (
            (tmp_path / "driver.log").open("wb") as errors,
            subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("cluster_driver.py")), *arguments],
                env={**os.environ, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            ) as driver,
        ):
            try:
                results = collect_results(driver, worker)
            finally:
                driver.kill()
    assert "batches" in results, (tmp_path / "driver.log").read_text()
    assert all(".zip" in file for file in results["shipped"]), results["shipped"]
    assert (results["messages"], results["total"]) == (MESSAGES, sum(range(MESSAGES)))
    assert results["job"] == MESSAGES
    assert not HAS_READ_LIMITS or results["before"] + 2 < results["batches"], (
        "the stream had ended before the worker was killed"
    )
    offsets = [tuple(each) for each in results["stream"]]
    assert len(offsets) == len(set(offsets)) == MESSAGES


def collect_results(driver: "subprocess.Popen[str]", worker: SparkWorker) -> dict[str, Any]:
    """Return the driver's results; kill the worker when the driver requests it."""
    assert driver.stdout is not None
    assert driver.stdin is not None
    results: dict[str, Any] = {}
    for line in driver.stdout:
        results |= json.loads(line)
        if "request" in results:
            del results["request"]
            worker.kill()
            driver.stdin.write("done\n")
            driver.stdin.flush()
    return results


def test_a_write_that_loses_a_worker_stores_every_row(
    cluster: Cluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, go_on = new_topic(), tmp_path / "go on"
    log = tmp_path / "driver.log"

    def partitions_begun() -> set[str]:
        return {key_of(message).split("/")[1] for message in stored(cluster, topic)}

    with (
        SparkMaster("Spark master", tmp_path / "master") as master,
        SparkWorker("the first worker", tmp_path / "one", master),
        SparkWorker("the second worker", tmp_path / "two", master) as worker,
    ):
        program = Path(__file__).with_name("cluster_writer.py")
        python = python_without_skyroute(tmp_path / "python")
        with (
            log.open("wb") as errors,
            subprocess.Popen(
                [sys.executable, str(program), master.url, cluster.name_server_address, topic, str(go_on)],
                env={**os.environ, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"},
                stdout=errors,
                stderr=errors,
            ) as driver,
        ):
            try:
                wait_until(lambda: partitions_begun() == {"0", "1"}, "both tasks write", timeout_s=120)
                worker.kill()
                go_on.touch()
                assert driver.wait(timeout=180) == 0, log.read_text()
            finally:
                driver.kill()
    messages = stored(cluster, topic)
    rows = {key_of(message): int(message.body) for message in messages}
    assert sorted(rows.values()) == list(range(ROWS))
    assert len(messages) > ROWS, "no row was sent twice, so the worker was lost too late"
    assert all(rows[key_of(message)] == int(message.body) for message in messages), "a key stands for one row"
