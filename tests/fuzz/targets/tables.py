"""JSON tables of the broker and name server: any content is refused as damaged, or read.

Input: a byte that chooses the table, then the content of its file.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

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
)


def check(data: bytes) -> None:
    which, content = (data[0], data[1:]) if data else (0, b"")
    path = empty_folder() / "table.json"
    path.write_bytes(content)
    with suppress(StoreDamagedError, ConfigError, UsersError, OffsetFileError):
        READERS[which % len(READERS)](path)
