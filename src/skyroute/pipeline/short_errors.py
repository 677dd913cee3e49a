"""Errors without their stack traces: Spark shows all that a worker's Python prints, and the text would be buried.

Every call of Spark passes here, so Spark's archives are forgotten here, too.
"""

import functools
import os
from collections.abc import Callable, Iterator
from typing import Final, ParamSpec, TypeVar

from skyroute.errors import SkyrouteError
from skyroute.pipeline.spark_archives import forget_importers

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

TRACEBACKS_ENV: Final = "SKYROUTE_TRACEBACKS"
"""Environment variable: `1` keeps stack traces and causes."""


def short_errors(method: Callable[P, R]) -> Callable[P, R]:
    """Raise our errors again without stack trace and cause: their text says what happened and what to do."""

    @functools.wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(*args, **kwargs)
        except SkyrouteError as error:
            if os.environ.get(TRACEBACKS_ENV) == "1":
                raise
            short = error
        finally:
            forget_importers()
        raise short.with_traceback(None) from None

    return run


def short_iteration(items: Iterator[T]) -> Iterator[T]:
    """Yield all items; as `short_errors` if the iteration fails."""
    following = short_errors(lambda: next(items, _END))
    while (item := following()) is not _END:
        yield item  # type: ignore[misc] # mypy does not narrow by identity with a plain object


_END: Final = object()
