"""Which functions can be handlers."""

import functools
import pickle
from collections.abc import AsyncIterator, Iterator

import pytest

from skyroute.client.consuming.push.handlers import HandlerCall, RetryLater


def takes_nothing() -> None: ...


async def takes_two(_message: object, _more: object) -> None: ...


def yields(message: object) -> Iterator[object]:
    yield message


async def yields_asynchronously(message: object) -> AsyncIterator[object]:
    yield message


@pytest.mark.parametrize("handler", [takes_nothing, takes_two])
def test_a_function_that_cannot_take_a_message_is_refused(handler: object) -> None:
    with pytest.raises(TypeError, match="expected a function of one argument"):
        HandlerCall.of(handler, takes_list=False)  # type: ignore[arg-type]  # invalid on purpose


@pytest.mark.parametrize("handler", [yields, yields_asynchronously])
def test_a_generator_is_refused_as_it_would_never_run(handler: object) -> None:
    with pytest.raises(TypeError, match="would never run because of `yield`"):
        HandlerCall.of(handler, takes_list=False)  # type: ignore[arg-type]  # invalid on purpose


@pytest.mark.parametrize("handler", [print, [].append, functools.partial(takes_two, _more=1), lambda *_: None, max])
def test_every_function_of_one_argument_is_a_handler(handler: object) -> None:
    assert HandlerCall.of(handler, takes_list=False).function is handler  # type: ignore[arg-type]  # not a known type


def test_retry_later_can_be_pickled() -> None:
    retry = RetryLater(5, from_index=2)
    copy = pickle.loads(pickle.dumps(retry))
    assert (copy.delay_level, copy.from_index, str(copy)) == (5, 2, str(retry))
