"""Files that earlier versions wrote are read in full, after a stop and after a kill, and can be used and closed."""

import os
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from skyroute.broker.broker import Broker
from skyroute.broker.components import Components
from skyroute.broker.config import BrokerConfig
from skyroute.broker.scheduling.delay_levels import read_delay_offsets
from skyroute.broker.scheduling.timer_check import TimerCheck, damage_of
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.verification.verify import StoreCheck
from skyroute.broker.table_readers import TABLES
from skyroute.broker.tables.consumer_groups import read_groups
from skyroute.broker.tables.consumer_offsets import read_offsets
from skyroute.broker.tables.topics import read_topics
from skyroute.client.consuming.offset_store import FileOffsets
from skyroute.message.batch import unwrap_batches
from skyroute.message.message import StoredMessage
from skyroute.message.queue_ref import QueueRef
from skyroute.message.record import decode_records
from skyroute.message.reserved_topics import HALF_DONE_TOPIC, HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from skyroute.nameserver.config import NameServerConfig
from skyroute.nameserver.journal.reader import read_records
from skyroute.nameserver.journal.replay import Replay
from skyroute.nameserver.journal.schema import Kind
from skyroute.nameserver.journal.verify import verify
from skyroute.nameserver.kv_config import KvConfig
from skyroute.nameserver.server import NameServer
from skyroute.nameserver.snapshot_file import decode_snapshot
from tests.support.clock import ManualClock
from tests.support.disks import NoSyncDisk, draft
from tests.support.waiting import eventually
from tests.upgrade.fixtures import ARCHIVES, SETTINGS, open_store, unpack

LATER_MS = 1_800_000_000_000
STATES = ("clean", "killed")


class Unpacked:
    """The folders of one archive, after a stop or after a kill."""

    def __init__(self, archive: Path, folder: Path, state: str) -> None:
        self.sent = unpack(archive, folder)
        self.state = state
        self.store = folder / state / "store"
        self.config = self.store / "config"
        self.name_server = folder / state / "namesrv"
        self.journal = self.name_server / "memory" / "journal"
        self.home = folder / state / "home"

    @property
    def ends(self) -> dict[int, int]:
        """The number of messages in each queue of the topic Plain: the first queue of a producer is random."""
        first = sum(each.get("queue") == 0 for each in self.messages("plain", "compressed"))
        return {0: first, 1: 31 - first}

    def messages(self, *kinds: str) -> list[dict[str, Any]]:
        return [each for each in self.sent["messages"] if each["kind"] in kinds]


@pytest.fixture(
    params=[(archive, state) for archive in ARCHIVES for state in STATES], ids=lambda each: f"{each[0].name}-{each[1]}"
)
def unpacked(request: pytest.FixtureRequest, tmp_path: Path) -> Unpacked:
    archive, state = request.param
    return Unpacked(archive, tmp_path, state)


def read_topic(store: MessageStore, topic: str) -> list[StoredMessage]:
    """Return all messages of a topic, queue by queue."""
    found: list[StoredMessage] = []
    for queue_id in store.queue_ids(topic):
        offset, end = store.min_offset(topic, queue_id), store.max_offset(topic, queue_id)
        while offset < end:
            read = store.read_queue(topic, queue_id, offset, 3, 1 << 20)
            found += unwrap_batches(decode_records(b"".join(read.chunks), check_crc=True))
            assert read.next_offset > offset
            offset = read.next_offset
    return found


def is_settled(components: Components, messages: int) -> bool:
    """Return whether this many messages are in the topic, and the timer message waits."""
    stored = sum(components.store.max_offset("Plain", queue_id) for queue_id in (0, 1))
    return stored == messages and len(components.timers) == 1


def described(message: StoredMessage) -> tuple[object, ...]:
    own = {name: value for name, value in message.user_properties.items() if name in ("number", "中")}
    return message.topic, message.body.hex(), message.tag, message.keys, own, message.unique_id


def expected(each: dict[str, Any]) -> tuple[object, ...]:
    return each["topic"], each["body"], each["tag"], tuple(each["keys"]), each["properties"], each["id"]


