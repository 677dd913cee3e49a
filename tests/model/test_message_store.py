"""The store against a slow and obvious model: lists of bodies, through crashes, restarts, deletions and expiry."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.queues.queue_read import ReadStatus
from skyroute.message.batch import BatchItem, encode_batch, unwrap_batches
from skyroute.message.flags import TransactionState
from skyroute.message.message import StoredMessage
from skyroute.message.properties import encode_properties
from skyroute.message.record import decode_records
from skyroute.message.tags import tag_code
from tests.support.disks import NOW_MS, NoSyncDisk, RestartedMachineDisk, draft, read_all, small_store

WHOLE = "Whole"
"""The topic that keeps batches whole."""
TOPICS = st.sampled_from(["T", WHOLE, "%RETRY%G"])
QUEUE_IDS = st.integers(0, 1)
BODIES = st.binary(max_size=40) | st.builds(
    lambda byte, size: bytes([byte]) * size, st.integers(0, 255), st.integers(0, 1500)
)
TAGS = st.sampled_from(["", "A", "B"])


class StoreMachine(RuleBasedStateMachine):
    """What was stored is there, in order, until it expires."""

    @initialize(sync_flush=st.booleans(), index=st.booleans())
    def begin(self, sync_flush: bool, index: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="store-model-"))
        self.options = {"sync_flush": sync_flush, "index_enabled": index, "open_segments_max": 6}
        self.now_ms = NOW_MS
        self.number = 0
        self.queues: dict[tuple[str, int], list[tuple[bytes, str, int, str]]] = {}
        self.store = self.open(NoSyncDisk())

    def open(self, disk: NoSyncDisk) -> MessageStore:
        sync_flush, index, open_max = self.options.values()
        return small_store(
            self.folder,
            disk,
            now_ms=self.now_ms,
            sync_flush=bool(sync_flush),
            index_enabled=bool(index),
            open_segments_max=int(open_max),
            is_batch_topic=lambda topic: topic == WHOLE,
        )

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.kill()
            shutil.rmtree(self.folder)

    def properties(self, tag: str) -> dict[str, str]:
        self.number += 1
        return {"UNIQ_KEY": f"{self.number:032X}", **({"TAGS": tag} if tag else {})}

    @rule(topic=TOPICS, queue_id=QUEUE_IDS, body=BODIES, tag=TAGS, state=st.sampled_from(TransactionState))
    def append(self, topic: str, queue_id: int, body: bytes, tag: str, state: TransactionState) -> None:
        properties = self.properties(tag)
        appended = self.store.append(draft(topic, queue_id, body, properties, sys_flag=int(state)), self.now_ms)
        if state in (TransactionState.NONE, TransactionState.COMMITTED):
            queue = self.queues.setdefault((topic, queue_id), [])
            assert appended.queue_offset == len(queue)
            queue.append((body, tag, self.now_ms, properties["UNIQ_KEY"]))

    @rule(topic=TOPICS, queue_id=QUEUE_IDS, bodies=st.lists(st.binary(max_size=60), min_size=1, max_size=15), tag=TAGS)
    def append_batch(self, topic: str, queue_id: int, bodies: list[bytes], tag: str) -> None:
        named = [self.properties(tag) for _ in bodies]
        items = [BatchItem(body, encode_properties(each)) for body, each in zip(bodies, named, strict=True)]
        appended = self.store.append_batch(draft(topic, queue_id), items, self.now_ms)
        queue = self.queues.setdefault((topic, queue_id), [])
        assert (appended.queue_offset, len(appended.log_positions)) == (len(queue), len(items))
        queue += [(body, tag, self.now_ms, each["UNIQ_KEY"]) for body, each in zip(bodies, named, strict=True)]

    @rule(queue_id=QUEUE_IDS, bodies=st.lists(st.binary(max_size=60), min_size=1, max_size=15), tag=TAGS)
    def append_inner_batch(self, queue_id: int, bodies: list[bytes], tag: str) -> None:
        properties = self.properties(tag)
        body = encode_batch(
            [BatchItem(each, encode_properties({"UNIQ_KEY": properties["UNIQ_KEY"]})) for each in bodies]
        )
        appended = self.store.append_inner_batch(draft(WHOLE, queue_id, body, properties), len(bodies), self.now_ms)
        queue = self.queues.setdefault((WHOLE, queue_id), [])
        assert appended.queue_offset == len(queue)
        queue += [(each, tag, self.now_ms, properties["UNIQ_KEY"]) for each in bodies]

    @rule(by_ms=st.integers(1, 5_000))
    def wait(self, by_ms: int) -> None:
        self.now_ms += by_ms

    @rule(thorough=st.booleans())
    def flush(self, thorough: bool) -> None:
        self.store.flush(thorough=thorough)

    @rule()
    def derive(self) -> None:
        self.store.dispatch()

    @rule(how=st.sampled_from(["closed", "died", "machine stopped"]))
    def restart(self, how: str) -> None:
        if how == "closed":
            self.store.close()
        else:
            self.store.kill()
        self.store = self.open(RestartedMachineDisk() if how == "machine stopped" else NoSyncDisk())
        self.check_all()

    @rule(topic=TOPICS)
    def delete(self, topic: str) -> None:
        # A machine that stops right after would bring back what the log still has; the broker deletes it again then.
        self.store.delete_topic(topic)
        self.queues = {queue: messages for queue, messages in self.queues.items() if queue[0] != topic}
        for queue_id in range(2):
            self.append(topic, queue_id, b"made again", "", TransactionState.NONE)

    @rule(full=st.booleans())
    def expire(self, full: bool) -> None:
        self.store.flush()
        kept_before = self.store.max_position - self.store.min_position
        self.store.delete_expired(self.now_ms, is_due=True, disk_used=0.88 if full else 0.1)
        if full:
            assert self.store.max_position - self.store.min_position <= max(4096, kept_before - 10 * 4096)

    @precondition(lambda self: any(self.queues.values()))
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        self.show_all()
        queue = data.draw(st.sampled_from([queue for queue, messages in self.queues.items() if messages]))
        messages = self.queues[queue]
        low, high = self.store.min_offset(*queue), len(messages)
        offset = data.draw(st.integers(-1, high + 1))
        count = data.draw(st.integers(1, 12))
        tag = data.draw(TAGS)
        code = tag_code(tag)
        read = self.store.read_queue(*queue, offset, count, 1 << 20, lambda found: found == code)
        if offset < low:
            assert (read.status, read.next_offset) == (ReadStatus.TOO_SMALL, low)
        elif offset >= high:
            status = ReadStatus.AT_END if offset == high else ReadStatus.BEYOND_END
            assert (read.status, read.next_offset) == (status, high)
        else:
            found = unwrap_batches(decode_records(b"".join(read.chunks)))
            # Of a batch that is one record, also those before the one that was asked for.
            first = min([offset, *(message.queue_offset for message in found)])
            # A batch record without a tag may hold any: the client compares those of its messages.
            tags = {tag, ""} if queue[0] == WHOLE else {tag}
            wanted = [body for body, its_tag, *_ in messages[first : read.next_offset] if its_tag in tags]
            assert [message.body for message in found] == (wanted if queue[0] == WHOLE else wanted[:count])
            assert read.message_count == len(found)
            assert read.status is (ReadStatus.FOUND if found else ReadStatus.NO_MATCH)
            assert read.next_offset > offset
        at_ms = data.draw(st.integers(NOW_MS - 1, self.now_ms + 1))
        times = [(at, offset) for offset, (_, _, at, _) in enumerate(messages) if offset >= low]
        assert self.store.offset_at(*queue, at_ms) == next((offset for at, offset in times if at >= at_ms), high)
        last = [offset for at, offset in times if at <= at_ms]
        assert self.store.offset_at(*queue, at_ms, upper=True) == (last[-1] if last else low)

    def show_all(self) -> None:
        if self.options["sync_flush"]:
            self.store.flush()

    @invariant()
    def bounds_hold(self) -> None:
        if hasattr(self, "store") and not self.options["sync_flush"]:
            for queue, messages in self.queues.items():
                assert self.store.max_offset(*queue) == len(messages)
                assert self.store.min_offset(*queue) <= len(messages)

    def check_all(self) -> None:
        for queue, messages in self.queues.items():
            low = self.store.min_offset(*queue)
            found = unwrap_batches(read_all(self.store, *queue))
            assert [message.body for message in found] == [body for body, *_ in messages[low:]]
            assert [message.queue_offset for message in found] == list(range(low, len(messages)))
            if self.options["index_enabled"]:
                self.check_keys(found)

    def check_keys(self, found: list[StoredMessage]) -> None:
        for message in found[::5]:
            key = message.unique_id or ""
            assert message.log_position in self.store.find_by_key(message.topic, key, 64, 0, NOW_MS * 2).positions


TestMessageStore = StoreMachine.TestCase
TestMessageStore.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
