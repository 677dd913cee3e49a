"""Runs the integration tests of Apache RocketMQ's own `test` module against our name server and three of our brokers.

    python -m tests.peers.apache_tests.run [PART ...]

The tests come from Maven (`rocketmq-test`, the jar of its tests). They are Apache's but for one class, which starts the
servers: ours says where they are (`IntegrationTestBase.java`). With PARTs, only classes with one in their name run.
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
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
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
}

ELSEWHERE: Final = ("autoswitchrole", "container", "dledger", "grpc", "lmq", "schema")
"""Packages whose tests start servers of Apache's, and ask nothing of ours."""

_PRIORITY: Final = "client.consumer.pop.PopPriorityIT.test_priority_consume_"
_SETTING: Final = "sets a setting of Apache's in its own process that our broker does not have"
_INSIDE: Final = "looks into, or changes, Apache's broker in its own process"

EXCEPT: Final = {
    f"{_PRIORITY}always_high_priority[1]": f"{_SETTING}: priorityOrderAsc=false",
    f"{_PRIORITY}always_high_priority[3]": f"{_SETTING}: priorityOrderAsc=false",
    f"{_PRIORITY}from_high_to_low[1]": f"{_SETTING}: priorityOrderAsc=false",
    f"{_PRIORITY}from_high_to_low[3]": f"{_SETTING}: priorityOrderAsc=false",
    f"{_PRIORITY}retry_as_highest": f"{_SETTING}: popFromRetryProbabilityForPriority",
    f"{_PRIORITY}use_separate_retry_queue": f"{_SETTING}: useSeparateRetryQueue",
    "client.producer.batch.BatchSendIT.testBatchSend_ViewMessage": _INSIDE,
    "client.producer.batch.BatchSendIT.testBatchSend_SysInnerBatch": _INSIDE,
    "client.producer.batch.BatchSendIT.testBatchSend_SysOuterBatch": _INSIDE,
    "offset.LagCalculationIT": _INSIDE,
    "offset.OffsetNotFoundIT.testConsumeStopAndResume": _INSIDE,
    "offset.OffsetResetForPopIT.testResetOffsetThenAckOldForPopOrderly": _INSIDE,
    "offset.OffsetResetForPopIT.testRestOffsetToSkipMsgForPopOrderly": _INSIDE,
    "offset.OffsetResetIT.testPullOffsetTotal": _INSIDE,
    "offset.OffsetResetIT.testResetOffset": _INSIDE,
    "route.CreateAndUpdateTopicIT.testCreateOrUpdateTopic_EnableSplitRegistration": _INSIDE,
}
"""Starts of the names of tests that cannot pass, and why."""

_RESULT: Final = re.compile(r"TEST (passed|failed|ignored) (?:([^(]+)\()?([\w.$]+)\)?(.*)")

LIBRARIES: Final = ("junit:junit:4.13.2", "org.assertj:assertj-core:3.22.0", "org.mockito:mockito-core:3.10.0")
"""What the tests use besides; a test jar does not say so."""


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
    """Run the tests, print a line for each, and return the exit status: 0 if all passed but for those in `EXCEPT`."""
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
    with zipfile.ZipFile(lib / f"rocketmq-test-{APACHE}-tests.jar") as jar:
        names = [name.removesuffix(".class").replace("/", ".") for name in jar.namelist() if name.endswith("IT.class")]
    return sorted(name for name in names if name.removeprefix(PACKAGE).split(".")[0] not in ELSEWHERE)


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
            "-Xmx1g",
        ]
        compiled = compile_java(sorted(HERE.glob("*.java")), lib, folder / "classes")
        command = java(lib, folder, "RunTests", *classes, options=where, classes=compiled)
        with (folder / "tests.log").open("wb") as log:
            process = stack.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, cwd=folder, text=True)
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            return report(process.stdout)


def report(lines: Iterable[str]) -> int:
    """Print each result, and a summary; return the exit status."""
    counts: Counter[str] = Counter()
    for line in lines:
        found = _RESULT.match(line)
        if found is None:
            continue
        outcome, test, name, why = found.groups()
        title = f"{name.removeprefix(PACKAGE)}.{test or ''}".rstrip(".")
        reason = next((EXCEPT[start] for start in EXCEPT if title.startswith(start)), None)
        if outcome == "failed" and reason is not None:
            outcome, why = "excepted", f" {reason}"
        counts[outcome] += 1
        print(f"{outcome:8} {title}{why}", flush=True)  # noqa: T201 - the result
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))  # noqa: T201 - the result
    return 0 if counts["passed"] and not counts["failed"] else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers end too
    sys.exit(main(sys.argv[1:]))
