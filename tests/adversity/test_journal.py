"""The journal and snapshot of a real server: killed, on a full disk, without its folder, suspended."""

import random
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from skyroute.nameserver.journal.reader import read_records
from skyroute.nameserver.journal.recorder import SKIPPED_AFTER_CRASH
from skyroute.nameserver.journal.schema import Kind
from skyroute.nameserver.journal.verify import verify
from tests.adversity.faults import TIMEOUT_S, assert_log_intact, broker, random_pause, repeat_for
from tests.support.booted import NotBootedError
from tests.support.codes import GET_CLUSTERS, GET_ROUTE, HEARTBEAT, NO_TOPIC, PUT_KV, SUCCESS
from tests.support.process import Loop, server_process
from tests.support.raw import ClosedError, DataVersion, RawConnection, Registration, Topic
from tests.support.waiting import wait_until

DEATHS = 4
BALLAST = "x" * 10_000


def settings(folder: Path, **more: object) -> dict[str, object]:
    return {"memoryPath": folder / "memory", "snapshotIntervalSeconds": 1, **more}


def journal(folder: Path) -> Path:
    return folder / "memory" / "journal"


def with_topics(number: int) -> Registration:
    """The same broker with more topics every time."""
    topics = [Topic(f"topic-{each}") for each in range(number + 2)]
    return broker(topics=topics, data_version=DataVersion(counter=number + 1))


def is_kept(folder: Path, topic: str) -> bool:
    snapshot = folder / "memory" / "routes.snapshot"
    return snapshot.exists() and topic.encode() in snapshot.read_bytes()


def test_a_kill_at_any_moment_leaves_an_intact_journal(tmp_path: Path, chance: random.Random) -> None:
    last = 0
    for death in range(DEATHS):
        with (
            server_process(tmp_path, settings=settings(tmp_path)) as server,
            RawConnection(server.address, timeout_s=TIMEOUT_S) as line,
        ):
            if death:
                assert line.call(GET_ROUTE, {"topic": f"topic-{death}"}).code == SUCCESS
            assert line.call(with_topics(death).request).code == SUCCESS
            wait_until(lambda: is_kept(tmp_path, f"topic-{death + 1}"), "a snapshot was written")  # noqa: B023 - called at once
            until = time.monotonic() + chance.uniform(0, 0.3)
            number = 0
            while time.monotonic() < until:
                line.call(PUT_KV, {"namespace": "n", "key": "k", "value": f"{number}"})
                number += 1
            server.kill()
        report = verify(journal(tmp_path))
        assert report.problems == []
        assert (report.last or 0) > last
        last = report.last or 0
        # A power cut would also leave half a line.
        for unfinished in journal(tmp_path).glob("_*.open"):
            with unfinished.open("ab") as file:
                file.write(b'{"v":1,"seq":')
    with server_process(tmp_path, settings=settings(tmp_path)) as server:
        assert server.stop() == 0
        assert_log_intact(server.log)
    report = verify(journal(tmp_path))
    assert report.problems == []
    assert (report.starts, report.stops, report.gaps) == (DEATHS + 1, 1, DEATHS)
    started = [record for record in read_records(journal(tmp_path)) if record.kind == Kind.SERVER_STARTED]
    assert [record.torn_bytes for record in started] == [0] + [13] * DEATHS
    assert started[1].seq > SKIPPED_AFTER_CRASH


def put(line: RawConnection, number: int) -> None:
    """Make a change that is large in the journal and absent from the log, which a file size limit also hits."""
    value = f"{number:06}{BALLAST}"
    assert line.call(PUT_KV, {"namespace": "n", "key": "k", "value": value}).code == SUCCESS


def puts(folder: Path) -> list[int]:
    values = (record.after for record in read_records(journal(folder)) if record.kind == Kind.KV_CHANGED)
    return [int(after.value[:6]) for after in values if after is not None and after.value is not None]


def test_a_full_disk_loses_no_route_and_queued_changes_are_written_later(tmp_path: Path) -> None:
    with server_process(tmp_path, settings=settings(tmp_path)) as server:
        with RawConnection(server.address, timeout_s=TIMEOUT_S) as line:
            assert line.call(broker().request).code == SUCCESS
            server.limit(resource.RLIMIT_FSIZE, 64 * 1024)  # stands for a full disk
            for number in range(20):
                put(line, number)
                assert line.call(GET_ROUTE, {"topic": "TopicA"}).code == SUCCESS
            wait_until(lambda: "journal write failed" in server.log, "the failure is logged")
            server.unlimit(resource.RLIMIT_FSIZE)
            wait_until(lambda: "journal write succeeded again" in server.log, "the journal is written again")
        assert server.stop() == 0
        assert_log_intact(server.log)
        assert server.log.count("journal write failed") == 1
    report = verify(journal(tmp_path))
    assert (report.problems, report.gaps) == ([], 0)
    assert puts(tmp_path) == list(range(20))


