"""Periodic work: saving tables, and deleting expired messages."""

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
"""Interval at which tables are saved that requests save as well."""


async def every(seconds: float, work: Callable[[], Awaitable[None] | None]) -> None:
    """Run `work` at an interval. A StorageError is logged, and the next run tries again."""
    while True:
        await asyncio.sleep(seconds)
        try:
            waiting = work()
            if waiting is not None:
                await waiting
        except StorageError as error:
            log.warning("periodic work failed work=%s reason=%s", getattr(work, "__qualname__", work), error)


async def save_all(table_files: Collection[TableFile]) -> None:
    """Save the tables that have changed."""
    for table_file in table_files:
        await table_file.save()


class Retention:
    """Deletes expired messages, and old messages when the disk is full."""

    def __init__(self, store: MessageStore, config: BrokerConfig, clock: Clock) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._was_full = False

    def clean(self) -> None:
        """Delete expired messages, if the hour or the disk requires it."""
        self._clean(is_due=datetime.fromtimestamp(self._clock.wall()).hour in self._config.delete_hours)  # noqa: DTZ006 - the hour is local time

    def clean_now(self) -> None:
        """Delete expired messages at any hour."""
        self._clean(is_due=True)

    def _clean(self, *, is_due: bool) -> None:
        disk_used = self._store.disk_used()
        expired = self._store.delete_expired(int(self._clock.wall() * 1000), is_due=is_due, disk_used=disk_used)
        is_full = disk_used > self._store.settings.disk_used_refuse
        if is_full != self._was_full:
            self._was_full = is_full
            if is_full:
                log.error("disk full, messages are refused used_percent=%.0f", disk_used * 100)
            else:
                log.info("disk has room again used_percent=%.0f", disk_used * 100)
        if expired.log_segments:
            log.info("messages expired %s", expired)
