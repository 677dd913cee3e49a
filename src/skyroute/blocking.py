"""The client for scripts: the same names and arguments as in `skyroute`, without `await`.

Examples:
    >>> from skyroute import Message
    >>> from skyroute.blocking import Producer
    >>> with Producer("orders", name_servers="127.0.0.1:9876") as producer:
    ...     producer.send(Message("Orders", b"one coffee"))

One event loop runs for all of it, in a thread of its own that starts with the first use and ends with the program.
Every call waits for its turn there, and may be made from any thread but that one.
"""

import functools
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from skyroute.client.admin import Admin as AsyncAdmin
from skyroute.client.consuming.consumer import STOP_TIMEOUT_S, H
from skyroute.client.consuming.consumer import Consumer as AsyncConsumer
from skyroute.client.consuming.filter_support import PendingSubscription
from skyroute.client.consuming.pull_consumer import PullConsumer as AsyncPullConsumer
from skyroute.client.consuming.subscription import Expression
from skyroute.client.errors import ClientError
from skyroute.client.producing.producer import Producer as AsyncProducer
from skyroute.message.message import StoredMessage
from skyroute.message.queue_ref import QueueRef
from skyroute.remoting.loops import LoopThread

P = ParamSpec("P")
R = TypeVar("R")

_lock = threading.Lock()
_loop_thread: LoopThread | None = None


def _run(coroutine: Coroutine[Any, Any, R]) -> R:
    global _loop_thread  # noqa: PLW0603 - one loop for all, made when it is first needed
    with _lock:
        if _loop_thread is None or not _loop_thread.is_alive:
            _loop_thread = LoopThread("skyroute blocking")
        thread = _loop_thread
    if thread.is_current:
        coroutine.close()
        raise ClientError("a blocking call would wait for itself here: use the asynchronous names from `skyroute`")
    return thread.call(coroutine)


class _Startable(Protocol):
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...


T = TypeVar("T", bound=_Startable)


