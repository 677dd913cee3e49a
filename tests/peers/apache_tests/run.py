"""Runs the integration tests of Apache RocketMQ's own `test` module against our name server and three of our brokers.

    python -m tests.peers.apache_tests.run [PART ...]

The tests come from Maven (`rocketmq-test`, the jar of its tests). They are Apache's but for one class, which starts the
servers: ours says where they are (`IntegrationTestBase.java`), asks them what tests ask of objects in their own process
(`BrokerElsewhere.java`), and changes their settings by request (`SettingsElsewhere.java`). With PARTs, only classes
with one in their name run.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from threading import Timer
from typing import Final

from tests.support.apache import (
    APACHE,
    PeerUnavailableError,
    SkyrouteNameServer,
    compile_java,
    fetch_dependencies,
    java,
)
from tests.support.our_broker import SkyrouteBroker

HERE: Final = Path(__file__).parent
PACKAGE: Final = "org.apache.rocketmq.test."
CLUSTER: Final = "DefaultCluster"
BROKERS: Final = ("TestBrokerName_1", "TestBrokerName_2", "TestBrokerName_3")

# As Apache's own base class sets its brokers.
SETTINGS: Final = {
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "maxTransferCountOnMessageInMemory": "1024",
    "mappedFileSizeCommitLog": str(100 << 20),
    "staticTopicCleanInterval": "200",  # a test wakes Apache's service, and waits a second
}

ELSEWHERE: Final = ("autoswitchrole.", "container.", "dledger.", "grpc.v2.LocalGrpcIT", "lmq.", "schema.")
"""Starts of the names of tests that start brokers of Apache's, and ask nothing of ours."""

BASES: Final = ("grpc.v2.GrpcBaseIT",)
"""Classes without tests."""

PROXY_HOME: Final = "rmq-proxy-home/"
"""Files of the test jar that tests with Apache's proxy read from disk."""

KNOWN: Final = {
    "offset.LagCalculationIT.testEstimateLag": "lets Apache's store in its own process count messages",
    "offset.OffsetNotFoundIT.testConsumeStopAndResume": "makes Apache's broker in its own process fail requests",
}
"""Tests that cannot pass, and why. One that passes, or is gone, is an error."""

SILENCE_S: Final = 900.0
"""A test that takes longer has failed."""

_RESTART: Final = re.compile(r"RESTART (\S+) (\w+)=(\w+)")
_RESULT: Final = re.compile(r"TEST (passed|failed|ignored) (?:([^(]+)\()?([\w.$]+)\)?(.*)")

LIBRARIES: Final = (
    *("junit:junit:4.13.2", "org.assertj:assertj-core:3.22.0", "org.mockito:mockito-core:3.10.0"),
    "io.grpc:grpc-testing:1.53.0",
)
"""What the tests use besides; a test jar does not say so."""


TESTS: Final = f"rocketmq-test-{APACHE}-tests.jar"


def pom() -> str:
    """Return the project with the tests and all that they need."""
    tests = f"org.apache.rocketmq:rocketmq-test:{APACHE}"
    named = [(*one.split(":"), "jar") for one in (*LIBRARIES, tests)] + [(*tests.split(":"), "test-jar")]
    dependencies = "\n".join(
        f"    <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        f"<type>{kind}</type></dependency>"
        for group, artifact, version, kind in named
    )
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>skyroute.peers</groupId><artifactId>apache-tests</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""


