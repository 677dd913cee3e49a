from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from skyroute.broker.clients.change_notifications import GAP_S, NOTIFIED_PER_TURN, ChangeNotifications
from skyroute.broker.clients.client_expiry import SCAN_S, ClientExpiryScan
from skyroute.broker.clients.connected_clients import ConnectedClients
from skyroute.broker.clients.queue_locks import LOCK_LIFE_S, QueueLocks
from skyroute.broker.config import BrokerConfig
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.tables.consumer_groups import Groups
from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.clients import decode_consumer_group
from skyroute.wire.calls.groups import GroupConfig
from tests.support.clock import ManualClock
from tests.unit.broker.clients import RecordingLine, a_beat, a_consumer, a_peer
from tests.unit.broker.state import settings


class Room:
    """Two members of a group, and notifications whose gap the test ends."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.config: BrokerConfig = settings()
        self.clients = ConnectedClients()
        self.groups = Groups(JsonFile(folder / "groups.json"), self.config, lambda: 0)
        self.waiting: list[Callable[[], None]] = []
        self.notifications = ChangeNotifications(self.clients, self.groups, self.config, self._call_later)
        self.lines = [self.join(number) for number in (1, 2)]

    def _call_later(self, delay_s: float, then: Callable[[], None]) -> None:
        assert delay_s in (0, GAP_S)
        self.waiting.append(then)

    def join(self, number: int, group: str = "g") -> RecordingLine:
        peer, line = a_peer(number)
        beat = a_beat(f"c{number}", a_consumer(group, "T"))
        self.clients.beat(peer, beat, "JAVA", 479, self.clock.monotonic())
        return line

    def told(self) -> list[list[str]]:
        return [[decode_consumer_group(request) for request in line.told] for line in self.lines]

    def let_the_gap_pass(self) -> None:
        waiting, self.waiting[:] = list(self.waiting), []
        for then in waiting:
            then()


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def test_all_members_of_a_group_are_notified_at_once(room: Room) -> None:
    room.notifications.put(["g"])
    assert room.told() == [["g"], ["g"]]
    room.let_the_gap_pass()
    assert room.told() == [["g"], ["g"]]
    room.notifications.put(["g"])
    assert room.told() == [["g", "g"], ["g", "g"]]


def test_changes_within_the_gap_are_notified_once_at_its_end(room: Room) -> None:
    for _ in range(5):
        room.notifications.put(["g"])
    assert room.told() == [["g"], ["g"]]
    room.let_the_gap_pass()
    assert room.told() == [["g", "g"], ["g", "g"]]
    room.let_the_gap_pass()
    assert room.told() == [["g", "g"], ["g", "g"]]
    assert room.waiting == []


def test_the_gap_of_one_group_does_not_delay_another(room: Room) -> None:
    room.lines.append(room.join(3, "h"))
    room.notifications.put(["g"])
    room.notifications.put(["h"])
    assert room.told() == [["g"], ["g"], ["h"]]


def test_a_group_that_ended_within_the_gap_is_not_notified(room: Room) -> None:
    room.notifications.put(["g"])
    room.notifications.put(["g"])
    room.clients.drop(1)
    room.clients.drop(2)
    room.let_the_gap_pass()
    assert room.told() == [["g"], ["g"]]
    room.notifications.put(["g", "unknown"])
    assert room.waiting == []


def test_a_group_can_turn_notifications_off(room: Room) -> None:
    room.groups.put(msgspec.structs.replace(GroupConfig("g"), notify_members=False))
    room.notifications.put(["g"])
    assert room.told() == [[], []]


def test_a_broker_can_turn_notifications_off(room: Room) -> None:
    room.config.notify_group_changes = False
    room.notifications.put(["g"])
    assert room.told() == [[], []]


# ---------------------------------------------------------------------------------------------------------- expiry


class Scanning:
    def __init__(self, room: Room) -> None:
        self.room = room
        self.locks = QueueLocks()
        self.closed: list[int] = []
        self._scan = ClientExpiryScan(
            room.clients, self.locks, room.notifications, self.closed.append, room.config, room.clock
        )

    async def scan_after(self, seconds: float) -> None:
        self.room.clock.advance(seconds)
        await self._scan.scan()


async def test_an_expired_client_is_evicted_and_the_others_are_notified(room: Room) -> None:
    scanning = Scanning(room)
    for _ in range(12):
        await scanning.scan_after(SCAN_S)
        room.join(2)
    assert scanning.closed == []
    await scanning.scan_after(SCAN_S)
    assert scanning.closed == [1]
    group = room.clients.consumers("g")
    assert group is not None
    assert [member.client_id for member in group.members] == ["c2"]


async def test_the_expiry_time_of_clients_is_a_setting(room: Room) -> None:
    room.config.client_expiry_s = 15.0
    scanning = Scanning(room)
    await scanning.scan_after(SCAN_S)
    assert scanning.closed == []
    await scanning.scan_after(SCAN_S)
    assert scanning.closed == [1, 2]


async def test_a_late_scan_evicts_no_client(room: Room) -> None:
    scanning = Scanning(room)
    await scanning.scan_after(500.0)
    assert scanning.closed == []
    await scanning.scan_after(SCAN_S)
    assert scanning.closed == [1, 2]


async def test_the_scan_removes_expired_locks(room: Room) -> None:
    scanning = Scanning(room)
    scanning.locks.lock("g", "c1", [QueueRef("T", "b", 0)], room.clock.monotonic())
    for _ in range(int(LOCK_LIFE_S / SCAN_S) + 1):
        await scanning.scan_after(SCAN_S)
    assert len(scanning.locks) == 0


def test_many_members_are_notified_in_steps(room: Room) -> None:
    lines = [room.join(number, "many") for number in range(10, 10 + 2 * NOTIFIED_PER_TURN + 1)]
    room.notifications.put(["many"])
    for told in (NOTIFIED_PER_TURN, 2 * NOTIFIED_PER_TURN, 2 * NOTIFIED_PER_TURN + 1):
        assert sum(len(line.told) for line in lines) == told
        room.notifications.put(["many"])  # they are notified again after all were notified
        room.let_the_gap_pass()
    assert sum(len(line.told) for line in lines) == 3 * NOTIFIED_PER_TURN + 1


def test_many_groups_are_notified_in_steps(room: Room) -> None:
    names = [f"g{number}" for number in range(2 * NOTIFIED_PER_TURN)]
    peer, line = a_peer(7)
    room.clients.beat(peer, a_beat("c7", *(a_consumer(name, "T") for name in names)), "JAVA", 479, 0.0)
    room.notifications.put(["nobody", *names])
    assert len(line.told) == NOTIFIED_PER_TURN
    room.let_the_gap_pass()
    assert [decode_consumer_group(request) for request in line.told] == names
