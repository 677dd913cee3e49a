"""The outside of the admin: looks at every argument, and puts names into the namespace and out of it again.

The calls themselves know of neither, and call each other by the names that brokers know.
"""

import functools
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar, get_args

import msgspec

from skyroute.client.admin.groups import END, GroupProgress, GroupSummary
from skyroute.client.admin.messages import READER_GROUP, MessageAdmin, MessageTrack
from skyroute.client.admin.topics import TopicStatus, TopicTraffic, TopicUse
from skyroute.client.arguments import (
    COUNT_MAX,
    OFFSET_MAX,
    Check,
    check_counts,
    check_flags,
    check_kind,
    check_queue,
    check_texts,
    listed,
)
from skyroute.client.errors import ArgumentError
from skyroute.message.message import StoredMessage
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import namespace_of, with_namespace, without_namespace
from skyroute.routing.topology import QUEUES_MAX, Permission
from skyroute.wire.calls.clients import Subscription
from skyroute.wire.calls.consumers import RunningConsumer
from skyroute.wire.calls.groups import ConsumerConnections, GroupConfig
from skyroute.wire.calls.topics import TopicConfig

C = TypeVar("C", bound=type)


# ------------------------------------------------------------------------------------------------------- arguments


def _text(name: str, value: object) -> None:
    check_texts(**{name: value})


def _any_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise ArgumentError(f"{name} is text: {value!r} is none")


def _flag(name: str, value: object) -> None:
    check_flags(**{name: value})


def _count(least: int, most: int) -> Check:
    return lambda name, value: check_counts(least, most, **{name: value})


def _message(name: str, value: object) -> None:
    check_kind(name, value, StoredMessage)


def _permission(name: str, value: object) -> None:
    everything = int(Permission.READ | Permission.WRITE | Permission.INHERIT)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= everything:
        raise ArgumentError(f"{name} is a Permission, 2 to write, 4 to read, 6 for both: {value!r} is none")


def _settings(name: str, value: object) -> None:
    if not isinstance(value, Mapping) or not value:
        raise ArgumentError(f"{name} is a mapping from names to texts, with at least one: {value!r} is not")
    for key, text in value.items():
        if not isinstance(key, str) or not key or not isinstance(text, str):
            raise ArgumentError(f"{name} is a mapping from names to texts: {key!r} to {text!r} is neither")


def _attributes(name: str, value: object) -> None:
    if not isinstance(value, Mapping):
        raise ArgumentError(f"{name} is a mapping from names to texts, or to None: {value!r} is none")
    for key, text in value.items():
        if not isinstance(key, str) or not key or not isinstance(text, str | None):
            raise ArgumentError(f"{name} is a mapping from names to texts, or to None: {key!r} to {text!r} is not")


def _client_ids(name: str, value: object) -> None:
    for client_id in listed(name, value, "client ids"):
        check_texts(**{f"each of {name}": client_id})


def _config(name: str, value: object) -> None:
    if isinstance(value, str):
        check_texts(**{name: value})
    elif not isinstance(value, GroupConfig):
        raise ArgumentError(f"{name} is what the call says, a GroupConfig or text: {value!r} is neither")


_MILLISECONDS: Final = _count(0, OFFSET_MAX)
_OFFSET: Final = _count(0, OFFSET_MAX)

CHECKS: Final[Mapping[str, Check]] = {
    "address": _text,
    "attributes": _attributes,
    "begin": _OFFSET,
    "begin_ms": _MILLISECONDS,
    "broker": _text,
    "broker_name": _text,
    "by_tag": _flag,
    "client_id": _text,
    "client_ids": _client_ids,
    "cluster": _text,
    "config": _config,
    "count_max": _count(1, COUNT_MAX),
    "destination": _text,
    "end": _OFFSET,
    "end_ms": _MILLISECONDS,
    "expression": _any_text,
    "force": _flag,
    "group": _text,
    "has_unit_subscription": _flag,
    "key": _text,
    "last_key": _any_text,
    "message": _message,
    "message_id": _text,
    "namespace": _text,
    "offset": _OFFSET,
    "ordered": _flag,
    "parent": _text,
    "permission": _permission,
    "queue": check_queue,
    "read_queues": _count(0, QUEUES_MAX),
    "settings": _settings,
    "source": _text,
    "topic": _text,
    "unit": _flag,
    "value": _any_text,
    "when_ms": _count(END, OFFSET_MAX),
    "with_offsets": _flag,
    "with_slaves": _flag,
    "with_stacks": _flag,
    "write_queues": _count(0, QUEUES_MAX),
}
"""Every argument of every call, by its name, which means the same in all of them."""


# ----------------------------------------------------------------------------------------------------------- names


