"""What messages that wait for their time have in common, be it a delay level's or one of their own."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Protocol

import msgspec

from skyroute.broker.store.draft import Appended, Draft
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
"""How long nothing is delivered after the store refused, first and at most."""


class PlainAppender(Protocol):
    """What delivered messages go through."""

    def now_ms(self) -> int: ...

    def put_plain(self, draft: Draft) -> Appended: ...


def number_of(raw_properties: bytes, name: str) -> int | None:
    """Return a property that is a number; None where it is absent.

    Raises:
        RefusedError: it is none.
    """
    text = find_property(raw_properties, name)
    if text is None:
        return None
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 19):
        raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, f"{name} is not a number: {text[:40]!r}")
    return int(text)


def level_of(raw_properties: bytes) -> int:
    """Return the delay level that a message asks for; 0 where it is to be delivered at once.

    Raises:
        RefusedError: it is no number.
    """
    return max(number_of(raw_properties, DELAY_LEVEL) or 0, 0)


def replace_properties(raw_properties: bytes, more: Mapping[str, str]) -> bytes:
    """Return the bytes with these properties in place of others of their names.

    A message may wait many times; what each time adds must not pile up.

    Raises:
        RefusedError: all are too long together.
    """
    for name in more:
        raw_properties = delete_property(raw_properties, name)
    try:
        return add_properties(raw_properties, more)
    except PropertyError as error:
        raise RefusedError(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None


def redirect(draft: Draft, topic: str, queue_id: int, more: Mapping[str, str]) -> Draft:
    """Return the draft for a topic of messages that wait; it remembers where it is bound for.

    Raises:
        RefusedError: its properties are too long then.
    """
    real_queue = {REAL_TOPIC: draft.topic, REAL_QUEUE_ID: str(draft.queue_id)}
    raw_properties = replace_properties(draft.raw_properties, {**more, **real_queue})
    return msgspec.structs.replace(draft, topic=topic, queue_id=queue_id, raw_properties=raw_properties)


def as_draft(message: StoredMessage, topic: str, queue_id: int, raw_properties: bytes) -> Draft:
    """Return a record as a draft for another queue. It keeps where it was born, and first stored."""
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
    """Return topic and queue that a message has waited for; None where it says none that may be."""
    topic = find_property(message.raw_properties, REAL_TOPIC)
    queue_id = find_property(message.raw_properties, REAL_QUEUE_ID) or ""
    if topic is None or not (queue_id.isascii() and queue_id.isdigit() and len(queue_id) < 10) or topic == HALF_TOPIC:
        log.error(
            "message that waited discarded topic=%s offset=%d real_topic=%.80r queue_id=%.20r",
            *(message.topic, message.queue_offset, topic, queue_id),
        )
        return None
    return topic, int(queue_id)


class Deliveries:
    """Stores messages whose time has come; holds back for a while when the store refuses."""

    def __init__(self, appender: PlainAppender) -> None:
        self._appender = appender
        self._backoff_ms = 0
        self.held_until_ms = 0
        self.delivered = 0

    def put(self, draft: Draft, now_ms: int) -> bool:
        """Store a message. False means that it has to be tried again, not before `held_until_ms`."""
        try:
            self._appender.put_plain(draft)
        except (RecordTooLargeError, RecordError, InvalidNameError) as error:
            # It will never fit, and those behind it must not wait for ever.
            log.error("message that waited discarded real_topic=%s reason=%s", draft.topic, error)  # noqa: TRY400 - its text says it all
        except StorageError as error:
            self._backoff_ms = min(max(self._backoff_ms * 2, BACKOFF_FIRST_MS), BACKOFF_MAX_MS)
            self.held_until_ms = now_ms + self._backoff_ms
            log.warning("delivery held back ms=%d real_topic=%s reason=%s", self._backoff_ms, draft.topic, error)
            return False
        else:
            self.delivered += 1
        self._backoff_ms = 0
        return True

    def is_held(self, now_ms: int) -> bool:
        """Return whether the store is being left alone for now; a clock that was set back does not prolong it."""
        return 0 < self.held_until_ms - now_ms <= BACKOFF_MAX_MS


class Alarm:
    """Lets a task sleep until a time, or until somebody names an earlier one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._until_ms: int | None = None

    def set(self, at_ms: int) -> None:
        """Have the task awake at this time, if it would sleep longer."""
        if self._until_ms is not None and at_ms < self._until_ms:
            self._event.set()

    async def sleep(self, now_ms: int, until_ms: int) -> None:
        """Sleep; other tasks get their turn in any case."""
        if until_ms <= now_ms:
            await asyncio.sleep(0)
            return
        self._event.clear()
        self._until_ms = until_ms
        with suppress(TimeoutError):
            async with asyncio.timeout((until_ms - now_ms) / 1000):
                await self._event.wait()
        self._until_ms = None
