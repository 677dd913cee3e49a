"""The index process: all keys are found, whatever happens to it."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skyroute.broker.store.index import index_process, index_writer
from skyroute.broker.store.index import keys as keys_module
from skyroute.broker.store.message_store import MessageStore
from skyroute.files.disk import Disk
from skyroute.files.errors import StorageError
from skyroute.message.batch import BatchItem
from skyroute.message.flags import TransactionState
from skyroute.message.host import encode_host
from skyroute.message.properties import encode_properties
from tests.support.disks import NOW_MS, FillingDisk, FullDisk, NoSyncDisk, RestartedMachineDisk, draft, small_store

ROOT = Path(__file__).parents[4]
RUSH = 600
FOREVER_MS = NOW_MS * 2

Keys = dict[str, int]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_writer, "processors", lambda: 2)
    monkeypatch.setattr(index_process, "STEP_BYTES", 1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    store = open_store(tmp_path)
    yield store
    store.kill()


def open_store(folder: Path, disk: Disk | None = None, **changes: Any) -> MessageStore:
    return small_store(
        folder / "store",
        disk or NoSyncDisk(),
        **{"index_slots": 512, "index_entries": 400, "index_process_after": 2, **changes},
    )


def rush(store: MessageStore, first: int, count: int = RUSH) -> Keys:
    """Append enough messages to start an index process; return their positions by key."""
    found: Keys = {}
    for number in range(first, first + count):
        properties = {"UNIQ_KEY": f"id-{number}", "KEYS": f"k{number} é{number}"}
        appended = store.append(draft("T", number % 3, b"%d" % number, properties), NOW_MS + number)
        found |= {f"id-{number}": appended.log_position, f"k{number}": appended.log_position}
        found[f"é{number}"] = appended.log_position
    return found


def check(store: MessageStore, keys: Keys) -> None:
    for key, position in keys.items():
        assert store.find_by_key("T", key, 64, 0, FOREVER_MS).positions == [position], key


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_index_process_writes_the_same_files_as_the_store(tmp_path: Path) -> None:
    written = []
    for own_process in (True, False):
        store = open_store(tmp_path / str(own_process), index_process=own_process)
        keys = rush(store, 0)
        pid = store.index_pid
        assert (pid is not None) == own_process
        keys |= rush(store, RUSH, 40)
        check(store, keys)
        batch = store.append_batch(draft(), [BatchItem(b"x", encode_properties({"KEYS": "b"}))] * 30, NOW_MS + 9999)
        assert store.find_by_key("T", "b", 64, 0, FOREVER_MS).positions == batch.log_positions
        assert store.index_pid == pid
        store.close()
        assert pid is None or not is_there(pid)
        folder = tmp_path / str(own_process) / "store" / "index"
        written.append({path.name: path.read_bytes() for path in folder.iterdir()})
        with closing(open_store(tmp_path / str(own_process))) as store:
            assert store.recovered is not None
            assert (store.recovered.was_clean, store.recovered.records) == (True, 0)
            check(store, keys)
    assert written[0] == written[1]
    assert len(written[0]) > 4


def test_the_index_process_reads_keys_of_every_kind_of_record(tmp_path: Path) -> None:
    """Records longer than one read, with IPv6 addresses, with long topics, and rolled back."""
    with closing(open_store(tmp_path, log_segment_bytes=4 << 20)) as store:
        rush(store, 0)
        assert store.index_pid is not None
        kinds: list[dict[str, Any]] = [
            {"body": bytes(keys_module.READ_BYTES + 1)},
            {"body": bytes(keys_module.READ_BYTES * 2)},
            {"body": bytes(keys_module.READ_BYTES - 200)},
            {"topic": "N" * 200},
            {"raw_born_host": encode_host("::1", 5)},
            {"sys_flag": int(TransactionState.PREPARED)},
        ]
        for number, kind in enumerate(kinds * 3):
            topic, key = kind.get("topic", "T"), f"odd-{number}"
            message = msgspec.structs.replace(draft(properties={"KEYS": key}), **kind)
            appended = store.append(message, NOW_MS)
            assert store.find_by_key(topic, key, 9, 0, FOREVER_MS).positions == [appended.log_position]
        rolled_back = msgspec.structs.replace(draft(properties={"KEYS": "gone"}), sys_flag=TransactionState.ROLLED_BACK)
        store.append(rolled_back, NOW_MS)
        assert store.find_by_key("T", "gone", 9, 0, FOREVER_MS).positions == []
        assert store.index_pid is not None


def test_no_index_process_starts_under_low_load(tmp_path: Path) -> None:
    with closing(open_store(tmp_path, index_process_after=3)) as store:
        keys = rush(store, 0, 600)
        store.dispatch()  # as happens now and then, whether or not there is a backlog
        check(store, keys | rush(store, 600, 600))
        assert store.index_pid is None


def test_no_index_process_starts_for_records_without_keys(tmp_path: Path) -> None:
    with closing(open_store(tmp_path)) as store:
        for number in range(5 * RUSH):
            store.append(draft("T", number % 3, b"%d" % number, {"TAGS": "tag"}), NOW_MS + number)
        assert store.index_pid is None
        check(store, rush(store, 0))
        assert store.index_pid is not None


@pytest.mark.parametrize("changes", [{"index_process": False}, {"index_enabled": False}])
def test_the_index_process_can_be_disabled(tmp_path: Path, changes: dict[str, Any]) -> None:
    with closing(open_store(tmp_path, **changes)) as store:
        rush(store, 0)
        assert store.index_pid is None


def test_no_index_process_starts_on_a_single_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_writer, "processors", lambda: 1)
    with closing(open_store(tmp_path)) as store:
        check(store, rush(store, 0))
        assert store.index_pid is None


def test_the_store_continues_the_index_after_its_process_died(
    store: MessageStore, caplog: pytest.LogCaptureFixture
) -> None:
    keys = rush(store, 0)
    pid = store.index_pid
    assert pid is not None
    keys |= rush(store, RUSH)
    os.kill(pid, signal.SIGKILL)
    keys |= rush(store, RUSH * 2)
    check(store, keys)
    assert store.index_pid is None
    assert not is_there(pid)
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert warnings == [f"index process died, the broker writes the index itself pid={pid}"]


def test_a_search_notices_a_dead_index_process(store: MessageStore) -> None:
    keys = rush(store, 0)
    pid = store.index_pid
    assert pid is not None
    check(store, keys)
    store.dispatch()
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    keys |= rush(store, RUSH, 3)
    check(store, keys)


def test_keys_of_visible_unwritten_records_survive_a_dead_index_process(tmp_path: Path) -> None:
    """The disk is full when the process dies, so nothing is dispatched afterwards."""
    disk = FullDisk()
    store = open_store(tmp_path, disk)
    keys = rush(store, 0)
    check(store, keys)
    pid = store.index_pid
    assert pid is not None
    keys |= rush(store, RUSH, 50)
    disk.is_full = True
    assert store.max_offset("T", 0) == (RUSH + 50 + 2) // 3
    os.kill(pid, signal.SIGKILL)
    store.find_by_key("T", "k1", 1, 0, FOREVER_MS)
    disk.is_full = False
    check(store, keys | rush(store, RUSH + 50))
    assert store.index_pid is None
    store.kill()


def test_an_index_process_that_hangs_is_replaced_by_the_store(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_process, "TIMEOUT_S", 0.05)
    keys = rush(store, 0)
    pid = store.index_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    keys |= rush(store, RUSH)
    check(store, keys)
    assert store.index_pid is None


def test_the_store_waits_for_an_index_process_that_is_far_behind(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_process, "LAG_BYTES_MAX", 1)
    keys = rush(store, 0, 5000)
    assert store.index_pid is not None
    check(store, dict(list(keys.items())[::50]))


@pytest.mark.parametrize("program", ["/nonexistent/python", "/bin/false"])
def test_the_store_writes_the_index_if_the_process_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setattr(sys, "executable", program)
    with closing(open_store(tmp_path)) as store:
        check(store, rush(store, 0) | rush(store, RUSH))
        assert store.index_pid is None


def test_the_index_process_ignores_signals_of_the_terminal(store: MessageStore) -> None:
    keys = rush(store, 0)
    pid = store.index_pid
    assert pid is not None
    check(store, keys)  # by now it has begun
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    check(store, rush(store, RUSH))
    assert store.index_pid == pid


@pytest.mark.parametrize("disk", [NoSyncDisk, RestartedMachineDisk])
def test_no_key_is_lost_if_store_and_index_process_die(tmp_path: Path, disk: type[Disk]) -> None:
    """Process or machine stop at any point, with a part of the index on disk."""
    keys: Keys = {}
    for turn in range(4):
        store = open_store(tmp_path, disk() if turn else NoSyncDisk())
        keys |= rush(store, turn * 4 * RUSH, RUSH * 2)
        assert store.index_pid is not None
        store.flush(thorough=turn % 2 == 0)
        keys |= rush(store, (turn * 4 + 2) * RUSH)
        pid = store.index_pid
        store.kill()
        assert not is_there(pid)
    with closing(open_store(tmp_path, disk())) as store:
        check(store, dict(list(keys.items())[::11]))


def test_the_checkpoint_has_the_progress_of_the_index_process(store: MessageStore) -> None:
    rush(store, 0)
    pid = store.index_pid
    assert pid is not None
    store.find_by_key("T", "k1", 1, 0, FOREVER_MS)
    os.kill(pid, signal.SIGSTOP)
    before = store._index_writer.process
    assert before is not None
    reached = before.progress
    rush(store, RUSH)
    store.flush()
    assert store._checkpoint.on_disk == reached[:4]
    assert store._checkpoint.last_dispatched == reached[:2]
    os.kill(pid, signal.SIGCONT)


def test_index_files_expire_while_the_process_runs(tmp_path: Path) -> None:
    with closing(open_store(tmp_path, FillingDisk())) as store:
        rush(store, 0)
        pid = store.index_pid
        assert pid is not None
        rush(store, RUSH, 3000)
        for _ in range(100):
            store.delete_expired(FOREVER_MS, is_due=True, disk_used=0.1)
        store.find_by_key("T", "k1", 1, 0, FOREVER_MS)
        store.delete_expired(FOREVER_MS, is_due=True, disk_used=0.1)
        assert len(list((tmp_path / "store" / "index").iterdir())) < 4
        check(store, rush(store, RUSH + 3000))
        assert store.index_pid == pid
        held = [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()]
        assert not any(str(tmp_path) in name and "(deleted)" in name for name in held)


def test_an_index_write_error_refuses_the_next_append(store: MessageStore, tmp_path: Path) -> None:
    keys = rush(store, 0)
    assert store.index_pid
    index = tmp_path / "store" / "index"
    index.rename(tmp_path / "aside")
    index.touch()
    number = RUSH

    def send_more() -> None:
        nonlocal number, keys
        while number < RUSH * 50:
            keys |= rush(store, number, 1)
            number += 1

    with pytest.raises(StorageError, match="cannot write"):
        send_more()
    assert not store.index_pid
    index.unlink()
    (tmp_path / "aside").rename(index)
    check(store, dict(list(keys.items())[::5]) | rush(store, number))


WRITER = """
import sys
from pathlib import Path
from skyroute.broker.store.index import index_writer
from tests.unit.broker.store.test_index_process import open_store, rush