def main(parts: list[str]) -> int:
    """Run the tests, print a line for each, and return the exit status: 0 if all passed but for those in `KNOWN`."""
    try:
        lib = fetch_dependencies(f"apache-tests-{APACHE}", pom(), f"Apache's tests {APACHE}")
    except PeerUnavailableError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    classes = [name for name in test_classes(lib) if not parts or any(part in name for part in parts)]
    if not classes:
        sys.stderr.write(f"no class of the tests has {' or '.join(parts)} in its name\n")
        return 2
    folder = Path(tempfile.mkdtemp(prefix="apache-tests-"))
    try:
        return run(lib, classes, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_classes(lib: Path) -> list[str]:
    """Return the classes of integration tests that use the servers of the base class."""
    with zipfile.ZipFile(lib / TESTS) as jar:
        names = [name.removesuffix(".class").replace("/", ".") for name in jar.namelist() if name.endswith("IT.class")]
    return sorted(name for name in names if not name.removeprefix(PACKAGE).startswith((*ELSEWHERE, *BASES)))


def run(lib: Path, classes: list[str], folder: Path) -> int:
    with ExitStack() as stack:
        name_server = stack.enter_context(SkyrouteNameServer("name server", folder / "name-server"))
        brokers = [
            stack.enter_context(
                SkyrouteBroker(name, folder / name, [name_server.address], cluster=CLUSTER, config=SETTINGS)
            )
            for name in BROKERS
        ]
        where = [
            f"-Dskyroute.nameServer={name_server.port}",
            f"-Dskyroute.brokers={','.join(f'{broker.broker_name}={broker.port}' for broker in brokers)}",
            f"-Djava.io.tmpdir={folder}",
            *("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),  # some tests allow a second for a first request
        ]
        compiled = compile_java(sorted(HERE.glob("*.java")), lib, folder / "classes")
        with zipfile.ZipFile(lib / TESTS) as jar:
            jar.extractall(compiled, [name for name in jar.namelist() if name.startswith(PROXY_HOME)])
        command = java(lib, folder, "RunTests", *classes, options=where, classes=compiled)
        with (folder / "tests.log").open("wb") as log:
            process = stack.enter_context(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=folder, text=True
                )
            )
            stack.callback(process.kill)
            return report(process, classes, {broker.broker_name: broker for broker in brokers})


class Results:
    """What the tests of some classes gave, compared with `KNOWN`."""

    def __init__(self, classes: Iterable[str], known: Mapping[str, str]) -> None:
        self._silent = {name.removeprefix(PACKAGE) for name in classes}
        self._known = known
        self._unseen = {title for title in known if title.startswith(tuple(self._silent))}
        self.counts: Counter[str] = Counter()

    def add(self, line: str) -> str | None:
        """Count the result in a line of `RunTests`, and return what to print; None if the line has no result."""
        found = _RESULT.match(line)
        if found is None:
            return None
        outcome, test, name, why = found.groups()
        class_name = name.removeprefix(PACKAGE)
        title = f"{class_name}.{test or ''}".rstrip(".")
        self._silent.discard(class_name)
        self._unseen.discard(title)
        if title in self._known:
            why = f" {self._known[title]}"
            outcome = {"failed": "known", "passed": "mended"}.get(outcome, outcome)
        self.counts[outcome] += 1
        return f"{outcome:8} {title}{why}"

    def complaints(self) -> list[str]:
        """Return what is wrong once all tests have ended; nothing if all passed but for those in `KNOWN`."""
        found = [f"{self.counts['failed']} tests failed"] if self.counts["failed"] else []
        if self.counts["mended"]:
            found.append(f"{self.counts['mended']} tests in KNOWN passed: remove them from it")
        found += [f"no test of {name} has ended" for name in sorted(self._silent)]
        return found + [f"{title} is in KNOWN, but did not run" for title in sorted(self._unseen)]


def report(process: subprocess.Popen[str], classes: list[str], brokers: Mapping[str, SkyrouteBroker]) -> int:
    """Print each result, and a summary; return the exit status. A process that is silent for too long is killed.

    A test may have a broker restarted with another setting.
    """
    results = Results(classes, KNOWN)
    lines, answers = process.stdout, process.stdin
    assert lines is not None
    assert answers is not None
    while True:
        timer = Timer(SILENCE_S, process.kill)
        timer.start()
        line = lines.readline()
        timer.cancel()
        if not line:
            break
        if restart := _RESTART.match(line):
            name, key, value = restart.groups()
            brokers[name].configure(**{key: value})
            brokers[name].restart()
            answers.write("done\n")
            answers.flush()
        if (said := results.add(line)) is not None:
            print(said, flush=True)  # noqa: T201 - the result
    complaints = results.complaints()
    for text in (", ".join(f"{count} {outcome}" for outcome, count in sorted(results.counts.items())), *complaints):
        print(text, flush=True)  # noqa: T201 - the result
    return 1 if complaints or not results.counts["passed"] else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers end too
    sys.exit(main(sys.argv[1:]))
