"""The consumer groups of a broker: their configuration, the topics they may not read, and the file of both."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from skyroute.broker.config import BrokerConfig
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.tables.config_table import ConfigTable, StoredConfigs, read_configs
from skyroute.broker.tables.table_format import Pieces, entry_pieces, read_as
from skyroute.message.errors import InvalidNameError
from skyroute.message.names import check_group
from skyroute.message.reserved_topics import PREDEFINED_GROUPS, is_system_group
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.groups import GroupConfig
from skyroute.wire.codes import ResponseCode

GROUPS_MAX: Final = 100_000
"""Groups of one broker; a consumer can create one by its first heartbeat."""

FORBIDDEN_MAX: Final = 100_000
"""Pairs of group and topic that may be forbidden."""

_READ_BIT: Final = 1 << 2
_TABLE: Final = "subscriptionGroupTable"
_FORBIDDEN: Final = "forbiddenTable"


class StoredGroups(NamedTuple):
    """The content of the file."""

    groups: StoredConfigs[GroupConfig]
    forbidden: dict[str, dict[str, int]]


def read_groups(raw: object) -> StoredGroups:
    """Parse the file of groups.

    Raises:
        StoreDamagedError: it is not a table of groups.
    """
    groups = read_configs(raw, GroupConfig, what="groups", table=_TABLE, name="groupName")
    forbidden = read_as(groups.others.pop(_FORBIDDEN, None) or {}, dict[str, dict[str, int]], _FORBIDDEN)
    return StoredGroups(groups, forbidden)


class Groups(ConfigTable[GroupConfig]):
    """The groups by name. A caller that changes one saves `table_file`."""

    def __init__(self, file: JsonFile, config: BrokerConfig, now_ms: Callable[[], int]) -> None:
        initial = {name: GroupConfig(name) for name in sorted(PREDEFINED_GROUPS)}
        super().__init__(file, initial, now_ms, what="groups", entries_max=GROUPS_MAX)
        self._config = config
        self._forbidden: dict[str, dict[str, int]] = {}
        """Bits by group and topic; only the read bit has a meaning."""

    def load(self) -> None:
        """Read the file.

        Raises:
            StoreDamagedError: neither the file nor its backup can be used.
        """
        stored = self.table_file.load(read_groups)
        if stored is not None:
            self._restore(stored.groups)
            self._forbidden = stored.forbidden

    def take_over(self, stored: StoredGroups) -> None:
        """Take over the table of a master.

        Raises:
            StoreDamagedError: it has too many entries; nothing has changed.
        """
        self.replace_all(stored.groups)
        self._forbidden = stored.forbidden

    def find(self, name: str) -> GroupConfig | None:
        """Return a group, created with defaults if it does not exist; None if it may not be created."""
        found = self._table.get(name)
        if found is not None or not self._may_create(name) or len(self._table) >= GROUPS_MAX:
            return found
        try:
            check_group(name)
        except InvalidNameError:
            return None
        created = GroupConfig(name)
        self._put(name, created)
        return created

    def _may_create(self, name: str) -> bool:
        config = self._config
        return config.auto_create_groups or (config.auto_create_system_groups and is_system_group(name))

    def put(self, config: GroupConfig) -> bool:
        """Create or replace a group; False if nothing changed.

        Raises:
            RefusedError: the table is full.
        """
        if self._table.get(config.name) == config:
            return False
        self._put(config.name, config)
        return True

    def delete(self, name: str) -> bool:
        """Remove a group and its forbidden topics; False if there was neither."""
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
        """Set whether a group may not read a topic; False if nothing changed.

        Raises:
            RefusedError: too many topics are forbidden.
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
        # The bits of other topics stay; Java drops them together with the last bit of one topic.
        if topics:
            self._forbidden[group] = topics
        else:
            self._forbidden.pop(group, None)
        self._changed()
        return True

    def forbidden(self) -> Mapping[str, Mapping[str, int]]:
        """Return the forbidden actions by group and topic: bit 2 is reading."""
        return MappingProxyType(self._forbidden)

    def pieces(self) -> Pieces:
        return self._object_pieces(_TABLE, **{_FORBIDDEN: entry_pieces(self._forbidden)})
