"""One Spark session and one cluster for all Spark tests. Each test uses its own topics."""

import itertools
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from skyroute import Message
from skyroute.blocking import Admin, Producer
from skyroute.pipeline.session import session
from skyroute.pipeline.spark_versions import HAS_READ_LIMITS
from skyroute.testing import Cluster
from skyroute.testing import cluster as started_cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before 4.2, Spark leaves sockets to the garbage collector."""
    if not HAS_READ_LIMITS:
        for item in items:
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark on two cores, with one retry of a failed task."""
    folder = tmp_path_factory.mktemp("spark")
    started = session(
        "local[2,2]",
        "tests",
        **{
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.codegen.wholeStage": "false",  # compilation costs more than it saves for few rows
            "spark.sql.streaming.stopTimeout": "10s",
            "spark.python.worker.faulthandler.enabled": "true",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Duser.timezone=UTC",
        },
    )
    yield started
    started.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Two brokers in this process. A test that stops brokers uses its own cluster: the fixture `rocketmq`."""
    with started_cluster(brokers=2, in_memory=True) as started:
        yield started


@pytest.fixture(scope="session")
def new_topic(cluster: Cluster) -> Iterator[Callable[..., str]]:
    """Return a function that creates a new topic with a number of queues on each broker."""
    numbers = itertools.count(1)
    with Admin(cluster.name_server_address) as admin:

        def make(queues: int = 2) -> str:
            topic = f"Topic{next(numbers)}"
            admin.create_topic(topic, read_queues=queues, write_queues=queues)
            return topic

        yield make


@pytest.fixture(scope="session")
def orders(cluster: Cluster) -> str:
    """Create the topic of the documentation with ten messages; return the name server's address."""
    with Admin(cluster.name_server_address) as admin:
        admin.create_topic("Orders", read_queues=2, write_queues=2)
    with Producer("shop", cluster.name_server_address, trace=True) as producer:
        for number in range(10):
            tag, key = "paid" if number % 2 else "sent", f"cup-{number % 3}"
            producer.send(Message("Orders", b"%d" % number, tag=tag, keys=key))
        producer.send(Message("Payments", b'{"id": 1, "price": 3.5}'))
    return cluster.name_server_address
