"""Elects the leading controller by a key in etcd that belongs to a lease. Needs `skyroute[etcd]`.

A leader renews its lease and stops leading before the lease can end, so that two controllers never lead at once. Writes
are fenced besides: see `etcd_store`.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from aetcd import transactions

from skyroute.clock import Clock
from skyroute.controller.errors import DamagedStateError, StoreUnavailableError
from skyroute.controller.etcd_client import EtcdClient
from skyroute.controller.etcd_store import EtcdStore

log = logging.getLogger(__name__)

POLL_S: Final = 0.5
"""How often a controller looks for the leader, and tries again after an error."""
RENEWALS: Final = 4
"""Renewals of the lease in its time."""
MARGIN: Final = 0.2
"""Share of the lease by which a leader stops before its end: clocks of machines run at different rates."""


class _Leader(msgspec.Struct, frozen=True):
    id: str
    address: str


_NOBODY: Final = _Leader("", "")


@dataclass(slots=True)
class EtcdLeadership:
    """One controller of several that share an etcd cluster."""

    group: str
    self_id: str
    address: str
    """Address of this controller for brokers."""
    peers: Mapping[str, str]
    store: EtcdStore
    client: EtcdClient
    clock: Clock
    lease_s: int
    on_gained: Callable[[], None]
    """Called when this controller becomes the leader."""
    _lease: Any = None
    _leads_until: float | None = None
    """Monotonic time at which this controller stops leading unless it renews its lease; None: it does not lead."""
    _known: _Leader = _NOBODY
    _is_failing: bool = field(default=False, init=False)

    @property
    def is_leader(self) -> bool:
        return self._leads_until is not None and self.clock.monotonic() < self._leads_until

    @property
    def leader_id(self) -> str:
        return self.self_id if self.is_leader else self._known.id

    @property
    def leader_address(self) -> str:
        return self.address if self.is_leader else self._known.address

    async def run(self) -> None:
        while True:
            try:
                pause_s = await self._step()
                self._note_success()
            except (StoreUnavailableError, DamagedStateError) as error:
                self._note_failure(error)
                pause_s = POLL_S
            if self._leads_until is not None and not self.is_leader:
                await self._lose("the lease could not be renewed in time")
            await asyncio.sleep(pause_s)

    async def _step(self) -> float:
        """Renew the lease, or look for a leader and become it if there is none; return the pause after it."""
        if self._leads_until is not None:
            return await self._renew()
        found = await self.client.call(lambda client: client.get(self.store.leader_key))
        if found is None:
            return await self._campaign()
        self._note_leader(found.value)
        return POLL_S

    def _note_leader(self, value: bytes) -> None:
        try:
            leader = msgspec.json.decode(value, type=_Leader)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise DamagedStateError(f"the value of {self.store.leader_key!r} in etcd is damaged: {error}") from None
        if leader != self._known:
            log.info("leading controller id=%s address=%s", leader.id, leader.address)
            self._known = leader

    async def _campaign(self) -> float:
        self._known = _NOBODY
        began = self.clock.monotonic()
        self._lease = lease = await self.client.call(lambda client: client.lease(self.lease_s))
        value = msgspec.json.encode(_Leader(self.self_id, self.address))
        try:
            won, responses = await self.client.call(
                lambda client: client.transaction(
                    compare=[transactions.Create(self.store.leader_key) == 0],
                    success=[transactions.Put(self.store.leader_key, value, lease.id)],
                    failure=[],
                )
            )
            if won:
                await self.store.lead(responses[0].response_put.header.revision)
        except BaseException:
            await self._revoke()  # the key may be there, and would keep the others waiting
            raise
        if not won:
            await self._revoke()
            return 0.0
        self._leads_until = began + lease.ttl * (1 - MARGIN)
        log.info("controller leads id=%s groups=%d", self.self_id, len(self.store.groups()))
        self.on_gained()
        return self.lease_s / RENEWALS

    async def _renew(self) -> float:
        began = self.clock.monotonic()
        lease = self._lease
        reply = await self.client.call(lambda client: client.refresh_lease(lease.id))
        if reply is None or reply.TTL <= 0:
            await self._lose("the lease has ended")
            return 0.0
        self._leads_until = began + reply.TTL * (1 - MARGIN)
        return self.lease_s / RENEWALS

    async def _lose(self, reason: str) -> None:
        log.warning("controller leads no more id=%s reason=%s", self.self_id, reason)
        self._leads_until = None
        self.store.resign()
        self._known = _NOBODY
        await self._revoke()

    async def _revoke(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            with suppress(StoreUnavailableError):  # it expires
                await self.client.call(lambda client: client.revoke_lease(lease.id))

    async def resign(self) -> None:
        self._leads_until = None
        self.store.resign()
        await self._revoke()

    def _note_failure(self, error: Exception) -> None:
        if not self._is_failing:
            self._is_failing = True
            log.warning("etcd failed, tried again every %.1f s reason=%s", POLL_S, error)

    def _note_success(self) -> None:
        if self._is_failing:
            self._is_failing = False
            log.info("etcd works again")