def test_there_is_an_archive_of_the_first_version() -> None:
    assert ARCHIVES[0].name.startswith("0.1.0-")


def test_every_message_is_read_from_an_old_store(unpacked: Unpacked) -> None:
    store = open_store(unpacked.store, LATER_MS)
    plain = read_topic(store, "Plain")
    assert sorted(map(described, plain), key=repr) == sorted(
        map(expected, unpacked.messages("plain", "compressed")), key=repr
    )
    assert {queue_id: store.max_offset("Plain", queue_id) for queue_id in (0, 1)} == unpacked.ends
    batches = [message.body.hex() for message in read_topic(store, "Whole")]
    assert batches == [each["body"] for each in unpacked.messages("batch")]
    assert [message.body for message in read_topic(store, "Payments")] == [b"committed"]
    assert [message.body for message in read_topic(store, HALF_TOPIC)] == [b"committed", b"rolled back", b"undecided"]
    assert len(read_topic(store, HALF_DONE_TOPIC)) == 2
    delayed = [message.body for topic in (SCHEDULE_TOPIC, TIMER_TOPIC) for message in read_topic(store, topic)]
    assert Counter(delayed)[b"after two hours"] == Counter(delayed)[b"after two days"] == 1
    store.close()


def test_every_key_of_an_old_store_is_found(unpacked: Unpacked) -> None:
    store = open_store(unpacked.store, LATER_MS)
    for each in unpacked.messages("plain", "compressed"):
        for key in (*each["keys"], each["id"]):
            found = store.find_by_key("Plain", key, 64, 0, LATER_MS)
            bodies = [message.body.hex() for record in map(store.record_at, found.positions) if record
                      for message in decode_records(record)]  # fmt: skip
            assert each["body"] in bodies, key
    store.close()


def test_an_old_store_takes_new_messages_and_is_intact_afterwards(unpacked: Unpacked) -> None:
    for number in range(3):
        store = open_store(unpacked.store, LATER_MS)
        before = len(read_topic(store, "Plain"))
        store.append(draft("Plain", number % 2, b"new", {"KEYS": "new"}), LATER_MS)
        assert len(read_topic(store, "Plain")) == before + 1 == 32 + number
        if number == 1:
            store.kill()
        else:
            store.close()
    report = StoreCheck(unpacked.store, TABLES, damage_of, SETTINGS).run()
    assert report.findings == []


def test_old_tables_of_a_broker_are_read(unpacked: Unpacked) -> None:
    topics = JsonFile(unpacked.config / "topics.json").load(read_topics)
    assert topics is not None
    assert {
        name: (topic.read_queues, topic.permission)
        for name, topic in topics.configs.items()
        if name in ("Plain", "Whole")
    } == {
        "Plain": (2, 6),
        "Whole": (1, 6),
    }
    assert topics.configs["Whole"].attributes == {"queue.type": "BatchCQ"}
    groups = JsonFile(unpacked.config / "subscriptionGroup.json").load(read_groups)
    assert groups is not None
    assert groups.groups.configs["readers"].retry_times_max == 5
    offsets = JsonFile(unpacked.config / "consumerOffset.json").load(read_offsets)
    assert offsets is not None
    assert offsets.offsets["readers", "Plain"] == unpacked.ends
    progress = TimerCheck(unpacked.config / "timercheck", 1000, NoSyncDisk()).load()
    assert (progress.read_end, progress.oldest, progress.is_ours) == (1, 0, True)
    if unpacked.state == "clean":
        assert JsonFile(unpacked.config / "delayOffset.json").load(read_delay_offsets) is not None


