"""The same on a Spark cluster: our code is sent to workers that do not have it, and one of them may be lost."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skyroute import Message
from skyroute.blocking import Producer
from skyroute.testing import Cluster
from tests.support.spark_cluster import SparkMaster, SparkWorker, python_without_skyroute

MESSAGES = 600


def test_a_read_a_job_and_a_stream_that_loses_a_worker(
    cluster: Cluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic()
    with Producer("cluster-test", cluster.name_server_address) as producer:
        for start in range(0, MESSAGES, 50):
            producer.send_batch([Message(topic, b"%d" % number) for number in range(start, start + 50)])
    with (
        SparkMaster("Spark's master", tmp_path / "master") as master,
        SparkWorker("the first worker", tmp_path / "one", master),
        SparkWorker("the second worker", tmp_path / "two", master) as worker,
    ):
        words = ["--master", master.url, "--name-server", cluster.name_server_address]
        words += ["--topic", topic, "--folder", str(tmp_path)]
        python = python_without_skyroute(tmp_path / "python")
        with (
            (tmp_path / "driver.log").open("wb") as said,
            subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("cluster_driver.py")), *words],
                env={**os.environ, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            ) as driver,
        ):
            try:
                told = follow(driver, worker)
            finally:
                driver.kill()
    assert "batches" in told, (tmp_path / "driver.log").read_text()
    assert all(".zip" in file for file in told["shipped"]), told["shipped"]
    assert (told["messages"], told["total"]) == (MESSAGES, sum(range(MESSAGES)))
    assert told["job"] == MESSAGES
    assert told["before"] + 2 < told["batches"], "nearly all was read before the worker was lost"
    places = [tuple(place) for place in told["stream"]]
    assert len(places) == len(set(places)) == MESSAGES


def follow(driver: "subprocess.Popen[str]", worker: SparkWorker) -> dict[str, Any]:
    """What the driver tells; where it asks for it, the worker is killed."""
    assert driver.stdout is not None
    assert driver.stdin is not None
    told: dict[str, Any] = {}
    for line in driver.stdout:
        told |= json.loads(line)
        if "ask" in told:
            del told["ask"]
            worker.kill()
            driver.stdin.write("done\n")
            driver.stdin.flush()
    return told
