"""A store with the components that transactions need, and no sockets."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

from skyroute.broker.appender import Appender
from skyroute.broker.clients.connected_clients import ConnectedClients
from skyroute.broker.config import BrokerConfig
from skyroute.broker.delivery.flush_wait import Flushing
from skyroute.broker.delivery.long_polling import LongPolling
from skyroute.broker.identity import Identity
from skyroute.broker.stats import Stats
from skyroute.broker.store.draft import Appended
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.store.message_store import MessageStore
from skyroute.broker.store.settings import StoreSettings
from skyroute.broker.tables.consumer_offsets import ConsumerOffsets
from skyroute.broker.tables.topics import Topics
from skyroute.broker.transactions import Transactions
from skyroute.broker.transactions.transactions import PendingCheck
from skyroute.files.disk import Disk
from skyroute.message.message import StoredMessage
from skyroute.message.reserved_topics import HALF_DONE_TOPIC
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.calls.transaction import TransactionEnd, TransactionOutcome
from tests.support.clock import ManualClock
from tests.support.disks import HERE, NoSyncDisk, draft, read_all

GROUP = "payments"


class Room:
    """Can be closed and opened again, like a broker."""

    def __init__(self, folder: Path, *, disk: Disk | None = None) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.config = BrokerConfig(store_path=str(folder))
        self.identity = Identity("DefaultCluster", "broker-a", 0, "127.0.0.1:10911", HERE)
        self.announced: list[str] = []
        self.disk = disk or NoSyncDisk()
        self.open()

    def now_ms(self) -> int:
        return int(self.clock.wall() * 1000)

    def open(self) -> None:
        settings = StoreSettings(log_segment_bytes=1 << 20, queue_segment_units=1000, index_slots=16, index_entries=64)
        self.store = MessageStore.open(self.folder / "store", settings, now_ms=self.now_ms(), disk=self.disk)
        self.offsets = ConsumerOffsets(JsonFile(self.folder / "consumerOffset.json", self.disk), self.now_ms)
        self.offsets.load()
        self.topics = Topics(JsonFile(self.folder / "topics.json", self.disk), self.config, self.now_ms)
        self.clients = ConnectedClients()
        self.stats = Stats(self.clock)
        flushing = Flushing(self.store, interval_s=1, timeout_s=lambda: 1, on_flushed=lambda: None)
        self.appender = Appender(
            self.store,
            long_polling=LongPolling(self.clock.monotonic),
            flushing=flushing,
            stats=self.stats,
            now_ms=self.now_ms,
        )
        self.transactions = Transactions(
            self.store,
            self.appender,
            offsets=self.offsets,
            topics=self.topics,
            clients=self.clients,
            config=self.config,
            identity=self.identity,
            announce=self._announce,
        )
        self.transactions.load()

    async def _announce(self, configs: Collection[TopicConfig]) -> None:
        self.announced += [config.name for config in configs]

    def close(self) -> None:
        self.store.close()
        self.offsets.table_file.save_now()

    def reopen(self) -> None:
        self.close()
        self.open()

    def crash(self) -> None:
        """Crash and restart on the same machine."""
        self.store.kill()
        self.open()

    def begin(
        self, unique_id: str = "ID1", body: bytes = b"body", born_before_s: int = 0, /, **properties: str
    ) -> Appended:
        """Send a transactional message."""
        known = {"TRAN_MSG": "true", "PGROUP": GROUP, "UNIQ_KEY": unique_id, "TAGS": "paid", **properties}
        sent = msgspec.structs.replace(
            draft("Orders", 3, body, known, sys_flag=0x4, flag=7), born_at_ms=self.now_ms() - born_before_s * 1000
        )
        return self.appender.put_plain(self.transactions.prepare(sent))

    def end(
        self,
        half: Appended,
        outcome: TransactionOutcome = TransactionOutcome.COMMIT,
        *,
        group: str = GROUP,
        from_check: bool = False,
    ) -> None:
        end = TransactionEnd(group, half.queue_offset, half.log_position, outcome, "ID1", from_check=from_check)
        self.transactions.end(end, self.now_ms())
        self.transactions.write_op_messages()

    def check(self, after_s: float = 31) -> list[PendingCheck]:
        """Advance the clock, and return the checks for producers."""
        self.clock.advance(after_s)
        return [question for question in self.transactions.check(self.now_ms()) if question is not None]

    def answer(self, question: PendingCheck, outcome: TransactionOutcome = TransactionOutcome.COMMIT) -> None:
        """End a transaction in response to a check."""
        check = question.check
        end = TransactionEnd(question.group, check.half_offset, check.log_position, outcome, from_check=True)
        self.transactions.end(end, self.now_ms())
        self.transactions.write_op_messages()

    def delivered(self) -> list[StoredMessage]:
        return read_all(self.store, "Orders", 3)

    def done_bodies(self) -> list[bytes]:
        return [record.body for record in read_all(self.store, HALF_DONE_TOPIC)]
