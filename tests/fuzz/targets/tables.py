"""JSON tables of broker, name server and controller: any content is refused as damaged, or read.

Input: a byte that chooses the table, then the content of its file.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from skyroute.broker.pop.ordered_queues import read_ordered_queues
from skyroute.broker.scheduling.delay_levels import read_delay_offsets
from skyroute.broker.store.errors import StoreDamagedError
from skyroute.broker.store.files.json_file import read_json
from skyroute.broker.store.recovery.damage import DamageFile
from skyroute.broker.tables.consumer_groups import read_groups
from skyroute.broker.tables.consumer_offsets import read_offsets
from skyroute.broker.tables.request_modes import read_request_modes
from skyroute.broker.tables.topics import read_topics
from skyroute.client.consuming.offset_store import OffsetFileError, _from_file
from skyroute.console.access.users import read_users
from skyroute.console.errors import UsersError
from skyroute.controller.change_log import HALF_BYTES, read_log
from skyroute.controller.errors import DamagedStateError
from skyroute.controller.file_store import _decode, _decode_changes
from skyroute.nameserver.kv_config import KvConfig
from skyroute.settings.errors import ConfigError
from tests.fuzz.scratch import empty_folder
from tests.support.disks import NoSyncDisk


def table(read: Callable[[Any], object]) -> Callable[[Path], object]:
    return lambda path: read_json(path, read)


def load_damage(path: Path) -> object:
    path.rename(path.with_name("damage.json"))
    files = DamageFile(path.parent, NoSyncDisk())
    report = files.load()
    files.save(report)
    return report


def load_ordered_queues(path: Path) -> object:
    queues = table(read_ordered_queues)(path)
    assert isinstance(queues, dict)
    for states in queues.values():
        for state in states.values():
            state.blocked_until_ms()
            assert state.next_offset() >= 0
    return queues


def load_controller_state(path: Path) -> object:
    return _decode(path.read_bytes(), path)


def load_controller_log(path: Path) -> object:
    content = path.read_bytes()[:HALF_BYTES]
    path.write_bytes(content.ljust(HALF_BYTES, b"\0") * 2)
    return [_decode_changes(change, path) for change in read_log(path, 1)]


READERS: Final[tuple[Callable[[Path], object], ...]] = (
    table(read_topics),
    table(read_groups),
    table(read_offsets),
    table(read_request_modes),
    table(read_delay_offsets),
    load_damage,
    lambda path: KvConfig(path).load(),
    read_users,
    _from_file,
    load_ordered_queues,
    load_controller_state,
    load_controller_log,
)


def check(data: bytes) -> None:
    which, content = (data[0], data[1:]) if data else (0, b"")
    path = empty_folder() / "table.json"
    path.write_bytes(content)
    with suppress(StoreDamagedError, ConfigError, UsersError, OffsetFileError, DamagedStateError):
        READERS[which % len(READERS)](path)
