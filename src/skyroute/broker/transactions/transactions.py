"""Transactions: half message, commit or rollback, and checks with producers that send neither."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from skyroute.broker.appender import Appender
from skyroute.broker.clients.connected_clients import ConnectedClients
from skyroute.broker.config import BrokerConfig
from skyroute.broker.identity import Identity
from skyroute.broker.store.draft import Appended, Draft
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.tables.consumer_offsets import ConsumerOffsets
from skyroute.broker.tables.topics import Announce, Topics
from skyroute.broker.transactions import drafts
from skyroute.broker.transactions.open_transactions import OPEN_MAX, OpenHalf, OpenTransactions
from skyroute.errors import SkyrouteError
from skyroute.files.errors import StorageError
from skyroute.message import property_names as names
from skyroute.message.message import StoredMessage
from skyroute.message.properties import find_property
from skyroute.message.reserved_topics import HALF_DONE_TOPIC, HALF_GIVEN_UP_TOPIC, HALF_TOPIC
from skyroute.remoting.dispatch import Peer
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.calls.transaction import (
    TransactionCheck,
    TransactionEnd,
    TransactionOutcome,
    encode_transaction_check,
)
from skyroute.wire.codes import ResponseCode

log = logging.getLogger(__name__)

GROUP: Final = "CID_RMQ_SYS_TRANS"
"""Consumer group whose offsets are the floors of the half topic and the op topic."""
SPAN_MAX: Final = 100_000
"""Offsets by which a half message that is not due may lag; the next start reads all from there on."""
HALVES_A_STEP: Final = 50
"""Half messages that are checked, moved or given up in one step."""
SCANNED_A_STEP: Final = 2_000
"""Open half messages that are scanned in one step for those that are due."""
CheckTopic = Callable[[str], None]
"""Raises RefusedError if the topic of a message is forbidden to the sender of a request."""
_NOT_FOUND: Final = "Find prepared transaction message failed"


MaySend = Callable[[Peer, str], bool]
"""Tells whether the user of a connection may send to a topic."""


class PendingCheck(NamedTuple):
    """A check to send to a producer of the group."""

    group: str
    topic: str
    """The topic of the message, which the check contains."""
    check: TransactionCheck


class Transactions:
    """The transactions of one broker."""

    def __init__(
        self,
        store: MessageStore,
        appender: Appender,
        *,
        offsets: ConsumerOffsets,
        topics: Topics,
        clients: ConnectedClients,
        config: BrokerConfig,
        identity: Identity,
        announce: Announce,
        may_send: MaySend | None = None,
    ) -> None:
        self._store = store
        self._appender = appender
        self._offsets = offsets
        self._topics = topics
        self._clients = clients
        self._config = config
        self._identity = identity
        self._announce = announce
        self._may_send = may_send
        self._open = OpenTransactions(store)
        self._ended: list[int] = []
        """Offsets of ended half messages that are in no op message yet."""
        self._floors: tuple[int, int] | None = None
        self.committed = 0
        self.rolled_back = 0
        """Commits and rollbacks since the start."""

    def __repr__(self) -> str:
        return f"<Transactions {self._open!r}>"

    def load(self) -> None:
        """Find the open transactions. Called before the broker serves requests, as master."""
        self._open = OpenTransactions(self._store)
        self._ended.clear()
        self._floors = None
        self._open.load(self._floor_of(HALF_TOPIC), self._floor_of(HALF_DONE_TOPIC))
        if self._open.halves:
            log.info("open transactions found count=%d", len(self._open.halves))

    def _floor_of(self, topic: str) -> int | None:
        return self._offsets.get(GROUP, topic, drafts.HALF_QUEUE_ID)

    @property
    def open_count(self) -> int:
        """Number of open transactions at the last check."""
        return len(self._open.halves)

    def prepare(self, draft: Draft) -> Draft:
        """Return the half message to store instead of a message.

        Raises:
            RefusedError: too many transactions are open, or the properties are too long.
        """
        if self._open.is_full:
            raise RefusedError(ResponseCode.SYSTEM_BUSY, f"{OPEN_MAX} transactions are open: end some of them first")
        half = drafts.half_of(draft)
        self._open.expect_one()
        return half

    # --------------------------------------------------------------------------------------------------------- ending

    def end(self, end: TransactionEnd, now_ms: int, check_topic: CheckTopic | None = None) -> None:
        """Commit or roll back a transaction. `write_op_messages` then stores that it has ended.

        `check_topic` gets the topic of the message, and raises RefusedError if it is forbidden.

        Raises:
            RefusedError: it is not a half message of this producer, has ended already, or needs a check first.
            StorageError, RecordError: the message could not be stored; the transaction stays open.
        """
        if end.outcome is TransactionOutcome.UNKNOWN:
            return
        half = self._open.half_in_log(end.log_position)
        if half is None:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
        self._check(end, half, now_ms)
        if check_topic is not None:
            check_topic(find_property(half.raw_properties, names.REAL_TOPIC) or half.topic)
        offset = self._open.find_open(end.half_offset)
        if offset is None:
            # Nothing is lost: open transactions are checked again.
            raise RefusedError(ResponseCode.SYSTEM_ERROR, "the transaction has ended already")
        if end.outcome is TransactionOutcome.COMMIT:
            draft = drafts.committed(half)
            if draft is None:
                raise RefusedError(ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
            self._appender.put(draft)
            self.committed += 1
        else:
            self.rolled_back += 1
        self._ended += self._open.close(offset)

    def _check(self, end: TransactionEnd, half: StoredMessage, now_ms: int) -> None:
        immune_s = drafts.number_of(half, names.CHECK_IMMUNITY_SECONDS)
        if immune_s is not None and not end.from_check:
            allowed_ms = max(immune_s * 1000, self._config.transaction_timeout_ms)
            if now_ms - half.born_at_ms > allowed_ms:
                raise RefusedError(ResponseCode.ILLEGAL_OPERATION, "too late, wait until you are asked")
        if find_property(half.raw_properties, names.PRODUCER_GROUP) != end.producer_group:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.queue_offset != end.half_offset:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        if half.log_position != end.log_position:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, "The commit log offset wrong")

    def write_op_messages(self) -> Appended | None:
        """Store op messages for ended half messages; return the last one, or None if there are none.

        After a failed write they are kept for the next call. A half message without an op message is checked again only
        after a restart.
        """
        appended: Appended | None = None
        while self._ended:
            digits = len(str(max(self._ended)))
            offsets = self._ended[: max(self._config.op_message_bytes_max // (digits + 1), 1)]
            draft = drafts.op_message(offsets, self._identity.raw_store_host, self._appender.now_ms())
            try:
                appended = self._appender.put_plain(draft)
            except StorageError as error:
                log.warning(
                    "op message not stored, tried again later transactions=%d reason=%s", len(self._ended), error
                )
                return None
            self._open.note_op_message(appended.queue_offset, max(offsets))
            del self._ended[: len(offsets)]
        return appended

    # --------------------------------------------------------------------------------------------------------- checking

    def check(self, now_ms: int) -> Iterator[PendingCheck | None]:
        """Give the checks that are due, and move their half messages to the end of the queue.

        Gives None after each step, so that the caller can let other tasks run.

        Raises:
            StorageError: a write failed; the next call goes on from there.
        """
        while self._open.read_on():
            yield None
        limit, handled = self._open.end, 0
        try:
            for scanned, (offset, known) in enumerate(list(self._open.halves.items()), 1):
                if scanned % SCANNED_A_STEP == 0:
                    yield None
                if offset not in self._open.halves:
                    continue  # it has ended during this round
                if self._is_due(known, now_ms - known.since_ms):
                    pending = self._check_half(offset, known, now_ms)
                    if pending is not None:
                        yield pending
                elif limit - offset > SPAN_MAX:
                    self._move_without_check(offset, known)
                else:
                    continue
                handled += 1
                if handled % HALVES_A_STEP == 0:
                    self.write_op_messages()
                    yield None
        finally:
            self.write_op_messages()
            self._save_floors()

    def _is_due(self, known: OpenHalf, age_ms: int) -> bool:
        wait_ms = self._config.transaction_timeout_ms if known.immune_ms is None else known.immune_ms
        # A half message born in the future is taken for due: its store time is that of a copy.
        return age_ms < 0 or age_ms > min(wait_ms, self._config.retention_ms)

    def _check_half(self, offset: int, known: OpenHalf, now_ms: int) -> PendingCheck | None:
        half = self._open.half_in_log(known.position)
        if half is None:
            self._open.close(offset)
            return None
        times = drafts.number_of(half, names.TRANSACTION_CHECK_TIMES) or 0
        if times >= self._config.transaction_checks_max or now_ms - half.born_at_ms > self._config.retention_ms:
            self._give_up(offset, half, times)
            return None
        try:
            draft = drafts.next_check(half, times + 1)
        except RefusedError:  # the properties have no room for the count
            self._give_up(offset, half, times)
            return None
        appended = self._move(offset, draft)
        group = find_property(half.raw_properties, names.PRODUCER_GROUP) or ""
        topic = find_property(half.raw_properties, names.REAL_TOPIC) or half.topic
        return PendingCheck(group, topic, drafts.check_request(half, appended, draft, self._identity.name))

    def _give_up(self, offset: int, half: StoredMessage, times: int) -> None:
        self._topics.create(TopicConfig(HALF_GIVEN_UP_TOPIC, 1, 1))
        appended = self._appender.put_plain(drafts.given_up(half))
        self._ended += self._open.close(offset)
        log.warning(
            "transaction given up topic=%s id=%s checks=%d offset=%d",
            find_property(half.raw_properties, names.REAL_TOPIC),
            find_property(half.raw_properties, names.UNIQUE_ID),
            times,
            appended.queue_offset,
        )

    def _move_without_check(self, offset: int, known: OpenHalf) -> None:
        half = self._open.half_in_log(known.position)
        if half is None:
            self._open.close(offset)
            return
        try:
            draft = drafts.moved_copy(half)
        except RefusedError:  # the properties have no room for its offset
            return
        appended = self._appender.put_plain(draft)
        # No op message: Apache's brokers would take it for the end of the copies, too.
        self._open.expect_one()
        self._open.move(offset, appended.queue_offset)

    def _move(self, offset: int, draft: Draft) -> Appended:
        appended = self._appender.put_plain(draft)
        self._open.expect_one()
        self._open.move(offset, appended.queue_offset)
        self._ended.append(offset)
        return appended

    def hand_over(self) -> Iterator[Draft]:
        """Give the message of each open half message, for another broker. The next call counts the last as ended.

        A half message is not given twice: the offset up to which all have ended is a consumer offset.
        """
        for offset, known in list(self._open.halves.items()):
            half = self._open.half_in_log(known.position)
            draft = None if half is None else drafts.prepared_again(half)
            if draft is not None:
                yield draft
            self._open.close(offset)
            half_floor, op_floor = self._open.floors()
            self._offsets.commit(GROUP, HALF_TOPIC, drafts.HALF_QUEUE_ID, half_floor)
            self._offsets.commit(GROUP, HALF_DONE_TOPIC, drafts.HALF_QUEUE_ID, op_floor)

    def _save_floors(self) -> None:
        # The floors of the round before: the messages they depend on are on the disk by now.
        if self._floors is not None:
            half_floor, op_floor = self._floors
            self._offsets.commit(GROUP, HALF_TOPIC, drafts.HALF_QUEUE_ID, half_floor)
            self._offsets.commit(GROUP, HALF_DONE_TOPIC, drafts.HALF_QUEUE_ID, op_floor)
        self._floors = self._open.floors()

    def resume(self, log_position: int, check_topic: CheckTopic | None = None) -> Appended:
        """Check again a half message whose checks were exhausted. `check_topic` is as in `end`.

        Raises:
            RefusedError: there is no half message at this position.
            StorageError: it could not be stored.
        """
        half = self._store.message_at(log_position)
        if half is None or half.topic not in (HALF_TOPIC, HALF_GIVEN_UP_TOPIC):
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR,
                "Exception was thrown when putting message back to RMQ_SYS_TRANS_HALF_TOPIC.",
            )
        if check_topic is not None:
            check_topic(find_property(half.raw_properties, names.REAL_TOPIC) or half.topic)
        draft = drafts.next_check(half, 0)
        offset = self._open.find_open(half.queue_offset) if half.topic == HALF_TOPIC else None
        if offset is not None:
            return self._move(offset, draft)
        self._open.expect_one()
        return self._appender.put_plain(draft)

    def _is_sender_of(self, topic: str) -> Callable[[Peer], bool] | None:
        """Return the test for producers that may see a message: a heartbeat in any producer group needs no right."""
        may_send = self._may_send
        return None if may_send is None else lambda peer: may_send(peer, topic)

    async def send_checks(self) -> None:
        """Send all checks that are due."""
        knew_topic = self._topics.get(HALF_GIVEN_UP_TOPIC) is not None
        sent = unsent = 0
        for pending in self.check(self._appender.now_ms()):
            if pending is None:
                await asyncio.sleep(0)
                continue
            producer = self._clients.next_producer(pending.group, self._is_sender_of(pending.topic))
            if producer is None:
                unsent += 1
            else:
                producer.send_oneway(encode_transaction_check(pending.check))
                sent += 1
        if sent or unsent:
            log.info("transaction checks sent=%d without_producer=%d", sent, unsent)
        created = self._topics.get(HALF_GIVEN_UP_TOPIC)
        if created is not None and not knew_topic:
            await self._announce([created])

    async def run(self) -> None:
        """Send checks at every interval."""
        while True:
            await asyncio.sleep(self._config.transaction_check_interval_s)
            try:
                await self.send_checks()
            except SkyrouteError as error:
                log.warning("transaction checks failed reason=%s", error)
