"""Having brokers make queues one member's alone, and giving them back."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from skyroute.client.errors import NoBrokerError
from skyroute.client.session.session import Session
from skyroute.errors import SkyrouteError
from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.clients import decode_locked, encode_lock, encode_unlock

log = logging.getLogger(__name__)

LOCK_TIMEOUT_S: Final = 1.0

_Ask = Callable[[str, list[QueueRef]], Awaitable[None]]


async def lock(session: Session, group: str, queues: Iterable[QueueRef]) -> dict[QueueRef, bool]:
    """Ask for queues to be ours alone, and return which are, and which are another's.

    Queues of brokers that do not answer are not in it.
    """
    outcome: dict[QueueRef, bool] = {}

    async def ask(broker_name: str, wanted: list[QueueRef]) -> None:
        request = encode_lock(session.client_id, group, wanted)
        response = await session.ask(_master(session, broker_name), request, LOCK_TIMEOUT_S)
        locked = decode_locked(response.body)
        outcome.update((queue, queue in locked) for queue in wanted)

    await _each(queues, ask, "queues not locked", group)
    return outcome


async def unlock(session: Session, group: str, queues: Iterable[QueueRef]) -> None:
    """Give queues back. A broker that does not hear of it finds out by itself, in a minute."""

    async def ask(broker_name: str, wanted: list[QueueRef]) -> None:
        request = encode_unlock(session.client_id, group, wanted)
        await session.ask(_master(session, broker_name), request, LOCK_TIMEOUT_S)

    await _each(queues, ask, "queues not unlocked", group)


async def _each(queues: Iterable[QueueRef], ask: _Ask, failed: str, group: str) -> None:
    by_broker: dict[str, list[QueueRef]] = {}
    for queue in queues:
        by_broker.setdefault(queue.broker_name, []).append(queue)

    async def ask_one(broker_name: str, wanted: list[QueueRef]) -> None:
        try:
            await ask(broker_name, wanted)
        except SkyrouteError as error:
            log.warning("%s group=%s broker=%s cause=%s", failed, group, broker_name, error)

    await asyncio.gather(*(ask_one(name, wanted) for name, wanted in by_broker.items()))


def _master(session: Session, broker_name: str) -> str:
    address = session.routes.address(broker_name)
    if address is None:
        raise NoBrokerError(f"no route knows where the master of {broker_name} is")
    return address