index_writer.processors = lambda: 2
store = open_store(Path(sys.argv[1]))
turn = 0
while True:
    rush(store, turn * 100, 100)
    turn += 1
    print(turn * 100, store.index_pid or 0, flush=True)
"""


def test_the_index_process_of_a_killed_broker_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
        assert writer.stdout is not None
        pid = count = 0
        for line in writer.stdout:
            count, pid = map(int, line.split())
            if count == 5_000:
                writer.kill()
    assert pid
    with closing(open_store(tmp_path)) as store:
        # The lock is ours, so the process is gone, or is about to find out that it may do nothing.
        for number in range(0, count, 37):
            assert len(store.find_by_key("T", f"k{number}", 9, 0, FOREVER_MS).positions) == 1
            assert len(store.find_by_key("T", f"id-{number}", 9, 0, FOREVER_MS).positions) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_reading_keys_passes_over_records_without_keys(store: MessageStore, host: str) -> None:
    plain = msgspec.structs.replace(draft("T", 0, b"KEY", {"a": "b"}), raw_born_host=encode_host(host, 1))
    appended = [store.append(plain, NOW_MS + number) for number in range(20)]
    rush(store, 0, 2)
    reader, found, position = keys_module.KeyReader(store._log.find, 5 * appended[0].record_bytes), [], 0
    keys: list[keys_module.Key] = []
    while (newest := reader.read(position, store.max_position, keys)) is not None:
        found.append(newest)
        position = newest[0] + newest[1]
    fourth = appended[4]
    assert found[0] == (fourth.log_position, fourth.record_bytes, NOW_MS + 4)
    assert position == store.max_position
    assert len(keys) == 6
