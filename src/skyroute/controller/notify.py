"""Notifies brokers of a new master, so that they need not wait for their next query."""

import asyncio
import logging
import ssl
from collections.abc import Collection, Iterable
from typing import Final

from skyroute.controller.events import GroupEvent, MasterElected
from skyroute.controller.rules import master_of, sync_state
from skyroute.controller.state import GroupState
from skyroute.remoting.client import Channel, connect
from skyroute.remoting.errors import RemotingError
from skyroute.remoting.signing import Signer
from skyroute.wire.calls.controller_responses import MasterFields, SyncStateFields, encode_role_change
from skyroute.wire.command import Request

log = logging.getLogger(__name__)

BROKERS_MAX: Final = 10_000
"""Brokers that are notified at the same time; notices to more are dropped, because brokers also ask every 5 s."""

TRIES: Final = 2
"""How often a notice is sent if the connection fails."""

FOLLOWER_DELAY_S: Final = 1.0
"""How much later than the masters other replicas are notified.

They ask a name server where to replicate from. Asked before the new master has registered, it names the old one, and
Apache's brokers stay with that for as long as it lives.
"""

RETRY_S: Final = 0.5
"""Pause between them."""

PREPARED_S: Final = 5.0
"""How long a connection waits for the notice it was opened for."""


class Notifier:
    """Sends the newest notice to each broker over a connection of its own. A slow broker delays no other one."""

    def __init__(self, *, connect_timeout_s: float, tls: ssl.SSLContext | None, signer: Signer | None = None) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._tls = tls
        self._signer = signer
        self._sending: dict[str, asyncio.Task[None]] = {}
        """The task that sends the newest notice, by address."""
        self._prepared: dict[str, asyncio.Task[Channel]] = {}
        """Connections without a notice yet, by address."""

    def prepare(self, addresses: Iterable[str]) -> None:
        """Connect to brokers that are likely to get a notice, while their election is being stored."""
        loop = asyncio.get_running_loop()
        for address in addresses:
            if address not in self._prepared and len(self._prepared) < BROKERS_MAX:
                self._prepared[address] = task = loop.create_task(self._connect(address))
                loop.call_later(PREPARED_S, self._drop, address, task)

    def _drop(self, address: str, task: asyncio.Task[Channel]) -> None:
        if self._prepared.get(address) is task:
            del self._prepared[address]
            task.add_done_callback(_close)
            task.cancel()

    async def _connect(self, address: str) -> Channel:
        return await connect(address, tls=self._tls, timeout_s=self._connect_timeout_s, signer=self._signer)

    def put(self, events: Collection[GroupEvent], group: GroupState, living: Iterable[int]) -> None:
        """Notify the living replicas of a group if these changes gave it a new master."""
        elected = next((event for event in events if isinstance(event, MasterElected)), None)
        if elected is None:
            return
        master, sync = master_of(group), sync_state(group)
        notice = encode_role_change(
            MasterFields(master.broker_id, master.address, master.master_epoch, master.sync_set_epoch),
            SyncStateFields(sync.members, sync.epoch),
        )
        for broker_id in sorted(living):
            address = group.address_of(broker_id)
            if address is not None:
                is_master = broker_id in (elected.master, elected.previous)
                self._send(address, notice, 0.0 if is_master else FOLLOWER_DELAY_S)

    def _send(self, address: str, notice: Request, delay_s: float) -> None:
        older = self._sending.get(address)
        if older is not None:
            older.cancel()
        elif len(self._sending) >= BROKERS_MAX:
            log.warning("role notice dropped broker=%s reason=%d brokers are being notified", address, BROKERS_MAX)
            return
        task = asyncio.get_running_loop().create_task(self._deliver(address, notice, delay_s))
        self._sending[address] = task
        task.add_done_callback(lambda task: self._forget(address, task))

    def _forget(self, address: str, task: asyncio.Task[None]) -> None:
        if self._sending.get(address) is task:
            del self._sending[address]

    async def _deliver(self, address: str, notice: Request, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        for tries in range(1, TRIES + 1):
            try:
                channel = await (self._prepared.pop(address, None) or self._connect(address))
                channel.send_oneway(notice)
                channel.close()
            except RemotingError as error:
                if tries == TRIES:
                    log.warning("role notice not sent broker=%s reason=%s", address, error)
                    return
            else:
                return
            await asyncio.sleep(RETRY_S)

    async def stop(self) -> None:
        """Send no more."""
        for address, prepared in list(self._prepared.items()):
            self._drop(address, prepared)
        tasks = list(self._sending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _close(task: asyncio.Task[Channel]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()
