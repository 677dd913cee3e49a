"""What brokers, and its members, say of a consumer group. Whoever does not answer is named, and the others count."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from skyroute.client.admin.base import Failures, SomeFailedError, call_each
from skyroute.client.admin.groups import GroupProgress
from skyroute.client.errors import ConsumerOfflineError, RequestTimeoutError
from skyroute.console.pages.page_context import PageContext
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

ANSWER_S: Final = 5.0
"""How long a page waits for a broker."""
MEMBER_S: Final = 3.0
"""How long a page waits for a member, which a broker asks on our behalf."""
MEMBERS_ASKED_MAX: Final = 100
"""Members of one group that are asked what they do."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Glance:
    """How far a group has come, who is connected, and which brokers did not tell."""

    progress: GroupProgress
    consumers: ConsumerConnections
    failures: Failures


@dataclass(frozen=True, slots=True)
class Running:
    """What the members of a group say of themselves, by client id, and who said nothing."""

    told: Mapping[str, RunningConsumer]
    failures: Failures
    unasked: int = 0
    """Members beyond the number that one page asks."""

    @property
    def owners(self) -> dict[QueueRef, str]:
        """Which member holds which queue."""
        return {queue: member for member, running in self.told.items() for queue in running.queues}


def is_system(group: str) -> bool:
    """Whether a group is none that somebody's application consumes with."""
    return group in PREDEFINED_GROUPS or is_system_group(group)


async def glance(desk: PageContext, group: str, brokers: Iterable[str]) -> Glance:
    """Ask the brokers that have a group how far it has come, and who is connected."""
    addresses, down = _addresses(desk, brokers)
    (stats, silent), (consumers, others) = await asyncio.gather(
        _hear(addresses, lambda address: _ask_stats(desk, group, address)),
        _hear(addresses, lambda address: _ask_consumers(desk, group, address)),
    )
    queues = {queue: progress for each in stats.values() for queue, progress in each.queues.items()}
    progress = GroupProgress(group, dict(sorted(queues.items())), sum(each.tps for each in stats.values()))
    return Glance(progress, _merge(consumers.values()), {**down, **silent, **others})


async def ask_members(desk: PageContext, group: str, brokers: Iterable[str]) -> tuple[ConsumerConnections, Failures]:
    """Ask the brokers that have a group who is connected for it."""
    addresses, down = _addresses(desk, brokers)
    told, silent = await _hear(addresses, lambda address: _ask_consumers(desk, group, address))
    return _merge(told.values()), {**down, **silent}


async def ask_running(desk: PageContext, group: str, consumers: ConsumerConnections) -> Running:
    """Ask the members of a group what they do."""
    members = [connection.client_id for connection in consumers.connections]

    async def ask(client_id: str) -> RunningConsumer:
        try:
            async with asyncio.timeout(MEMBER_S):
                return await desk.admin.running_consumer(group, client_id)
        except TimeoutError:
            raise RequestTimeoutError(f"{client_id} said nothing of itself for {MEMBER_S:g} s") from None

    asked = members[:MEMBERS_ASKED_MAX]
    return Running(*await _hear(asked, ask), len(members) - len(asked))


def _addresses(desk: PageContext, brokers: Iterable[str]) -> tuple[list[str], dict[str, SkyrouteError]]:
    """Return where brokers are, and of those that did not answer the last look, why not: they are not asked again."""
    masters = desk.watcher.look.masters
    down = {each.address: each.failure for each in desk.watcher.look.brokers if each.failure is not None}
    wanted = [masters[name] for name in brokers if name in masters]
    return [each for each in wanted if each not in down], {each: down[each] for each in wanted if each in down}


async def _hear(
    names: Iterable[str], ask: Callable[[str], Awaitable[T]]
) -> tuple[dict[str, T], Mapping[str, SkyrouteError]]:
    """Ask all at the same time; that none answers is no failure here."""
    names = list(names)
    try:
        return await call_each(names, ask)
    except SomeFailedError as error:
        return {}, error.failures
    except SkyrouteError as error:
        return {}, {names[0]: error}


async def _ask_stats(desk: PageContext, group: str, address: str) -> ConsumeStats:
    answer = await desk.admin.session.ask(address, encode_consume_stats_query(group), ANSWER_S)
    return decode_consume_stats(answer.body)


async def _ask_consumers(desk: PageContext, group: str, address: str) -> ConsumerConnections:
    try:
        return await desk.admin.consumers(group, broker=address)
    except ConsumerOfflineError:
        return ConsumerConnections()


def _merge(told: Iterable[ConsumerConnections]) -> ConsumerConnections:
    """Return what several brokers say as one: a member has a connection to each, and some may be known to few."""
    told = [each for each in told if each.connections]
    if not told:
        return ConsumerConnections()
    members = {connection.client_id: connection for each in reversed(told) for connection in each.connections}
    subscriptions = {topic: wanted for each in told for topic, wanted in each.subscriptions.items()}
    first = told[0]
    return ConsumerConnections(
        tuple(sorted(members.values())), subscriptions, first.consume_type, first.model, first.start_from
    )
