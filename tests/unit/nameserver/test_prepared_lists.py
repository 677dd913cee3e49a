"""Long answers are made once per change, in steps, and everyone is given the same bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest

from skyroute.nameserver import prepared_lists
from skyroute.nameserver.config import NameServerConfig
from skyroute.nameserver.handlers.routes import RouteHandlers
from skyroute.nameserver.kv_config import KvConfig
from skyroute.nameserver.prepared_lists import SHARED_BYTES, STEP, Pieces, PreparedLists
from skyroute.remoting.busy_polling import BusyPolling
from skyroute.remoting.dispatch import Answer, OrderedResponse, Peer
from skyroute.remoting.stepwise import StepRunner
from skyroute.routing.table import RouteTable
from skyroute.routing.topology import QueueSettings
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.fast_path import PreparedResponse
from tests.support.clock import ManualClock
from tests.unit.routing.brokers import registration

LONG, SHORT = STEP + 1, STEP


class Lists:
    """Lists whose making can be watched."""

    def __init__(self) -> None:
        self.prepared = PreparedLists(StepRunner(BusyPolling(), ManualClock()))
        self.made = 0

    def ask(self, size: int = LONG) -> Answer:
        return self.prepared.answer("numbers", size, self.write)

    def write(self) -> Pieces:
        self.made += 1
        made = self.made
        yield
        yield
        return [b"%d" % made, b"." * SHARED_BYTES]


async def settle(answer: Answer) -> Response:
    if isinstance(answer, Response):
        return answer
    assert isinstance(answer, OrderedResponse)
    return await answer.work


def number(response: Response) -> bytes:
    assert isinstance(response, PreparedResponse)
    return bytes(response.more[0])


@pytest.fixture
def lists() -> Lists:
    return Lists()


async def test_a_long_list_is_encoded_in_steps_and_cached(lists: Lists) -> None:
    first = lists.ask()
    assert isinstance(first, OrderedResponse)
    made = await first.work
    assert lists.ask() is made
    assert lists.made == 1
    assert isinstance(made, PreparedResponse)
    assert all(isinstance(piece, memoryview) for piece in made.more)


async def test_a_short_list_is_encoded_at_once(lists: Lists) -> None:
    assert isinstance(lists.ask(SHORT), Response)


async def test_a_change_invalidates_a_list(lists: Lists) -> None:
    assert number(await settle(lists.ask())) == b"1"
    lists.prepared.forget()
    assert number(await settle(lists.ask())) == b"2"
    assert isinstance(lists.ask(), Response)


async def test_all_waiting_requests_get_the_same_list(lists: Lists) -> None:
    answers = await asyncio.gather(*(settle(lists.ask()) for _ in range(50)))
    assert len(set(map(id, answers))) == 1
    assert lists.made == 1


async def test_after_a_change_a_list_is_encoded_once_for_all_waiting_requests(lists: Lists) -> None:
    before = [asyncio.ensure_future(settle(lists.ask())) for _ in range(50)]
    await asyncio.sleep(0)
    lists.prepared.forget()
    after = [asyncio.ensure_future(settle(lists.ask())) for _ in range(50)]
    assert {number(answer) for answer in await asyncio.gather(*before)} == {b"1"}
    assert {number(answer) for answer in await asyncio.gather(*after)} == {b"2"}


async def test_a_list_that_is_too_long_is_refused_with_its_size(lists: Lists, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_lists, "LIST_BYTES_MAX", SHARED_BYTES)
    response = await settle(lists.ask())
    assert response.code == ResponseCode.SYSTEM_ERROR
    assert f"takes {SHARED_BYTES + 1} bytes" in (response.remark or "")


def test_the_cache_is_bounded(lists: Lists, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_lists, "LIST_BYTES_MAX", 3 * SHARED_BYTES)
    for key in range(10):
        lists.prepared.answer(key, SHORT, lists.write)
        assert lists.prepared._bytes <= 3 * SHARED_BYTES
        kept = sum(made.response.body_bytes for made in lists.prepared._made.values())
        assert kept == lists.prepared._bytes


# -------------------------------------------------------------------------------------------------- copies of views


def steps_of(steps: Generator[None, None, list[str]]) -> tuple[int, list[str]]:
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1


def test_a_view_is_copied_in_steps(lists: Lists) -> None:
    names = {str(at): None for at in range(3 * STEP)}
    assert steps_of(lists.prepared.copy(names.keys(), lambda: 0)) == (3, list(names))


def test_a_view_that_changes_is_copied_again(lists: Lists) -> None:
    names = {str(at): None for at in range(3 * STEP)}
    copying = lists.prepared.copy(names.keys(), lambda: 0)
    next(copying)
    del names["0"]
    names["new"] = None
    lists.prepared.forget()
    assert steps_of(copying)[1] == list(names)


def test_a_view_that_never_rests_is_copied_at_once(lists: Lists) -> None:
    names = {str(at): None for at in range(3 * STEP)}
    copying, count = lists.prepared.copy(names.keys(), lambda: 0), 0
    for _ in copying:
        count += 1
        assert count < 10
        names[f"new {count}"] = None
        lists.prepared.forget()
    assert count == prepared_lists.COPIES_MAX


# ------------------------------------------------------------------------------------------------ the lists themselves


@pytest.fixture
def table() -> RouteTable:
    table = RouteTable()
    topics = {f"T{at}": QueueSettings(4, 4, 6, at % 4) for at in range(3 * STEP)}
    table.register(registration(topics=topics), connection=1, now=0.0)
    return table


def handlers(table: RouteTable) -> RouteHandlers:
    clock = ManualClock()
    step_runner = StepRunner(BusyPolling(), clock)
    return RouteHandlers(table, KvConfig("none.json"), NameServerConfig(), clock=clock, step_runner=step_runner)


@pytest.mark.parametrize(
    ("ask", "fields"),
    [
        ("get_all_topics", {}),
        ("get_topics_of_cluster", {"cluster": "c1"}),
        ("get_unit_topics", {}),
        ("get_unit_subscription_topics", {}),
        ("get_unit_subscription_only_topics", {}),
    ],
)
async def test_a_list_of_many_topics_is_the_same_bytes_for_all(
    table: RouteTable, ask: str, fields: dict[str, str]
) -> None:
    handler = getattr(handlers(table), ask)
    first, second = (handler(Request(0, fields), Peer(1, "10.0.0.9:1")) for _ in range(2))
    assert isinstance(first, OrderedResponse)
    response = await first.work
    assert await second.work is response
    assert handler(Request(0, fields), Peer(2, "10.0.0.9:2")) is response
