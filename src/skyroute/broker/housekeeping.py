"""What happens when nobody speaks: tables are saved, old messages go, silent clients are parted with."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from typing import Final

from skyroute.broker.config import BrokerConfig
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.tables.table_file import TableFile
from skyroute.clock import Clock
from skyroute.files.errors import StorageError

log = logging.getLogger(__name__)

TABLES_S: Final = 10.0
"""How often tables are saved that are also saved when they change in a way that somebody waits for."""


async def every(seconds: float, work: Callable[[], Awaitable[None] | None]) -> None:
    """Do something again and again. What it fails at is said, and tried again the next time."""
    while True:
        await asyncio.sleep(seconds)
        try:
            waiting = work()
            if waiting is not None:
                await waiting
        except StorageError as error:
            log.warning("%s failed reason=%s", getattr(work, "__qualname__", work), error)


async def save_all(table_files: Collection[TableFile]) -> None:
    """Save what has changed."""
    for table_file in table_files:
        await table_file.save()


class Retention:
    """Removes messages that are too old, or have no room."""

    def __init__(self, store: MessageStore, config: BrokerConfig, clock: Clock) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._was_full = False

    def clean(self) -> None:
        """Remove what may go now."""
        self._clean(is_due=datetime.fromtimestamp(self._clock.wall()).hour in self._config.delete_hours)  # noqa: DTZ006 - the operator's own hour

    def clean_now(self) -> None:
        """Remove what is too old, whatever the hour."""
        self._clean(is_due=True)

    def _clean(self, *, is_due: bool) -> None:
        disk_used = self._store.disk_used()
        expired = self._store.delete_expired(int(self._clock.wall() * 1000), is_due=is_due, disk_used=disk_used)
        is_full = disk_used > self._store.settings.disk_used_refuse
        if is_full != self._was_full:
            self._was_full = is_full
            if is_full:
                log.error("the disk is %.0f %% full: messages are refused until there is room", disk_used * 100)
            else:
                log.info("the disk has room again: %.0f %% are used", disk_used * 100)
        if expired.log_segments:
            log.info("messages expired %s", expired)