class _Face(Generic[T]):
    """What all four have in common: an asynchronous self, and `with`."""

    _make: Callable[..., T]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take the arguments of the asynchronous class of the same name."""

        async def make() -> T:
            return type(self)._make(*args, **kwargs)

        self._pid = os.getpid()
        self._made = _run(make())

    @property
    def _inner(self) -> T:
        if self._pid != os.getpid():  # a fork takes it along, and not the event loop that it lives on
            raise ClientError("it was made before this process was forked: make it in the process that uses it")
        return self._made

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _run(self._inner.__aexit__(kind, error, traceback))

    def start(self) -> None:
        """Begin."""
        _run(self._inner.start())

    def stop(self) -> None:
        """End: see the asynchronous one."""
        _run(self._inner.stop())

    def __repr__(self) -> str:
        return f"<blocking {self._made!r}>"


def _waiting(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Any, P], R]:
    """Make a method that waits out of one that is awaited."""

    @functools.wraps(method)
    def call(self: _Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return _run(method(self._inner, *args, **kwargs))

    return call


def _at_once(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Make a method that may be called from any thread out of one that belongs to the loop."""

    @functools.wraps(method)
    def call(self: _Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def there() -> R:
            return method(self._inner, *args, **kwargs)

        return _run(there())

    return call


def _once_accepted(method: Callable[Concatenate[Any, P], PendingSubscription]) -> Callable[Concatenate[Any, P], None]:
    """Make a method that waits until brokers have accepted a subscription, where there is something to ask."""

    @functools.wraps(method)
    def call(self: _Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        async def there() -> None:
            await method(self._inner, *args, **kwargs)

        _run(there())

    return call


def _in_turn(method: Callable[Concatenate[Any, P], AsyncIterator[R]]) -> Callable[Concatenate[Any, P], Iterator[R]]:
    """Make a method that gives one thing after another out of one that does so asynchronously."""

    @functools.wraps(method)
    def call(self: _Face[Any], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return _iterate(method(self._inner, *args, **kwargs))

    return call


def _iterate(things: AsyncIterator[R]) -> Iterator[R]:
    async def following() -> R | None:
        return await anext(things, None)

    while (thing := _run(following())) is not None:
        yield thing


class Producer(_Face[AsyncProducer]):
    """Sends messages: `skyroute.Producer` without `await`."""

    _make = AsyncProducer
    send = _waiting(AsyncProducer.send)
    send_oneway = _waiting(AsyncProducer.send_oneway)
    send_batch = _waiting(AsyncProducer.send_batch)
    send_in_transaction = _waiting(AsyncProducer.send_in_transaction)
    request = _waiting(AsyncProducer.request)
    reply = _waiting(AsyncProducer.reply)
    recall = _waiting(AsyncProducer.recall)
    queues = _waiting(AsyncProducer.queues)


class Consumer(_Face[AsyncConsumer]):
    """Gives messages to handlers, each in a thread: `skyroute.Consumer` without `await`.

    Examples:
        >>> consumer = Consumer("billing", name_servers="127.0.0.1:9876")
        >>> @consumer.on("Orders", "paid")
        ... def handle(message: StoredMessage) -> None:
        ...     book(message.body)
        >>> consumer.run()
    """

    _make = AsyncConsumer
    subscribe = _once_accepted(AsyncConsumer.subscribe)
    unsubscribe = _at_once(AsyncConsumer.unsubscribe)
    pause = _at_once(AsyncConsumer.pause)
    resume = _at_once(AsyncConsumer.resume)
    run = _waiting(AsyncConsumer.run)

    def on(self, topic: str, expression: str | Expression = "*") -> Callable[[H], H]:
        """Decorate the handler of a topic: `@consumer.on("Orders", "paid")`."""
        self._inner.on(topic, expression)  # which only looks at what it is given

        def subscribe(handler: H) -> H:
            self.subscribe(topic, expression, handler)
            return handler

        return subscribe

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End: see the asynchronous one."""
        _run(self._inner.stop(timeout_s))

    @property
    def assignment(self) -> frozenset[QueueRef]:
        """The queues of the subscribed topics that are ours now."""
        return self._inner.assignment

    def __iter__(self) -> Iterator[StoredMessage]:
        return _iterate(self._inner.__aiter__())


class PullConsumer(_Face[AsyncPullConsumer]):
    """Reads messages when asked to: `skyroute.PullConsumer` without `await`."""

    _make = AsyncPullConsumer
    subscribe = _once_accepted(AsyncPullConsumer.subscribe)
    unsubscribe = _at_once(AsyncPullConsumer.unsubscribe)
    assign = _at_once(AsyncPullConsumer.assign)
    poll = _waiting(AsyncPullConsumer.poll)
    seek = _at_once(AsyncPullConsumer.seek)
    seek_to_begin = _waiting(AsyncPullConsumer.seek_to_begin)
    seek_to_end = _waiting(AsyncPullConsumer.seek_to_end)
    seek_to_time = _waiting(AsyncPullConsumer.seek_to_time)
    pause = _at_once(AsyncPullConsumer.pause)
    resume = _at_once(AsyncPullConsumer.resume)
    position = _waiting(AsyncPullConsumer.position)
    committed = _waiting(AsyncPullConsumer.committed)
    commit = _waiting(AsyncPullConsumer.commit)
    queues = _waiting(AsyncPullConsumer.queues)

    @property
    def assignment(self) -> frozenset[QueueRef]:
        """The queues that are read now."""
        return self._inner.assignment

    @property
    def paused(self) -> frozenset[QueueRef]:
        """The queues that `pause` named, and `resume` has not."""
        return self._inner.paused

    def __iter__(self) -> Iterator[StoredMessage]:
        return _iterate(self._inner.__aiter__())


class Admin(_Face[AsyncAdmin]):
    """Looks at a cluster and changes it: `skyroute.Admin` without `await`."""

    _make = AsyncAdmin
    cluster = _waiting(AsyncAdmin.cluster)
    route = _waiting(AsyncAdmin.route)
    broker_groups = _waiting(AsyncAdmin.broker_groups)
    only_cluster = _waiting(AsyncAdmin.only_cluster)
    addresses = _waiting(AsyncAdmin.addresses)
    serving = _waiting(AsyncAdmin.serving)
    brokers = _waiting(AsyncAdmin.brokers)
    broker_state = _waiting(AsyncAdmin.broker_state)
    broker_states = _waiting(AsyncAdmin.broker_states)
    broker_settings = _waiting(AsyncAdmin.broker_settings)
    update_broker_settings = _waiting(AsyncAdmin.update_broker_settings)
    clean_expired_queues = _waiting(AsyncAdmin.clean_expired_queues)
    clean_unused_topics = _waiting(AsyncAdmin.clean_unused_topics)
    name_server_settings = _waiting(AsyncAdmin.name_server_settings)
    update_name_server_settings = _waiting(AsyncAdmin.update_name_server_settings)
    forbid_writes = _waiting(AsyncAdmin.forbid_writes)
    allow_writes = _waiting(AsyncAdmin.allow_writes)
    kv = _waiting(AsyncAdmin.kv)
    put_kv = _waiting(AsyncAdmin.put_kv)
    delete_kv = _waiting(AsyncAdmin.delete_kv)
    order_config = _waiting(AsyncAdmin.order_config)
    put_order_config = _waiting(AsyncAdmin.put_order_config)
    delete_order_config = _waiting(AsyncAdmin.delete_order_config)
    topics = _waiting(AsyncAdmin.topics)
    clusters_of = _waiting(AsyncAdmin.clusters_of)
    topic_status = _waiting(AsyncAdmin.topic_status)
    topic_config = _waiting(AsyncAdmin.topic_config)
    topic_configs = _waiting(AsyncAdmin.topic_configs)
    create_topic = _waiting(AsyncAdmin.create_topic)
    change_permission = _waiting(AsyncAdmin.change_permission)
    delete_topic = _waiting(AsyncAdmin.delete_topic)
    readers = _waiting(AsyncAdmin.readers)
    topic_uses = _waiting(AsyncAdmin.topic_uses)
    allocation = _waiting(AsyncAdmin.allocation)
    traffic = _waiting(AsyncAdmin.traffic)
    topic_traffic = _waiting(AsyncAdmin.topic_traffic)
    group_config = _waiting(AsyncAdmin.group_config)
    group_configs = _waiting(AsyncAdmin.group_configs)
    create_group = _waiting(AsyncAdmin.create_group)
    delete_group = _waiting(AsyncAdmin.delete_group)
    consumers = _waiting(AsyncAdmin.consumers)
    producers = _waiting(AsyncAdmin.producers)
    running_consumer = _waiting(AsyncAdmin.running_consumer)
    owners = _waiting(AsyncAdmin.owners)
    groups = _waiting(AsyncAdmin.groups)
    progress = _waiting(AsyncAdmin.progress)
    summaries = _waiting(AsyncAdmin.summaries)
    reset_to_time = _waiting(AsyncAdmin.reset_to_time)
    reset_queue = _waiting(AsyncAdmin.reset_queue)
    clone_offsets = _waiting(AsyncAdmin.clone_offsets)
    broker_name_at = _waiting(AsyncAdmin.broker_name_at)
    address_of = _waiting(AsyncAdmin.address_of)
    find_message = _waiting(AsyncAdmin.find_message)
    messages_by_unique_id = _waiting(AsyncAdmin.messages_by_unique_id)
    messages_by_key = _waiting(AsyncAdmin.messages_by_key)
    message_at = _waiting(AsyncAdmin.message_at)
    queues_of = _waiting(AsyncAdmin.queues_of)
    span = _waiting(AsyncAdmin.span)
    read = _in_turn(AsyncAdmin.read)
    track = _waiting(AsyncAdmin.track)
    consume_directly = _waiting(AsyncAdmin.consume_directly)
