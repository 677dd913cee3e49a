"""A long registration is prepared in steps; applying it comes to the same as registering at once."""

from __future__ import annotations

from collections.abc import Generator
from copy import deepcopy
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.remoting.stepwise import run_through
from skyroute.routing import discovery
from skyroute.routing.errors import TableFullError
from skyroute.routing.events import MappingsChanged, RegistrationOutcome, TopicsChanged
from skyroute.routing.registration import Registration
from skyroute.routing.table import RouteTable
from skyroute.routing.topology import QueueSettings
from tests.unit.routing.brokers import MASTER, OTHER, READ_ONLY, SLAVE, WRITABLE, mapping, only, registration, tell

T = TypeVar("T")

TOPICS = ("T1", "T2", "T3", "T4", "T5")
OTHERS = ("U1", "U2", "U3", "U4")
STEP = 2
topic_tables = st.dictionaries(
    st.sampled_from(TOPICS), st.builds(QueueSettings, st.just(4), st.sampled_from((4, 8)), st.sampled_from((4, 6)))
)


def knowing(*said: Registration) -> RouteTable:
    table = RouteTable(topics_a_step=STEP)
    for connection, one in enumerate(said):
        table.register(one, connection=connection, now=0.0)
    run_through(table.sweep())
    return table


def served(table: RouteTable) -> set[str]:
    return set(discovery.served_topics(table, list(table.topics)))


def steps_of(steps: Generator[None, None, T]) -> tuple[int, T]:
    """Return how many steps there were, and the result."""
    count = 1
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return count, result
        count += 1


@given(known=topic_tables, said=topic_tables, version=st.integers(1, 2), forbidden=st.booleans(), delete=st.booleans())
def test_a_prepared_registration_has_the_same_result(
    known: dict[str, QueueSettings], said: dict[str, QueueSettings], *, version: int, forbidden: bool, delete: bool
) -> None:
    at_once = knowing(registration(topics=known | {"A": QueueSettings(1, 1, 6), "B": QueueSettings(1, 1, 6)}))
    if forbidden:
        at_once.forbid_writes("broker-a")
    in_steps = deepcopy(at_once)
    more = dict.fromkeys(("A", "C", "D"), QueueSettings(2, 1, 6))
    news = registration(topics=said | more, version=version)
    preparation = run_through(in_steps.prepare(news, delete_missing_topics=delete))
    assert preparation is not None
    assert in_steps.snapshot(1.0) == at_once.snapshot(1.0)
    first = at_once.register(news, connection=0, now=1.0, delete_missing_topics=delete)
    second = in_steps.register(news, connection=0, now=1.0, delete_missing_topics=delete, preparation=preparation)
    assert first == second
    assert at_once.snapshot(1.0) == in_steps.snapshot(1.0)
    assert served(at_once) == served(in_steps)
    assert at_once.stats(1.0) == in_steps.stats(1.0) or not in_steps.is_swept
    run_through(in_steps.sweep())
    assert in_steps.is_swept
    assert set(in_steps.topics) == served(at_once)


def test_every_step_is_bounded() -> None:
    table = knowing(registration(topics=TOPICS))
    news = registration(topics=OTHERS, version=2)
    steps, preparation = steps_of(table.prepare(news, delete_missing_topics=True))
    # The copy, 5 topics that may be gone, 4 that may be new, 4 that are listed, and the edited ones.
    assert steps == 1 + 3 + 2 + 2 + 1
    assert preparation is not None
    before = preparation.is_applied
    assert before is False
    edits = table.topic_edits
    table.register(news, connection=0, now=1.0, delete_missing_topics=True, preparation=preparation)
    assert preparation.is_applied
    assert table.topic_edits == edits, "the index is written before and after"
    assert served(table) == set(OTHERS)
    assert steps_of(table.sweep())[0] == 3 + 1
    assert set(table.topics) == set(OTHERS)


@pytest.mark.parametrize(("edited", "more"), [(2, 0), (3, 1), (4, 1), (5, 2)])
def test_topics_that_change_in_between_are_compared_again_in_bounded_steps(edited: int, more: int) -> None:
    table = knowing(registration(topics=TOPICS))
    steps = table.prepare(registration(topics=OTHERS, version=2))
    next(steps)
    for topic in TOPICS[:edited]:
        table.delete_topic(topic)
    assert steps_of(steps)[0] == 2 + 2 + 1 + more


def test_what_does_not_grow_is_prepared_in_a_full_table() -> None:
    table = RouteTable(brokers_max=1, topic_entries_max=len(TOPICS), topics_a_step=STEP)
    tell(table, registration(topics=TOPICS))
    assert run_through(table.prepare(registration(topics=TOPICS, version=2))) is not None


