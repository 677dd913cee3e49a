"""The application's functions that messages are given to, and what they can say of a message."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from skyroute.client.arguments import COUNT_MAX, check_counts
from skyroute.client.consuming.push.threads import Threads
from skyroute.client.errors import ArgumentError
from skyroute.message.message import StoredMessage


class ConsumeResult(Enum):
    """What a handler may return; nothing at all is success too.

    Examples:
        >>> async def handle(message: StoredMessage) -> ConsumeResult:
        ...     return ConsumeResult.SUCCESS if await book(message.body) else ConsumeResult.RETRY
    """

    SUCCESS = "success"
    RETRY = "retry"
    """Give it to me, or to another member, again later."""


class RetryLater(Exception):  # noqa: N818 - a handler's wish, not an error of anybody's
    """Raised by a handler that wants its message again later, and has more to say about it than `ConsumeResult.RETRY`.

    `delay_level` is one of the broker's delay steps, from 1; 0 lets the broker choose, later and later with each try;
    -1 makes it a dead letter at once. Of a batch, the messages before `from_index` are consumed.

    Examples:
        >>> async def handle(message: StoredMessage) -> None:
        ...     if not await accounts.is_open():
        ...         raise RetryLater(delay_level=5)

    An ordered consumer gives a message again after `suspend_s` whatever the level, unless that is -1.

    Raises:
        ArgumentError: one is no whole number, or too small.
    """

    def __init__(self, delay_level: int = 0, *, from_index: int = 0) -> None:
        check_counts(-1, COUNT_MAX, delay_level=delay_level)
        check_counts(0, COUNT_MAX, from_index=from_index)
        super().__init__(f"again later: delay_level={delay_level} from_index={from_index}")
        self.delay_level = delay_level
        self.from_index = from_index

    def __reduce__(self) -> tuple[Any, ...]:
        return _retry_later, (self.delay_level, self.from_index)


def _retry_later(delay_level: int, from_index: int) -> RetryLater:
    return RetryLater(delay_level, from_index=from_index)


MessageHandler = Callable[[StoredMessage], ConsumeResult | Awaitable[ConsumeResult | None] | None]
BatchHandler = Callable[[list[StoredMessage]], ConsumeResult | Awaitable[ConsumeResult | None] | None]
Handler = MessageHandler | BatchHandler
"""Takes one message, or, if the consumer's `batch_size` is more than 1, a list. A plain function runs in a thread."""


@dataclass(frozen=True, slots=True)
class HandlerCall:
    """How to call a handler."""

    function: Callable[[Any], Any]
    is_async: bool
    takes_list: bool

    @classmethod
    def of(cls, handler: Handler, *, takes_list: bool) -> "HandlerCall":
        """Look at a handler.

        Raises:
            ArgumentError: it cannot be called with one message, or one list of them; or it is a generator.
        """
        if not callable(handler):
            raise ArgumentError(f"handler is a function that takes a message, not {handler!r}")
        if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
            raise ArgumentError(f"a handler must not `yield`, as it would never run: {handler!r}")
        try:
            signature = inspect.signature(handler)
        except ValueError:  # what is written in C may not say how it is called
            signature = None
        if signature is not None:
            try:
                signature.bind(None)
            except TypeError as error:
                raise ArgumentError(f"a handler is called with one argument, and {handler!r} is not: {error}") from None
        is_async = inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
            getattr(handler, "__call__", None)  # noqa: B004 - an object whose call is async is to be seen as such
        )
        return cls(handler, is_async, takes_list)

    async def run(self, messages: list[StoredMessage], threads: Threads) -> Any:
        """Call the handler, and return or raise what it does.

        Raises:
            ExitError: it ran in a thread, and was left as one leaves a program, by sys.exit() or the like.
        """
        argument = messages if self.takes_list else messages[0]
        if self.is_async:
            return await self.function(argument)
        result = await threads.run(self.function, argument)
        return await result if inspect.isawaitable(result) else result