def test_changes_beyond_a_small_queue_become_a_gap(tmp_path: Path) -> None:
    with server_process(tmp_path, settings=settings(tmp_path, journalQueueMax=2000)) as server:
        with RawConnection(server.address, timeout_s=TIMEOUT_S) as line:
            server.limit(resource.RLIMIT_FSIZE, 64 * 1024)
            for number in range(10):
                put(line, number)
            wait_until(lambda: "journal write failed" in server.log, "the writer has met the full disk")
            for number in range(10, 40):
                put(line, number)
            wait_until(lambda: "journal queue full" in server.log, "the loss is logged")
            server.unlimit(resource.RLIMIT_FSIZE)
            wait_until(lambda: "journal write succeeded again" in server.log, "the journal is written again")
            put(line, 40)
        assert server.stop() == 0
    report = verify(journal(tmp_path))
    assert (report.problems, report.gaps) == ([], 1)
    kept = puts(tmp_path)
    assert kept == [*range(len(kept) - 1), 40]


def test_a_removed_folder_loses_no_route(tmp_path: Path) -> None:
    with server_process(tmp_path, settings=settings(tmp_path, journalSegmentSeconds=1)) as server:
        with RawConnection(server.address, timeout_s=TIMEOUT_S) as line:
            assert line.call(broker().request).code == SUCCESS
            (tmp_path / "memory").rename(tmp_path / "taken away")  # in one step: the server goes on writing
            (tmp_path / "memory").write_text("in the way")
            wait_until(lambda: "journal write failed" in server.log, "the failure is logged")
            wait_until(lambda: "snapshot cannot be written" in server.log, "the failed snapshot is logged")
            assert line.call(with_topics(5).request).code == SUCCESS
            assert line.call(GET_ROUTE, {"topic": "topic-5"}).code == SUCCESS
            (tmp_path / "memory").unlink()
            wait_until(lambda: is_kept(tmp_path, "topic-5"), "a snapshot has the routes")
            wait_until(lambda: "journal write succeeded again" in server.log, "the journal is written again")
        assert server.stop() == 0
        assert_log_intact(server.log)


def test_a_second_server_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with server_process(tmp_path / "one", settings={"memoryPath": tmp_path / "memory"}) as server:
        with (
            pytest.raises(NotBootedError, match=rf"in use by another name server \(process {server.pid}\)") as refused,
            server_process(tmp_path / "two", settings={"memoryPath": tmp_path / "memory"}),
        ):
            pass
        assert "Traceback" not in str(refused.value)
        with RawConnection(server.address) as line:
            assert line.call(GET_CLUSTERS).code == SUCCESS
        server.kill()
    with server_process(tmp_path / "two", settings={"memoryPath": tmp_path / "memory"}):
        pass  # a lock does not outlive its process


def test_a_folder_that_cannot_be_written_is_logged_and_the_server_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with server_process(tmp_path, settings={"memoryPath": tmp_path / "file" / "memory"}) as server:
        with RawConnection(server.address) as line:
            assert line.call(broker().request).code == SUCCESS
        assert server.log.count("no journal and no warm restart") == 1
        assert server.stop() == 0


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_repeated_suspension_evicts_no_broker(tmp_path: Path, loop: Loop) -> None:
    """The second suspension begins before the scan that the first one postponed."""
    beating = broker(heartbeat_ms=2000)
    with server_process(tmp_path, loop=loop, settings={"scanNotActiveBrokerInterval": 1000}) as server:
        with (
            RawConnection(server.address, timeout_s=TIMEOUT_S) as line,
            RawConnection(server.address, timeout_s=TIMEOUT_S) as other,
        ):
            assert line.call(beating.request).code == SUCCESS
            for _ in range(2):
                with server.suspended():
                    repeat_for(3.0, lambda: line.send_oneway(HEARTBEAT, beating.identity))
                assert line.call(GET_ROUTE, {"topic": "TopicA"}).code == SUCCESS  # it has read the heartbeats before
            assert "broker left" not in server.log
            assert "lease scan late" in server.log
            wait_until(
                lambda: other.call(GET_ROUTE, {"topic": "TopicA"}).code == NO_TOPIC,
                "the lease expires without heartbeats",
            )
        assert server.stop() == 0


def test_the_command_reads_the_journal_of_a_running_server(tmp_path: Path) -> None:
    with server_process(tmp_path, settings=settings(tmp_path)) as server:
        follower = follow(tmp_path)
        try:
            with RawConnection(server.address) as line:
                assert line.call(broker().request).code == SUCCESS
            assert follower.stdout is not None
            said = ""
            while "broker_left" not in said:
                line_read = follower.stdout.readline()
                assert line_read, "it ended"
                said += line_read
            assert said.index("server_started") < said.index("broker_joined") < said.index("broker_left")
            follower.send_signal(signal.SIGINT)
            assert follower.wait(TIMEOUT_S) == 0
        finally:
            follower.kill()
            follower.communicate()
        assert server.stop() == 0


def follow(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "skyroute", "journal", "tail", "-f", "--path", str(folder / "memory")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_kill_during_a_large_snapshot_leaves_a_usable_one(tmp_path: Path, chance: random.Random) -> None:
    topics = [Topic(f"a-topic-with-a-name-of-usual-length-{number:06}") for number in range(5_000)]
    for _ in range(DEATHS):
        with (
            server_process(tmp_path, settings=settings(tmp_path)) as server,
            suppress(ClosedError),
            RawConnection(server.address, timeout_s=TIMEOUT_S) as line,
        ):
            assert line.call(broker(topics=topics).request).code == SUCCESS
            random_pause(chance, 0.9, 1.2)  # a snapshot follows a change by a second
            server.kill()
    with server_process(tmp_path, settings=settings(tmp_path)) as server:
        assert "snapshot not used" not in server.log
        assert server.stop() == 0
