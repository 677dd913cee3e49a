"""Assignment of queues to consumers by the broker."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from skyroute.broker.clients.connected_clients import ConnectedClients
from skyroute.broker.cluster.topic_routes import TopicRoutes
from skyroute.broker.tables.request_modes import RequestModes
from skyroute.message.queue_ref import QueueRef
from skyroute.message.queue_shares import average_share, circle_share, ranked
from skyroute.remoting.dispatch import Peer
from skyroute.routing.topology import Permission, TopicRoute
from skyroute.wire.calls.clients import MessageModel
from skyroute.wire.calls.groups import RequestMode
from skyroute.wire.calls.pop import POP_MODE, QueueAssignment, decode_assignment_query, encode_assignments
from skyroute.wire.command import Request, Response

Share = Callable[[str, Sequence[QueueRef], Sequence[str]], list[QueueRef]]

_STRATEGIES: Final[dict[str, Share]] = {"AVG": average_share, "AVG_BY_CIRCLE": circle_share}
_ALL_QUEUES: Final = -1


@dataclass(frozen=True, slots=True)
class AssignmentHandlers:
    """Assigns queues."""

    routes: TopicRoutes
    clients: ConnectedClients
    request_modes: RequestModes

    async def query(self, request: Request, _peer: Peer) -> Response:
        """Return the queues of a consumer. Without a route, members or a known strategy it keeps those it has."""
        question = decode_assignment_query(request)
        topic, group = question.topic, question.group
        mode = self.request_modes.all().get((topic, group), RequestMode(topic, group))
        route = await self.routes.find(topic)
        if route is None:
            return encode_assignments(None)
        queues = sorted(_readable_queues(topic, route))
        if question.model is MessageModel.CLUSTERING:
            consumers = self.clients.consumers(group)
            share = _STRATEGIES.get(question.strategy)
            if consumers is None or share is None:
                return encode_assignments(None)
            members = [member.client_id for member in consumers.members]
            if mode.mode == POP_MODE:
                queues = pop_share(share, question.client_id, queues, members, mode.shared_queues)
            else:
                queues = share(question.client_id, queues, members)
        return encode_assignments(QueueAssignment(queue, mode.mode) for queue in dict.fromkeys(queues))


def _readable_queues(topic: str, route: TopicRoute) -> list[QueueRef]:
    groups = {group.name for group in route.groups}
    return [
        QueueRef(topic, queues.broker_name, queue_id)
        for queues in route.queues
        if queues.broker_name in groups and queues.settings.permission & Permission.READ
        for queue_id in range(queues.settings.read_queues)
    ]


def pop_share(
    share: Share, client_id: str, queues: Sequence[QueueRef], client_ids: Sequence[str], shared: int
) -> list[QueueRef]:
    """Return the queues that a member pops from: by default all queues of all brokers.

    With `shared`, a member also pops from the queues of that many members behind it.
    """
    members = ranked(client_ids)
    if shared <= 0 or shared >= len(members) - 1:
        brokers = dict.fromkeys((queue.topic, queue.broker_name) for queue in queues)
        return [QueueRef(topic, broker_name, _ALL_QUEUES) for topic, broker_name in brokers]
    if client_id not in members:
        return []
    rank = members.index(client_id)
    if len(members) > len(queues):
        return [queues[rank % len(queues)]] if queues else []
    near = [members[(rank + at) % len(members)] for at in range(shared + 1)]
    return [queue for member in near for queue in share(member, queues, members)]
