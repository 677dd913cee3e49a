"""Looks at what an application passes, so that a slip is told where it was made, and not where it first hurts."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from skyroute.client.errors import ArgumentError
from skyroute.message.queue_ref import QueueRef

COUNT_MAX: Final = (1 << 31) - 1
"""What brokers count in 32 bits; nothing that is counted here needs more."""

BYTES_MAX: Final = (1 << 63) - 1
OFFSET_MAX: Final = (1 << 63) - 1

TIME_S_MAX: Final = 1e9
"""Some thirty years. Longer, and endless, are slips."""


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


def check_counts(least: int = 1, most: int = COUNT_MAX, /, **counts: object) -> None:
    """Let pass whole numbers that are neither too small nor too large.

    Raises:
        ArgumentError: one is, or is no whole number.
    """
    for name, count in counts.items():
        if not isinstance(count, int) or isinstance(count, bool) or not least <= count <= most:
            bounds = f"{least} or more" if most >= COUNT_MAX else f"from {least} to {most}"
            if isinstance(count, int) and count > most:
                bounds = f"from {least} to {most}"
            raise ArgumentError(f"{name} is a whole number, {bounds}: {count!r}")


def check_times(**times: object) -> None:
    """Let pass times to wait, in seconds.

    Raises:
        ArgumentError: one is not more than 0, or endless, or no number.
    """
    for name, time_s in times.items():
        if not isinstance(time_s, int | float) or isinstance(time_s, bool) or not 0 < time_s <= TIME_S_MAX:
            raise ArgumentError(f"{name} is a time in seconds, more than 0 and at most {TIME_S_MAX:g}: {time_s!r}")


def check_times_or_none_at_all(**times: object) -> None:
    """Let pass times to wait, in seconds, or 0: do not wait.

    Raises:
        ArgumentError: one is negative, or endless, or no number.
    """
    for name, time_s in times.items():
        if not isinstance(time_s, int | float) or isinstance(time_s, bool) or not 0 <= time_s <= TIME_S_MAX:
            raise ArgumentError(f"{name} is a time in seconds, from 0 to {TIME_S_MAX:g}: {time_s!r}")


def check_kind(name: str, value: object, kind: type) -> None:
    """Let pass what is of a kind that `skyroute` has.

    Raises:
        ArgumentError: it is not.
    """
    if not isinstance(value, kind):
        raise ArgumentError(f"{name} is a skyroute.{kind.__name__}: {value!r} is none")


def check_session(session: object, kind: type, **others: object) -> None:
    """Let pass a session, and nothing besides that only a session of one's own would take.

    Raises:
        ArgumentError: it is no session, or what else is given would be ignored.
    """
    check_kind("session", session, kind)
    if given := [name for name, value in others.items() if value is not None]:
        raise ArgumentError(f"session is given, which has its own {', '.join(given)}: give them to the session")


def check_flags(**flags: object) -> None:
    """Let pass True and False.

    Raises:
        ArgumentError: one is neither, such as the text "false" out of an environment.
    """
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ArgumentError(f"{name} is True or False: {flag!r} is neither")


def check_texts(**texts: object) -> None:
    """Let pass text that says something.

    Raises:
        ArgumentError: one is blank, or no text.
    """
    for name, text in texts.items():
        if not isinstance(text, str):
            raise ArgumentError(f"{name} is text: {text!r} is none")
        if not text or text.isspace():
            raise ArgumentError(f"{name} is text that says something: {text!r} is blank")


def check_texts_or_none(**texts: object) -> None:
    """Let pass text that says something, and None.

    Raises:
        ArgumentError: one is blank, or no text.
    """
    check_texts(**{name: text for name, text in texts.items() if text is not None})


def check_callables(**functions: object) -> None:
    """Let pass what can be called.

    Raises:
        ArgumentError: one cannot.
    """
    for name, function in functions.items():
        if not callable(function):
            raise ArgumentError(f"{name} is a function: {function!r} cannot be called")


def check_moment(name: str, when: object) -> None:
    """Let pass a point in time.

    Raises:
        ArgumentError: it is none, or has no time zone.
    """
    if not isinstance(when, datetime):
        raise ArgumentError(f"{name} is a datetime with a time zone: {when!r} is none")
    if when.utcoffset() is None:
        raise ArgumentError(
            f"{name} is a datetime with a time zone, and {when} has none: write datetime(..., tzinfo=UTC), or"
            " when.astimezone()"
        )


def check_strategy(strategy: object) -> None:
    """Let pass how queues are shared out.

    Raises:
        ArgumentError: nobody could be asked.
    """
    if isinstance(strategy, type) or not callable(strategy):
        raise ArgumentError(
            f"strategy is one of skyroute.client.consuming.rebalance, or a function like them: {strategy!r}"
        )


def listed(name: str, things: object, what: str) -> list[Any]:
    """Return several things as a list.

    Raises:
        ArgumentError: they are nothing to go through, or text, which is one thing.
    """
    if isinstance(things, str | bytes | bytearray) or not isinstance(things, Iterable):
        raise ArgumentError(f"{name} is several {what}, such as a list of them: {things!r} is not")
    return list(things)


def check_queue(name: str, queue: object) -> None:
    """Let pass the name of a queue.

    Raises:
        ArgumentError: it is none.
    """
    if not isinstance(queue, QueueRef):
        raise ArgumentError(f"{name} is a skyroute.QueueRef: {queue!r} is none")
    names: tuple[object, ...] = queue.topic, queue.broker_name
    is_named = all(isinstance(each, str) for each in names) and queue.topic
    if not is_named or not _is_whole(queue.queue_id) or not 0 <= queue.queue_id <= COUNT_MAX:
        raise ArgumentError(f"{name} is a QueueRef(topic, broker_name, queue_id), of texts and a number: {queue!r}")


def check_queues(name: str, queues: object) -> list[QueueRef]:
    """Return the names of several queues as a list.

    Raises:
        ArgumentError: one of them is none, or they are nothing to go through.
    """
    found = listed(name, queues, "skyroute.QueueRef")
    for queue in found:
        check_queue(f"each of {name}", queue)
    return found


def check_offsets(name: str, offsets: object) -> Mapping[QueueRef, int]:
    """Return offsets by queue as they are.

    Raises:
        ArgumentError: they are none.
    """
    if not isinstance(offsets, Mapping):
        raise ArgumentError(f"{name} is a mapping from skyroute.QueueRef to numbers: {offsets!r} is none")
    for queue, offset in offsets.items():
        check_queue(f"each key of {name}", queue)
        if not _is_whole(offset) or not 0 <= offset <= OFFSET_MAX:
            raise ArgumentError(f"{name} is of whole numbers, 0 or more: {offset!r}, of {queue}")
    return offsets


def check_methods(name: str, value: object, kind: str, methods: Iterable[str]) -> None:
    """Let pass what has these methods.

    Raises:
        ArgumentError: it has not.
    """
    if isinstance(value, type) or (missing := [word for word in methods if not callable(getattr(value, word, None))]):
        lacking = "it is a class, and not one of its objects" if isinstance(value, type) else f"no {', '.join(missing)}"
        raise ArgumentError(f"{name} is {kind}: {value!r} is none ({lacking})")
