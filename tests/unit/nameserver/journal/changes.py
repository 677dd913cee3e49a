"""One change of every kind, and journals to write them to."""

from pathlib import Path
from typing import Any, Final

from skyroute.files.disk import Disk
from skyroute.nameserver.journal.reader import read_records
from skyroute.nameserver.journal.recorder import Journal, JournalLimits
from skyroute.nameserver.journal.schema import Record
from skyroute.nameserver.server_events import (
    Change,
    KvChanged,
    ReplicasChanged,
    ReplicasState,
    ServerStarted,
    ServerStopped,
    SettingsChanged,
)
from skyroute.routing.events import (
    BrokerChanged,
    BrokerConfirmed,
    BrokerJoined,
    BrokerLeft,
    Cause,
    FilterServersChanged,
    GroupChanged,
    LeaseHeld,
    MappingsChanged,
    SmallestIdChanged,
    TopicsChanged,
    WritesChanged,
)
from skyroute.routing.registration import DataVersion
from skyroute.routing.topology import QueueSettings, StaticMapping
from tests.support.clock import ManualClock
from tests.support.waiting import wait_until

OLD, NEW = DataVersion(0, 1, 1), DataVersion(0, 2, 2)
FOUR, EIGHT = QueueSettings(4, 4, 6), QueueSettings(8, 8, 6)
MAPPING = StaticMapping("T", "b", 2, 1, current_ids={0: 0, 1: 1})

OF_NAME_SERVER: Final[tuple[Change, ...]] = (
    ServerStarted("127.0.0.1:9876", 3, 17),
    GroupChanged("b", None, "c", False, True, None, "z", Cause.REGISTERED),
    BrokerJoined("c", "b", 0, "a:1", "a:2", OLD, 120.0, 7),
    TopicsChanged("c", "b", Cause.REGISTERED, NEW, {"T1": FOUR}, {"T2": (FOUR, EIGHT)}, {"T3": EIGHT}),
    WritesChanged("c", "b", Cause.WRITES_FORBIDDEN, frozenset({"T2", "T1"}), frozenset()),
    WritesChanged("c", "b", Cause.WRITES_RESTORED, frozenset(), frozenset({"T1"})),
    MappingsChanged("c", "b", Cause.REGISTERED, {"T": (None, MAPPING)}),
    FilterServersChanged("c", "b", "a:1", (), ("f:1",), Cause.REGISTERED),
    BrokerChanged("c", "b", "a:1", 1, 0, None, "a:2", OLD, NEW),
    BrokerConfirmed("c", "b", 0, "a:1", NEW, 7, Cause.HEARTBEAT),
    LeaseHeld("c", "b", 0, "a:1", NEW, 120.0),
    SmallestIdChanged("c", "b", Cause.LEASE_EXPIRED, True, 1, "s:1", ("s:2",), "a:1", None),
    BrokerLeft("c", "b", 0, "a:1", Cause.LEASE_EXPIRED, NEW, (7,)),
    KvChanged("n", "k", "old", None, "1.2.3.4:5"),
    SettingsChanged({"enableTopicList": ("true", "false")}, "1.2.3.4:5"),
    ServerStopped(),
)
OF_CONTROLLER: Final[tuple[Change, ...]] = (
    ReplicasChanged(
        *("master_elected", "master_silent", "c", "b", 2, "a:2", 3, 5),
        before=ReplicasState(1),
        after=ReplicasState(2, "a:2"),
        is_unclean=True,
    ),
    ReplicasChanged("master_lost", "operator_request", "c", "b", 1, master_epoch=4, before=ReplicasState(1)),
    ReplicasChanged(
        *("sync_set_changed", "broker_request", "c", "b"),
        sync_set_epoch=6,
        before=ReplicasState(broker_ids=(1,)),
        after=ReplicasState(broker_ids=(1, 2)),
    ),
    ReplicasChanged("replica_added", "broker_request", "c", "b", 3, "a:3"),
    ReplicasChanged(
        *("replica_moved", "broker_request", "c", "b", 3, "a:4", None, None),
        ReplicasState(address="a:3"),
        ReplicasState(address="a:4"),
    ),
    ReplicasChanged("replicas_removed", "operator_request", "c", "b", before=ReplicasState(broker_ids=(3,))),
)
EVERY_KIND: Final = (*OF_NAME_SERVER[:-1], *OF_CONTROLLER, OF_NAME_SERVER[-1])
STOP: Final = ServerStopped()


def joined(number: int = 0) -> BrokerJoined:
    return BrokerJoined("c", f"broker-{number}", 0, f"10.0.0.{number}:10911", None, OLD, 120.0, 7)


def open_journal(
    folder: Path, *, clock: ManualClock | None = None, disk: Disk | None = None, floor: int = 0, **limits: Any
) -> Journal:
    return Journal.open(
        folder,
        server_id="ns-1",
        limits=JournalLimits(**limits),
        clock=clock or ManualClock(),
        disk=disk,
        floor=floor,
    )


def write(folder: Path, *changes: Change, **options: Any) -> None:
    """Open a journal, append these changes and a stop, and close it."""
    journal = open_journal(folder, **options)
    journal.append(changes)
    journal.append([STOP])
    journal.close()


def catch_up(journal: Journal) -> None:
    wait_until(lambda: journal.caught_up, "everything is written")


def read(folder: Path) -> list[Record]:
    return list(read_records(folder))


def numbers(folder: Path) -> list[int]:
    return [record.seq for record in read(folder)]
