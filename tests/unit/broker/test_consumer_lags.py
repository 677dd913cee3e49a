"""The lag of groups, compared with a simple count, and read in steps."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skyroute.broker import consumer_lags
from skyroute.broker.components import Components
from skyroute.broker.consumer_lags import ConsumerLags, Lag
from skyroute.broker.pop.in_flight import InFlight
from skyroute.wire.calls.topics import TopicConfig
from tests.unit.broker.state import State

QUEUES = 4
Offsets = dict[int, int]
OFFSETS = st.dictionaries(st.integers(0, QUEUES), st.integers(0, 7), max_size=QUEUES)


def components_of(state: State) -> Components:
    """Return the components that lags are read from."""
    ordered_queues = SimpleNamespace(in_flight=lambda _topic, _group: 0)
    tables = {"offsets": state.offsets, "topics": state.topics, "store": state.store}
    return cast(
        "Components",
        SimpleNamespace(**tables, clock=state.clock, in_flight=InFlight(), ordered_queues=ordered_queues),
    )


async def lags_of(state: State) -> list[tuple[Lag, int]]:
    lags = ConsumerLags(components_of(state))
    found = await lags.find()
    return list(zip(found, await lags.ages_ms(found), strict=True))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(counts=st.lists(st.integers(0, 5), min_size=QUEUES, max_size=QUEUES), committed=OFFSETS, pulled=OFFSETS)
def test_lags_are_those_of_a_count_queue_by_queue(
    state: State, counts: list[int], committed: Offsets, pulled: Offsets
) -> None:
    number = len(state.topics.all())
    topic, group = f"T{number}", f"g{number}"
    state.topics.put(TopicConfig(topic, QUEUES, QUEUES))
    for queue_id, count in enumerate(counts):
        state.write(topic, queue_id, count)
    for queue_id, offset in committed.items():
        state.offsets.commit(group, topic, queue_id, offset)
    for queue_id, offset in pulled.items():
        state.offsets.note_pull(group, topic, queue_id, offset)
    starts = [min(committed.get(queue_id, 0), counts[queue_id]) for queue_id in range(QUEUES)]
    behind = [count - start for count, start in zip(counts, starts, strict=True)]
    seen = [pulled.get(queue_id, committed.get(queue_id, 0)) for queue_id in range(QUEUES)]
    inflight = sum(min(max(at - start, 0), left) for at, start, left in zip(seen, starts, behind, strict=True))
    times = (
        state.store.stored_at_ms(topic, queue_id, starts[queue_id]) for queue_id in range(QUEUES) if behind[queue_id]
    )
    oldest_ms = min((time for time in times if time is not None), default=state.now_ms())
    found = [pair for pair in asyncio.run(lags_of(state)) if pair[0].group == group]
    expected = (Lag(group, topic, sum(behind), inflight), state.now_ms() - oldest_ms)
    assert found == ([expected] if committed else [])


async def test_lags_of_a_topic_with_many_queues_are_read_once_and_in_steps(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_lags, "VISITED_PER_TURN", 100)
    state.topics.put(TopicConfig("Wide", 65_536, 65_536))
    for queue_id in range(300):
        state.write("Wide", queue_id)
    for group in range(50):
        state.offsets.commit(f"g{group}", "Wide", 7, 1)
    lags, turns = ConsumerLags(components_of(state)), 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.ensure_future(count_turns())
    found = await lags.find()
    ages_ms = await lags.ages_ms(found)
    counting.cancel()
    assert {lag.messages for lag in found} == {299}
    assert set(ages_ms) == {300_000}
    assert 5 <= turns <= 20
