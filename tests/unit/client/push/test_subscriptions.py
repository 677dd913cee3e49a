"""Subscriptions of a push consumer: handlers, versions, and what heartbeats announced."""

from __future__ import annotations

import functools
from collections.abc import Awaitable

import pytest

from skyroute.client.consuming.push.handlers import HandlerCall
from skyroute.client.consuming.push.subscriptions import Subscriptions
from skyroute.client.consuming.subscription import sql
from skyroute.client.errors import ClientError
from skyroute.client.threads import Threads
from skyroute.message.errors import InvalidNameError, TagExpressionError
from skyroute.message.message import StoredMessage
from tests.unit.client.push.test_message_buffer import message


async def handle(_message: StoredMessage) -> None: ...


def test_topics_have_the_namespace_for_brokers_and_not_for_handlers() -> None:
    subscriptions = Subscriptions("ns", takes_list=False)
    subscriptions.put("T", "A || B", handle, 5)
    assert subscriptions.topics == ("ns%T",)
    found = subscriptions.find("ns%T")
    assert found is not None
    assert (found.tags, found.version) == (("A", "B"), 5)
    assert subscriptions.find_handler("T") is not None
    assert subscriptions.find_handler("ns%T") is None


def test_a_version_grows_even_if_the_clock_does_not() -> None:
    subscriptions = Subscriptions(None, takes_list=False)
    subscriptions.put("T", "*", handle, 100)
    subscriptions.raise_version("T", 100)
    subscriptions.raise_version("T", 50)
    found = subscriptions.find("T")
    assert found is not None
    assert found.version == 102
    subscriptions.put("T", sql("a > 1"), handle, 60)
    assert subscriptions.all[0].version == 103


def test_pulls_use_the_version_of_the_last_heartbeat() -> None:
    subscriptions = Subscriptions(None, takes_list=False)
    subscriptions.put("T", "*", handle, 100)
    assert subscriptions.announced_version("T") == 0
    announced = subscriptions.all
    subscriptions.raise_version("T", 200)
    subscriptions.mark_announced(announced)
    assert subscriptions.announced_version("T") == 100
    subscriptions.remove("T")
    subscriptions.mark_announced(announced)
    assert subscriptions.announced_version("T") == 0


def test_either_all_have_handlers_or_none() -> None:
    subscriptions = Subscriptions(None, takes_list=False)
    subscriptions.put("A", "*", handle, 1)
    with pytest.raises(ClientError, match="some of the topics B, A have a handler"):
        subscriptions.put("B", "*", None, 1)
    subscriptions.put("A", "*", None, 1)
    subscriptions.put("B", "*", None, 1)
    assert not subscriptions.has_handlers


def test_an_invalid_subscription_is_refused_and_not_kept() -> None:
    subscriptions = Subscriptions(None, takes_list=False)
    with pytest.raises(InvalidNameError):
        subscriptions.put("no such name!", "*", handle, 1)
    with pytest.raises(TagExpressionError):
        subscriptions.put("T", "||", handle, 1)
    with pytest.raises(TypeError, match="function"):
        subscriptions.put("T", "*", "handle", 1)  # type: ignore[arg-type]  # invalid on purpose
    assert subscriptions.topics == ()


class AsyncObject:
    async def __call__(self, found: StoredMessage) -> None: ...


class PlainObject:
    def __call__(self, found: StoredMessage) -> None: ...


@pytest.mark.parametrize(
    ("handler", "is_async"),
    [
        (handle, True),
        (functools.partial(handle), True),
        (AsyncObject(), True),
        (PlainObject(), False),
        (lambda _message: None, False),
    ],
)
def test_async_handlers_are_recognised(handler: HandlerCall, is_async: bool) -> None:
    assert HandlerCall.of(handler, takes_list=False).is_async is is_async  # type: ignore[arg-type]  # of all kinds


async def test_a_plain_function_may_return_an_awaitable() -> None:
    seen: list[StoredMessage] = []

    async def later(found: StoredMessage) -> None:
        seen.append(found)

    def handle_later(found: StoredMessage) -> Awaitable[None]:
        return later(found)

    threads = Threads(1, "test")
    await HandlerCall.of(handle_later, takes_list=False).run([message(1)], threads)
    assert seen == [message(1)]
    threads.stop()


async def test_a_batch_handler_gets_a_list() -> None:
    seen: list[list[StoredMessage]] = []

    async def batch(found: list[StoredMessage]) -> None:
        seen.append(found)

    threads = Threads(1, "test")
    await HandlerCall.of(batch, takes_list=True).run([message(1), message(2)], threads)
    assert seen == [[message(1), message(2)]]
