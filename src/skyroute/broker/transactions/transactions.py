"""Transactions from their half message to their end, and asking producers who keep silent."""

import asyncio
import logging
from collections.abc import Iterator
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
from skyroute.message.record import decode_record
from skyroute.message.reserved_topics import HALF_DONE_TOPIC, HALF_GIVEN_UP_TOPIC, HALF_TOPIC
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
"""Under whose name it is kept how far both topics are done with."""
SPAN_MAX: Final = 100_000
"""How far a half that may not be asked about yet stays behind the others: all from there on is read at a start."""
HALVES_A_TURN: Final = 50
"""So many halves are dealt with before others have their turn."""
_NOT_FOUND: Final = "Find prepared transaction message failed"


class Question(NamedTuple):
    """What a producer is to be asked."""

    group: str
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
    ) -> None:
        self._store = store
        self._appender = appender
        self._offsets = offsets
        self._topics = topics
        self._clients = clients
        self._config = config
        self._identity = identity
        self._announce = announce
        self._open = OpenTransactions(store)
        self._done: list[int] = []
        """Halves that have ended, which no record says yet."""
        self._floors: tuple[int, int] | None = None
        self.committed = 0
        self.rolled_back = 0
        """How many ended in which way since the start."""

    def __repr__(self) -> str:
        return f"<Transactions {self._open!r}>"

    def load(self) -> None:
        """Find out which transactions are open. Called once, before anybody begins or ends one."""
        self._open.load(self._floor_of(HALF_TOPIC), self._floor_of(HALF_DONE_TOPIC))
        if self._open.halves:
            log.info("open transactions found count=%d", len(self._open.halves))

    def _floor_of(self, topic: str) -> int | None:
        return self._offsets.get(GROUP, topic, drafts.HALF_QUEUE_ID)

    @property
    def open_count(self) -> int:
        """How many transactions were open when that was last looked at."""
        return len(self._open.halves)

    def prepare(self, draft: Draft) -> Draft:
        """Return the half of a message, to be stored in its place.

        Raises:
            RefusedError: there are too many open transactions, or its properties are too long.
        """
        if self._open.is_full:
            raise RefusedError(ResponseCode.SYSTEM_BUSY, f"{OPEN_MAX} transactions are open; end some of them first")
        half = drafts.half_of(draft)
        self._open.expect_one()
        return half

    # --------------------------------------------------------------------------------------------------------- ending

    def end(self, end: TransactionEnd, now_ms: int) -> None:
        """Deliver a message, or drop it, as its producer says. What that does to the half is said by `write_done`.

        Raises:
            RefusedError: it is no half of this producer's, has ended already, or it is too late for an unasked word.
            StorageError, RecordError: the message could not be stored; its half stays open.
        """
        if end.outcome is TransactionOutcome.UNKNOWN:
            return
        half = self._open.half_in_log(end.log_position)
        if half is None:
            raise RefusedError(ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
        self._check(end, half, now_ms)
        offset = self._open.find_open(end.half_offset)
        if offset is None:
            # Nothing is lost: whatever is still open is asked for again.
            raise RefusedError(ResponseCode.SYSTEM_ERROR, "the transaction has ended already")
        if end.outcome is TransactionOutcome.COMMIT:
            draft = drafts.committed(half)
            if draft is None:
                raise RefusedError(ResponseCode.SYSTEM_ERROR, _NOT_FOUND)
            self._appender.put(draft)
            self.committed += 1
        else:
            self.rolled_back += 1
        self._done += self._open.close(offset)

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

    def write_done(self) -> Appended | None:
        """Store which halves have ended; returns the last record of these, or None where there is nothing to say.

        What the disk refuses is kept, and said with the next one: a half of which nothing is said is asked for again
        only after a restart.
        """
        appended: Appended | None = None
        while self._done:
            digits = len(str(max(self._done)))
            offsets = self._done[: max(self._config.op_message_bytes_max // (digits + 1), 1)]
            draft = drafts.done(offsets, self._identity.raw_store_host, self._appender.now_ms())
            try:
                appended = self._appender.put_plain(draft)
            except StorageError as error:
                log.warning("ended transactions are not written down yet count=%d reason=%s", len(self._done), error)
                return None
            self._open.note_done_record(appended.queue_offset, max(offsets))
            del self._done[: len(offsets)]
        return appended

    # --------------------------------------------------------------------------------------------------------- asking

    def check(self, now_ms: int) -> Iterator[Question | None]:
        """Give what producers are to be asked, and put the halves to the end of their queue.

        None is given for a half that was dealt with and leaves nothing to ask: others may want their turn by then.

        Raises:
            StorageError: the disk refuses; the next round goes on from there.
        """
        self._open.read_on()
        limit = self._open.end
        try:
            for offset, known in list(self._open.halves.items()):
                if offset not in self._open.halves:
                    continue  # it has ended while others were asked
                if self._is_due(known, now_ms - known.since_ms):
                    yield self._ask(offset, known, now_ms)
                elif limit - offset > SPAN_MAX:
                    self._carry_on(offset, known)
                    yield None
        finally:
            self.write_done()
            self._keep_floors()

    def _is_due(self, known: OpenHalf, age_ms: int) -> bool:
        patience_ms = self._config.transaction_timeout_ms if known.immune_ms is None else known.immune_ms
        # A copy was stored later than the half, so one that is born in time to come is taken for old enough.
        return age_ms < 0 or age_ms > min(patience_ms, self._config.retention_ms)

    def _ask(self, offset: int, known: OpenHalf, now_ms: int) -> Question | None:
        half = self._open.half_in_log(known.position)
        if half is None:
            self._open.close(offset)
            return None
        times = drafts.number_of(half, names.TRANSACTION_CHECK_TIMES) or 0
        if times >= self._config.transaction_checks_max or now_ms - half.born_at_ms > self._config.retention_ms:
            self._give_up(offset, half, times)
            return None
        try:
            draft = drafts.asked_again(half, times + 1)
        except RefusedError:  # its properties have no room for the count
            self._give_up(offset, half, times)
            return None
        appended = self._move(offset, draft)
        group = find_property(half.raw_properties, names.PRODUCER_GROUP) or ""
        return Question(group, drafts.question(half, appended, draft, self._identity.name))

    def _give_up(self, offset: int, half: StoredMessage, times: int) -> None:
        self._topics.create(TopicConfig(HALF_GIVEN_UP_TOPIC, 1, 1))
        appended = self._appender.put_plain(drafts.given_up(half))
        self._done += self._open.close(offset)
        log.warning(
            "transaction given up topic=%s id=%s asked=%d offset=%d",
            find_property(half.raw_properties, names.REAL_TOPIC),
            find_property(half.raw_properties, names.UNIQUE_ID),
            times,
            appended.queue_offset,
        )

    def _carry_on(self, offset: int, known: OpenHalf) -> None:
        half = self._open.half_in_log(known.position)
        if half is None:
            self._open.close(offset)
            return
        try:
            draft = drafts.carried_on(half)
        except RefusedError:  # its properties have no room for where it was
            return
        appended = self._appender.put_plain(draft)
        # No record says that it is done: Apache's brokers take that for the end of its copies, too.
        self._open.expect_one()
        self._open.move(offset, appended.queue_offset)

    def _move(self, offset: int, draft: Draft) -> Appended:
        appended = self._appender.put_plain(draft)
        self._open.expect_one()
        self._open.move(offset, appended.queue_offset)
        self._done.append(offset)
        return appended

    def _keep_floors(self) -> None:
        # Those of the round before: what they rest on has reached the disk by now, whatever becomes of this process.
        if self._floors is not None:
            half_floor, done_floor = self._floors
            self._offsets.commit(GROUP, HALF_TOPIC, drafts.HALF_QUEUE_ID, half_floor)
            self._offsets.commit(GROUP, HALF_DONE_TOPIC, drafts.HALF_QUEUE_ID, done_floor)
        self._floors = self._open.floors()

    def resume(self, log_position: int) -> Appended:
        """Ask again for a half that was given up, as if nobody had been asked before.

        Raises:
            RefusedError: there is no half at this place.
            StorageError: it could not be stored.
        """
        record = self._store.record_at(log_position)
        half = None if record is None else decode_record(record)
        if half is None or half.topic not in (HALF_TOPIC, HALF_GIVEN_UP_TOPIC):
            raise RefusedError(
                ResponseCode.SYSTEM_ERROR,
                "Exception was thrown when putting message back to RMQ_SYS_TRANS_HALF_TOPIC.",
            )
        draft = drafts.asked_again(half, 0)
        offset = self._open.find_open(half.queue_offset) if half.topic == HALF_TOPIC else None
        if offset is not None:
            return self._move(offset, draft)
        self._open.expect_one()
        return self._appender.put_plain(draft)

    async def ask_producers(self) -> None:
        """Ask once for all that is due."""
        knew_topic = self._topics.get(HALF_GIVEN_UP_TOPIC) is not None
        asked = silent = 0
        for turn, question in enumerate(self.check(self._appender.now_ms()), 1):
            if turn % HALVES_A_TURN == 0:
                self.write_done()
                await asyncio.sleep(0)
            if question is None:
                continue
            producer = self._clients.next_producer(question.group)
            if producer is None:
                silent += 1
            else:
                producer.send_oneway(encode_transaction_check(question.check))
                asked += 1
        if asked or silent:
            log.info("producers asked for their transactions asked=%d nobody_there=%d", asked, silent)
        created = self._topics.get(HALF_GIVEN_UP_TOPIC)
        if created is not None and not knew_topic:
            await self._announce([created])

    async def run(self) -> None:
        """Ask again and again."""
        while True:
            await asyncio.sleep(self._config.transaction_check_interval_s)
            try:
                await self.ask_producers()
            except SkyrouteError as error:
                log.warning("producers could not be asked for their transactions reason=%s", error)
