"""Sends what an acting master must write to another broker group of the cluster: its own log is its master's.

Each topic has its own line of messages: one that no other group takes holds up only those of its topic.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
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
from skyroute.wire.command import Request

log = logging.getLogger(__name__)

WAITING_MAX: Final = 1_000
"""Messages that wait for another broker, of all topics; beyond, delivery pauses."""
PAUSE_FIRST_S: Final = 0.2
PAUSE_MAX_S: Final = 5.0
"""Pause after a failed send: the first, and the longest."""
SEND_S: Final = 5.0
"""Time limit of a send to another broker, which may wait for its own slaves (`slaveTimeout`)."""
GIVE_BACK_S: Final = 3.0
"""Time limit of a send to the returning master."""
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
    """Sends the messages of each topic in their order. A message that cannot be sent is tried again until it is."""

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
        self._waiting: dict[str, deque[tuple[int, Draft]]] = {}
        """By topic, messages with their numbers, in the order of acceptance."""
        self._retries: dict[str, tuple[float, float]] = {}
        """By topic whose first message could not be sent: time of the next try, and the pause before it."""
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        """Set while each waiting message has been tried in vain."""
        self._accepted = 0
        self.sent = 0
        """Messages sent since the start of this process."""

    def __repr__(self) -> str:
        return f"<EscapeWriter waiting={self.waiting_count} not_taken={sorted(self._retries)[:3]} sent={self.sent}>"

    @property
    def waiting_count(self) -> int:
        """Number of messages that no other broker has yet."""
        return sum(map(len, self._waiting.values()))

    def begin(self) -> None:
        """Start with an empty queue."""
        self._waiting.clear()
        self._retries.clear()
        self._idle.set()
        self._since_ms = self._now_ms() - LOOK_BACK_MS

    def delivered(self) -> tuple[int, int]:
        """Return the number of messages accepted so far, and up to which number other brokers have them."""
        first = min((line[0][0] for line in self._waiting.values()), default=self._accepted + 1)
        return self._accepted, first - 1

    def put(self, draft: Draft) -> None:
        """Accept a due message for another broker.

        Raises:
            EscapeFullError: too many messages wait.
        """
        if (waiting := self.waiting_count) >= WAITING_MAX:
            raise EscapeFullError(f"{waiting} messages wait for another broker of the cluster")
        self._accepted += 1
        if draft.topic == self._revive_topic:
            return  # the table of popped messages has it already
        due = _due(draft)
        if not self.was_delivered(due):
            self._waiting.setdefault(due.topic, deque()).append((self._accepted, due))
            if due.topic not in self._retries:
                self._idle.clear()
                self._changed.set()

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
        now = asyncio.get_running_loop().time
        while True:
            topic = self._next_topic(now())
            if topic is None:
                self._idle.set()
                await self._sleep(now())
                continue
            line = self._waiting.pop(topic)
            try:
                self._waiting[topic] = line  # behind the other topics
                await self._send(line[0][1])
            except SkyrouteError as error:
                self._pause(topic, now(), error)
            else:
                self._pop(topic)

    def _pop(self, topic: str) -> None:
        """Note that the first message of a topic is sent."""
        self.sent += 1
        self._retries.pop(topic, None)
        self._waiting[topic].popleft()
        if not self._waiting[topic]:
            del self._waiting[topic]

    def _next_topic(self, now: float) -> str | None:
        for topic in self._waiting:
            if topic not in self._retries or self._retries[topic][0] <= now:
                return topic
        return None

    async def _sleep(self, now: float) -> None:
        """Sleep until the next try, or until there is a message of another topic."""
        self._changed.clear()
        next_try = min((at for at, _ in self._retries.values()), default=None)
        with suppress(TimeoutError):
            async with asyncio.timeout(None if next_try is None else max(next_try - now, 0.0)):
                await self._changed.wait()

    def _pause(self, topic: str, now: float, error: SkyrouteError) -> None:
        _, pause_s = self._retries.get(topic, (0.0, 0.0))
        if not pause_s:
            log.warning("message not sent to another broker topic=%s reason=%s", topic, error)
        pause_s = min(2 * pause_s, PAUSE_MAX_S) or PAUSE_FIRST_S
        self._retries[topic] = now + pause_s, pause_s

    async def drain(self, timeout_s: float) -> bool:
        """Wait until all messages that another broker takes are sent; return whether all are."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        return not self._waiting

    async def give_back(self, master_address: str) -> bool:
        """Send what no other group has taken to the returning master, which does not schedule it again.

        Call it after the end of `run`. Returns whether the master has all of it.
        """
        while self._waiting:
            topic, line = next(iter(self._waiting.items()))
            request = self._request(line[0][1], QueueRef(topic, self._identity.name, 0))
            try:
                response = await self._peers.call_address(master_address, request, GIVE_BACK_S)
                if response.code not in SENT_CODES:
                    raise RefusedError(response.code, response.remark or "no remark")
            except SkyrouteError as error:
                log.warning("message not given back to the master topic=%s reason=%s", topic, error)
                return False
            self._pop(topic)
        return True

    async def send(self, draft: Draft, ended: asyncio.Event) -> bool:
        """Send a message to another broker group, as often as needed until `ended` is set; return whether one has it.

        A send that has begun is completed: its message may be stored already.
        """
        pause_s, is_logged = PAUSE_FIRST_S, False
        while not ended.is_set():
            try:
                await self._send(draft)
            except SkyrouteError as error:
                if not is_logged:
                    log.warning("message not sent to another broker topic=%s reason=%s", draft.topic, error)
                is_logged = True
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await ended.wait()
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
            else:
                self.sent += 1
                return True
        return False

    async def _send(self, draft: Draft) -> None:
        queue = await self._choose(draft.topic)
        response = await self._peers.call(queue.broker_name, self._request(draft, queue), SEND_S)
        if response.code not in SENT_CODES:
            raise RefusedError(response.code, f"{queue.broker_name}: {response.remark or 'no remark'}")

    @staticmethod
    def _request(draft: Draft, queue: QueueRef) -> Request:
        return encode_send(
            find_property(draft.raw_properties, names.PRODUCER_GROUP) or GROUP,
            queue,
            draft.body,
            properties=draft.raw_properties.decode("utf-8", "replace"),
            born_at_ms=draft.born_at_ms,
            sys_flag=draft.sys_flag & ~HOSTS_IPV6,
            flag=draft.flag,
            reconsume_times=draft.reconsume_times,
        )

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
