"""One folder, two brokers: what our store wrote opens in Apache's broker, and what Apache's wrote opens in our store.

Apache's broker is asked by its own protocol, with a client that knows nothing of our code. Every record of every queue
must be the same, byte for byte, and found by the same keys and times, whichever of the two looks.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from skyroute.broker.scheduling.timer_check import damage_of
from skyroute.broker.store.draft import Draft
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.settings import StoreSettings
from skyroute.broker.store.verification.repair import Repair
from skyroute.broker.store.verification.verify import StoreCheck
from skyroute.broker.table_readers import TABLES
from skyroute.message.batch import BatchItem, encode_batch
from skyroute.message.flags import TransactionState
from skyroute.message.host import encode_host
from skyroute.message.message import StoredMessage
from skyroute.message.properties import encode_properties, join_properties
from skyroute.message.record import decode_records
from skyroute.message.reserved_topics import HALF_TOPIC, SCHEDULE_TOPIC
from tests.support.apache import ApacheBroker, NameServerProcess
from tests.support.raw import Command, RawConnection
from tests.support.waiting import wait_until

SETTINGS = StoreSettings(
    log_segment_bytes=1 << 17, queue_segment_units=50, batch_segment_units=40, index_slots=97, index_entries=400
)
FILE_SIZES = {
    "mappedFileSizeCommitLog": str(SETTINGS.log_segment_bytes),
    "mappedFileSizeConsumeQueue": str(SETTINGS.queue_segment_units * 20),
    "mapperFileSizeBatchConsumeQueue": str(SETTINGS.batch_segment_units * 46),
    "maxHashSlotNum": str(SETTINGS.index_slots),
    "maxIndexNum": str(SETTINGS.index_entries),
}
TOPIC = "StoreTopic"
WHOLE = "StoreBatches"
"""A topic that keeps batches whole."""
QUEUES = 4
GROUP = "store-files"
NEVER_LEVEL = "18"
BORN = encode_host("127.0.0.1", 40_000)

SEND, SEND_BATCH, PULL, QUERY, VIEW = 310, 320, 11, 12, 33
SEARCH_TIME, MAX_OFFSET, MIN_OFFSET, END_TRANSACTION = 29, 30, 31, 37
SUCCESS = 0


@dataclass
class Seen:
    """What a store holds, as one of the two tells it."""

    records: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    by_key: dict[tuple[str, str], list[bytes]] = field(default_factory=dict)
    by_time: dict[tuple[str, int, int, bool], int] = field(default_factory=dict)

    def messages(self, topic: str) -> Iterator[StoredMessage]:
        for (name, _), records in self.records.items():
            if name == topic:
                yield from decode_records(b"".join(records), check_crc=True)


# --------------------------------------------------------------------------------------------------------- our store


def fill(store: MessageStore, store_host: bytes, now_ms: int) -> None:
    """All kinds of messages, over several files of everything."""
    number = 0

    def properties(**more: str) -> bytes:
        nonlocal number
        number += 1
        named = {"UNIQ_KEY": f"7F0000012222{number:020X}", "KEYS": f"k{number} every", "TAGS": f"Tag{number % 5}"}
        return encode_properties({**named, **more})

    def draft(topic: str, queue_id: int, body: bytes, raw: bytes, sys_flag: int = 0, prepared: int = 0) -> Draft:
        return Draft(
            topic, queue_id, body, raw, now_ms, BORN, store_host, sys_flag=sys_flag, prepared_position=prepared
        )

    for turn in range(100):
        at_ms = now_ms + turn * 7
        for queue_id in range(QUEUES):
            store.append(draft(TOPIC, queue_id, b"b%d-" % turn * 60, properties()), at_ms)
        if turn % 10 == 0:
            items = [BatchItem(b"in a batch", properties()) for _ in range(5)]
            store.append_batch(draft(TOPIC, turn % QUEUES, b"", b""), items, at_ms)
            store.append(draft(SCHEDULE_TOPIC, 17, b"later", properties(DELAY=NEVER_LEVEL, REAL_TOPIC=TOPIC)), at_ms)
            half = store.append(draft(HALF_TOPIC, 0, b"half", properties(REAL_TOPIC=TOPIC, REAL_QID="1")), at_ms)
            committed = int(TransactionState.COMMITTED)
            store.append(draft(TOPIC, 1, b"whole", properties(), committed, half.log_position), at_ms)
            store.append(draft(TOPIC, 1, b"never", properties(), int(TransactionState.ROLLED_BACK)), at_ms)
        body = encode_batch([BatchItem(b"%d inside" % turn, properties()) for _ in range(turn % 4 + 1)])
        store.append_inner_batch(draft(WHOLE, 0, body, properties()), turn % 4 + 1, at_ms)
        store.append(draft(WHOLE, 0, b"alone", properties()), at_ms)


def write_topics(folder: Path) -> None:
    """Apache removes the queues of topics that it does not know."""
    kinds: dict[str, dict[str, str]] = {TOPIC: {}, WHOLE: {"queue.type": "BatchCQ"}}
    topics = {
        topic: {
            "attributes": attributes,
            "order": False,
            "perm": 6,
            "readQueueNums": QUEUES,
            "topicFilterType": "SINGLE_TAG",
            "topicName": topic,
            "topicSysFlag": 0,
            "writeQueueNums": QUEUES,
        }
        for topic, attributes in kinds.items()
    }
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    JsonFile(folder / "config" / "topics.json").save({"dataVersion": version, "topicConfigTable": topics})


def look_into(store: MessageStore, like: Seen | None = None) -> Seen:
    """Everything that our store has; keys and times are those that were asked about before, or our own choice."""
    seen = Seen()
    for topic in sorted(store.topics()):
        for queue_id in store.queue_ids(topic):
            offset, records = store.min_offset(topic, queue_id), []
            while offset < store.max_offset(topic, queue_id):
                read = store.read_queue(topic, queue_id, offset, 1, 1)
                records.append(b"".join(read.chunks))
                offset = read.next_offset
            seen.records[topic, queue_id] = records
    keys = list(like.by_key) if like else _keys_to_ask(seen)
    times = list(like.by_time) if like else _times_to_ask(seen)
    for topic, key in keys:
        positions = store.find_by_key(topic, key, 64, 0, 1 << 62).positions
        seen.by_key[topic, key] = [record for position in positions if (record := store.record_at(position))]
    for topic, queue_id, at_ms, upper in times:
        seen.by_time[topic, queue_id, at_ms, upper] = store.offset_at(topic, queue_id, at_ms, upper=upper)
    return seen


def _keys_to_ask(seen: Seen) -> list[tuple[str, str]]:
    messages = [message for topic, _ in seen.records for message in seen.messages(topic)][::9]
    return [(message.topic, key) for message in messages for key in (*message.keys, message.unique_id or "")]


def _times_to_ask(seen: Seen) -> list[tuple[str, int, int, bool]]:
    times = sorted({message.stored_at_ms for message in seen.messages(TOPIC)})
    chosen = [times[0] - 1, times[0], times[len(times) // 2], times[len(times) // 2] + 1, times[-1], times[-1] + 1]
    return [
        (TOPIC, queue_id, at_ms, upper) for queue_id in range(QUEUES) for at_ms in chosen for upper in (False, True)
    ]


# ---------------------------------------------------------------------------------------------------- Apache's broker


class Asked:
    """Apache's broker, asked by its own protocol."""

    def __init__(self, line: RawConnection) -> None:
        self._line = line

    def _number(self, code: int, **fields: object) -> int:
        answer = self._line.call(code, {name: str(value) for name, value in fields.items()})
        assert answer.code == SUCCESS, answer
        return int(answer.fields["offset"])

    def max_offset(self, topic: str, queue_id: int) -> int:
        return self._number(MAX_OFFSET, topic=topic, queueId=queue_id)

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self._number(MIN_OFFSET, topic=topic, queueId=queue_id)

    def records(self, topic: str, queue_id: int) -> list[bytes]:
        found: list[bytes] = []
        offset = self.min_offset(topic, queue_id)
        while offset < self.max_offset(topic, queue_id):
            fields = {"consumerGroup": GROUP, "topic": topic, "queueId": queue_id, "queueOffset": offset}
            fields |= {"maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0}
            fields |= {"subscription": "*", "expressionType": "TAG"}
            answer = self._line.call(PULL, {name: str(value) for name, value in fields.items()})
            assert answer.code == SUCCESS, answer
            found += split(answer.body)
            offset = int(answer.fields["nextBeginOffset"])
        return found

    def record(self, topic: str, queue_id: int, offset: int) -> bytes:
        """The record at an offset."""
        fields = {"consumerGroup": GROUP, "topic": topic, "queueId": queue_id, "queueOffset": offset}
        fields |= {"maxMsgNums": 1, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0}
        fields |= {"subscription": "*", "expressionType": "TAG"}
        answer = self._line.call(PULL, {name: str(value) for name, value in fields.items()})
        assert answer.code == SUCCESS, answer
        return answer.body

    def by_key(self, topic: str, key: str) -> list[bytes]:
        fields = {"topic": topic, "key": key, "maxNum": 64, "beginTimestamp": 0, "endTimestamp": (1 << 63) - 1}
        answer = self._line.call(QUERY, {name: str(value) for name, value in fields.items()})
        return split(answer.body) if answer.code == SUCCESS else []

    def by_time(self, topic: str, queue_id: int, at_ms: int, *, upper: bool) -> int:
        boundary = "UPPER" if upper else "LOWER"
        return self._number(SEARCH_TIME, topic=topic, queueId=queue_id, timestamp=at_ms, boundaryType=boundary)

    def at_position(self, position: int) -> bytes:
        answer = self._line.call(VIEW, {"offset": str(position)})
        assert answer.code == SUCCESS, answer
        return answer.body

    def look_like(self, seen: Seen) -> Seen:
        """What it holds of the same queues, and what it finds by the same keys and times."""
        answer = Seen()
        for topic, queue_id in seen.records:
            answer.records[topic, queue_id] = self.records(topic, queue_id)
        for topic, key in seen.by_key:
            answer.by_key[topic, key] = self.by_key(topic, key)
        for topic, queue_id, at_ms, upper in seen.by_time:
            answer.by_time[topic, queue_id, at_ms, upper] = self.by_time(topic, queue_id, at_ms, upper=upper)
        return answer

    def next_offset(self, topic: str, queue_id: int, offset: int) -> int:
        """Where it says to read on after one message."""
        fields = {"consumerGroup": GROUP, "topic": topic, "queueId": queue_id, "queueOffset": offset}
        fields |= {"maxMsgNums": 1, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0}
        fields |= {"subscription": "*", "expressionType": "TAG"}
        return int(
            self._line.call(PULL, {name: str(value) for name, value in fields.items()}).fields["nextBeginOffset"]
        )

    def send(
        self,
        body: bytes,
        queue_id: int,
        properties: dict[str, str],
        *,
        code: int = SEND,
        flag: int = 0,
        topic: str = TOPIC,
    ) -> Command:
        fields = {"a": GROUP, "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": str(flag), "h": "0"}
        fields |= {"g": str(int(time.time() * 1000)), "i": join_properties(properties), "j": "0", "k": "false"}
        answer = self._line.call(code, {**fields, "m": "true" if code == SEND_BATCH else "false"}, body)
        assert answer.code == SUCCESS, answer
        return answer

    def fill(self) -> None:
        """All kinds of messages again."""
        for number in range(120):
            named = {"UNIQ_KEY": f"7F0000013333{number:020X}", "KEYS": f"a{number} every", "TAGS": f"Tag{number % 5}"}
            self.send(b"from Apache %d" % number * 40, number % QUEUES, named)
        items = [
            BatchItem(b"batched %d" % n, encode_properties({"KEYS": f"b{n}", "UNIQ_KEY": f"B{n}"})) for n in range(9)
        ]
        self.send(encode_batch(items), 2, {"UNIQ_KEY": "B"}, code=SEND_BATCH)
        receipt = self.send(encode_batch(items), 0, {"UNIQ_KEY": "WHOLE"}, code=SEND_BATCH, topic=WHOLE)
        assert receipt.fields["batchUniqId"] == "WHOLE"
        self.send(b"alone", 0, {"UNIQ_KEY": "ALONE"}, topic=WHOLE)
        self.send(encode_batch(items), 1, {"UNIQ_KEY": "WHOLE-1"}, code=SEND_BATCH, topic=WHOLE)
        self.send(b"delayed", 0, {"DELAY": NEVER_LEVEL, "UNIQ_KEY": "D1", "TAGS": "later"})
        for outcome in (TransactionState.COMMITTED, TransactionState.ROLLED_BACK):
            named = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": outcome.name}
            half = self.send(outcome.name.encode(), 1, named, flag=int(TransactionState.PREPARED))
            fields = {"producerGroup": GROUP, "tranStateTableOffset": half.fields["queueOffset"], "topic": TOPIC}
            fields |= {"commitLogOffset": str(int(half.fields["msgId"][16:], 16)), "fromTransactionCheck": "false"}
            fields |= {"commitOrRollback": str(int(outcome)), "msgId": outcome.name, "transactionId": outcome.name}
            assert self._line.call(END_TRANSACTION, fields).code == SUCCESS


def split(body: bytes) -> list[bytes]:
    records = []
    while body:
        (size,) = struct.unpack_from(">i", body)
        records.append(body[:size])
        body = body[size:]
    return records


# ----------------------------------------------------------------------------------------------------------- the test


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_store_folder_moves_to_apache_and_back(ours: NameServerProcess, tmp_path: Path, clean: bool) -> None:
    broker = ApacheBroker("store-broker", tmp_path / "broker", [ours.address], config=FILE_SIZES)
    folder = broker.home / "store"
    now_ms = int(time.time() * 1000) - 60_000
    store = MessageStore.open(folder, SETTINGS, now_ms=now_ms, is_batch_topic=lambda topic: topic == WHOLE)
    fill(store, encode_host("127.0.0.1", broker.port), now_ms)
    write_topics(folder)
    seen = look_into(store)
    rows = ("commitlog", "index", f"consumequeue/{TOPIC}/0", f"batchconsumequeue/{WHOLE}/0")
    assert min(len(list((folder / name).iterdir())) for name in rows) > 1
    if clean:
        store.close()
    else:
        store.flush()
        store.kill()
    with broker:
        with RawConnection(broker.address) as line:
            theirs = show_to_apache(Asked(line), seen)
        if clean:
            broker.stop()
        else:
            broker.kill()
    report = StoreCheck(folder, TABLES, damage_of, SETTINGS).run()
    assert report.findings == []
    check_what_came_back(folder, theirs, clean=clean)


def show_to_apache(apache: Asked, ours: Seen) -> Seen:
    """Apache finds what we wrote, as we find it; it then writes more. Returns what it holds at last."""
    theirs = apache.look_like(ours)
    assert theirs.records == ours.records
    assert theirs.by_time == ours.by_time
    assert_same_keys(theirs, ours)
    for offset in range(20):
        assert apache.next_offset(WHOLE, 0, offset) == next_offset(ours.records[WHOLE, 0], offset)
    for record in ours.records[TOPIC, 0][::10]:
        assert apache.at_position(struct.unpack_from(">q", record, 28)[0]) == record
    apache.fill()
    counts = {queue_id: len(ours.records[TOPIC, queue_id]) for queue_id in range(QUEUES)}
    wait_until(lambda: apache.max_offset(TOPIC, 2) >= counts[2] + 39, what="the batch is dispatched")
    wait_until(lambda: apache.max_offset(TOPIC, 1) >= counts[1] + 31, what="the commit is dispatched")
    wait_until(lambda: apache.max_offset(WHOLE, 1) == 9, what="the last whole batch is dispatched")
    asked = Seen({queue: [] for queue in (*ours.records, (WHOLE, 1))})
    asked.by_key = {(TOPIC, key): [] for key in ("every", "a7", "B3", "COMMITTED", "k4")}
    asked.by_key[WHOLE, "WHOLE"] = []
    asked.by_time = dict.fromkeys(ours.by_time, 0)
    return apache.look_like(asked)


def next_offset(records: list[bytes], offset: int) -> int:
    """Where to read on after the record that holds a message: behind the last message in it."""
    for message in decode_records(b"".join(records)):
        stop = message.queue_offset + int(message.properties.get("INNER_NUM", "1"))
        if message.queue_offset <= offset < stop:
            return stop
    raise AssertionError(f"no record holds {offset}")


def check_what_came_back(folder: Path, theirs: Seen, *, clean: bool) -> None:
    """Our store has all that Apache's broker had, and goes on from there."""
    now_ms = int(time.time() * 1000)
    store = MessageStore.open(folder, SETTINGS, now_ms=now_ms)
    assert store.recovered is not None
    assert store.recovered.was_clean is clean
    again = look_into(store, theirs)
    for (topic, queue_id), records in theirs.records.items():
        # Apache itself goes on writing about transactions until it ends.
        count = len(records) if topic == HALF_TOPIC else None
        assert again.records[topic, queue_id][:count] == records
    assert again.by_time == theirs.by_time
    assert_same_keys(again, theirs)
    bodies = [message.body for message in again.messages(TOPIC)]
    assert b"COMMITTED" in bodies
    assert b"ROLLED_BACK" not in bodies
    assert {b"batched %d" % number for number in range(9)} < set(bodies)
    (delayed,) = [message for message in again.messages(SCHEDULE_TOPIC) if message.body == b"delayed"]
    unit = store.unit(SCHEDULE_TOPIC, 17, delayed.queue_offset)
    assert unit is not None
    assert unit[2] == delayed.stored_at_ms + 7_200_000
    whole = theirs.records[WHOLE, 0]
    assert len(whole) == 202
    assert len(theirs.by_key[WHOLE, "WHOLE"]) == 1
    assert [
        (offset, store.read_queue(WHOLE, 0, offset, 1, 1).next_offset) for offset in range(store.max_offset(WHOLE, 0))
    ] == [(offset, next_offset(whole, offset)) for offset in range(store.max_offset(WHOLE, 0))]
    assert store.max_offset(WHOLE, 0) == 100 // 4 * 10 + 100 + 9 + 1
    again_whole = store.append_inner_batch(
        Draft(WHOLE, 1, encode_batch([BatchItem(b"x")]), b"", now_ms, BORN, BORN), 1, now_ms
    )
    assert again_whole.queue_offset == 9
    appended = store.append(Draft(TOPIC, 3, b"ours again", b"", now_ms, BORN, BORN), now_ms)
    assert appended.queue_offset == len(theirs.records[TOPIC, 3])
    store.close()


def assert_same_keys(left: Seen, right: Seen) -> None:
    """Both find the same by each key. Where there are more than 64, which of them is a matter of files."""
    assert left.by_key.keys() == right.by_key.keys()
    for key, records in left.by_key.items():
        assert len(records) == len(right.by_key[key]), key
        if len(records) < 64:
            assert records == right.by_key[key], key


def test_a_repaired_store_opens_in_apache(ours: NameServerProcess, tmp_path: Path) -> None:
    """Apache's broker walks over what stands for damaged bytes, and has every other record where it was."""
    broker = ApacheBroker("repaired-broker", tmp_path / "broker", [ours.address], config=FILE_SIZES)
    folder = tmp_path / "damaged"
    now_ms = int(time.time() * 1000) - 60_000
    store = MessageStore.open(folder, SETTINGS, now_ms=now_ms, is_batch_topic=lambda topic: topic == WHOLE)
    for turn in range(2):
        fill(store, encode_host("127.0.0.1", broker.port), now_ms + turn * 1_000)
    write_topics(folder)
    seen = look_into(store)
    store.close()
    lost = seen.records[TOPIC, 2][30]
    position = struct.unpack_from(">q", lost, 28)[0]
    path = folder / "commitlog" / f"{position // SETTINGS.log_segment_bytes * SETTINGS.log_segment_bytes:020d}"
    content = bytearray(path.read_bytes())
    content[position % SETTINGS.log_segment_bytes + 90] ^= 1
    path.write_bytes(content)
    missing = range(SETTINGS.log_segment_bytes, 2 * SETTINGS.log_segment_bytes)
    (folder / "commitlog" / f"{missing.start:020d}").unlink()
    repaired = Repair(folder, broker.home / "store", TABLES, damage_of, SETTINGS).run(now_ms + 60_000)
    assert repaired.lost_ranges == 2

    def is_kept(record: bytes) -> bool:
        return record != lost and struct.unpack_from(">q", record, 28)[0] not in missing

    with broker, RawConnection(broker.address) as line:
        asked = Asked(line)
        for (topic, queue_id), records in seen.records.items():
            for record in filter(is_kept, records):
                offset, at = struct.unpack_from(">qq", record, 20)
                assert asked.at_position(at) == record
                assert asked.record(topic, queue_id, offset) == record
            last_offset = struct.unpack_from(">q", records[-1], 20)[0]
            assert asked.max_offset(topic, queue_id) > last_offset
        for (topic, key), records in seen.by_key.items():
            assert asked.by_key(topic, key) == list(filter(is_kept, records))
