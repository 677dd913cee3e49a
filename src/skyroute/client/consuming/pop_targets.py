"""Where a simple consumer receives from: brokers, or the queues that brokers assign to it."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final

from skyroute.client.consuming import pop_calls as calls
from skyroute.client.consuming.pop_handlers import FAILED_RECEIVE_S
from skyroute.client.errors import ArgumentError, NoRouteError
from skyroute.client.session.session import Session
from skyroute.errors import SkyrouteError
from skyroute.message.queue_ref import QueueRef
from skyroute.remoting.errors import RemotingError
from skyroute.remoting.log_backoff import LogBackoff
from skyroute.wire.calls.assignment import POP_MODE
from skyroute.wire.calls.clients import Subscription
from skyroute.wire.calls.pop import Notification

log = logging.getLogger(__name__)

ASSIGNMENT_S: Final = 20.0
"""How often brokers are asked for the assigned queues, as in Java's client; without any, every second."""

_ALL_QUEUES: Final = -1
"""As a queue id: all queues of a topic on a broker."""


class PopTargets:
    """Chooses the queues to receive from: all queues of each broker with a subscribed topic, or the assigned ones."""

    def __init__(
        self,
        session: Session,
        group: str,
        subscriptions: Mapping[str, Subscription],
        *,
        ordered: bool,
        assigned: bool,
        is_running: Callable[[], bool],
    ) -> None:
        self._session = session
        self._group = group
        self._subscriptions = subscriptions
        self._ordered = ordered
        self._assigned = assigned
        self._is_running = is_running
        self._is_announced = False
        """Brokers know this member and its subscriptions."""
        self._assignments: dict[str, tuple[float, list[QueueRef]]] = {}
        """Assigned queues by topic, and until when they are valid."""
        self._turn = 0
        self._failures = LogBackoff()

    def announce_soon(self) -> None:
        """Tell the brokers about changed subscriptions before the next request."""
        self._is_announced = False

    def forget(self, topic: str) -> None:
        """Forget the assigned queues of a topic."""
        self._assignments.pop(topic, None)

    def note_success(self, target: QueueRef) -> None:
        """Note that a broker responded: its next failure is logged at once."""
        self._failures.works_again(target.broker_name)

    async def next(self) -> list[QueueRef]:
        """Return where to receive from, in another order each time; [] if a broker assigned nothing yet."""
        if not self._subscriptions:
            raise ArgumentError("nothing is subscribed: call `subscribe` before `receive`")
        targets: list[QueueRef] = []
        has_broker = False
        topics = tuple(self._subscriptions)
        for topic in topics:
            await self._session.routes.find(topic)
        if not self._is_announced:
            self._is_announced = True
            await self._session.heartbeats.send()
        for topic in topics:
            names = calls.broker_names(self._session, topic)
            has_broker = has_broker or bool(names)
            all_queues = [QueueRef(topic, name, _ALL_QUEUES) for name in names]
            targets += await self._assigned_to(topic, all_queues) if self._assigned and names else all_queues
        if not has_broker:
            raise NoRouteError(f"no broker of {', '.join(self._subscriptions)} has an address: is one running?")
        if not targets:
            return []
        self._turn += 1
        at = self._turn % len(targets)
        return targets[at:] + targets[:at]

    async def _assigned_to(self, topic: str, all_queues: list[QueueRef]) -> list[QueueRef]:
        """Return the queues that a broker assigns to this member; all if none assigns queues for POP."""
        now = self._session.clock.monotonic()
        until, known = self._assignments.get(topic, (0.0, all_queues))
        if now < until:
            return known
        names = [queue.broker_name for queue in all_queues]
        broker_name = names[self._turn % len(names)]
        try:
            found = await calls.query_assignment(self._session, broker_name, self._group, topic)
        except SkyrouteError as error:
            log.warning("no queues assigned group=%s topic=%s reason=%s", self._group, topic, error)
        else:
            if found is not None:  # else the member keeps its queues
                is_pop = all(assignment.mode == POP_MODE for assignment in found)
                assigned = [one.queue for one in found if one.queue.topic == topic and one.queue.broker_name in names]
                known = list(dict.fromkeys(assigned)) if is_pop else all_queues
        self._assignments[topic] = (now + (ASSIGNMENT_S if known else FAILED_RECEIVE_S), known)
        return known

    async def with_messages(self, targets: Iterable[QueueRef], wait_s: float) -> list[QueueRef]:
        """Wait until a broker has messages; waiting takes none, so that a request can be cancelled."""
        born_at_ms = round(self._session.clock.wall() * 1000)
        waiting = {
            asyncio.ensure_future(
                calls.wait_for_messages(
                    self._session,
                    target.broker_name,
                    Notification(
                        *(self._group, target.topic, target.queue_id, round(wait_s * 1000), born_at_ms),
                        ordered=self._ordered,
                    ),
                )
            ): target
            for target in targets
        }
        deadline = self._session.clock.monotonic() + wait_s
        pending = set(waiting)
        ready: list[QueueRef] = []
        try:
            while pending and not ready:
                left_s = max(0.0, deadline - self._session.clock.monotonic())
                done, pending = await asyncio.wait(pending, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                for task in done:
                    error = task.exception()
                    if isinstance(error, SkyrouteError):
                        await self.note_failure(waiting[task], error)
                    elif task.result():
                        ready.append(waiting[task])
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        return ready

    async def note_failure(self, target: QueueRef, error: SkyrouteError) -> None:
        """Log a failed request, and read the route again if the broker may have moved."""
        if not self._is_running():
            return
        suppressed = self._failures.suppressed(target.broker_name, self._session.clock.monotonic())
        if suppressed is not None:
            log.warning("receive failed from=%s reason=%s suppressed=%d", target, error, suppressed)
        if error.stale_route or isinstance(error, RemotingError):
            with suppress(SkyrouteError):
                await self._session.routes.refresh(target.topic)
