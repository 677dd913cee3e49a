"""What delay levels and timers share: redirecting a message, delivering it, and sleeping until it is due."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Protocol

import msgspec

from skyroute.broker.store.draft import Draft
from skyroute.broker.store.errors import RecordTooLargeError
from skyroute.files.errors import StorageError
from skyroute.message.errors import InvalidNameError, PropertyError, RecordError
from skyroute.message.message import StoredMessage
from skyroute.message.properties import add_properties, delete_property, find_property
from skyroute.message.property_names import DELAY_LEVEL, REAL_QUEUE_ID, REAL_TOPIC
from skyroute.message.reserved_topics import HALF_TOPIC
from skyroute.remoting.errors import RefusedError
from skyroute.wire.codes import ResponseCode

log = logging.getLogger(__name__)

BACKOFF_FIRST_MS: Final = 100
BACKOFF_MAX_MS: Final = 10_000
"""Pause of delivery after a failed append: the first, and the longest."""


class PlainAppender(Protocol):
    """The part of the appender that delivery uses."""

    def now_ms(self) -> int: ...

    def put_due(self, draft: Draft) -> None: ...

    def delivered(self) -> tuple[int, int]: ...


def number_of(raw_properties: bytes, name: str) -> int | None:
    """Return a numeric property; None if it is absent.

    Raises:
        RefusedError: it is not a number.
    """
    text = find_property(raw_properties, name)
    if text is None:
        return None
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 19):
        raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, f"{name} is not a number: {text[:40]!r}")
    return int(text)


def level_of(raw_properties: bytes) -> int:
    """Return the delay level of a message; 0 for none.

    Raises:
        RefusedError: it is not a number.
    """
    return max(number_of(raw_properties, DELAY_LEVEL) or 0, 0)


def replace_properties(raw_properties: bytes, more: Mapping[str, str]) -> bytes:
    """Return the properties with some replaced.

    A message may be delayed many times; its properties must not accumulate.

    Raises:
        RefusedError: the properties are too long.
    """
    for name in more:
        raw_properties = delete_property(raw_properties, name)
    try:
        return add_properties(raw_properties, more)
    except PropertyError as error:
        raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None


def redirect(draft: Draft, topic: str, queue_id: int, more: Mapping[str, str]) -> Draft:
    """Return the message redirected to a system topic. Properties keep its real topic and queue.

    Raises:
        RefusedError: the properties are too long.
    """
    real = {REAL_TOPIC: draft.topic, REAL_QUEUE_ID: str(draft.queue_id)}
    raw_properties = replace_properties(draft.raw_properties, {**more, **real})
    return msgspec.structs.replace(draft, topic=topic, queue_id=queue_id, raw_properties=raw_properties)


def as_draft(message: StoredMessage, topic: str, queue_id: int, raw_properties: bytes) -> Draft:
    """Return a stored message as a draft for another queue, with its first born and store hosts."""
    return Draft(
        topic,
        queue_id,
        message.stored_body,
        raw_properties,
        message.born_at_ms,
        message.raw_born_host,
        message.raw_store_host,
        message.sys_flag,
        message.flag,
        message.reconsume_times,
    )


def real_queue(message: StoredMessage) -> tuple[str, int] | None:
    """Return the real topic and queue of a delayed message; None, logged, if they are invalid."""
    topic = find_property(message.raw_properties, REAL_TOPIC)
    queue_id = find_property(message.raw_properties, REAL_QUEUE_ID) or ""
    if topic is None or not (queue_id.isascii() and queue_id.isdigit() and len(queue_id) < 10) or topic == HALF_TOPIC:
        log.error(
            "delayed message discarded topic=%s offset=%d real_topic=%.80r queue_id=%.20r",
            *(message.topic, message.queue_offset, topic, queue_id),
        )
        return None
    return topic, int(queue_id)


class Deliveries:
    """Appends due messages, and pauses after a failed append."""

    def __init__(self, appender: PlainAppender) -> None:
        self._appender = appender
        self._backoff_ms = 0
        self.held_until_ms = 0
        self.delivered = 0

    def put(self, draft: Draft, now_ms: int) -> bool:
        """Append a message; False if it must be tried again, not before `held_until_ms`."""
        try:
            self._appender.put_due(draft)
        except (RecordTooLargeError, RecordError, InvalidNameError) as error:
            # It can never be stored, and must not block the messages behind it.
            log.error("delayed message discarded real_topic=%s reason=%s", draft.topic, error)  # noqa: TRY400 - its text is enough
        except StorageError as error:
            self._backoff_ms = min(max(self._backoff_ms * 2, BACKOFF_FIRST_MS), BACKOFF_MAX_MS)
            self.held_until_ms = now_ms + self._backoff_ms
            log.warning("delivery paused ms=%d real_topic=%s reason=%s", self._backoff_ms, draft.topic, error)
            return False
        else:
            self.delivered += 1
        self._backoff_ms = 0
        return True

    def is_held(self, now_ms: int) -> bool:
        """Return whether delivery is paused. A clock that is set back does not prolong it."""
        return 0 < self.held_until_ms - now_ms <= BACKOFF_MAX_MS


class Alarm:
    """Lets a task sleep until a time, or until `set` gives an earlier one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._until_ms: int | None = None

    def set(self, at_ms: int) -> None:
        """Wake the task if it would sleep beyond this time."""
        if self._until_ms is not None and at_ms < self._until_ms:
            self._event.set()

    async def sleep(self, now_ms: int, until_ms: int) -> None:
        """Sleep; at least let other tasks run."""
        if until_ms <= now_ms:
            await asyncio.sleep(0)
            return
        self._event.clear()
        self._until_ms = until_ms
        with suppress(TimeoutError):
            async with asyncio.timeout((until_ms - now_ms) / 1000):
                await self._event.wait()
        self._until_ms = None
