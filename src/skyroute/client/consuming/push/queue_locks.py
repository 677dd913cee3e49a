"""Locks and unlocks queues at their brokers, so that one member at a time consumes an ordered queue."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from skyroute.client.errors import no_master
from skyroute.client.session.session import Session
from skyroute.errors import SkyrouteError
from skyroute.message.queue_ref import QueueRef
from skyroute.remoting.log_backoff import LogBackoff
from skyroute.wire.calls.clients import decode_locked, encode_lock, encode_unlock

log = logging.getLogger(__name__)

LOCK_TIMEOUT_S: Final = 1.0

_Send = Callable[[str, list[QueueRef]], Awaitable[None]]


async def lock(session: Session, group: str, queues: Iterable[QueueRef], failures: LogBackoff) -> dict[QueueRef, bool]:
    """Request locks, and return for each queue whether this member has it.

    Queues of brokers that do not respond are missing in the result. `failures` limits the log lines about them.
    """
    outcome: dict[QueueRef, bool] = {}

    async def send(broker_name: str, wanted: list[QueueRef]) -> None:
        request = encode_lock(session.client_id, group, wanted)
        response = await session.ask(_master(session, broker_name), request, LOCK_TIMEOUT_S)
        locked = decode_locked(response.body)
        outcome.update((queue, queue in locked) for queue in wanted)
        failures.works_again(broker_name)

    await _each(session, queues, send, "queues not locked", group, failures)
    return outcome


async def unlock(session: Session, group: str, queues: Iterable[QueueRef]) -> None:
    """Release locks. A broker that is not reached releases them after a minute."""

    async def send(broker_name: str, wanted: list[QueueRef]) -> None:
        request = encode_unlock(session.client_id, group, wanted)
        await session.ask(_master(session, broker_name), request, LOCK_TIMEOUT_S)

    await _each(session, queues, send, "queues not unlocked", group, LogBackoff())


async def _each(
    session: Session, queues: Iterable[QueueRef], send: _Send, failed: str, group: str, failures: LogBackoff
) -> None:
    by_broker: dict[str, list[QueueRef]] = {}
    for queue in queues:
        by_broker.setdefault(session.routes.broker_of(queue), []).append(queue)

    async def send_one(broker_name: str, wanted: list[QueueRef]) -> None:
        try:
            await send(broker_name, wanted)
        except SkyrouteError as error:
            suppressed = failures.suppressed(broker_name, session.clock.monotonic())
            if suppressed is not None:
                log.warning(
                    "%s group=%s broker=%s reason=%s suppressed=%d", failed, group, broker_name, error, suppressed
                )

    await asyncio.gather(*(send_one(name, wanted) for name, wanted in by_broker.items()))


def _master(session: Session, broker_name: str) -> str:
    address = session.routes.address(broker_name)
    if address is None:
        raise no_master(broker_name)
    return address
