"""Kafka with one broker in KRaft mode, and a PySpark with Spark's Kafka source, for comparison.

Spark 4.0.0 is the newest version whose Kafka source is available with all its jars. The Python package and the jars
are cached with the other downloaded programs.
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

_PACKAGES: Final = (f"pyspark=={SPARK}", "pandas>=2.2,<3", "pyarrow>=18", "msgspec>=0.19", "uvloop>=0.21")
"""Spark, and what our source needs on the same Spark."""

_BROKER_PARTS: Final = (("org.apache.kafka", "kafka_2.13", KAFKA), ("org.apache.kafka", "kafka-tools", KAFKA))
_SOURCE_PARTS: Final = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", SPARK),
    ("org.apache.kafka", "kafka-clients", "3.9.0"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)
"""The jars that the source needs beyond Spark's own. They have no further dependencies."""


def _pom(parts: Sequence[tuple[str, str, str]], *, without_dependencies: bool) -> str:
    exclude_all = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = "\n".join(
        f"    <dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>"
        f"{exclude_all if without_dependencies else ''}</dependency>"
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
    """Return the jars of Spark's Kafka source.

    Raises:
        PeerUnavailableError: they cannot be downloaded.
    """
    pom = _pom(_SOURCE_PARTS, without_dependencies=True)
    return sorted(fetch_dependencies(f"spark-kafka-{SPARK}", pom, f"Spark's Kafka source {SPARK}").glob("*.jar"))


def spark_python() -> Path:
    """Return a Python interpreter with the PySpark that fits the source, and with all that ours needs but skyroute.

    Raises:
        PeerUnavailableError: PySpark cannot be installed.
    """
    folder = caches() / f"pyspark-{SPARK}"
    python, stamp, packages = folder / "bin" / "python", folder / "stamp", "\n".join(_PACKAGES)
    if not stamp.is_file() or stamp.read_text() != packages:
        sys.stderr.write(f"installing PySpark {SPARK} into {folder} (half a gigabyte, some minutes) ...\n")
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, with_pip=True, symlinks=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *_PACKAGES]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PeerUnavailableError(f"PySpark {SPARK} cannot be installed:\n{done.stderr[-2000:]}")
        stamp.write_text(packages)  # last: a folder with a stamp is complete
    return python


class KafkaBroker(PeerProcess):
    """A Kafka broker with default settings and its own port."""

    ready_mark = "Kafka Server started"

    def __init__(self, home: Path) -> None:
        super().__init__("Kafka", home)
        self._lib = fetch_dependencies(
            f"kafka-{KAFKA}", _pom(_BROKER_PARTS, without_dependencies=False), f"Kafka {KAFKA}"
        )
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
        arguments = ("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(self._config))
        subprocess.run(java(self._lib, self.home, *arguments), check=True, capture_output=True)

    def command(self) -> list[str]:
        options = ("-Xms1g", "-Xmx1g", f"-Dlog4j.configuration=file:{self.home / 'log4j.properties'}")
        return java(self._lib, self.home, "kafka.Kafka", str(self._config), options=options)

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic. Producers sometimes fail with a topic that their first message creates."""
        arguments = ("--bootstrap-server", self.address, "--create", "--topic", topic, "--partitions", str(partitions))
        command = java(self._lib, self.home, "org.apache.kafka.tools.TopicCommand", *arguments)
        subprocess.run(command, check=True, capture_output=True)
