"""Key index files: a damaged file is removed, or searches end and find entries of the file only; keys can be added.

Input: the content of one index file with 4 slots and 8 entries; zeros follow.
"""

from struct import Struct
from typing import Final

from skyroute.broker.store.index.key_index import KeyIndex
from skyroute.broker.store.index.keys import key_hash
from tests.fuzz.scratch import empty_folder
from tests.support.disks import NOW_MS, NoSyncDisk

SLOTS: Final = 4
ENTRIES: Final = 8
HEADER_BYTES: Final = 40
ENTRY: Final = Struct(">iqii")
FILE_BYTES: Final = HEADER_BYTES + 4 * SLOTS + ENTRY.size * ENTRIES
EVER: Final = (-(1 << 62), 1 << 62)
KEYS: Final = ("a", "b", "Aa", "BB")


def check(data: bytes) -> None:
    content = data[:FILE_BYTES].ljust(FILE_BYTES, b"\0")
    folder = empty_folder()
    path = folder / "20260101000000000"
    path.write_bytes(content)
    index = KeyIndex(folder, SLOTS, ENTRIES, NoSyncDisk())
    index.load()
    try:
        in_file = [ENTRY.unpack_from(content, HEADER_BYTES + 4 * SLOTS + at * ENTRY.size) for at in range(ENTRIES)]
        for key in KEYS:
            wanted = key_hash("T", key.encode())
            found = index.find("T", key, 64, *EVER)
            assert set(found.positions) <= {entry[1] for entry in in_file if entry[0] == wanted}
            index.find("T", key, 1, NOW_MS, NOW_MS + 1)
        check_changes(index, data[0] if data else 0)
    finally:
        index.close()


def check_changes(index: KeyIndex, how: int) -> None:
    """Recovery truncates an index, and adds keys of the log to it."""
    end = index.end
    if how & 1 and index.files:
        index.truncate_torn(min(index.files[-1].count, how % ENTRIES + 1), end)
    else:
        index.truncate_to(max(end - (how >> 4), 0), slots_are_sound=bool(how & 2))
    position = index.end + 100
    keys = [(key_hash("T", key.encode()), position + at, NOW_MS + at) for at, key in enumerate(KEYS)]
    index.add(keys)
    assert not keys
    found = [index.find("T", key, 64, *EVER).positions for key in KEYS]
    assert all(position + at in each for at, each in enumerate(found))
    files = len(index.files)
    index.close()
    index.load()
    # A file whose entries are damaged may be removed now.
    assert len(index.files) < files or [index.find("T", key, 64, *EVER).positions for key in KEYS] == found
