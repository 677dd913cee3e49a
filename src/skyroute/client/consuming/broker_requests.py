"""Handles the requests that brokers send to any consumer: rebalance, reset offsets, report status."""

import sys
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from skyroute.client.session.incoming_requests import RequestHandler
from skyroute.client.session.session import Session
from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls import consumers
from skyroute.wire.calls.clients import ConsumeType, decode_consumer_group
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Request, Response

VERSION_NAME: Final = "V5_3_3"
"""The release whose version number this client sends, as Apache's tools display it."""


class BrokerRequests(ABC):
    """Handles the requests about one consumer. Requests about other groups go to the session's other handlers."""

    def __init__(self, session: Session, group: str, *, on_members_changed: Callable[[], None]) -> None:
        self._session = session
        self._group = group
        self._on_members_changed = on_members_changed
        self._started_at_ms = int(session.clock.wall() * 1000)
        self._handlers: dict[int, RequestHandler] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset_offsets,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._return_offsets,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._return_running_info,
        }

    def start(self) -> None:
        """Register the handlers with the session."""
        self._started_at_ms = int(self._session.clock.wall() * 1000)
        for code, handler in self._handlers.items():
            self._session.requests.add(code, handler)

    def stop(self) -> None:
        """Remove the handlers from the session."""
        for code, handler in self._handlers.items():
            self._session.requests.remove(code, handler)

    # ------------------------------------------------------------------------------------ what each consumer defines

    @abstractmethod
    def seek(self, queue: QueueRef, offset: int) -> None:
        """Continue at another offset of a queue, if this consumer has the queue."""

    @abstractmethod
    def offsets(self, topic: str) -> Mapping[QueueRef, int]:
        """Return how far this consumer has processed each of its queues of a topic."""

    @abstractmethod
    def describe(self, now: float) -> consumers.RunningConsumer:
        """Return the running info without thread stacks."""

    def common_properties(self, kind: ConsumeType, *, ordered: bool, threads: int) -> dict[str, str]:
        """Return the properties that Apache's tools require in the running info."""
        return {
            consumers.PROPERTY_NAME_SERVERS: ";".join(self._session.name_servers.addresses),
            consumers.PROPERTY_CONSUME_TYPE: kind.value,
            consumers.PROPERTY_ORDERED: "true" if ordered else "false",
            consumers.PROPERTY_THREADS: str(threads),
            consumers.PROPERTY_STARTED_MS: str(self._started_at_ms),
            consumers.PROPERTY_CLIENT_VERSION: VERSION_NAME,
            "language": "PYTHON",
        }

    # ----------------------------------------------------------------------------------------------------- requests

    async def _members_changed(self, request: Request, _address: str) -> Response | None:
        if decode_consumer_group(request) != self._group:
            return None
        self._on_members_changed()
        return Response()

    async def _reset_offsets(self, request: Request, _address: str) -> Response | None:
        reset = consumers.decode_offset_reset(request)
        if reset.group != self._group:
            return None
        for queue, offset in reset.offsets.items():
            self.seek(queue, offset)
        return Response()

    async def _return_offsets(self, request: Request, _address: str) -> Response | None:
        query = consumers.decode_offsets_query(request)
        if query.group != self._group:
            return None
        return Response(body=consumers.encode_consumer_offsets(self.offsets(query.topic)))

    async def _return_running_info(self, request: Request, _address: str) -> Response | None:
        query = consumers.decode_running_query(request)
        if query.group != self._group:
            return None
        stacks = _stacks() if query.with_stacks else None
        running = self.describe(self._session.clock.monotonic())
        return Response(body=consumers.encode_running_consumer(msgspec.structs.replace(running, stacks=stacks)))


def _stacks() -> str:
    threads = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()  # noqa: SLF001 - Python's documented way to read the stacks of other threads
    return "\n".join(
        f"{threads.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}" for ident, frame in frames.items()
    )
