"""Errors of the source as Spark shows them: the text, and little before it."""

import traceback
from collections.abc import Iterator

import pytest

from skyroute.pipeline.short_errors import TRACEBACKS_ENV, short_errors, short_iteration
from skyroute.pipeline.source.errors import SourceError


def fail() -> None:
    try:
        int("the cause")
    except ValueError as error:
        raise SourceError("the topic is gone") from error


def numbers() -> Iterator[int]:
    yield 1
    fail()


def shown(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_an_error_has_neither_its_cause_nor_its_stack() -> None:
    with pytest.raises(SourceError) as raised:
        short_errors(fail)()
    assert "the cause" not in shown(raised.value)
    assert "in fail" not in shown(raised.value)


def test_an_iteration_yields_its_items_and_then_the_short_error() -> None:
    items = short_iteration(numbers())
    assert next(items) == 1
    with pytest.raises(SourceError) as raised:
        next(items)
    assert "the cause" not in shown(raised.value)


def test_the_whole_stack_is_shown_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRACEBACKS_ENV, "1")
    with pytest.raises(SourceError) as raised:
        short_errors(fail)()
    assert "the cause" in shown(raised.value)
