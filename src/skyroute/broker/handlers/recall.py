"""Recall of timer messages: a producer cancels one before its delivery."""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final

from skyroute.broker.appender import Appender
from skyroute.broker.config import BrokerConfig
from skyroute.broker.identity import Identity
from skyroute.broker.scheduling.timer_records import recall_key
from skyroute.broker.store.draft import Draft
from skyroute.broker.tables.topics import Topics
from skyroute.files.errors import StorageError
from skyroute.message.errors import PropertyError, RecordError
from skyroute.message.properties import encode_properties
from skyroute.message.property_names import (
    BORN_TIMESTAMP,
    PRODUCER_GROUP,
    REGION,
    TAGS,
    TIMER_DELETE_UNIQUE_ID,
    TIMER_DELIVER_MS,
    UNIQUE_ID,
)
from skyroute.remoting.dispatch import Answer, Peer
from skyroute.remoting.errors import RefusedError
from skyroute.routing.topology import Permission
from skyroute.wire.calls.send_back import Recall, RecallHandle, decode_recall, decode_recall_handle
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.errors import FieldError

_TAG: Final = "_RECALL_TAG_"
_BODY: Final = b"0"


@dataclass(frozen=True, slots=True)
class RecallHandlers:
    """Cancels timer messages with a cancel record in the timer topic, which is read before the message is due."""

    appender: Appender
    topics: Topics
    config: BrokerConfig
    identity: Identity

    def recall(self, request: Request, _peer: Peer) -> Answer:
        """Cancel a timer message."""
        recall = decode_recall(request)
        now_ms = self.appender.now_ms()
        handle = self._checked(recall, now_ms)
        try:
            appended = self.appender.put(self._cancel_record(recall, handle, now_ms))
        except (RefusedError, StorageError, RecordError, PropertyError) as error:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, f"recall failed, execute error: {error}") from error
        response = Response(fields={"msgId": handle.unique_id, REGION: self.config.region_id})
        wait = self.appender.until_durable(appended)
        return response if wait is None else _respond_after(wait, response)

    def _checked(self, recall: Recall, now_ms: int) -> RecallHandle:
        if not self.config.recall_enabled:
            raise RefusedError(
                ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden: recallMessageEnable is false"
            )
        is_writable = self.config.broker_permission & Permission.WRITE
        if not is_writable and not self.config.recall_when_read_only:
            raise RefusedError(ResponseCode.SERVICE_NOT_AVAILABLE, "recall failed, broker service not available")
        if self.topics.get(recall.topic) is None:
            raise RefusedError(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{recall.topic}] not exist")
        try:
            handle = decode_recall_handle(recall.handle)
        except FieldError as error:
            raise RefusedError(ResponseCode.ILLEGAL_OPERATION, str(error)) from None
        if handle.topic != recall.topic:
            raise RefusedError(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != self.identity.name:
            raise RefusedError(ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not available")
        if not 0 < handle.due_ms - now_ms < self.config.timer_delay_max_s * 1000:
            raise RefusedError(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        return handle

    def _cancel_record(self, recall: Recall, handle: RecallHandle, now_ms: int) -> Draft:
        properties = {
            TAGS: _TAG,
            TIMER_DELETE_UNIQUE_ID: recall_key(handle.topic, handle.unique_id),
            UNIQUE_ID: handle.unique_id,
            TIMER_DELIVER_MS: str(handle.due_ms),
            BORN_TIMESTAMP: str(now_ms),
        }
        if recall.producer_group:
            properties[PRODUCER_GROUP] = recall.producer_group
        host = self.identity.raw_store_host
        return Draft(handle.topic, 0, _BODY, encode_properties(properties), now_ms, host, host)


async def _respond_after(wait: Awaitable[None], response: Response) -> Response:
    await wait
    return response
