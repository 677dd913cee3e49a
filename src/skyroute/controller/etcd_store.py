"""Keeps the state of groups in etcd, one key per group. Needs `skyroute[etcd]`.

Every write is a transaction: the group has the revision that was read, and the leader's key is still the one of this
controller. While it leads, a controller is the only writer, so it reads from memory.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from aetcd import transactions

from skyroute.controller.errors import DamagedStateError, Refusal, RequestRefusedError, StoreConflictError
from skyroute.controller.etcd_client import EtcdClient
from skyroute.controller.state import GroupState
from skyroute.controller.store import StateSizes, StoredGroup

log = logging.getLogger(__name__)

FORMAT: Final = 1
"""Version of a value's content."""


class _Value(msgspec.Struct, forbid_unknown_fields=True):
    format: int
    group: GroupState


class EtcdStore:
    """A `GroupStore` in etcd. `lead` and `resign` say when this controller may write."""

    def __init__(self, client: EtcdClient, prefix: str) -> None:
        self._client = client
        self._prefix = f"{prefix.rstrip('/')}/groups/".encode()
        self.leader_key: Final = f"{prefix.rstrip('/')}/leader".encode()
        self._groups: dict[str, StoredGroup] = {}
        self._sizes = StateSizes()
        self._writing: dict[str, asyncio.Future[None]] = {}
        """Ends of writes under way, by broker name."""
        self._fence: int | None = None
        """Create revision of the leader's key; None: this controller does not lead."""

    def __repr__(self) -> str:
        return f"<EtcdStore {self._prefix.decode()} groups={len(self._groups)}>"

    async def open(self) -> None:
        """Do nothing: groups are read when this controller becomes the leader."""

    async def lead(self, fence: int) -> None:
        """Read all groups; from now on this controller writes. `fence` is the create revision of the leader's key.

        Raises:
            StoreUnavailableError: etcd does not respond.
            DamagedStateError: a value cannot be read.
        """
        found = await self._client.call(lambda client: client.get_prefix(self._prefix))
        groups, sizes = {}, StateSizes()
        for entry in found:
            group = self._decode(entry)
            groups[group.state.broker_name] = group
            sizes.note(group.state.broker_name, len(entry.value))
        self._groups, self._sizes = groups, sizes
        self._fence = fence

    def resign(self) -> None:
        """Refuse writes: this controller leads no more."""
        self._fence = None

    def find(self, broker_name: str) -> StoredGroup | None:
        return self._groups.get(broker_name)

    def groups(self) -> Mapping[str, StoredGroup]:
        return self._groups

    async def replace(self, state: GroupState, revision: int) -> None:
        """Store the new state of a group if it has this revision and this controller still leads.

        Raises:
            StoreConflictError: the group has another revision.
            RequestRefusedError: another controller leads, or there are too many groups, or they are too large.
            StoreUnavailableError: etcd does not respond, or has no space left.
        """
        name = state.broker_name
        under_way = self._writing.get(name)
        if under_way is not None:
            await asyncio.wait({under_way})
            raise StoreConflictError(f"broker group {name} has another change under way")
        async with self._only_writer(name):
            stored = self._groups.get(name)
            if (0 if stored is None else stored.revision) != revision:
                raise StoreConflictError(f"broker group {name} has changed")
            if not await self._put(state, revision):
                raise StoreConflictError(f"broker group {name} has changed in etcd")

    async def settle(self, broker_name: str) -> StoredGroup | None:
        """Write what is known of a group again: its new revision refuses every earlier write that is still under way.

        Raises:
            RequestRefusedError: another controller leads.
            StoreUnavailableError: etcd does not respond, or has no space left.
        """
        while (under_way := self._writing.get(broker_name)) is not None:
            await asyncio.wait({under_way})
        async with self._only_writer(broker_name):
            stored = self._groups.get(broker_name)
            # A group that is not known has no state to write: its first id is granted again, with the same check code.
            if stored is not None:
                await self._put(stored.state, stored.revision)
        return self._groups.get(broker_name)

    @asynccontextmanager
    async def _only_writer(self, name: str) -> AsyncIterator[None]:
        self._writing[name] = done = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._writing[name]
            done.set_result(None)

    async def _put(self, state: GroupState, revision: int) -> bool:
        """Store a state if the group has this revision; return whether it is stored now. What was found is kept."""
        name, fence = state.broker_name, self._fence
        if fence is None:
            raise RequestRefusedError(Refusal.NOT_LEADER, "this controller does not lead any more")
        key, value = self._prefix + name.encode(), msgspec.json.encode(_Value(FORMAT, state))
        known, sizes = self._groups.get(name), self._sizes
        sizes.check(None if known is None else known.state, state, len(value))
        size = sizes.note(name, len(value))
        try:
            done, responses = await self._client.call(
                lambda client: client.transaction(
                    compare=[
                        transactions.Create(self.leader_key) == fence,
                        transactions.Mod(key) == revision,
                    ],
                    success=[transactions.Put(key, value)],
                    failure=[transactions.Get(self.leader_key), transactions.Get(key)],
                )
            )
        except BaseException:
            sizes.note(name, size)
            raise
        if done:
            self._groups[name] = StoredGroup(state, responses[0].response_put.header.revision)
            return True
        leader, found = responses
        sizes.note(name, len(found[0][0]) if found else 0)
        if not leader or leader[0][1].create_revision != fence:
            self._fence = None
            raise RequestRefusedError(Refusal.NOT_LEADER, "another controller leads")
        if found:
            self._groups[name] = self._decode(found[0][1])
        # Equal values: an earlier try of this transaction was carried out, and its response was lost.
        return bool(found) and found[0][0] == value

    def _decode(self, entry: Any) -> StoredGroup:
        try:
            value = msgspec.json.decode(entry.value, type=_Value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DamagedStateError(f"the value of {entry.key!r} in etcd is damaged: {error}") from None
        if value.format != FORMAT:
            raise DamagedStateError(f"{entry.key!r} in etcd has format {value.format} (expected {FORMAT})")
        return StoredGroup(value.group, entry.mod_revision)

    async def close(self) -> None:
        await self._client.close()
