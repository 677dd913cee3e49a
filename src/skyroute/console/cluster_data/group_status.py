"""The state of a consumer group, from its brokers and its consumers. Those that do not respond are listed."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from skyroute.client.admin import Admin
from skyroute.client.admin.base import Failures, SomeFailedError, call_each
from skyroute.client.admin.groups import GroupProgress, group_progress
from skyroute.client.errors import ConsumerOfflineError, RequestTimeoutError
from skyroute.console.cluster_data.monitor import ClusterSnapshot
from skyroute.errors import SkyrouteError
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import PREDEFINED_GROUPS, is_system_group
from skyroute.wire.calls.consumers import RunningConsumer
from skyroute.wire.calls.groups import (
    ConsumerConnections,
    ConsumeStats,
    decode_consume_stats,
    encode_consume_stats_query,
)

BROKER_S: Final = 5.0
"""How long a page waits for a broker."""
CONSUMER_S: Final = 3.0
"""How long a page waits for a consumer, to which a broker forwards the request."""
CONSUMERS_ASKED_MAX: Final = 100
"""Consumers of one group that one page sends a request to."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """A group's offsets and connected consumers."""

    progress: GroupProgress
    consumers: ConsumerConnections
    failures: Failures
    """Brokers that did not respond, by address."""


@dataclass(frozen=True, slots=True)
class RunningConsumers:
    """What the consumers of a group report about themselves, by client id."""

    by_client: Mapping[str, RunningConsumer]
    failures: Failures
    not_asked: int = 0
    """Consumers beyond `CONSUMERS_ASKED_MAX`."""

    @property
    def owners(self) -> dict[QueueRef, str]:
        """The client id of the consumer that holds each queue."""
        return {queue: client for client, running in self.by_client.items() for queue in running.queues}


def is_system(group: str) -> bool:
    """Return whether a group belongs to RocketMQ and not to an application."""
    return group in PREDEFINED_GROUPS or is_system_group(group)


async def fetch_group_status(
    admin: Admin, snapshot: ClusterSnapshot, group: str, brokers: Iterable[str]
) -> GroupStatus:
    """Read a group's offsets and consumers from the brokers that have it."""
    addresses, down = _addresses(snapshot, brokers)
    (stats, failed), (consumers, failed_too) = await asyncio.gather(
        _ask_each(addresses, lambda address: _read_stats(admin, group, address)),
        _ask_each(addresses, lambda address: _read_consumers(admin, group, address)),
    )
    return GroupStatus(
        group_progress(group, stats.values()), _merge(consumers.values()), {**down, **failed, **failed_too}
    )


async def fetch_consumers(
    admin: Admin, snapshot: ClusterSnapshot, group: str, brokers: Iterable[str]
) -> tuple[ConsumerConnections, Failures]:
    """Read the connected consumers of a group from the brokers that have it."""
    addresses, down = _addresses(snapshot, brokers)
    consumers, failed = await _ask_each(addresses, lambda address: _read_consumers(admin, group, address))
    return _merge(consumers.values()), {**down, **failed}


async def fetch_running(admin: Admin, group: str, consumers: ConsumerConnections) -> RunningConsumers:
    """Ask the consumers of a group for their queues, subscriptions and rates."""
    clients = [connection.client_id for connection in consumers.connections]

    async def ask(client_id: str) -> RunningConsumer:
        try:
            async with asyncio.timeout(CONSUMER_S):
                return await admin.running_consumer(group, client_id)
        except TimeoutError:
            raise RequestTimeoutError(f"{client_id} did not respond within {CONSUMER_S:g} s") from None

    asked = clients[:CONSUMERS_ASKED_MAX]
    return RunningConsumers(*await _ask_each(asked, ask), len(clients) - len(asked))


def _addresses(snapshot: ClusterSnapshot, brokers: Iterable[str]) -> tuple[list[str], dict[str, SkyrouteError]]:
    """Return the addresses to ask, and the errors of brokers that did not respond to the last poll."""
    masters = snapshot.masters
    down = {each.address: each.failure for each in snapshot.brokers if each.failure is not None}
    wanted = [masters[name] for name in brokers if name in masters]
    return [each for each in wanted if each not in down], {each: down[each] for each in wanted if each in down}


async def _ask_each(
    names: Iterable[str], ask: Callable[[str], Awaitable[T]]
) -> tuple[dict[str, T], Mapping[str, SkyrouteError]]:
    """Call `ask` for all names at the same time; unlike `call_each`, do not raise if all of them fail."""
    names = list(names)
    try:
        return await call_each(names, ask)
    except SomeFailedError as error:
        return {}, error.failures
    except SkyrouteError as error:
        return {}, {names[0]: error}


async def _read_stats(admin: Admin, group: str, address: str) -> ConsumeStats:
    response = await admin.session.ask(address, encode_consume_stats_query(group), BROKER_S)
    return decode_consume_stats(response.body)


async def _read_consumers(admin: Admin, group: str, address: str) -> ConsumerConnections:
    try:
        return await admin.consumers(group, broker=address)
    except ConsumerOfflineError:
        return ConsumerConnections()


def _merge(parts: Iterable[ConsumerConnections]) -> ConsumerConnections:
    """Return the connections of several brokers as one: a consumer connects to each, and some brokers may lack it."""
    parts = [each for each in parts if each.connections]
    if not parts:
        return ConsumerConnections()
    clients = {connection.client_id: connection for each in reversed(parts) for connection in each.connections}
    subscriptions = {topic: subscription for each in parts for topic, subscription in each.subscriptions.items()}
    first = parts[0]
    return ConsumerConnections(
        tuple(sorted(clients.values())), subscriptions, first.consume_type, first.model, first.start_from
    )
