"""Assignment of queues to consumers by the broker."""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from skyroute.broker.clients.connected_clients import ConnectedClients
from skyroute.broker.cluster.topic_routes import TopicRoutes
from skyroute.broker.handlers.stepwise_responses import write_response
from skyroute.broker.tables.request_modes import RequestModes
from skyroute.message.queue_ref import QueueRef
from skyroute.message.queue_shares import average_positions, circle_positions, ranked
from skyroute.remoting.dispatch import Answer, OrderedResponse, Peer
from skyroute.remoting.stepwise import StepRunner, Steps
from skyroute.routing.topology import Permission, TopicRoute
from skyroute.wire.calls.assignment import (
    POP_MODE,
    AssignmentQuestion,
    QueueAssignment,
    assignment_pieces,
    decode_assignment_query,
    encode_assignments,
)
from skyroute.wire.calls.clients import MessageModel
from skyroute.wire.calls.groups import RequestMode
from skyroute.wire.command import Request, Response

Share = Callable[[int, int, int], range]
"""Returns the positions of a member's queues: by its rank, the number of queues, and the number of members."""

_STRATEGIES: Final[dict[str, Share]] = {"AVG": average_positions, "AVG_BY_CIRCLE": circle_positions}
_ALL_QUEUES: Final = -1

LOOKUPS_MAX: Final = 16
"""Requests that look up a route at the same time: all may get it in one turn of the loop, and are answered then."""


class TopicQueues:
    """The readable queues of a topic as consumers sort them. No object for each: a topic may have 65,536."""

    def __init__(self, topic: str, route: TopicRoute) -> None:
        self._topic = topic
        groups = {group.name for group in route.groups}
        readable = {
            queues.broker_name: queues.settings.read_queues
            for queues in route.queues
            if queues.broker_name in groups and queues.settings.permission & Permission.READ
        }
        self._brokers = [name for name in ranked(readable) if readable[name] > 0]
        self._ends = list(accumulate(readable[name] for name in self._brokers))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def at(self, positions: Iterable[int]) -> Iterator[QueueRef]:
        """Return the queues at these positions."""
        for position in positions:
            broker = bisect_right(self._ends, position)
            start = self._ends[broker - 1] if broker else 0
            yield QueueRef(self._topic, self._brokers[broker], position - start)

    def of_brokers(self) -> Iterator[QueueRef]:
        """Return one queue for each broker, which stands for all its queues."""
        return (QueueRef(self._topic, name, _ALL_QUEUES) for name in self._brokers)


@dataclass(frozen=True, slots=True)
class AssignmentHandlers:
    """Assigns queues."""

    routes: TopicRoutes
    clients: ConnectedClients
    request_modes: RequestModes
    step_runner: StepRunner
    lookups: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LOOKUPS_MAX))

    def query(self, request: Request, _peer: Peer) -> Answer:
        """Return the queues of a consumer. Without a route, members or a known strategy it keeps those it has."""
        question = decode_assignment_query(request)
        fresh = self.routes.fresh(question.topic)
        return self._find_and_answer(question) if fresh is None else self._answer(question, fresh[0])

    async def _find_and_answer(self, question: AssignmentQuestion) -> Response:
        async with self.lookups:
            answer = self._answer(question, await self.routes.find(question.topic))
        return answer if isinstance(answer, Response) else await answer.work

    def _answer(self, question: AssignmentQuestion, route: TopicRoute | None) -> Response | OrderedResponse:
        return self.step_runner.answer(self._assign(question, route))

    def _assign(self, question: AssignmentQuestion, route: TopicRoute | None) -> Steps:
        topic, group = question.topic, question.group
        mode = self.request_modes.all().get((topic, group), RequestMode(topic, group))
        if route is None:
            return encode_assignments(None)
        queues = TopicQueues(topic, route)
        assigned = queues.at(range(len(queues)))
        if question.model is MessageModel.CLUSTERING:
            consumers = self.clients.consumers(group)
            share = _STRATEGIES.get(question.strategy)
            if consumers is None or share is None:
                return encode_assignments(None)
            members = ranked(member.client_id for member in consumers.members)
            shared = mode.shared_queues if mode.mode == POP_MODE else None
            assigned = assigned_queues(share, question.client_id, queues, members, shared)
        pieces = assignment_pieces(QueueAssignment(queue, mode.mode) for queue in assigned)
        return (yield from write_response(pieces))


def assigned_queues(
    share: Share, client_id: str, queues: TopicQueues, members: Sequence[str], shared: int | None
) -> Iterator[QueueRef]:
    """Return the queues of a member, of members in their order.

    With `shared`, the member pops, and also from the queues of that many members behind it; with 0, or as many as there
    are others, from all queues of all brokers.
    """
    if shared is not None and (shared <= 0 or shared >= len(members) - 1):
        return queues.of_brokers()
    if client_id not in members:
        return iter(())
    rank, count = members.index(client_id), len(queues)
    if shared is None:
        return queues.at(share(rank, count, len(members)))
    if len(members) > count:
        return queues.at([rank % count] if count else [])
    near = [(rank + at) % len(members) for at in range(shared + 1)]
    return queues.at(position for other in near for position in share(other, count, len(members)))
