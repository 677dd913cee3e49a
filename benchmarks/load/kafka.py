"""Kafka with one broker in KRaft mode, and a Spark of its own with its source: what our pipeline is measured against.

Spark 4.0.0 is the newest whose Kafka source can be had with all its parts. Its Python package and all jars are kept in
the cache of the other programs.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.support.apache import PeerProcess, PeerUnavailableError, caches, fetch_dependencies, java, properties

KAFKA: Final = "3.9.1"
SPARK: Final = "4.0.0"
_CLUSTER_ID: Final = "c2t5cm91dGUtYmVuY2htYQ"
_LOGGING: Final = {
    "log4j.rootLogger": "WARN, out",
    "log4j.logger.kafka.server.KafkaRaftServer": "INFO",
    "log4j.appender.out": "org.apache.log4j.ConsoleAppender",
    "log4j.appender.out.layout": "org.apache.log4j.SimpleLayout",
}

_BROKER_PARTS: Final = (("org.apache.kafka", "kafka_2.13", KAFKA), ("org.apache.kafka", "kafka-tools", KAFKA))
_SOURCE_PARTS: Final = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", SPARK),
    ("org.apache.kafka", "kafka-clients", "3.9.0"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)
"""All that the source needs and Spark does not bring; what they ask for themselves is in these two already."""


def _pom(parts: Sequence[tuple[str, str, str]], *, alone: bool) -> str:
    nothing_else = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = "\n".join(
        f"    <dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
        f"{nothing_else if alone else ''}</dependency>"
        for group, name, version in parts
    )
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>skyroute.peers</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""


def source_jars() -> list[Path]:
    """Spark's Kafka source.

    Raises:
        PeerUnavailableError: it cannot be had.
    """
    pom = _pom(_SOURCE_PARTS, alone=True)
    return sorted(fetch_dependencies(f"spark-kafka-{SPARK}", pom, f"Spark's Kafka source {SPARK}").glob("*.jar"))


def spark_python() -> Path:
    """An interpreter with the PySpark that the source is for.

    Raises:
        PeerUnavailableError: it cannot be had.
    """
    folder = caches() / f"pyspark-{SPARK}"
    python, stamp = folder / "bin" / "python", folder / "stamp"
    if not stamp.is_file():
        sys.stderr.write(f"installing PySpark {SPARK} into {folder} (half a gigabyte, some minutes) ...\n")
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True, symlinks=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"pyspark=={SPARK}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PeerUnavailableError(f"PySpark {SPARK} cannot be installed:\n{done.stderr[-2000:]}")
        stamp.touch()  # last: a folder with a stamp is whole
    return python


class KafkaBroker(PeerProcess):
    """Kafka as it comes, but for where it listens."""

    ready_mark = "Kafka Server started"

    def __init__(self, home: Path) -> None:
        super().__init__("Kafka", home)
        self._lib = fetch_dependencies(f"kafka-{KAFKA}", _pom(_BROKER_PARTS, alone=False), f"Kafka {KAFKA}")
        self._config = home / "server.properties"

    def prepare(self) -> None:
        controller = self.port + 1
        values = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.home / "data"),
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
        }
        self._config.write_text(properties(values))
        (self.home / "log4j.properties").write_text(properties(_LOGGING))
        words = ("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(self._config))
        subprocess.run(java(self._lib, self.home, *words), check=True, capture_output=True)

    def command(self) -> list[str]:
        options = ("-Xms1g", "-Xmx1g", f"-Dlog4j.configuration=file:{self.home / 'log4j.properties'}")
        return java(self._lib, self.home, "kafka.Kafka", str(self._config), options=options)

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic. Left to its first message, its producers now and then never come to terms with it."""
        words = ("--bootstrap-server", self.address, "--create", "--topic", topic, "--partitions", str(partitions))
        command = java(self._lib, self.home, "org.apache.kafka.tools.TopicCommand", *words)
        subprocess.run(command, check=True, capture_output=True)
