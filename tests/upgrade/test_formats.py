"""No written format changes by accident: each gives the bytes that are kept for its version.

The bytes are in `tests/fixtures/formats`, one file per format and version. If a test here fails, a format has changed:
increase its version, read the old one as well, and run this file with SKYROUTE_WRITE_FORMATS=1, which adds the bytes of
the new version. Formats named `apache` are read by Apache's brokers and clients too, and cannot change.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Final

import msgspec
import pytest

from skyroute.broker.scheduling.delay_levels import read_delay_offsets
from skyroute.broker.scheduling.timer_check import TimerCheck, TimerProgress, read_page
from skyroute.broker.store.files.abort_file import AbortFile
from skyroute.broker.store.files.checkpoint import parse_checkpoint
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.queues import queue_ledger
from skyroute.broker.store.queues.queue_ledger import QueueLedger
from skyroute.broker.store.recovery.damage import CutTail, DamagedRange, DamageFile, DamageReport
from skyroute.broker.store.settings import StoreSettings
from skyroute.broker.tables.consumer_groups import read_groups
from skyroute.broker.tables.consumer_offsets import ConsumerOffsets, read_offsets
from skyroute.broker.tables.request_modes import RequestModes
from skyroute.broker.tables.topics import read_topics
from skyroute.client.consuming.offset_store import FileOffsets
from skyroute.console.access.audit import AuditLog
from skyroute.console.access.users import Role, User, read_users, write_users
from skyroute.controller import change_log, file_store
from skyroute.controller.file_store import FileStore
from skyroute.controller.state import GroupState, Replica
from skyroute.message.batch import BatchItem, encode_batch
from skyroute.message.message import StoredMessage
from skyroute.message.queue_ref import QueueRef
from skyroute.message.record import decode_run
from skyroute.nameserver.journal.index import INDEX_NAME, Index, read_index
from skyroute.nameserver.journal.reader import Damage, decode_lines
from skyroute.nameserver.journal.records import Numbered, encode
from skyroute.nameserver.journal.schema import SCHEMA_VERSION
from skyroute.nameserver.journal.segments import Segment
from skyroute.nameserver.kv_config import KvConfig
from skyroute.nameserver.server_events import Change
from skyroute.nameserver.snapshot_file import VERSION, decode_snapshot, encode_snapshot
from skyroute.pipeline.source.offsets import parse_offsets, to_json
from skyroute.routing.registration import DataVersion
from skyroute.routing.snapshot import GroupSnapshot, MemberSnapshot, TableSnapshot
from skyroute.routing.topology import QueueSettings, StaticMapping
from skyroute.wire.calls.groups import GroupConfig, RequestMode
from skyroute.wire.calls.topics import TopicConfig
from tests.support.disks import NOW_MS, NoSyncDisk, draft
from tests.unit.nameserver.journal.changes import OF_CONTROLLER, OF_NAME_SERVER

FOLDER: Final = Path(__file__).parents[1] / "fixtures" / "formats"
ROW_BYTES: Final = 48
SETTINGS: Final = StoreSettings(
    log_segment_bytes=4096, queue_segment_units=4, batch_segment_units=2, index_slots=4, index_entries=40
)
STORE_PARTS: Final = {
    "commit-log": "commitlog/00000000000000000000",
    "consume-queue": "consumequeue/T/1/00000000000000000000",
    "batch-queue": "batchconsumequeue/Whole/0/00000000000000000000",
    "key-index": "index/*",
    "checkpoint": "checkpoint",
    "queue-ledger": "queues",
}


@dataclass(frozen=True)
class Format:
    """A file format: its name, its version, and what writes a small file of it."""

    name: str
    version: str | int
    write: Callable[[Path], bytes]

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.name}-{self.version}.hex"


def write_store(folder: Path) -> None:
    """Write one file of each format of a store."""
    store = MessageStore.open(
        folder, SETTINGS, now_ms=NOW_MS, disk=NoSyncDisk(), is_batch_topic=lambda topic: topic == "Whole"
    )
    for number in range(4):
        named = {"KEYS": f"k{number}", "TAGS": "t", "UNIQ_KEY": f"u{number}"}
        store.append(draft("T", number % 2, b"body %d" % number, named), NOW_MS + 1000 * number)
    store.append(draft("x" * 130, 0, b"a topic of version 2"), NOW_MS)
    batch = encode_batch([BatchItem(b"one"), BatchItem(b"two")])
    store.append_inner_batch(draft("Whole", 0, batch, {"UNIQ_KEY": "batch"}), 2, NOW_MS)
    store.append(draft("Gone", 0), NOW_MS)
    store.delete_topic("Gone")
    store.close()


def store_part(name: str) -> Callable[[Path], bytes]:
    def write(folder: Path) -> bytes:
        write_store(folder)
        (path,) = folder.glob(STORE_PARTS[name])
        return path.read_bytes()

    return write


def write_abort(folder: Path) -> bytes:
    class Disk(NoSyncDisk):
        def boot_id(self) -> str:
            return "boot"

    AbortFile(folder, Disk()).write()
    return (folder / "abort").read_bytes().replace(b"%d\n" % os.getpid(), b"PID\n")


def write_timer_check(folder: Path) -> bytes:
    TimerCheck(folder / "timercheck", 1000, NoSyncDisk()).save(TimerProgress(1500, 4, 9, 3), NOW_MS)
    return (folder / "timercheck").read_bytes()


def write_damage(folder: Path) -> bytes:
    log = folder / "commitlog" / f"{0:020d}"
    report = DamageReport((DamagedRange(10, 20, log, "zeros"),), 1, 20, (CutTail(90, 5, log, folder / "x.cut"),))
    DamageFile(folder, NoSyncDisk()).save(report)
    return (folder / "damage.json").read_bytes()


def topic_table() -> bytes:
    entry = msgspec.json.encode(TopicConfig("T", 4, 8, 6, ordered=True, attributes={"queue.type": "BatchCQ"}))
    return b'{"topicConfigTable":{"T":%b}}' % entry


def group_table() -> bytes:
    return b'{"subscriptionGroupTable":{"g":%b}}' % msgspec.json.encode(GroupConfig("g", retry_times_max=5))


def write_offsets(folder: Path) -> bytes:
    offsets = ConsumerOffsets(JsonFile(folder / "consumerOffset.json", NoSyncDisk()), lambda: NOW_MS)
    for queue_id in range(2):
        offsets.commit("g", "T", queue_id, 5 + queue_id)
    return b"".join(offsets.pieces())


def write_request_modes(folder: Path) -> bytes:
    modes = RequestModes(JsonFile(folder / "messageRequestMode.json", NoSyncDisk()))
    modes.put(RequestMode("T", "g", "POP", 3))
    return b"".join(modes.pieces())


def write_delays(folder: Path) -> bytes:
    path = folder / "delayOffset.json"
    JsonFile(path, NoSyncDisk()).save({"dataVersion": {"counter": 1}, "offsetTable": {3: 1}})
    return path.read_bytes()


def write_kv(folder: Path) -> bytes:
    kv = KvConfig(folder / "kvConfig.json")
    asyncio.run(kv.put("ORDER_TOPIC_CONFIG", "T", "broker-a:2"))
    asyncio.run(kv.put("own", "key", "中"))
    return (folder / "kvConfig.json").read_bytes()


def snapshot() -> TableSnapshot:
    member = MemberSnapshot(0, "a:1", "a:2", DataVersion(0, 1, 2), 120.0, True, ("f:1",), 3.5)
    mapping = StaticMapping("U", "b", 2, 1, current_ids={0: 1})
    queues = {"T": QueueSettings(4, 4, 6), "U": QueueSettings(4, 4, 6, 1), "V": QueueSettings(4, 4, 6)}
    return TableSnapshot((GroupSnapshot("b", "c", True, "z", (member,), queues, frozenset({"T"}), {"U": mapping}),))


def write_snapshot(_folder: Path) -> bytes:
    return b"".join(encode_snapshot(snapshot(), server_id="id", sequence=7, wall_ms=NOW_MS))


def write_journal(changes: tuple[Change, ...]) -> bytes:
    return b"".join(
        encode(Numbered(seq, NOW_MS + seq, seq, change), "id") for seq, change in zip(count(1), changes, strict=False)
    )


def controlled_group() -> GroupState:
    replicas = {1: Replica("h:1", "h:1;5"), 2: Replica("h:2", "h:2;6")}
    return GroupState("C", "a", 3, replicas, 2, 4, frozenset({1, 2}), 7, True)


def write_controller_state(folder: Path) -> bytes:
    async def write(group: GroupState, revision: int) -> None:
        store = FileStore(folder / "state.json", NoSyncDisk())
        await store.open()
        await store.replace(group, revision)
        await store.close()

    asyncio.run(write(controlled_group(), 0))
    asyncio.run(write(replace(controlled_group(), master_epoch=5), 1))
    return (folder / "state.json").read_bytes()


def write_controller_log(folder: Path) -> bytes:
    write_controller_state(folder)
    content = (folder / "state.json.log0").read_bytes()
    assert content[: change_log.HALF_BYTES] == content[change_log.HALF_BYTES :]
    return content[: change_log.HALF_BYTES]


def write_journal_index(folder: Path) -> bytes:
    Index(folder, {1: Segment(1, 9, 8, NOW_MS, NOW_MS + 9, 700, 12345)}).write(NoSyncDisk())
    return (folder / INDEX_NAME).read_bytes()


def write_client_offsets(folder: Path) -> bytes:
    offsets = FileOffsets("client", "g", directory=folder)
    offsets.update(QueueRef("T", "b", 0), 12)
    asyncio.run(offsets.persist([QueueRef("T", "b", 0)]))
    return offsets.path.read_bytes()


def write_console_users(folder: Path) -> bytes:
    secret = f"scrypt$16384$8$1${bytes(range(16)).hex()}${bytes(range(32)).hex()}"
    write_users(folder / "users", {"admin": User("admin", Role.OPERATOR, secret)})
    return (folder / "users").read_bytes()


def write_audit(folder: Path) -> bytes:
    audit = AuditLog(folder / "audit.jsonl")
    asyncio.run(audit.write(NOW_MS, "admin", "10.0.0.1", "topic.delete", {"topic": "T"}, "it is used"))
    return audit.path.read_bytes()


def write_spark_offsets(_folder: Path) -> bytes:
    return msgspec.json.encode(to_json({QueueRef("T", "b", 1): 3, QueueRef("T", "b", 0): 17}))


LEDGER_VERSION: Final = queue_ledger._MARK.decode().removeprefix("skyroute queues")
FORMATS: Final = (
    *(Format(name, "apache", store_part(name)) for name in ("commit-log", "consume-queue", "batch-queue", "key-index")),
    Format("checkpoint", 2, store_part("checkpoint")),
    Format("queue-ledger", LEDGER_VERSION, store_part("queue-ledger")),
    Format("abort", 1, write_abort),
    Format("timercheck", 1, write_timer_check),
    Format("damage", 1, write_damage),
    Format("topics-json", "apache", lambda _: topic_table()),
    Format("subscription-group-json", "apache", lambda _: group_table()),
    Format("consumer-offset-json", "apache", write_offsets),
    Format("message-request-mode-json", "apache", write_request_modes),
    Format("delay-offset-json", "apache", write_delays),
    Format("kv-config-json", "apache", write_kv),
    Format("routes-snapshot", VERSION, write_snapshot),
    Format("journal", SCHEMA_VERSION, lambda _: write_journal(OF_NAME_SERVER)),
    Format("journal-of-controller", SCHEMA_VERSION, lambda _: write_journal(OF_CONTROLLER)),
    Format("controller-state", file_store.FORMAT, write_controller_state),
    Format("controller-log", 1, write_controller_log),
    Format("journal-index", 1, write_journal_index),
    Format("client-offsets", "apache", write_client_offsets),
    Format("console-users", 1, write_console_users),
    Format("console-audit", 1, write_audit),
    Format("spark-offsets", 1, write_spark_offsets),
)


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Names of index files have the local time."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def kept_bytes(path: Path) -> bytes:
    """Return the bytes of a `.hex` file; zeros at its end are left out."""
    return bytes.fromhex(path.read_text("ascii"))


@pytest.mark.parametrize("each", FORMATS, ids=lambda each: each.path.stem)
def test_a_format_gives_the_bytes_of_its_version(each: Format, tmp_path: Path) -> None:
    written = each.write(tmp_path).rstrip(b"\0")
    if os.environ.get("SKYROUTE_WRITE_FORMATS") == "1" and not each.path.exists():
        rows = [written[at : at + ROW_BYTES].hex() for at in range(0, len(written), ROW_BYTES)]
        each.path.write_text("\n".join(rows) + "\n", "ascii")
    assert each.path.exists(), "a format without bytes: run this file with SKYROUTE_WRITE_FORMATS=1"
    assert written == kept_bytes(each.path), "the format has changed: read the docstring of this file"


def read_json_table(read: Callable[[object], object]) -> Callable[[bytes, Path], object]:
    def load(content: bytes, folder: Path) -> object:
        (folder / "table.json").write_bytes(content)
        return JsonFile(folder / "table.json", NoSyncDisk()).load(read)

    return load


def read_log(content: bytes, _folder: Path) -> list[StoredMessage]:
    return decode_run(content.ljust(SETTINGS.log_segment_bytes, b"\0")).messages


def read_ledger(content: bytes, folder: Path) -> object:
    (folder / "queues").write_bytes(content)
    known = QueueLedger(folder / "queues", NoSyncDisk()).read()
    return None if known is None else ({key: queue.end for key, queue in known.queues.items()}, list(known.deleted))


def read_journal(content: bytes, folder: Path) -> list[str]:
    records = list(decode_lines(content, folder))
    assert not any(isinstance(record, Damage) for record in records)
    return [record.kind for record in records if not isinstance(record, Damage)]


def read_kv(content: bytes, folder: Path) -> object:
    (folder / "kvConfig.json").write_bytes(content)
    kv = KvConfig(folder / "kvConfig.json")
    kv.load()
    return kv.tables()


def read_journal_index(content: bytes, folder: Path) -> object:
    (folder / INDEX_NAME).write_bytes(content)
    return read_index(folder)


def read_controller_state(content: bytes, folder: Path, changes: bytes = b"") -> object:
    (folder / "state.json").write_bytes(content)
    (folder / "state.json.log0").write_bytes(2 * changes.ljust(change_log.HALF_BYTES, b"\0"))

    async def read() -> GroupState | None:
        store = FileStore(folder / "state.json", NoSyncDisk())
        await store.open()
        stored = store.find("a")
        await store.close()
        return None if stored is None else stored.state

    return asyncio.run(read())


def read_console_users(content: bytes, folder: Path) -> object:
    (folder / "users").write_bytes(content)
    return {name: user.role for name, user in read_users(folder / "users").items()}


READERS: Final[dict[str, tuple[Callable[[bytes, Path], object], Callable[[object], bool]]]] = {
    "commit-log-apache": (read_log, lambda found: isinstance(found, list) and len(found) == 7),
    "checkpoint-1": (lambda content, _: parse_checkpoint(content).damaged, lambda found: found == []),
    "checkpoint-2": (lambda content, _: parse_checkpoint(content), lambda found: "store_id=1" in repr(found)),
    **dict.fromkeys(
        ("queue-ledger-1", "queue-ledger-2"),
        (
            read_ledger,
            lambda found: found == ({("T", 0): 2, ("T", 1): 2, ("x" * 130, 0): 1, ("Whole", 0): 2}, ["Gone"]),
        ),
    ),
    "timercheck-1": (lambda content, _: read_page(content)[1], lambda found: found == TimerProgress(1500, 4, 9, 3)),
    "topics-json-apache": (
        read_json_table(read_topics),
        lambda found: "'T'" in repr(found) and "BatchCQ" in repr(found),
    ),
    "subscription-group-json-apache": (read_json_table(read_groups), lambda found: "retry_times_max=5" in repr(found)),
    "consumer-offset-json-apache": (
        read_json_table(lambda raw: read_offsets(raw).offsets),
        lambda found: found == {("g", "T"): {0: 5, 1: 6}},
    ),
    "delay-offset-json-apache": (
        read_json_table(lambda raw: read_delay_offsets(raw)[0]),
        lambda found: found == {3: 1},
    ),
    "kv-config-json-apache": (
        read_kv,
        lambda found: found == {"ORDER_TOPIC_CONFIG": {"T": "broker-a:2"}, "own": {"key": "中"}},
    ),
    "routes-snapshot-1": (lambda content, _: decode_snapshot(content)[1], lambda found: found == snapshot()),
    "journal-1": (read_journal, lambda found: isinstance(found, list) and len(found) == len(OF_NAME_SERVER)),
    "journal-of-controller-1": (
        read_journal,
        lambda found: isinstance(found, list) and len(found) == len(OF_CONTROLLER),
    ),
    **dict.fromkeys(
        ("controller-state-1", "controller-state-2"),
        (read_controller_state, lambda found: found == controlled_group()),
    ),
    "controller-log-1": (
        lambda content, folder: read_controller_state(kept_bytes(FOLDER / "controller-state-2.hex"), folder, content),
        lambda found: found == replace(controlled_group(), master_epoch=5),
    ),
    "journal-index-1": (read_journal_index, lambda found: "size_bytes=700" in repr(found)),
    "console-users-1": (read_console_users, lambda found: found == {"admin": Role.OPERATOR}),
    "spark-offsets-1": (
        lambda content, _: parse_offsets(content.decode()),
        lambda found: found == {QueueRef("T", "b", 0): 17, QueueRef("T", "b", 1): 3},
    ),
}
"""By format and version: what reads the bytes that are kept, and whether it read what was written."""


@pytest.mark.parametrize("name", READERS)
def test_the_bytes_of_every_version_are_read(name: str, tmp_path: Path) -> None:
    read, is_right = READERS[name]
    found = read(kept_bytes(FOLDER / f"{name}.hex"), tmp_path)
    assert is_right(found), found
