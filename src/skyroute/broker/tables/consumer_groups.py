"""The consumer groups of a broker: their settings, what they may not read, and the file of both."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from skyroute.broker.config import BrokerConfig
from skyroute.broker.store.errors import StoreDamagedError
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.tables.table_file import TableFile
from skyroute.broker.tables.table_format import (
    entry_pieces,
    next_version,
    object_pieces,
    read_as,
    read_entries,
    read_version,
    unknown_members,
)
from skyroute.message.errors import InvalidNameError
from skyroute.message.names import check_group
from skyroute.message.reserved_topics import PREDEFINED_GROUPS, is_system_group
from skyroute.remoting.errors import RefusedError
from skyroute.routing.registration import DataVersion
from skyroute.wire.calls.groups import GroupConfig
from skyroute.wire.calls.topics import version_members
from skyroute.wire.codes import ResponseCode

GROUPS_MAX: Final = 100_000
"""How many groups a broker keeps; every consumer can make one by coming."""

FORBIDDEN_MAX: Final = 100_000
"""How many pairs of group and topic may be forbidden."""

_READ_BIT: Final = 1 << 2
_TABLE_MEMBERS: Final = frozenset({"subscriptionGroupTable", "forbiddenTable", "dataVersion"})


class StoredGroups(NamedTuple):
    """What the file of groups holds."""

    groups: dict[str, GroupConfig]
    forbidden: dict[str, dict[str, int]]
    unknown: dict[str, dict[str, Any]]
    """By group, JSON members that this broker does not know."""
    unknown_rest: dict[str, Any]
    version: DataVersion | None


def read_groups(raw: object) -> StoredGroups:
    """Parse the file of groups.

    Raises:
        StoreDamagedError: it is not a table of groups.
    """
    stored = read_as(raw, dict[str, Any], "the table of groups")
    groups, unknown = read_entries(stored, "subscriptionGroupTable", GroupConfig, "groupName")
    forbidden = read_as(stored.get("forbiddenTable") or {}, dict[str, dict[str, int]], "forbiddenTable")
    return StoredGroups(groups, forbidden, unknown, unknown_members(stored, _TABLE_MEMBERS), read_version(stored))


class Groups:
    """The groups by name. Whoever changes one has `table_file` save it."""

    def __init__(self, file: JsonFile, config: BrokerConfig, now_ms: Callable[[], int]) -> None:
        self._config = config
        self._now_ms = now_ms
        self._table = {name: GroupConfig(name) for name in sorted(PREDEFINED_GROUPS)}
        self._forbidden: dict[str, dict[str, int]] = {}
        """Group to topic to bits, of which only one has ever had a meaning."""
        self._unknown: dict[str, dict[str, Any]] = {}
        self._unknown_rest: dict[str, Any] = {}
        self.version = DataVersion(timestamp_ms=now_ms())
        self.table_file = TableFile(file, self.pieces)
        self.get: Callable[[str], GroupConfig | None] = self._table.get

    def __repr__(self) -> str:
        return f"<Groups {len(self._table)} version={self.version.counter}>"

    def load(self) -> None:
        """Read the file.

        Raises:
            StoreDamagedError: neither the file nor its backup can be used.
        """
        stored = self.table_file.load(read_groups)
        if stored is None:
            return
        self._table.update(stored.groups)
        if len(self._table) > GROUPS_MAX:
            raise StoreDamagedError(f"the table of groups has more than {GROUPS_MAX}")
        self._forbidden = stored.forbidden
        self._unknown = stored.unknown
        self._unknown_rest = stored.unknown_rest
        self.version = stored.version or self.version

    def all(self) -> Mapping[str, GroupConfig]:
        """Return all groups, as they are at any time."""
        return MappingProxyType(self._table)

    def find(self, name: str) -> GroupConfig | None:
        """Return a group, made with default settings if it is not there; None if it may not be made."""
        found = self._table.get(name)
        if found is not None or not self._may_be_made(name):
            return found
        try:
            check_group(name)
        except InvalidNameError:
            return None
        if len(self._table) >= GROUPS_MAX:
            return None
        created = self._table[name] = GroupConfig(name)
        self._changed()
        return created

    def _may_be_made(self, name: str) -> bool:
        config = self._config
        return config.auto_create_groups or (config.auto_create_system_groups and is_system_group(name))

    def put(self, config: GroupConfig) -> bool:
        """Create or replace a group; False if it was the same before.

        Raises:
            RefusedError: there is no room for one more.
        """
        before = self._table.get(config.name)
        if before == config:
            return False
        if before is None and len(self._table) >= GROUPS_MAX:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"this broker has {GROUPS_MAX} groups, and takes no more")
        self._table[config.name] = config
        self._changed()
        return True

    def delete(self, name: str) -> bool:
        """Forget a group and what it may not read; False if there was none."""
        self._unknown.pop(name, None)
        forbidden = self._forbidden.pop(name, None)
        if self._table.pop(name, None) is None and forbidden is None:
            return False
        self._changed()
        return True

    def is_forbidden(self, group: str, topic: str) -> bool:
        """Return whether a group may not read a topic."""
        if not self._forbidden:
            return False
        return bool(self._forbidden.get(group, {}).get(topic, 0) & _READ_BIT)

    def set_forbidden(self, group: str, topic: str, *, forbidden: bool) -> bool:
        """Say whether a group may read a topic; False if it was so before.

        Raises:
            RefusedError: there is no room for one more.
        """
        if self.is_forbidden(group, topic) == forbidden:
            return False
        if forbidden and sum(map(len, self._forbidden.values())) >= FORBIDDEN_MAX:
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR, f"this broker forbids {FORBIDDEN_MAX} topics, and takes no more"
            )
        bits = self._forbidden.get(group, {}).get(topic, 0) ^ _READ_BIT
        topics = {name: value for name, value in self._forbidden.get(group, {}).items() if name != topic}
        if bits:
            topics[topic] = bits
        # The bits of other topics stay; Java drops them with the last bit of any.
        if topics:
            self._forbidden[group] = topics
        else:
            self._forbidden.pop(group, None)
        self._changed()
        return True

    def forbidden(self) -> Mapping[str, Mapping[str, int]]:
        """Return, by group and topic, what may not be done: bit 2 says that it may not be read."""
        return MappingProxyType(self._forbidden)

    def _changed(self) -> None:
        self.version = next_version(self.version, self._now_ms())
        self.table_file.touch()

    def pieces(self) -> Iterator[bytes]:
        """Return the table as its file holds it, in pieces, all of one data version."""
        return object_pieces(
            {**self._unknown_rest, "dataVersion": version_members(self.version)},
            {
                "forbiddenTable": entry_pieces(self._forbidden),
                "subscriptionGroupTable": entry_pieces(self._table, self._unknown),
            },
        )
