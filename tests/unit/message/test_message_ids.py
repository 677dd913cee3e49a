import os
from datetime import datetime

import pytest

from skyroute.message.message_id import UniqueId, created_at, decode_unique_id
from skyroute.message.message_ids import MessageIds
from tests.support.clock import ManualClock


class SteppingClock(ManualClock):
    """A wall clock that people set."""

    def set_wall(self, moment: datetime) -> None:
        self._wall = moment.timestamp()


def local(year: int, month: int, day: int, hour: int = 0) -> datetime:
    return datetime(year, month, day, hour).astimezone()


@pytest.fixture
def clock() -> SteppingClock:
    clock = SteppingClock()
    clock.set_wall(local(2026, 1, 31, 23))
    return clock


def next_id(ids: MessageIds) -> UniqueId:
    return decode_unique_id(ids.next())


def test_an_id_has_client_and_time(clock: SteppingClock) -> None:
    made = next_id(MessageIds("10.1.2.3", clock.wall))
    assert (made.ip, made.pid) == ("10.1.2.3", os.getpid() & 0xFFFF)
    now = datetime.fromtimestamp(clock.wall()).astimezone()
    assert created_at(made, now) == now


def test_an_id_may_have_an_ipv6_address(clock: SteppingClock) -> None:
    text = MessageIds("fe80::1", clock.wall).next()
    assert len(text) == 56
    assert decode_unique_id(text).ip == "fe80::1"


def test_the_counter_grows_while_the_clock_stands_still(clock: SteppingClock) -> None:
    ids = MessageIds("10.1.2.3", clock.wall)
    first, second = next_id(ids), next_id(ids)
    assert second.counter == (first.counter + 1) & 0xFFFF
    assert second.into_month_ms == first.into_month_ms


def test_no_two_ids_are_the_same_however_the_clock_jumps(clock: SteppingClock) -> None:
    ids = MessageIds("10.1.2.3", clock.wall)
    made = []
    for moment in (
        local(2026, 1, 31, 23),
        local(2026, 2, 1),
        local(2026, 1, 31, 23),
        local(2025, 12, 31),
        local(2026, 1, 31, 23),
        local(2030, 6, 15),
    ):
        clock.set_wall(moment)
        made += [ids.next() for _ in range(5_000)]
    assert len(set(made)) == len(made)


@pytest.mark.parametrize(
    "moment", [local(2026, 2, 1), local(2026, 12, 31, 23), local(2027, 1, 1), local(2025, 11, 2), local(2024, 2, 29)]
)
def test_a_new_month_begins_anew(clock: SteppingClock, moment: datetime) -> None:
    ids = MessageIds("10.1.2.3", clock.wall)
    ids.next()
    clock.set_wall(moment)
    start = moment.replace(day=1, hour=0)
    assert next_id(ids).into_month_ms == round((moment - start).total_seconds() * 1000)


def test_processes_with_the_same_pid_have_different_ids(clock: SteppingClock) -> None:
    one, other = MessageIds("10.1.2.3", clock.wall), MessageIds("10.1.2.3", clock.wall)
    assert next_id(one).process_hash != next_id(other).process_hash
