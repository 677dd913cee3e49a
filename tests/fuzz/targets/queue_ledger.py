"""The queue ledger: damaged content is ignored, and what is read survives encoding.

Input: entries. Each is the length of the topic, a byte for kind and damage, the topic, and 28 bytes of numbers.
"""

from struct import Struct
from typing import Final
from zlib import crc32

from skyroute.broker.store.queues.queue_ledger import QueueLedger, encode_ledger
from tests.fuzz.scratch import empty_folder
from tests.support.disks import NoSyncDisk

ENTRY: Final = Struct(">BHi")
MARK: Final = b"skyroute queues1"
NUMBERS_BYTES: Final = 28


def content_of(data: bytes) -> bytes:
    content, at = bytearray(MARK), 0
    while at + 2 <= len(data):
        length, kind = data[at] % 16, data[at + 1]
        topic = data[at + 2 : at + 2 + length]
        numbers = data[at + 2 + length : at + 2 + length + NUMBERS_BYTES].ljust(NUMBERS_BYTES, b"\0")
        rest = ENTRY.pack(kind & 3, len(topic), int.from_bytes(numbers[:4], "big", signed=True)) + topic
        content += (crc32(rest) ^ (kind >> 6 & 1)).to_bytes(4, "big") + rest
        content += numbers[4:] + (crc32(numbers[4:], 1) ^ (kind >> 7)).to_bytes(4, "big")
        at += 2 + length + NUMBERS_BYTES
    return bytes(content + data[at:])


def check(data: bytes) -> None:
    path = empty_folder() / "queues"
    path.write_bytes(content_of(data))
    known = QueueLedger(path, NoSyncDisk()).read()
    if (
        known is None
        or any("\ufffd" in topic for topic, _ in known.queues)
        or any("\ufffd" in t for t in known.deleted)
    ):
        return
    path.write_bytes(encode_ledger(known))
    again = QueueLedger(path, NoSyncDisk()).read()
    assert again == known
