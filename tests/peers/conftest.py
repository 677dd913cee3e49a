"""The processes that the peer tests share. A JVM costs seconds, so there are few, and they live as long as the run."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.support.apache import (
    APACHE,
    APACHE_4,
    ApacheBroker,
    ApacheNameServer,
    NameServerProcess,
    PeerProcess,
    PeerUnavailableError,
    SkyrouteNameServer,
    compile_java,
    fetch_jars,
)

HERE = Path(__file__).parent

# `SKYROUTE_PEERS_TARGET=apache` puts a second Apache name server where ours stands: the tests must then find no
# difference at all, which proves that hash order, timing and names are not reported as differences.
TARGETS: dict[str, type[NameServerProcess]] = {"skyroute": SkyrouteNameServer, "apache": ApacheNameServer}
TARGET = TARGETS[os.environ.get("SKYROUTE_PEERS_TARGET", "skyroute")]

# These change the cluster that all share: the first two at one name server only, the third beyond recognition.
LATE = ("test_admin_groups.py", "test_admin_topics.py", "test_scenarios.py")

# The scan for silent brokers is read at start only; its default of five seconds would make the tests wait for nothing.
SETTINGS = {"scanNotActiveBrokerInterval": "500"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.peers)
    items.sort(key=lambda item: LATE.index(item.path.name) if item.path.name in LATE else -1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows the last words of every process that spoke meanwhile or still runs."""
    report = yield
    if report.failed:
        for process in PeerProcess.started:
            if process.is_running or process.log.stat().st_mtime >= call.start:
                report.sections.append((f"output of {process!r}", process.tail()))
    return report


@pytest.fixture(scope="session")
def lib() -> Path:
    """The jars of Apache RocketMQ, or the reason why these tests cannot run here."""
    return _jars(APACHE)


@pytest.fixture(scope="session")
def lib_4() -> Path:
    return _jars(APACHE_4)


def _jars(version: str) -> Path:
    try:
        return fetch_jars(version)
    except PeerUnavailableError as error:
        if os.environ.get("SKYROUTE_NO_SKIP") == "1":
            pytest.fail(f"peer tests must run (SKYROUTE_NO_SKIP=1), but: {error}")
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def java_classes(lib: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our small Java programs, compiled against the jars."""
    return compile_java(sorted((HERE / "java").glob("*.java")), lib, tmp_path_factory.mktemp("classes"))


@pytest.fixture(scope="session")
def apache(lib: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServerProcess]:
    """Apache's name server."""
    with ApacheNameServer("Apache's name server", tmp_path_factory.mktemp("apache"), config=SETTINGS) as server:
        yield server


@pytest.fixture(scope="session")
def ours(lib: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServerProcess]:
    """Our name server, under the same settings."""
    with TARGET("our name server", tmp_path_factory.mktemp("ours"), config=SETTINGS) as server:
        yield server


@pytest.fixture(scope="session")
def ours_is_apache() -> bool:
    """Whether a second Apache stands in our place, so that nothing may be expected of it that Apache does not do."""
    return TARGET is ApacheNameServer


@pytest.fixture(scope="session")
def broker(
    apache: NameServerProcess, ours: NameServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheBroker]:
    """An Apache broker that is registered at both."""
    home, rare = tmp_path_factory.mktemp("broker"), {"registerNameServerPeriod": "30000"}  # the default
    with ApacheBroker("peer-broker", home, [apache.address, ours.address], config=rare) as process:
        yield process