class Names:
    """The names of one namespace: what applications say, and what brokers hear."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace

    def into(self, value: Any) -> Any:
        """Put a name, or what bears one, into the namespace."""
        if isinstance(value, str):
            return with_namespace(self._namespace, value)
        if isinstance(value, QueueRef):
            return QueueRef(self.into(value.topic), value.broker_name, value.queue_id)
        if isinstance(value, StoredMessage):
            return value.replace(topic=self.into(value.topic))
        if isinstance(value, GroupConfig):
            return msgspec.structs.replace(value, name=self.into(value.name))
        return value

    def out(self, name: str) -> str:
        """Take a name out of the namespace."""
        return without_namespace(self._namespace, name)

    def own(self, name: str) -> bool:
        """Whether a name is of this namespace."""
        return namespace_of(name) == self._namespace

    def out_of(self, value: Any) -> Any:  # noqa: PLR0911, PLR0912 - one for each kind of answer
        """Take an answer out of the namespace, whatever it is made of; plain text is not taken for a name."""
        out = self.out
        match value:
            case QueueRef(topic, broker_name, queue_id):
                return QueueRef(out(topic), broker_name, queue_id)
            case StoredMessage():
                return value.replace(topic=out(value.topic))
            case TopicConfig() | GroupConfig():
                return msgspec.structs.replace(value, name=out(value.name))
            case Subscription():
                return msgspec.structs.replace(value, topic=out(value.topic))
            case TopicStatus():
                return TopicStatus(out(value.topic), self.out_of(value.queues), value.put_tps, value.failures)
            case TopicUse():
                return TopicUse(out(value.topic), value.clusters, tuple(map(out, value.groups)))
            case TopicTraffic():
                group = None if value.group is None else out(value.group)
                rest = (value.lag, value.in_tps, value.out_tps, value.in_day, value.out_day)
                return TopicTraffic(out(value.topic), group, *rest)
            case GroupProgress():
                return GroupProgress(out(value.group), self.out_of(value.queues), value.tps)
            case GroupSummary():
                progress, consumers = self.out_of(value.progress), self.out_of(value.consumers)
                return GroupSummary(out(value.group), progress, consumers, value.failure)
            case MessageTrack():
                return MessageTrack(out(value.group), value.tracking, value.remark)
            case ConsumerConnections():
                found = {
                    out(topic): msgspec.structs.replace(wanted, topic=out(wanted.topic))
                    for topic, wanted in value.subscriptions.items()
                }
                return msgspec.structs.replace(value, subscriptions=found)
            case RunningConsumer():
                return msgspec.structs.replace(
                    value,
                    subscriptions=self.out_of(value.subscriptions),
                    queues=self.out_of(value.queues),
                    paces={out(topic): pace for topic, pace in value.paces.items()},
                )
            case dict():
                return {self.out_of(key): self.out_of(each) for key, each in value.items()}
            case list():
                return [self.out_of(each) for each in value]
            case tuple():
                return tuple(self.out_of(each) for each in value)
            case _:
                return value


_NAMED: Final = frozenset({"topic", "group", "source", "destination", "queue", "message", "config", "parent"})
"""Arguments that are names within the namespace, or bear one; `config` of an ordered topic is neither."""

_OWN_NAMES: Final = frozenset({"topics", "groups"})
"""Calls that answer with nothing but names: those of the namespace are given, without it."""
_OWN_TABLES: Final = frozenset({"topic_configs", "group_configs"})
"""Calls that answer with something by name."""
_OWN_ROWS: Final = frozenset({"summaries", "topic_uses", "traffic"})
"""Calls about everything there is; in a namespace, about what is of it."""


def _answer(call: str, answer: Any, names: Names) -> Any:
    if call in _OWN_NAMES:
        return [names.out(name) for name in answer if names.own(name)]
    if call == "readers":
        return [names.out(name) for name in answer]
    if call in _OWN_TABLES:
        return {names.out(name): names.out_of(value) for name, value in answer.items() if names.own(name)}
    if call == "summaries":
        return [names.out_of(row) for row in answer if names.own(row.group)]
    if call in _OWN_ROWS:
        rows, failures = answer
        return [names.out_of(row) for row in rows if names.own(row.topic)], {
            names.out(topic): error for topic, error in failures.items() if names.own(topic)
        }
    return names.out_of(answer)


# -------------------------------------------------------------------------------------------------------- the face


def _checked_face(call: str, method: Callable[..., Any]) -> Callable[..., Any]:
    code = method.__code__
    parameters = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    positional = code.co_varnames[1 : code.co_argcount]
    may_be_none = {
        name for name, kind in method.__annotations__.items() if kind is None or type(None) in get_args(kind)
    }
    checks = {name: CHECKS[name] for name in parameters}
    named = _NAMED.intersection(parameters) - ({"config"} if call == "put_order_config" else set())

    def look(names: Names | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        given, words = list(args), dict(kwargs)
        for place, (name, value) in enumerate(zip(positional, args, strict=False)):
            given[place] = _seen(name, value, names)
        for name, value in kwargs.items():
            if name in checks:  # else Python says that there is no such argument
                words[name] = _seen(name, value, names)
        return given, words

    def _seen(name: str, value: Any, names: Names | None) -> Any:
        if value is None and name in may_be_none:
            return None
        checks[name](name, value)
        # Tools read under a group that is every tenant's.
        return names.into(value) if names is not None and name in named and value != READER_GROUP else value

    if inspect.isasyncgenfunction(method):

        @functools.wraps(method)
        def give(self: Any, /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
            names = self._names
            given, words = look(names, args, kwargs)
            things = getattr(self._calls, call)(*given, **words)
            return things if names is None else _translated(things, names)

        return give

    @functools.wraps(method)
    async def ask(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        names = self._names
        given, words = look(names, args, kwargs)
        asking: Awaitable[Any] = getattr(self._calls, call)(*given, **words)
        answer = await asking
        return answer if names is None else _answer(call, answer, names)

    return ask


async def _translated(things: AsyncGenerator[Any, None], names: Names) -> AsyncGenerator[Any, None]:
    try:
        async for thing in things:
            yield names.out_of(thing)
    finally:
        await things.aclose()


NOT_CALLS: Final = frozenset({"start", "stop"})


def with_face(admin: C) -> C:
    """Give a class, whose objects have the calls as `_calls` and perhaps `_names`, a face for each of the calls."""
    for call in dir(MessageAdmin):
        method = getattr(MessageAdmin, call)
        if not call.startswith("_") and call not in NOT_CALLS and inspect.isfunction(method):
            setattr(admin, call, _checked_face(call, method))
    return admin