def test_routes_do_not_change_before_a_registration_is_applied() -> None:
    table = knowing(registration(topics=TOPICS))
    news = registration(topics=(*OTHERS, "T1"), version=2)
    steps = table.prepare(news, delete_missing_topics=True)
    for _ in steps:
        assert served(table) == set(TOPICS)
        assert all(table.serving(topic) == () for topic in OTHERS)
        assert all(table.serving(topic) == ("broker-a",) for topic in TOPICS)
        assert all(discovery.find_route(table, topic) is None for topic in OTHERS)


def test_a_refused_registration_leaves_no_trace() -> None:
    table = RouteTable(topic_entries_max=8, topics_a_step=STEP)
    table.register(registration(topics=TOPICS), connection=0, now=0.0)
    before = table.snapshot(0.0)
    with pytest.raises(TableFullError):
        run_through(table.prepare(registration(0, OTHER, name="broker-b", topics=OTHERS)))
    run_through(table.sweep())
    assert set(table.topics) == set(TOPICS)
    preparation = run_through(table.prepare(registration(0, OTHER, name="broker-b", topics=OTHERS[:3])))
    table.register_topic("X", {"broker-a": WRITABLE})
    with pytest.raises(TableFullError):
        table.register(
            registration(0, OTHER, name="broker-b", topics=OTHERS[:3]), connection=1, now=0.0, preparation=preparation
        )
    table.delete_topic("X")
    run_through(table.sweep())
    assert table.is_swept
    assert table.snapshot(0.0) == before
    assert set(table.topics) == set(TOPICS)


@pytest.mark.parametrize(("edits_at", "delete"), [*((at, False) for at in range(8)), *((at, True) for at in range(9))])
@pytest.mark.parametrize("version", [1, 2])
def test_topics_that_change_between_the_steps_are_compared_again(edits_at: int, version: int, *, delete: bool) -> None:
    at_once = knowing(registration(topics=TOPICS))
    in_steps = deepcopy(at_once)
    news = registration(topics=dict.fromkeys((*OTHERS, "T1", "T2"), WRITABLE) | {"T4": READ_ONLY}, version=version)
    outcomes: list[RegistrationOutcome] = []
    for table in (at_once, in_steps):
        steps = table.prepare(news, delete_missing_topics=delete)
        for _ in range(edits_at if table is in_steps else 0):
            next(steps)
        table.delete_topic("T1")
        table.delete_topic("T3")
        table.register_topic("U1", {"broker-a": READ_ONLY})
        table.register_topic("T2", {"broker-a": READ_ONLY})
        table.register_topic("U2", {"broker-a": WRITABLE})
        table.delete_topic("U2")
        table.register_topic("V", {"broker-a": WRITABLE})
        table.register_topic("T4", {"broker-a": READ_ONLY})
        table.register_topic("T5", {"broker-a": READ_ONLY})
        preparation = run_through(steps) if table is in_steps else None
        outcomes.append(
            table.register(news, connection=0, now=1.0, delete_missing_topics=delete, preparation=preparation)
        )
        run_through(table.sweep())
    assert outcomes[0] == outcomes[1]
    assert at_once.snapshot(1.0) == in_steps.snapshot(1.0)
    assert at_once.stats(1.0) == in_steps.stats(1.0)
    assert set(in_steps.topics) == {*OTHERS, "T1", "T2", "T4"} | (set() if delete else {"T5", "V"})
    assert all(in_steps.serving(topic) == ("broker-a",) for topic in in_steps.topics)


def test_mappings_change_with_a_prepared_registration() -> None:
    known = registration(topics=TOPICS, mappings={"T1": mapping("T1"), "T2": mapping("T2")})
    for news, changed in (
        (registration(topics=(*OTHERS, "T2"), version=2), {"T1": (mapping("T1"), None)}),
        (
            registration(topics=TOPICS, version=2, mappings={"T2": mapping("T2", epoch=2)}),
            {"T2": (mapping("T2"), mapping("T2", epoch=2))},
        ),
    ):
        table = knowing(known)
        preparation = run_through(table.prepare(news, delete_missing_topics=True))
        assert preparation is not None
        outcome = table.register(news, connection=0, now=1.0, delete_missing_topics=True, preparation=preparation)
        assert only(outcome.events, MappingsChanged).changed == changed


def test_a_registration_is_prepared_again_if_another_one_was_applied_meanwhile() -> None:
    table = knowing(registration(topics=TOPICS))
    for version in (2, 3):  # each of them replaces the group's queues
        news = registration(topics=(*OTHERS, "T1"), version=version)
        table.register(news, connection=0, now=1.0, preparation=run_through(table.prepare(news)))
    news, meanwhile = registration(topics=(*OTHERS, "X"), version=5), registration(topics=(*TOPICS, "Y"), version=4)
    steps = table.prepare(news, delete_missing_topics=True)
    next(steps)
    table.register(meanwhile, connection=0, now=1.0, preparation=run_through(table.prepare(meanwhile)))
    preparation = run_through(steps)
    table.register(news, connection=0, now=1.0, delete_missing_topics=True, preparation=preparation)
    run_through(table.sweep())
    assert set(table.topics) == set(table.topics_of("broker-a")) == {*OTHERS, "X"}


