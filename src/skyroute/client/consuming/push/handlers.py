"""The application's message handlers, and what they may return or raise."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from skyroute.client.arguments import COUNT_MAX, check_counts
from skyroute.client.errors import ArgumentError
from skyroute.client.threads import Threads
from skyroute.message.message import StoredMessage


class ConsumeResult(Enum):
    """What a handler may return; None is success too.

    Examples:
        >>> async def handle(message: StoredMessage) -> ConsumeResult:
        ...     return ConsumeResult.SUCCESS if await book(message.body) else ConsumeResult.RETRY
    """

    SUCCESS = "success"
    RETRY = "retry"
    """Deliver the message again later, to any member."""


class RetryLater(Exception):  # noqa: N818 - a request of the handler, not an error
    """Raised by a handler to get its message again later, at a chosen delay.

    `delay_level` is one of the broker's delay levels, from 1; with 0 the broker chooses, longer with each retry; -1
    makes it a dead letter at once. Of a batch, the messages before `from_index` are consumed.

    Examples:
        >>> async def handle(message: StoredMessage) -> None:
        ...     if not await accounts.is_open():
        ...         raise RetryLater(delay_level=5)

    An ordered consumer retries after `suspend_s` at any level except -1.

    Raises:
        ArgumentError: one is not a whole number, or too small.
    """

    def __init__(self, delay_level: int = 0, *, from_index: int = 0) -> None:
        check_counts(-1, COUNT_MAX, delay_level=delay_level)
        check_counts(0, COUNT_MAX, from_index=from_index)
        super().__init__(f"retry later: delay_level={delay_level} from_index={from_index}")
        self.delay_level = delay_level
        self.from_index = from_index

    def __reduce__(self) -> tuple[Any, ...]:
        return _retry_later, (self.delay_level, self.from_index)


def _retry_later(delay_level: int, from_index: int) -> RetryLater:
    return RetryLater(delay_level, from_index=from_index)


MessageHandler = Callable[[StoredMessage], ConsumeResult | Awaitable[ConsumeResult | None] | None]
BatchHandler = Callable[[list[StoredMessage]], ConsumeResult | Awaitable[ConsumeResult | None] | None]
Handler = MessageHandler | BatchHandler
"""Takes one message, or a list if the consumer's `batch_size` is more than 1. A plain function runs in a thread."""


@dataclass(frozen=True, slots=True)
class HandlerCall:
    """A handler, and how to call it."""

    function: Callable[[Any], Any]
    is_async: bool
    takes_list: bool

    @classmethod
    def of(cls, handler: Handler, *, takes_list: bool) -> "HandlerCall":
        """Check a handler.

        Raises:
            ArgumentError: it cannot be called with one argument, or is a generator.
        """
        if not callable(handler):
            raise ArgumentError(f"handler is {handler!r}: expected a function that takes a message")
        if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
            raise ArgumentError(f"handler is {handler!r}, which would never run because of `yield`: remove it")
        try:
            signature = inspect.signature(handler)
        except ValueError:  # functions written in C may have no signature
            signature = None
        if signature is not None:
            try:
                signature.bind(None)
            except TypeError as error:
                raise ArgumentError(
                    f"handler is {handler!r}: expected a function of one argument, the message or the list ({error})"
                ) from None
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 - finds objects with an async __call__
        )
        return cls(handler, is_async, takes_list)

    async def run(self, messages: list[StoredMessage], threads: Threads) -> Any:
        """Call the handler, and return or raise its result.

        Raises:
            ExitError: it ran in a thread and raised SystemExit or the like.
        """
        argument = messages if self.takes_list else messages[0]
        if self.is_async:
            return await self.function(argument)
        result = await threads.run(self.function, argument)
        return await result if inspect.isawaitable(result) else result
