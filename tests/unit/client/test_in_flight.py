"""The limit of sends in flight against a simple model, and the ways in which waiting can end."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.client.producing.in_flight import InFlight


async def settle() -> None:
    """Let every task that can go on do so."""
    for _ in range(3):
        await asyncio.sleep(0)


async def waiting(gate: InFlight, size: int) -> "asyncio.Task[None]":
    task = asyncio.create_task(gate.enter(size))
    await settle()
    return task


async def test_so_many_go_in_and_the_rest_wait_in_line() -> None:
    gate = InFlight(2, 1_000)
    await gate.enter(1)
    await gate.enter(1)
    third, fourth = await waiting(gate, 1), await waiting(gate, 1)
    assert not third.done()
    assert not gate.try_enter(1)
    gate.leave(1)
    await settle()
    assert third.done()
    assert not fourth.done()
    gate.leave(1)
    await fourth
    assert (gate.count, gate.bytes) == (2, 2)


async def test_bytes_are_bounded_as_well() -> None:
    gate = InFlight(100, 10)
    await gate.enter(6)
    second = await waiting(gate, 5)
    assert not second.done()
    gate.leave(6)
    await second
    assert repr(gate) == "<InFlight 1/100 5/10 bytes>"


async def test_a_send_larger_than_the_limit_enters_alone() -> None:
    gate = InFlight(100, 10)
    await gate.enter(50)
    assert not gate.try_enter(1)
    gate.leave(50)
    await gate.enter(1)
    large = await waiting(gate, 50)
    assert not large.done()
    gate.leave(1)
    await large


async def test_small_sends_do_not_overtake_a_large_one() -> None:
    gate = InFlight(100, 10)
    await gate.enter(5)
    large = await waiting(gate, 10)
    assert not gate.try_enter(1)
    small = await waiting(gate, 1)
    gate.leave(5)
    await settle()
    assert large.done()
    assert not small.done()
    gate.leave(10)
    await small


async def test_a_cancelled_waiter_admits_the_next() -> None:
    gate = InFlight(100, 10)
    await gate.enter(5)
    large, small = await waiting(gate, 10), await waiting(gate, 1)
    large.cancel()
    await asyncio.wait_for(small, 1)
    assert (gate.count, gate.bytes) == (2, 6)


async def test_a_waiter_cancelled_while_admitted_leaves_again() -> None:
    gate = InFlight(1, 10)
    await gate.enter(1)
    second, third = await waiting(gate, 1), await waiting(gate, 1)
    gate.leave(1)  # it is the second one's turn, which it has not noticed yet
    second.cancel()
    await asyncio.wait_for(third, 1)
    with pytest.raises(asyncio.CancelledError):
        await second
    gate.leave(1)
    assert (gate.count, gate.bytes, len(gate._waiting)) == (0, 0, 0)


sizes = st.integers(0, 12)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), sizes),
        st.tuples(st.just("leave"), st.integers(0, 9)),
        st.tuples(st.just("give up"), st.integers(0, 9)),
        st.tuples(st.just("leave and give up"), st.integers(0, 9)),
    ),
    max_size=40,
)


@given(steps, st.integers(1, 4), st.integers(1, 10))
def test_limits_hold_and_every_waiter_is_served(steps: list[tuple[str, int]], count_max: int, bytes_max: int) -> None:
    async def play() -> None:
        gate = InFlight(count_max, bytes_max)
        inside: list[int] = []
        line: list[tuple[int, asyncio.Task[None]]] = []

        def admit() -> None:
            """The model: first come, first served, and a large one goes in alone."""
            while line and (not inside or (len(inside) < count_max and sum(inside) + line[0][0] <= bytes_max)):
                inside.append(line.pop(0)[0])

        for what, number in steps:
            if what == "enter":
                line.append((number, await waiting(gate, number)))
            elif what == "leave" and inside:
                gate.leave(inside.pop(number % len(inside)))
            elif what == "give up" and line:
                line.pop(number % len(line))[1].cancel()
            elif what == "leave and give up" and inside and line:
                gate.leave(inside.pop(0))
                line.pop(number % len(line))[1].cancel()
            admit()
            await settle()
            assert (gate.count, gate.bytes) == (len(inside), sum(inside))
            assert not any(task.done() for _, task in line)
            assert gate.count <= count_max
            assert gate.bytes <= bytes_max or gate.count == 1
        while inside:
            gate.leave(inside.pop())
            admit()
            await settle()
        assert line == []
        assert (gate.count, gate.bytes, len(gate._waiting)) == (0, 0, 0)

    asyncio.run(play())