def test_a_group_that_came_back_between_the_steps_is_prepared_again() -> None:
    table = knowing(registration(topics=TOPICS))
    news = registration(address=SLAVE, topics=(*TOPICS, "U1"), version=2)
    steps = table.prepare(news)
    for _ in range(4):
        next(steps)
    table.drop_connection(0)
    table.register(registration(address=SLAVE, topics=("T1", "T2")), connection=1, now=1.0)
    preparation = run_through(steps)
    outcome = table.register(news, connection=1, now=1.0, preparation=preparation)
    assert only(outcome.events, TopicsChanged).added.keys() == {"T3", "T4", "T5", "U1"}
    run_through(table.sweep())
    assert set(table.topics) == {*TOPICS, "U1"}


def test_two_registrations_of_one_broker_end_in_the_last_one() -> None:
    table = knowing(registration(topics=TOPICS))
    first, second = registration(topics=OTHERS, version=2), registration(topics=(*TOPICS, "U1"), version=3)
    first_ticket, second_ticket = table.take_ticket(), table.take_ticket()
    of_first = table.prepare(first, delete_missing_topics=True)
    of_second = table.prepare(second, delete_missing_topics=True)
    for _ in range(6):
        next(of_first)
        next(of_second)
    prepared = run_through(of_second)
    table.register(
        second, connection=2, now=1.0, delete_missing_topics=True, preparation=prepared, ticket=second_ticket
    )
    prepared = run_through(of_first)
    late = table.register(
        first, connection=1, now=2.0, delete_missing_topics=True, preparation=prepared, ticket=first_ticket
    )
    assert late.overtaken
    assert late.events == ()
    run_through(table.sweep())
    assert set(table.topics) == {*TOPICS, "U1"}


def test_a_late_registration_does_not_replace_a_later_one() -> None:
    table = knowing(registration(topics=TOPICS))
    ticket = table.take_ticket()
    table.register(registration(address=OTHER, topics=TOPICS), connection=2, now=1.0)
    assert table.register(registration(address=SLAVE, topics=OTHERS), connection=1, now=2.0, ticket=ticket).overtaken
    group = table.group("broker-a")
    assert group is not None
    assert group.addresses == {0: OTHER}


def test_many_topics_leave_the_table_at_once_and_the_index_in_steps() -> None:
    table = knowing(registration(topics=TOPICS), registration(address=OTHER, name="broker-b", topics=("T1", "V")))
    edits = table.topic_edits
    table.drop_connection(0)
    assert table.topic_edits == edits
    assert served(table) == {"T1", "V"}
    assert table.serving("T1") == ("broker-b",)
    assert table.serving("T2") == ()
    # The broker is back before the sweep: a topic that it names again is kept.
    table.register(registration(topics=("T2", "T3")), connection=1, now=1.0)
    assert steps_of(table.sweep())[0] == 3 + 1
    assert set(table.topics) == {"T1", "T2", "T3", "V"}
    assert table.serving("T1") == ("broker-b",)
    assert table.serving("T2") == ("broker-a",)


def test_a_sweep_keeps_what_another_registration_has_listed() -> None:
    table = knowing(registration(topics=("A", "B")))
    news = registration(topics=OTHERS, version=2)
    abandoned, kept = table.prepare(news), table.prepare(news)
    for _ in range(5):
        next(abandoned)
        next(kept)
    abandoned.close()
    run_through(table.sweep())
    table.register(news, connection=0, now=1.0, preparation=run_through(kept))
    assert table.is_swept
    assert set(table.topics) == {"A", "B", *OTHERS}


def test_a_short_registration_that_removes_many_topics_is_prepared() -> None:
    table = knowing(registration(topics=TOPICS))
    shorter = registration(topics=TOPICS[:STEP], version=2)
    assert run_through(table.prepare(shorter, delete_missing_topics=True)) is not None
    few = knowing(registration(topics=TOPICS[:STEP]))
    assert run_through(few.prepare(shorter, delete_missing_topics=True)) is None
    few.drop_connection(0)
    assert few.is_swept, "so few topics leave the index at once"


def test_a_short_registration_and_one_that_changes_no_topic_need_no_steps() -> None:
    table = knowing(registration(topics=TOPICS, acting_master=True))
    assert steps_of(table.prepare(registration(topics=TOPICS[:STEP]))) == (1, None)
    slave = registration(1, SLAVE, topics=TOPICS, acting_master=True)
    assert steps_of(table.prepare(slave)) == (1, None)
    assert table.is_swept
    assert MASTER in (group.addresses[0] for group in table.groups)
