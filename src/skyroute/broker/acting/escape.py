"""Sends what an acting master must write to another broker group of the cluster: its own log is its master's."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final

import msgspec

from skyroute.broker.cluster.peer_brokers import PeerBrokers
from skyroute.broker.cluster.topic_routes import TopicRoutes
from skyroute.broker.identity import Identity
from skyroute.broker.pop.revive_log import ReviveLog
from skyroute.broker.store.draft import Draft
from skyroute.broker.store.message_store import MessageStore
from skyroute.errors import SkyrouteError
from skyroute.files.errors import StorageError
from skyroute.message import property_names as names
from skyroute.message.errors import RecordError
from skyroute.message.flags import HOSTS_IPV6, TransactionState, transaction_of, with_transaction
from skyroute.message.properties import add_properties, delete_property, find_property
from skyroute.message.queue_ref import QueueRef
from skyroute.message.record import decode_record
from skyroute.message.reserved_topics import TIMER_TOPIC, is_retry_topic
from skyroute.remoting.errors import RefusedError, RemotingError
from skyroute.routing.topology import MASTER_ID, Permission, TopicRoute
from skyroute.wire.calls.send import SENT_CODES, encode_send

log = logging.getLogger(__name__)

WAITING_MAX: Final = 1_000
"""Messages that wait for another broker; beyond, delivery pauses."""
PAUSE_FIRST_S: Final = 0.2
PAUSE_MAX_S: Final = 5.0
"""Pause after a failed send: the first, and the longest."""
GROUP: Final = "CID_RMQ_SYS_ESCAPE"
"""Producer group of messages that have none."""
LOOK_BACK_MS: Final = 60_000
"""The dead master may have delivered messages this long after the progress that this slave has."""
_SCHEDULE: Final = (
    *(names.DELAY_LEVEL, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS, names.TIMER_OUT_MS),
    *(names.TRANSACTION_PREPARED, names.RECORD_CRC),
)
"""Properties that would delay a message again, or prepare it again; and the checksum of its record."""


class EscapeFullError(StorageError):
    """Too many messages wait for another broker."""


class EscapeWriter:
    """Sends messages in their order. A message that cannot be sent is tried again until it is."""

    def __init__(
        self,
        store: MessageStore,
        routes: TopicRoutes,
        peers: PeerBrokers,
        identity: Identity,
        revive_log: ReviveLog,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._routes = routes
        self._peers = peers
        self._identity = identity
        self._revive_topic = revive_log.topic
        self._now_ms = now_ms
        self._since_ms = 0
        self._turns = count()
        self._waiting: deque[tuple[int, Draft]] = deque()
        """Messages with their numbers, in the order of acceptance."""
        self._changed = asyncio.Event()
        self._emptied = asyncio.Event()
        self._accepted = 0
        self.sent = 0
        """Messages sent since the start of this process."""
        self._is_stuck = False

    def __repr__(self) -> str:
        return f"<EscapeWriter waiting={len(self._waiting)} sent={self.sent}>"

    def begin(self) -> None:
        """Start with an empty queue."""
        self._waiting.clear()
        self._emptied.set()
        self._since_ms = self._now_ms() - LOOK_BACK_MS

    def delivered(self) -> tuple[int, int]:
        """Return the number of messages accepted so far, and up to which number other brokers have them."""
        return self._accepted, self._waiting[0][0] - 1 if self._waiting else self._accepted

    def put(self, draft: Draft) -> None:
        """Accept a due message for another broker.

        Raises:
            EscapeFullError: too many messages wait.
        """
        if len(self._waiting) >= WAITING_MAX:
            raise EscapeFullError(f"{len(self._waiting)} messages wait for another broker of the cluster")
        self._accepted += 1
        if draft.topic == self._revive_topic:
            return  # the table of popped messages has it already
        due = _due(draft)
        if not self.was_delivered(due):
            self._waiting.append((self._accepted, due))
            self._changed.set()
            self._emptied.clear()

    def was_delivered(self, draft: Draft) -> bool:
        """Return whether the master had stored the message of a draft shortly before it died."""
        unique_id = find_property(draft.raw_properties, names.UNIQUE_ID)
        if unique_id is None:
            return False
        found = self._store.find_by_key(draft.topic, unique_id, 64, self._since_ms, self._now_ms())
        for record in map(self._store.record_at, found.positions):
            try:
                other = None if record is None else decode_record(record)
            except RecordError:
                continue
            if (
                other is not None
                and (other.topic, other.reconsume_times) == (draft.topic, draft.reconsume_times)
                and find_property(other.raw_properties, names.UNIQUE_ID) == unique_id
            ):
                return True
        return False

    async def run(self) -> None:
        """Send what was accepted, until cancelled."""
        while True:
            while self._waiting:
                await self.send(self._waiting[0][1])
                self._waiting.popleft()
            self._changed.clear()
            self._emptied.set()
            await self._changed.wait()

    async def drain(self, timeout_s: float) -> bool:
        """Wait until all accepted messages are sent; False after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._emptied.wait()
        except TimeoutError:
            return False
        return True

    async def send(self, draft: Draft) -> None:
        """Send a message to another broker group, as often as needed."""
        pause_s = PAUSE_FIRST_S
        while True:
            try:
                await self._send(draft)
            except SkyrouteError as error:
                if not self._is_stuck:
                    log.warning("message not sent to another broker topic=%s reason=%s", draft.topic, error)
                self._is_stuck = True
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
            else:
                self._is_stuck = False
                self.sent += 1
                return

    async def _send(self, draft: Draft) -> None:
        queue = await self._choose(draft.topic)
        group = find_property(draft.raw_properties, names.PRODUCER_GROUP) or GROUP
        request = encode_send(
            group,
            queue,
            draft.body,
            properties=draft.raw_properties.decode("utf-8", "replace"),
            born_at_ms=draft.born_at_ms,
            sys_flag=draft.sys_flag & ~HOSTS_IPV6,
            flag=draft.flag,
            reconsume_times=draft.reconsume_times,
        )
        response = await self._peers.call(queue.broker_name, request)
        if response.code not in SENT_CODES:
            raise RefusedError(response.code, f"{queue.broker_name}: {response.remark or 'no remark'}")

    async def _choose(self, topic: str) -> QueueRef:
        """Return a queue of another broker group, a different one with each call.

        Raises:
            RemotingError: no other group has the topic.
        """
        queues = self._writable(await self._routes.find(topic))
        if not queues and is_retry_topic(topic):  # brokers create retry topics with their first message
            brokers = self._writable(await self._routes.find(self._identity.cluster))
            queues = [(broker, 1) for broker, _ in brokers]
        if not queues:
            raise RemotingError(f"no other broker group of the cluster has topic {topic}: create it on one")
        turn = next(self._turns)
        broker_name, queue_count = queues[turn % len(queues)]
        return QueueRef(topic, broker_name, turn // len(queues) % queue_count)

    def _writable(self, route: TopicRoute | None) -> list[tuple[str, int]]:
        """Return the broker groups of a route that accept messages, without the own one, with their queue counts."""
        if route is None:
            return []
        led = {group.name for group in route.groups if MASTER_ID in group.addresses} - {self._identity.name}
        writable = [queues for queues in route.queues if queues.settings.permission & Permission.WRITE]
        return [
            (queues.broker_name, queues.settings.write_queues)
            for queues in writable
            if queues.broker_name in led and queues.settings.write_queues
        ]


def _due(draft: Draft) -> Draft:
    """Return a scheduled message as another broker should store it now; one that was rolled on, with its time."""
    raw_properties, topic, more = draft.raw_properties, draft.topic, {}
    if topic == TIMER_TOPIC:
        topic = find_property(raw_properties, names.REAL_TOPIC) or topic
        more = {names.TIMER_DELIVER_MS: find_property(raw_properties, names.TIMER_OUT_MS) or "0"}
    for name in _SCHEDULE:
        raw_properties = delete_property(raw_properties, name)
    sys_flag = draft.sys_flag
    if transaction_of(sys_flag) is not TransactionState.NONE:
        sys_flag = with_transaction(sys_flag, TransactionState.NONE)
    return msgspec.structs.replace(
        draft,
        topic=topic,
        raw_properties=add_properties(raw_properties, more) if more else raw_properties,
        sys_flag=sys_flag,
    )
