"""Publishes changes to caches, watches, the journal, the log and brokers."""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Collection, Generator

from skyroute.clock import Clock
from skyroute.nameserver.config import NameServerConfig
from skyroute.nameserver.event_log import log_events
from skyroute.nameserver.handlers.routes import RouteHandlers
from skyroute.nameserver.invalidated_routes import invalidated_by, invalidated_topics
from skyroute.nameserver.notify import Notifier
from skyroute.nameserver.persistence import Persistence
from skyroute.nameserver.server_events import Change
from skyroute.nameserver.watch import Watches
from skyroute.remoting.stepwise import StepRunner
from skyroute.routing.events import BrokerConfirmed, Cause, RouteEvent
from skyroute.routing.table import RouteTable

log = logging.getLogger(__name__)


class Publisher:
    """Called after every change of the route table, the key-value config and the settings."""

    def __init__(
        self, table: RouteTable, routes: RouteHandlers, watches: Watches | None, config: NameServerConfig, clock: Clock
    ) -> None:
        self._table = table
        self._routes = routes
        self._watches = watches
        self._config = config
        self._clock = clock
        self.persistence: Persistence | None = None
        self.notifier: Notifier | None = None
        self.events: Counter[tuple[type[RouteEvent], Cause]] = Counter()
        """Number of events by type and cause."""
        self._closed: deque[int] = deque()
        """Closed connections that brokers are still registered on."""
        self._rest_due = asyncio.Event()

    def publish(self, events: Collection[RouteEvent]) -> None:
        """Publish the events of a change of the route table; without events, only schedule a sweep."""
        if not self._table.is_swept:
            self._rest_due.set()
        if not events:
            return
        self.record(events)
        log_events(events)
        self.events.update((type(event), event.cause) for event in events)
        if self._routes.is_warm:
            self._note_confirmations(events)
        if self._config.notify_min_broker_id and self.notifier is not None:
            self.notifier.put(events)

    def record(self, changes: Collection[Change]) -> None:
        """Invalidate routes, complete watches and append to the journal."""
        invalidated = invalidated_by(changes)
        self._routes.forget(*invalidated)
        if self._watches is not None:
            self._watches.publish(invalidated_topics(self._table, invalidated), int(self._clock.wall() * 1000))
        if self.persistence is not None:
            self.persistence.record(changes)

    def settings_changed(self) -> None:
        """Invalidate everything that depends on settings."""
        self._routes.forget_all()
        self._table.forget_fingerprints()
        if self._watches is not None:
            self._watches.publish_all()

    def drop_connection(self, connection: int) -> None:
        """Remove the brokers of a closed connection: the first at once, the rest of many in steps."""
        self.publish(self._table.drop_connection(connection))
        if self._table.has_brokers_on(connection):
            self._closed.append(connection)
            self._rest_due.set()

    async def finish_changes(self, step_runner: StepRunner) -> None:
        """Do the rest of every large change in steps, while the server runs."""
        while True:
            await self._rest_due.wait()
            self._rest_due.clear()
            await step_runner.run(self._drop_closed())
            await step_runner.run(self._table.sweep())

    def _drop_closed(self) -> Generator[None, None, None]:
        while self._closed:
            events = self._table.drop_connection(self._closed[0])
            self.publish(events)
            if not events:
                self._closed.popleft()
            yield

    def _note_confirmations(self, events: Collection[RouteEvent]) -> None:
        """Cache routes again whose restored brokers are confirmed."""
        for event in events:
            if isinstance(event, BrokerConfirmed):
                self._routes.forget((), (event.broker_name,))
        if not self._table.unconfirmed_count:
            self._routes.is_warm = False
            log.info("warm restart over unconfirmed_answers=%d", self._routes.unconfirmed_answers)
