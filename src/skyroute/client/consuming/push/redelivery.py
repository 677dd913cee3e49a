"""Requests the redelivery of failed messages from brokers."""

import logging
import random
from typing import Final

from skyroute.client.consuming.push.settings import ConsumerSettings
from skyroute.client.errors import NoRouteError, no_master, refusal
from skyroute.client.producing.queue_selection import publish_queues
from skyroute.client.session.session import Session
from skyroute.errors import SkyrouteError
from skyroute.message import property_names as names
from skyroute.message.flags import COMPRESSED, COMPRESSION_MASK
from skyroute.message.message import StoredMessage
from skyroute.message.properties import join_properties
from skyroute.message.reserved_topics import (
    CLIENT_INNER_PRODUCER_GROUP,
    LOGICAL_BROKER_PREFIX,
    retry_topic,
    with_namespace,
)
from skyroute.wire.calls.send import SENT_CODES, encode_send
from skyroute.wire.calls.send_back import encode_send_back

log = logging.getLogger(__name__)

SEND_BACK_TIMEOUT_S: Final = 5.0
TIMED_OUT_LEVEL: Final = 3
"""The delay level of a message whose handler timed out."""
DEAD_LETTER_LEVEL: Final = -1
FIRST_LEVEL: Final = 3
"""The delay level of the first retry; each retry increases it by one."""


class Redelivery:
    """Sends failed messages of one group back to brokers."""

    def __init__(self, session: Session, settings: ConsumerSettings) -> None:
        self._session = session
        self._settings = settings
        self._retry_topic = retry_topic(settings.group)

    async def send_back(self, message: StoredMessage, delay_level: int) -> bool:
        """Request the redelivery of a message, and return whether a broker accepted it.

        With level 0 the broker chooses the delay by the number of retries; -1 makes it a dead letter at once.
        """
        try:
            # The broker name of a static topic's queue is logical: no such broker exists.
            if not message.broker_name.startswith(LOGICAL_BROKER_PREFIX):
                await self._send_to_its_broker(message, delay_level)
                return True
        except SkyrouteError as error:
            log.warning(
                "message not sent back group=%s message=%s reason=%s", self._settings.group, message.message_id, error
            )
        return await self.send_to_retry_topic(message, delay_level)

    async def _send_to_its_broker(self, message: StoredMessage, delay_level: int) -> None:
        address = self._session.routes.address(message.broker_name)
        if address is None:
            raise no_master(message.broker_name)
        request = encode_send_back(
            self._settings.group,
            log_position=message.log_position,
            delay_level=delay_level,
            origin_message_id=message.message_id,
            origin_topic=with_namespace(self._session.namespace, message.topic),
            max_reconsume_times=self._settings.reconsume_times_max,
            broker_name=message.broker_name,
        )
        await self._session.ask(address, request, SEND_BACK_TIMEOUT_S)

    async def send_to_retry_topic(self, message: StoredMessage, delay_level: int = 0) -> bool:
        """Send a copy to the retry topic of the group, and return whether a broker stored it.

        A broker makes it a dead letter after the last retry, or if the queues of the group are locked.
        """
        try:
            await self._send_copy(message, delay_level)
        except SkyrouteError as error:
            log.warning(
                "message not sent for retry group=%s message=%s reason=%s",
                self._settings.group,
                message.message_id,
                error,
            )
            return False
        return True

    async def _send_copy(self, message: StoredMessage, delay_level: int) -> None:
        queues = publish_queues(self._retry_topic, await self._session.routes.find(self._retry_topic))
        if not queues:
            raise NoRouteError(
                f"topic {self._retry_topic} has no writable queue: check its permission and its brokers' masters"
            )
        queue = random.choice(queues)
        address = self._session.routes.address(queue.broker_name)
        if address is None:
            raise no_master(queue.broker_name)
        # A maximum of 0 retries makes it a dead letter.
        times_max = 0 if delay_level == DEAD_LETTER_LEVEL else self._settings.reconsume_times_max
        request = encode_send(
            CLIENT_INNER_PRODUCER_GROUP,
            queue,
            message.stored_body,
            properties=join_properties(self._copy_properties(message, delay_level)),
            born_at_ms=int(self._session.clock.wall() * 1000),
            sys_flag=message.sys_flag & (COMPRESSED | COMPRESSION_MASK),
            flag=message.flag,
            reconsume_times=message.reconsume_times + 1,
            max_reconsume_times=times_max,
        )
        response = await self._session.call(self._session.sending_address(address), request, SEND_BACK_TIMEOUT_S)
        if response.code not in SENT_CODES:
            raise refusal(response, address)

    def _copy_properties(self, message: StoredMessage, delay_level: int) -> dict[str, str]:
        level = delay_level if delay_level > 0 else FIRST_LEVEL + message.reconsume_times
        properties = dict(message.properties)
        properties.setdefault(names.ORIGIN_MESSAGE_ID, message.message_id)
        properties[names.RETRY_TOPIC] = with_namespace(self._session.namespace, message.topic)
        properties[names.DELAY_LEVEL] = str(level)
        properties.pop(names.TRANSACTION_PREPARED, None)
        return properties
