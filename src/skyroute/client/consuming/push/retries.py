"""What happens to messages whose handler failed: redelivered by a broker, handled again here, or dropped."""

import asyncio
import logging
from collections.abc import Callable

from skyroute.client.consuming.push.process_queue import ProcessQueue
from skyroute.client.consuming.push.redelivery import DEAD_LETTER_LEVEL, Redelivery
from skyroute.client.consuming.push.settings import ConsumerSettings
from skyroute.message.message import StoredMessage

log = logging.getLogger(__name__)


class Retries:
    """Retries the failed messages of one consumer."""

    def __init__(
        self, settings: ConsumerSettings, redelivery: Redelivery, *, offer: Callable[[ProcessQueue], None]
    ) -> None:
        """Prepare. `offer` makes the waiting messages of a queue available to the workers."""
        self._settings = settings
        self._redelivery = redelivery
        self._offer = offer

    async def retry(self, queue: ProcessQueue, messages: list[StoredMessage], delay_level: int) -> None:
        """Retry messages as the consumer's mode demands. A released queue is left to its next owner."""
        queue.statistics.failed += len(messages)
        if queue.is_released:
            return
        if self._settings.ordered:
            await self._retry_in_order(queue, messages, delay_level)
        elif not self._settings.shares:
            for message in messages:
                self._log_drop(message)
            queue.buffer.finish(messages)
        else:
            await self._send_back(queue, messages, delay_level)

    def _log_drop(self, message: StoredMessage) -> None:
        log.warning(
            "message dropped group=%s topic=%s message=%s reason=broadcasting has no redelivery",
            *(self._settings.group, message.topic, message.message_id),
        )

    async def _send_back(self, queue: ProcessQueue, messages: list[StoredMessage], delay_level: int) -> None:
        kept = []
        for message in messages:
            if await self._redelivery.send_back(message, delay_level):
                queue.buffer.finish([message])
            else:
                kept.append(message.replace(reconsume_times=message.reconsume_times + 1))
        if kept:
            pause_s = self._settings.intervals.failed_send_back_s
            asyncio.get_running_loop().call_later(pause_s, self._handle_again, queue, kept)

    def _handle_again(self, queue: ProcessQueue, messages: list[StoredMessage]) -> None:
        if not queue.is_released:
            queue.buffer.put_back(messages)
            self._offer(queue)

    async def _retry_in_order(self, queue: ProcessQueue, messages: list[StoredMessage], delay_level: int) -> None:
        kept = []
        for message in messages:
            is_exhausted = message.reconsume_times >= self._settings.reconsume_times_max
            if is_exhausted or delay_level == DEAD_LETTER_LEVEL:
                if not self._settings.shares:
                    self._log_drop(message)
                    queue.buffer.finish([message])
                    continue
                if await self._redelivery.send_to_retry_topic(message, DEAD_LETTER_LEVEL):
                    queue.buffer.finish([message])
                    continue
            kept.append(message.replace(reconsume_times=message.reconsume_times + 1))
        if kept:
            queue.buffer.put_back(kept)
            queue.is_suspended = True
            asyncio.get_running_loop().call_later(self._settings.suspend_s, self._resume, queue)

    def _resume(self, queue: ProcessQueue) -> None:
        queue.is_suspended = False
        if not queue.is_released:
            self._offer(queue)
