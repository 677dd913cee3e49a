"""The client without `await`, for scripts and threads: the same names and arguments as in `skyroute`.

Examples:
    >>> from skyroute import Message
    >>> from skyroute.blocking import Producer
    >>> with Producer("orders", name_servers="127.0.0.1:9876") as producer:
    ...     producer.send(Message("Orders", b"one coffee"))

All objects share one event loop. It runs in a daemon thread that starts with the first use. Calls may come from any
other thread.
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
from skyroute.client.consuming.simple_consumer import SimpleConsumer as AsyncSimpleConsumer
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
    global _loop_thread  # noqa: PLW0603 - one loop for all objects, started with the first
    with _lock:
        if _loop_thread is None or not _loop_thread.is_alive:
            _loop_thread = LoopThread("skyroute blocking")
        thread = _loop_thread
    if thread.is_current:
        coroutine.close()
        raise ClientError("a blocking call on the event loop would wait for itself: use the classes of `skyroute` here")
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


class _Blocking(Generic[T]):
    """Wraps an asynchronous object that lives on the event loop."""

    _asynchronous: Callable[..., T]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take the arguments of the asynchronous class of the same name."""

        async def make() -> T:
            return self._asynchronous(*args, **kwargs)

        self._pid = os.getpid()
        self._made = _run(make())

    @property
    def _inner(self) -> T:
        if self._pid != os.getpid():  # a fork copies the object, and not the event loop's thread
            raise ClientError("this object was created before a fork: create it in the process that uses it")
        return self._made

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _run(self._inner.__aexit__(kind, error, traceback))

    def start(self) -> None:
        """Start; see the asynchronous class."""
        _run(self._inner.start())

    def stop(self) -> None:
        """Stop; see the asynchronous class."""
        _run(self._inner.stop())

    def __repr__(self) -> str:
        return f"<blocking {self._made!r}>"


