"""What a long registration changes can be looked for in steps, and comes to the same as looking at once."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.remoting.stepwise import run_through
from skyroute.routing import table as table_module
from skyroute.routing.registration import Registration
from skyroute.routing.table import RouteTable
from skyroute.routing.topology import QueueSettings
from tests.unit.routing.brokers import SLAVE, registration

TOPICS = ("T1", "T2", "T3", "T4")
topic_tables = st.dictionaries(
    st.sampled_from(TOPICS), st.builds(QueueSettings, st.just(4), st.sampled_from((4, 8)), st.sampled_from((4, 6)))
)


def knowing(*said: Registration) -> RouteTable:
    table = RouteTable()
    for holder, one in enumerate(said):
        table.register(one, holder=holder, now=0.0)
    return table


@pytest.fixture
def one_topic_a_step() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "COMPARED_A_STEP", 1)
        yield


@given(known=topic_tables, said=topic_tables, version=st.integers(1, 2), forbidden=st.booleans(), delete=st.booleans())
def test_looking_in_steps_comes_to_the_same(
    known: dict[str, QueueSettings], said: dict[str, QueueSettings], *, version: int, forbidden: bool, delete: bool
) -> None:
    at_once = knowing(registration(topics=known | {"A": QueueSettings(1, 1, 6), "B": QueueSettings(1, 1, 6)}))
    if forbidden:
        at_once.forbid_writes("broker-a")
    in_steps = deepcopy(at_once)
    news = registration(topics=said | {"A": QueueSettings(2, 1, 6), "C": QueueSettings(1, 1, 6)}, version=version)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "COMPARED_A_STEP", 1)
        comparison = run_through(in_steps.compare_in_steps(news))
    assert comparison is not None
    assert comparison.holds
    first = at_once.register(news, holder=0, now=1.0, delete_missing_topics=delete)
    second = in_steps.register(news, holder=0, now=1.0, delete_missing_topics=delete, comparison=comparison)
    assert first == second
    assert at_once.image(1.0) == in_steps.image(1.0)


@pytest.mark.usefixtures("one_topic_a_step")
def test_a_change_between_the_steps_has_all_looked_at_again() -> None:
    table = knowing(registration(topics=TOPICS))
    steps = table.compare_in_steps(registration(topics=TOPICS, version=2))
    next(steps)
    table.delete_topic("T1")
    comparison = run_through(steps)
    assert comparison is not None
    assert not comparison.holds
    table.register(registration(topics=TOPICS, version=2), holder=0, now=1.0, comparison=comparison)
    assert set(table.topics) == set(TOPICS)


@pytest.mark.usefixtures("one_topic_a_step")
def test_a_group_that_came_back_is_another_one() -> None:
    table = knowing(registration(topics=TOPICS))
    comparison = run_through(table.compare_in_steps(registration(topics=TOPICS, version=2)))
    table.drop_holder(0)
    table.register(registration(address=SLAVE, topics=("T1", "T2")), holder=1, now=1.0)
    news = registration(address=SLAVE, topics=TOPICS, version=2)
    table.register(news, holder=1, now=1.0, comparison=comparison)
    assert set(table.topics) == set(TOPICS)


def test_a_short_registration_and_one_of_a_new_group_need_no_steps() -> None:
    table = knowing(registration(topics=TOPICS))
    assert run_through(table.compare_in_steps(registration(topics=TOPICS))) is None
    assert run_through(table.compare_in_steps(registration(name="broker-z", topics=TOPICS))) is None
