"""The example of a declarative pipeline runs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import __version__ as spark_version

from skyroute.blocking import Admin
from skyroute.pipeline.jvm import provide_java
from tests.support.shown import ROOT

RUN_TIMEOUT_S = 300


@pytest.mark.skipif(spark_version < "4.1", reason="Spark 4.0 has no declarative pipelines")
def test_the_example_copies_a_topic(orders: str, tmp_path: Path) -> None:
    provide_java()
    folder = tmp_path / "pipeline"
    shutil.copytree(ROOT / "examples" / "spark_pipeline", folder)
    spec = folder / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///tmp/orders-pipeline", (tmp_path / "storage").as_uri()))
    ended = subprocess.run(
        [str(Path(sys.executable).with_name("spark-pipelines")), "run", "--spec", str(spec)],
        cwd=folder,
        env={**os.environ, "NAMESRV_ADDR": orders, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    with Admin(orders) as admin:
        queues = admin.topic_status("OrderCopies").queues
    assert sum(known.max_offset for known in queues.values()) == 10
