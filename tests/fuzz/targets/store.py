"""A whole store with several damages: it opens, reads end, and it takes messages; the next start finds the same.

Input: damages. Each is a byte for the file, one for the kind, two for the place, and eight bytes that replace others.
"""

import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from skyroute.broker.scheduling.timer_check import damage_of
from skyroute.broker.store.errors import StoreDamagedError
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.verification.verify import StoreCheck
from skyroute.broker.table_readers import TABLES
from tests.fuzz.scratch import empty_folder
from tests.support.damage import fill_store, open_store
from tests.support.disks import NOW_MS, SMALL, draft
from tests.support.single_damage import Files, Kept, read_folder, read_store, write_files

DAMAGE_BYTES: Final = 12
DAMAGES_MAX: Final = 6
MESSAGES: Final = 24


@cache
def base(*, is_closed: bool) -> Files:
    """Return the files of a store that was closed, or whose process died."""
    folder = Path(tempfile.mkdtemp(prefix="skyroute-fuzz-base-"))
    try:
        fill_store(folder, count=MESSAGES, close=is_closed)
        return read_folder(folder)
    finally:
        shutil.rmtree(folder)


def damaged(data: bytes) -> Files:
    files = dict(base(is_closed=bool(data and data[0] & 1)))
    names = sorted(name for name in files if not name.startswith("config/"))
    for at in range(1, min(len(data), DAMAGES_MAX * DAMAGE_BYTES), DAMAGE_BYTES):
        damage = data[at : at + DAMAGE_BYTES].ljust(DAMAGE_BYTES, b"\0")
        name = names[damage[0] % len(names)]
        if name not in files:
            continue
        content = files[name]
        place = int.from_bytes(damage[2:4], "big") % (len(content) or 1)
        match damage[1] % 8:
            case 0:
                del files[name]
            case 1:
                files[name] = content[:place]
            case 2:
                files[name] = bytes(len(content))
            case kind:
                width = min(kind, 8)
                files[name] = (content[:place] + damage[4 : 4 + width] + content[place + width :])[: len(content)]
    return files


def check(data: bytes) -> None:
    folder = empty_folder()
    write_files(damaged(data), folder)
    StoreCheck(folder, TABLES, damage_of, SMALL).run()
    try:
        store = open_store(folder)
    except StoreDamagedError:
        return  # sizes that belong to other settings
    kept = use(store)
    ends = {(topic, id_): store.max_offset(topic, id_) for topic in store.topics() for id_ in store.queue_ids(topic)}
    if data and data[0] & 2:
        store.close()
    else:
        store.kill()
    again = open_store(folder)
    found = {key(each): each.record for each in read_store(again)}
    for each in kept:
        assert found.get(key(each)) == each.record, key(each)
    assert (
        ends.items()
        <= {
            (topic, id_): again.max_offset(topic, id_) for topic in again.topics() for id_ in again.queue_ids(topic)
        }.items()
    )
    again.close()


def key(message: Kept) -> tuple[str, int, int, int]:
    return message.topic, message.queue_id, message.offset, message.position


def use(store: MessageStore) -> list[Kept]:
    """Read and search everything, and append; return all messages."""
    for number in range(0, MESSAGES, 5):
        store.find_by_key("T", f"k{number}", 8, 0, 1 << 60)
    for topic in store.topics():
        for queue_id in store.queue_ids(topic):
            store.min_offset(topic, queue_id)
            store.offset_at(topic, queue_id, NOW_MS)
    appended = [store.append(draft("T", 0, b"new %d" % number, {"KEYS": "new"}), NOW_MS) for number in range(3)]
    kept = read_store(store)
    positions = {each.position for each in kept}
    assert {each.log_position for each in appended} <= positions
    assert {each.log_position for each in appended} <= set(store.find_by_key("T", "new", 64, 0, 1 << 60).positions)
    return kept
