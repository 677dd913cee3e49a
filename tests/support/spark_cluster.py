"""A standalone Spark cluster of real processes, from the installed PySpark, on loopback."""

from __future__ import annotations

import os
import sys
import venv
from pathlib import Path

import pyspark

from skyroute.pipeline.jvm import provide_java
from tests.support.apache import PeerProcess

SPARK_HOME = Path(pyspark.__file__).parent
_SMALL = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class SparkProcess(PeerProcess):
    """What master and workers have in common."""

    def environment(self) -> dict[str, str]:
        provide_java()
        small = {"SPARK_DAEMON_MEMORY": "192m", "SPARK_DAEMON_JAVA_OPTS": _SMALL}
        return {**os.environ, **small, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}

    def command(self) -> list[str]:
        return [str(SPARK_HOME / "bin" / "spark-class"), *self.words()]

    def words(self) -> list[str]:
        raise NotImplementedError


class SparkMaster(SparkProcess):
    """Shares executors out."""

    ready_mark = "I have been elected leader"

    @property
    def url(self) -> str:
        return f"spark://{self.address}"

    def words(self) -> list[str]:
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0"]
        return ["org.apache.spark.deploy.master.Master", *where]


class SparkWorker(SparkProcess):
    """Starts executors of one core."""

    ready_mark = "Successfully registered with master"

    def __init__(self, name: str, home: Path, master: SparkMaster) -> None:
        super().__init__(name, home)
        self._master = master

    def words(self) -> list[str]:
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", "0", "--work-dir", str(self.home)]
        share = ["--cores", "1", "--memory", "700m"]
        return ["org.apache.spark.deploy.worker.Worker", *where, *share, self._master.url]


class ConnectServer(SparkProcess):
    """A Spark Connect server with two local cores."""

    ready_mark = "Successfully started service 'org.apache.spark.sql.connect.service.SparkConnectService'"

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "SPARK_DAEMON_MEMORY": "1g", "PYSPARK_PYTHON": sys.executable}

    def command(self) -> list[str]:
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": _SMALL,
        }
        return [
            *(str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]"),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        ]


def python_without_skyroute(folder: Path) -> Path:
    """An interpreter that has all that we need, and not us: what a worker's machine is to have."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    # Packages are found there, but what lies there to make ours editable is not obeyed.
    (packages / "others.pth").write_text(f"{SPARK_HOME.parent}\n")
    return folder / "bin" / Path(sys.executable).name
