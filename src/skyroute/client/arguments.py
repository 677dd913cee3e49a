"""Checks the arguments of an application, so that a mistake is reported at the call that made it."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from skyroute.client.errors import ArgumentError
from skyroute.message.queue_ref import QueueRef

COUNT_MAX: Final = (1 << 31) - 1
"""Brokers store counts in 32 bits."""

BYTES_MAX: Final = (1 << 63) - 1
OFFSET_MAX: Final = (1 << 63) - 1

TIME_S_MAX: Final = 1e9
"""About thirty years. A longer time is taken for a mistake."""


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def check_counts(least: int = 1, most: int = COUNT_MAX, /, **counts: object) -> None:
    """Check that arguments are whole numbers within bounds.

    Raises:
        ArgumentError: one is not.
    """
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or not least <= count <= most:
            bounds = f"{least} or more" if most >= COUNT_MAX else f"from {least} to {most}"
            if isinstance(count, int) and count > most:
                bounds = f"from {least} to {most}"
            raise ArgumentError(f"{name} is {count!r}: expected a whole number, {bounds}")


def check_times(**times: object) -> None:
    """Check that arguments are times in seconds, more than 0.

    Raises:
        ArgumentError: one is not.
    """
    for name, time_s in times.items():
        if not isinstance(time_s, int | float) or isinstance(time_s, bool) or not 0 < time_s <= TIME_S_MAX:
            raise ArgumentError(f"{name} is {time_s!r}: expected seconds, more than 0 and at most {TIME_S_MAX:g}")


def check_times_or_zero(**times: object) -> None:
    """Check that arguments are times in seconds, or 0.

    Raises:
        ArgumentError: one is not.
    """
    for name, time_s in times.items():
        if not isinstance(time_s, int | float) or isinstance(time_s, bool) or not 0 <= time_s <= TIME_S_MAX:
            raise ArgumentError(f"{name} is {time_s!r}: expected seconds, from 0 to {TIME_S_MAX:g}")


def check_kind(name: str, value: object, kind: type) -> None:
    """Check that an argument is an instance of a class that `skyroute` exports.

    Raises:
        ArgumentError: it is not.
    """
    if not isinstance(value, kind):
        raise ArgumentError(f"{name} is {value!r}: expected a skyroute.{kind.__name__}")


def check_session(session: object, kind: type, **others: object) -> None:
    """Check a shared session, and that no argument of a session is given beside it.

    Raises:
        ArgumentError: it is not a session, or another argument would be ignored.
    """
    check_kind("session", session, kind)
    if given := [name for name, value in others.items() if value is not None]:
        raise ArgumentError(
            f"session is given together with {', '.join(given)}, which would be ignored: pass them to the Session"
        )


def check_flags(**flags: object) -> None:
    """Check that arguments are True or False.

    Raises:
        ArgumentError: one is not, such as the text "false" from an environment variable.
    """
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ArgumentError(f"{name} is {flag!r}: expected True or False")


def check_texts(**texts: object) -> None:
    """Check that arguments are text that is not blank.

    Raises:
        ArgumentError: one is not.
    """
    for name, text in texts.items():
        if not isinstance(text, str) or not text or text.isspace():
            raise ArgumentError(f"{name} is {text!r}: expected text that is not blank")


def check_texts_or_none(**texts: object) -> None:
    """Check that arguments are None, or text that is not blank.

    Raises:
        ArgumentError: one is not.
    """
    check_texts(**{name: text for name, text in texts.items() if text is not None})


def check_callables(**functions: object) -> None:
    """Check that arguments can be called.

    Raises:
        ArgumentError: one cannot.
    """
    for name, function in functions.items():
        if not callable(function):
            raise ArgumentError(f"{name} is {function!r}: expected a function")


def check_moment(name: str, when: object) -> None:
    """Check that an argument is a datetime with a time zone.

    Raises:
        ArgumentError: it is not.
    """
    if not isinstance(when, datetime):
        raise ArgumentError(f"{name} is {when!r}: expected a datetime with a time zone")
    if when.utcoffset() is None:
        raise ArgumentError(
            f"{name} is {when}, without a time zone: write datetime(..., tzinfo=UTC), or {name}.astimezone()"
        )


def check_strategy(strategy: object) -> None:
    """Check that an argument can share out queues.

    Raises:
        ArgumentError: it cannot be called, or is a class.
    """
    if isinstance(strategy, type) or not callable(strategy):
        raise ArgumentError(
            f"strategy is {strategy!r}: expected an object of skyroute.client.consuming.strategies, or a function with"
            " the same arguments"
        )


def listed(name: str, things: object, what: str) -> list[Any]:
    """Return an iterable argument as a list.

    Raises:
        ArgumentError: it is not iterable, or is text.
    """
    if isinstance(things, str | bytes | bytearray) or not isinstance(things, Iterable):
        raise ArgumentError(f"{name} is {things!r}: expected several {what}, such as a list")
    return list(things)


def check_queue(name: str, queue: object) -> None:
    """Check that an argument is a queue.

    Raises:
        ArgumentError: it is not.
    """
    if not isinstance(queue, QueueRef):
        raise ArgumentError(f"{name} is {queue!r}: expected a skyroute.QueueRef")
    names: tuple[object, ...] = queue.topic, queue.broker_name
    is_named = all(isinstance(each, str) for each in names) and queue.topic
    if not is_named or not _is_whole(queue.queue_id) or not 0 <= queue.queue_id <= COUNT_MAX:
        raise ArgumentError(f"{name} is {queue!r}: expected QueueRef(topic, broker_name, queue_id), a number last")


def check_queues(name: str, queues: object) -> list[QueueRef]:
    """Return several queues as a list.

    Raises:
        ArgumentError: one is not a queue, or they are not iterable.
    """
    found = listed(name, queues, "skyroute.QueueRef")
    for queue in found:
        check_queue(f"each of {name}", queue)
    return found


def check_offsets(name: str, offsets: object) -> Mapping[QueueRef, int]:
    """Return offsets by queue unchanged.

    Raises:
        ArgumentError: they are not a mapping from queues to offsets.
    """
    if not isinstance(offsets, Mapping):
        raise ArgumentError(f"{name} is {offsets!r}: expected a mapping from skyroute.QueueRef to offsets")
    for queue, offset in offsets.items():
        check_queue(f"each key of {name}", queue)
        if not _is_whole(offset) or not 0 <= offset <= OFFSET_MAX:
            raise ArgumentError(f"{name} is {offset!r} for {queue}: expected a whole number, 0 or more")
    return offsets


def check_methods(name: str, value: object, kind: str, methods: Iterable[str]) -> None:
    """Check that an argument is an object with these methods.

    Raises:
        ArgumentError: it is a class, or methods are missing.
    """
    if isinstance(value, type) or (missing := [word for word in methods if not callable(getattr(value, word, None))]):
        reason = "it is a class, not an object" if isinstance(value, type) else f"it has no {', '.join(missing)}"
        raise ArgumentError(f"{name} is {value!r}: expected {kind}; {reason}")
