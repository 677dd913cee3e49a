"""The subscriptions that pops carry."""

import pytest

from skyroute.broker.pop import pop_subscriptions
from skyroute.broker.pop.pop_subscriptions import PopSubscriptions
from skyroute.wire.calls.pop import PopQuestion, decode_pop
from skyroute.wire.command import Request
from tests.network.broker.pops import pop


def question(topic: str, expression: str = "*") -> PopQuestion:
    raw = pop(topic, exp=expression)
    return decode_pop(Request(raw.code, dict(raw.fields)))


def test_the_oldest_are_forgotten_beyond_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_subscriptions, "SUBSCRIPTIONS_MAX", 2)
    known = PopSubscriptions()
    for number, topic in enumerate(("A", "B", "C")):
        known.note(question(topic), number)
    assert known.get("g", "A") is None
    assert [known.get("g", topic) is not None for topic in ("B", "C")] == [True, True]


def test_the_oldest_are_forgotten_beyond_a_number_of_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_subscriptions, "CHARS_MAX", 10)
    known = PopSubscriptions()
    for topic, expression in (("A", "aaaa"), ("A", "bbbbbb"), ("B", "cccc"), ("C", "d")):
        known.note(question(topic, expression), 0)
    assert known.get("g", "A") is None
    kept = [known.get("g", topic) for topic in ("B", "C")]
    assert [each and each.expression for each in kept] == ["cccc", "d"]


def test_a_new_expression_replaces_the_old_one_and_an_equal_one_does_not() -> None:
    known = PopSubscriptions()
    for now_ms, expression in ((1, "a"), (2, "a"), (3, "b"), (4, "b")):
        known.note(question("T", expression), now_ms)
        found = known.get("g", "T")
        assert found is not None
        assert (found.expression, found.version) == (expression, 1 if expression == "a" else 3)
