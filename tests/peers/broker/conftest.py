"""Our name server and our brokers, for the clients and tools of others; each process is shared by as many as can.

`SKYROUTE_PEERS_BROKER=apache` puts Apache's brokers where ours stand: every test must pass there too, which proves that
it asks nothing of us that Apache does not do.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.peers.client.conftest import CLUSTER, SETTINGS
from tests.peers.client.java_client import JavaClients, PeerClients, Place
from tests.support.apache import (
    ApacheBroker,
    NameServerProcess,
    PeerUnavailableError,
    SkyrouteNameServer,
)
from tests.support.foreign import build_go, install_node
from tests.support.our_broker import SkyrouteBroker

HERE: Final = Path(__file__).parent
SOURCES: Final = HERE.parent

TARGETS: Final[dict[str, type[ApacheBroker]]] = {"skyroute": SkyrouteBroker, "apache": ApacheBroker}
TARGET: Final = TARGETS[os.environ.get("SKYROUTE_PEERS_BROKER", "skyroute")]


@pytest.fixture(scope="package")
def name_server(lib: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServerProcess]:
    """Ours."""
    with SkyrouteNameServer("our name server", tmp_path_factory.mktemp("ns")) as server:
        yield server


@pytest.fixture(scope="package")
def first_broker(name_server: NameServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheBroker]:
    """It alone makes topics of its own accord, and has the topic of traces."""
    settings = SETTINGS | {"traceTopicEnable": "true"}
    home = tmp_path_factory.mktemp("first")
    with TARGET("first", home, [name_server.address], cluster=CLUSTER, config=settings) as broker:
        yield broker


@pytest.fixture(scope="package")
def second_broker(
    name_server: NameServerProcess, first_broker: ApacheBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheBroker]:
    """Another of the same cluster."""
    settings = SETTINGS | {"autoCreateTopicEnable": "false"}
    home = tmp_path_factory.mktemp("second")
    with TARGET("second", home, [name_server.address], cluster=CLUSTER, config=settings) as broker:
        yield broker


@pytest.fixture(scope="package")
def place(name_server: NameServerProcess, first_broker: ApacheBroker) -> Place:
    return Place.at(name_server.address, first_broker.address)


@pytest.fixture(scope="package")
def pair(place: Place, second_broker: ApacheBroker) -> Place:
    """The same cluster, for topics that live on both of its brokers."""
    return Place.at(place.name_servers, *place.brokers, second_broker.address)


@pytest.fixture(scope="package")
def java(lib: Path, java_classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClients]:
    """Apache's Java clients, in a JVM that every test shares."""
    with JavaClients("Java's clients", tmp_path_factory.mktemp("java"), lib, java_classes) as clients:
        yield clients


@pytest.fixture(scope="package")
def go(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerClients]:
    """Apache's Go clients, in one process."""
    program = _made(lambda: build_go(SOURCES / "go"))
    with PeerClients("Go's clients", tmp_path_factory.mktemp("go"), [str(program)]) as clients:
        yield clients


@pytest.fixture(scope="package")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerClients]:
    """Node's clients, in one process."""
    modules = _made(lambda: install_node(SOURCES / "node" / "package.json"))
    command = ["env", f"NODE_PATH={modules}", "node", str(SOURCES / "node" / "shell.js")]
    with PeerClients("Node's clients", tmp_path_factory.mktemp("node"), command) as clients:
        yield clients


def _made(make: Callable[[], Path]) -> Path:
    try:
        return make()
    except PeerUnavailableError as error:
        if os.environ.get("SKYROUTE_NO_SKIP") == "1":
            pytest.fail(f"peer tests must run (SKYROUTE_NO_SKIP=1), but: {error}")
        pytest.skip(str(error))