async def test_a_broker_starts_on_an_old_folder_and_continues_what_was_open(unpacked: Unpacked, tmp_path: Path) -> None:
    config = BrokerConfig(
        broker_name="broker-a",
        advertised_host="127.0.0.1",
        bind_address="127.0.0.1",
        listen_port=0,
        name_server_list="",
        store_path=str(unpacked.store),
        settings_file=str(tmp_path / "broker.properties"),
        commit_log_file_bytes=SETTINGS.log_segment_bytes,
        consume_queue_file_bytes=20 * SETTINGS.queue_segment_units,
        batch_queue_file_bytes=46 * SETTINGS.batch_segment_units,
        index_slots=SETTINGS.index_slots,
        index_entries=SETTINGS.index_entries,
    )
    header, _ = decode_snapshot((unpacked.name_server / "memory" / "routes.snapshot").read_bytes())
    due: tuple[tuple[float, list[bytes]], ...] = ((60.0, []), (3 * 3600.0, [b"after two hours"]))
    for later_s, bodies in due:
        broker = Broker(config, clock=ManualClock(wall=header.wall_ms / 1000 + later_s), disk=NoSyncDisk())
        await broker.start()
        components, store = broker.components, broker.components.store
        assert components.offsets.of("readers", "Plain") == unpacked.ends
        assert "Plain" in components.topics.all()
        await eventually(partial(is_settled, components, 31 + len(bodies)))
        assert [each.body for each in read_topic(store, "Plain") if each.body.startswith(b"after")] == bodies
        await broker.stop()


def test_an_old_snapshot_is_read(unpacked: Unpacked) -> None:
    header, snapshot = decode_snapshot((unpacked.name_server / "memory" / "routes.snapshot").read_bytes())
    (group,) = snapshot.groups
    assert (group.name, group.cluster, group.acting_master, group.zone) == ("broker-a", "DefaultCluster", False, None)
    (member,) = group.members
    assert (member.broker_id, member.address, member.lease_s) == (0, unpacked.sent["broker"], 120.0)
    assert group.queues["Plain"] == (2, 2, 6, 0)
    assert len(group.queues) == 17
    assert header.server_id in (unpacked.name_server / "memory" / "identity.json").read_text()


def test_an_old_journal_is_sound_and_gives_the_routes_of_its_snapshot(unpacked: Unpacked) -> None:
    assert verify(unpacked.journal).problems == []
    records = list(read_records(unpacked.journal))
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    kinds = Counter(record.kind for record in records)
    assert kinds[Kind.SERVER_STARTED] == kinds[Kind.GROUP_CHANGED] == kinds[Kind.BROKER_JOINED] == 1
    assert kinds[Kind.KV_CHANGED] == 2
    assert kinds[Kind.SERVER_STOPPED] == (unpacked.state == "clean")
    replay = Replay()
    for record in records:
        replay.apply(record)
    _, snapshot = decode_snapshot((unpacked.name_server / "memory" / "routes.snapshot").read_bytes())
    assert {name: group.queues for name, group in replay.groups.items()} == {
        group.name: group.queues for group in snapshot.groups
    }


async def test_a_name_server_restores_routes_and_keys_of_an_old_folder(unpacked: Unpacked) -> None:
    memory = unpacked.name_server / "memory"
    os.utime(memory / "routes.snapshot")  # an old snapshot is not used
    config = NameServerConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        memory_path=str(memory),
        kv_config_path=str(unpacked.name_server / "kvConfig.json"),
        settings_file=str(unpacked.name_server / "namesrv.properties"),
    )
    server = NameServer(config)
    await server.start()
    try:
        assert server.table.queues_of("broker-a")["Plain"] == (2, 2, 6, 0)
        assert server.table.unconfirmed_count == 1
    finally:
        await server.stop()
    assert verify(unpacked.journal).problems == []


def test_an_old_key_value_file_is_read(unpacked: Unpacked) -> None:
    kv = KvConfig(unpacked.name_server / "kvConfig.json")
    kv.load()
    assert kv.tables() == {"ORDER_TOPIC_CONFIG": {"Plain": "broker-a:2"}, "own": {"a key": "a value, 中"}}


async def test_old_offsets_of_a_broadcasting_consumer_are_read(unpacked: Unpacked) -> None:
    (path,) = unpacked.home.glob(".rocketmq_offsets/*/listeners/offsets.json")
    offsets = FileOffsets(path.parts[-3], "listeners", directory=path.parents[2])
    await offsets.load()
    found = {queue_id: await offsets.read(QueueRef("Plain", "broker-a", queue_id)) for queue_id in (0, 1)}
    assert found == unpacked.ends