def _blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Any, P], R]:
    """Return the blocking form of a coroutine method."""

    @functools.wraps(method)
    def call(self: _Blocking[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return _run(method(self._inner, *args, **kwargs))

    return call


def _on_loop(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Return the thread-safe form of a plain method: it runs on the event loop."""

    @functools.wraps(method)
    def call(self: _Blocking[Any], /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def call_there() -> R:
            return method(self._inner, *args, **kwargs)

        return _run(call_there())

    return call


def _until_accepted(method: Callable[Concatenate[Any, P], PendingSubscription]) -> Callable[Concatenate[Any, P], None]:
    """Return the blocking form of `subscribe`: it waits until brokers have accepted the expression."""

    @functools.wraps(method)
    def call(self: _Blocking[Any], /, *args: P.args, **kwargs: P.kwargs) -> None:
        async def call_there() -> None:
            await method(self._inner, *args, **kwargs)

        _run(call_there())

    return call


def _iterating(method: Callable[Concatenate[Any, P], AsyncIterator[R]]) -> Callable[Concatenate[Any, P], Iterator[R]]:
    """Return the blocking form of a method that returns an asynchronous iterator."""

    @functools.wraps(method)
    def call(self: _Blocking[Any], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        return _iterate(method(self._inner, *args, **kwargs))

    return call


def _iterate(items: AsyncIterator[R]) -> Iterator[R]:
    async def read_next() -> R | None:
        return await anext(items, None)

    while (item := _run(read_next())) is not None:
        yield item


class Producer(_Blocking[AsyncProducer]):
    """Sends messages: `skyroute.Producer` without `await`."""

    _asynchronous = AsyncProducer
    send = _blocking(AsyncProducer.send)
    send_oneway = _blocking(AsyncProducer.send_oneway)
    send_batch = _blocking(AsyncProducer.send_batch)
    send_in_transaction = _blocking(AsyncProducer.send_in_transaction)
    request = _blocking(AsyncProducer.request)
    reply = _blocking(AsyncProducer.reply)
    recall = _blocking(AsyncProducer.recall)
    queues = _blocking(AsyncProducer.queues)


class Consumer(_Blocking[AsyncConsumer]):
    """Calls handlers with messages, in threads: `skyroute.Consumer` without `await`.

    Examples:
        >>> consumer = Consumer("billing", name_servers="127.0.0.1:9876")
        >>> @consumer.on("Orders", "paid")
        ... def handle(message: StoredMessage) -> None:
        ...     book(message.body)
        >>> consumer.run()
    """

    _asynchronous = AsyncConsumer
    subscribe = _until_accepted(AsyncConsumer.subscribe)
    unsubscribe = _on_loop(AsyncConsumer.unsubscribe)
    pause = _on_loop(AsyncConsumer.pause)
    resume = _on_loop(AsyncConsumer.resume)
    run = _blocking(AsyncConsumer.run)

    def on(self, topic: str, expression: str | Expression = "*") -> Callable[[H], H]:
        """Decorate the handler of a topic: `@consumer.on("Orders", "paid")`."""
        self._inner.on(topic, expression)  # checks the arguments

        def subscribe(handler: H) -> H:
            self.subscribe(topic, expression, handler)
            return handler

        return subscribe

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop; see the asynchronous class."""
        _run(self._inner.stop(timeout_s))

    @property
    def assignment(self) -> frozenset[QueueRef]:
        """The queues that this consumer owns now."""
        return self._inner.assignment

    def __iter__(self) -> Iterator[StoredMessage]:
        return _iterate(self._inner.__aiter__())


class PullConsumer(_Blocking[AsyncPullConsumer]):
    """Reads messages on request: `skyroute.PullConsumer` without `await`."""

    _asynchronous = AsyncPullConsumer
    subscribe = _until_accepted(AsyncPullConsumer.subscribe)
    unsubscribe = _on_loop(AsyncPullConsumer.unsubscribe)
    assign = _on_loop(AsyncPullConsumer.assign)
    poll = _blocking(AsyncPullConsumer.poll)
    seek = _on_loop(AsyncPullConsumer.seek)
    seek_to_begin = _blocking(AsyncPullConsumer.seek_to_begin)
    seek_to_end = _blocking(AsyncPullConsumer.seek_to_end)
    seek_to_time = _blocking(AsyncPullConsumer.seek_to_time)
    pause = _on_loop(AsyncPullConsumer.pause)
    resume = _on_loop(AsyncPullConsumer.resume)
    position = _blocking(AsyncPullConsumer.position)
    committed = _blocking(AsyncPullConsumer.committed)
    commit = _blocking(AsyncPullConsumer.commit)
    queues = _blocking(AsyncPullConsumer.queues)

    @property
    def assignment(self) -> frozenset[QueueRef]:
        """The queues that this consumer reads now."""
        return self._inner.assignment

    @property
    def paused(self) -> frozenset[QueueRef]:
        """The paused queues."""
        return self._inner.paused

    def __iter__(self) -> Iterator[StoredMessage]:
        return _iterate(self._inner.__aiter__())


class SimpleConsumer(_Blocking[AsyncSimpleConsumer]):
    """Receives and acknowledges messages one by one: `skyroute.SimpleConsumer` without `await`."""

    _asynchronous = AsyncSimpleConsumer
    subscribe = _on_loop(AsyncSimpleConsumer.subscribe)
    unsubscribe = _on_loop(AsyncSimpleConsumer.unsubscribe)
    receive = _blocking(AsyncSimpleConsumer.receive)
    ack = _blocking(AsyncSimpleConsumer.ack)
    change_invisible_time = _blocking(AsyncSimpleConsumer.change_invisible_time)
    make_dead_letter = _blocking(AsyncSimpleConsumer.make_dead_letter)
    run = _blocking(AsyncSimpleConsumer.run)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop; see the asynchronous class."""
        _run(self._inner.stop(timeout_s))


class Admin(_Blocking[AsyncAdmin]):
    """Inspects and changes a cluster: `skyroute.Admin` without `await`."""

    _asynchronous = AsyncAdmin
    cluster = _blocking(AsyncAdmin.cluster)
    route = _blocking(AsyncAdmin.route)
    broker_groups = _blocking(AsyncAdmin.broker_groups)
    replication_status = _blocking(AsyncAdmin.replication_status)
    replication_statuses = _blocking(AsyncAdmin.replication_statuses)
    only_cluster = _blocking(AsyncAdmin.only_cluster)
    addresses = _blocking(AsyncAdmin.addresses)
    serving = _blocking(AsyncAdmin.serving)
    brokers = _blocking(AsyncAdmin.brokers)
    broker_state = _blocking(AsyncAdmin.broker_state)
    broker_states = _blocking(AsyncAdmin.broker_states)
    broker_settings = _blocking(AsyncAdmin.broker_settings)
    update_broker_settings = _blocking(AsyncAdmin.update_broker_settings)
    clean_expired_queues = _blocking(AsyncAdmin.clean_expired_queues)
    clean_unused_topics = _blocking(AsyncAdmin.clean_unused_topics)
    name_server_settings = _blocking(AsyncAdmin.name_server_settings)
    update_name_server_settings = _blocking(AsyncAdmin.update_name_server_settings)
    forbid_writes = _blocking(AsyncAdmin.forbid_writes)
    allow_writes = _blocking(AsyncAdmin.allow_writes)
    controllers = _blocking(AsyncAdmin.controllers)
    replicas = _blocking(AsyncAdmin.replicas)
    elect_master = _blocking(AsyncAdmin.elect_master)
    remove_replicas = _blocking(AsyncAdmin.remove_replicas)
    broker_epochs = _blocking(AsyncAdmin.broker_epochs)
    controller_settings = _blocking(AsyncAdmin.controller_settings)
    update_controller_settings = _blocking(AsyncAdmin.update_controller_settings)
    kv = _blocking(AsyncAdmin.kv)
    put_kv = _blocking(AsyncAdmin.put_kv)
    delete_kv = _blocking(AsyncAdmin.delete_kv)
    order_config = _blocking(AsyncAdmin.order_config)
    put_order_config = _blocking(AsyncAdmin.put_order_config)
    delete_order_config = _blocking(AsyncAdmin.delete_order_config)
    topics = _blocking(AsyncAdmin.topics)
    clusters_of = _blocking(AsyncAdmin.clusters_of)
    topic_status = _blocking(AsyncAdmin.topic_status)
    topic_config = _blocking(AsyncAdmin.topic_config)
    topic_configs = _blocking(AsyncAdmin.topic_configs)
    create_topic = _blocking(AsyncAdmin.create_topic)
    change_permission = _blocking(AsyncAdmin.change_permission)
    delete_topic = _blocking(AsyncAdmin.delete_topic)
    readers = _blocking(AsyncAdmin.readers)
    topic_uses = _blocking(AsyncAdmin.topic_uses)
    allocation = _blocking(AsyncAdmin.allocation)
    traffic = _blocking(AsyncAdmin.traffic)
    topic_traffic = _blocking(AsyncAdmin.topic_traffic)
    group_config = _blocking(AsyncAdmin.group_config)
    group_configs = _blocking(AsyncAdmin.group_configs)
    create_group = _blocking(AsyncAdmin.create_group)
    delete_group = _blocking(AsyncAdmin.delete_group)
    consumers = _blocking(AsyncAdmin.consumers)
    producers = _blocking(AsyncAdmin.producers)
    running_consumer = _blocking(AsyncAdmin.running_consumer)
    owners = _blocking(AsyncAdmin.owners)
    groups = _blocking(AsyncAdmin.groups)
    progress = _blocking(AsyncAdmin.progress)
    summaries = _blocking(AsyncAdmin.summaries)
    reset_to_time = _blocking(AsyncAdmin.reset_to_time)
    reset_queue = _blocking(AsyncAdmin.reset_queue)
    clone_offsets = _blocking(AsyncAdmin.clone_offsets)
    broker_name_at = _blocking(AsyncAdmin.broker_name_at)
    address_of = _blocking(AsyncAdmin.address_of)
    find_message = _blocking(AsyncAdmin.find_message)
    messages_by_unique_id = _blocking(AsyncAdmin.messages_by_unique_id)
    messages_by_key = _blocking(AsyncAdmin.messages_by_key)
    message_at = _blocking(AsyncAdmin.message_at)
    queues_of = _blocking(AsyncAdmin.queues_of)
    create_user = _blocking(AsyncAdmin.create_user)
    update_user = _blocking(AsyncAdmin.update_user)
    delete_user = _blocking(AsyncAdmin.delete_user)
    user = _blocking(AsyncAdmin.user)
    users = _blocking(AsyncAdmin.users)
    put_policy = _blocking(AsyncAdmin.put_policy)
    copy_policies = _blocking(AsyncAdmin.copy_policies)
    delete_policy = _blocking(AsyncAdmin.delete_policy)
    policies = _blocking(AsyncAdmin.policies)
    all_policies = _blocking(AsyncAdmin.all_policies)
    span = _blocking(AsyncAdmin.span)
    read = _iterating(AsyncAdmin.read)
    track = _blocking(AsyncAdmin.track)
    consume_directly = _blocking(AsyncAdmin.consume_directly)
