"""Requests of clients and tools: routes, cluster info, topic lists."""

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import replace
from functools import partial
from typing import Final

import msgspec

from skyroute.clock import Clock
from skyroute.nameserver.config import NameServerConfig
from skyroute.nameserver.kv_config import KvConfig
from skyroute.nameserver.prepared_lists import Pieces, PreparedLists, in_steps
from skyroute.nameserver.prepared_routes import PreparedRoutes
from skyroute.nameserver.upstream import FORWARDED, Upstream
from skyroute.remoting.dispatch import Answer, Peer
from skyroute.remoting.stepwise import StepRunner, run_through
from skyroute.routing import discovery
from skyroute.routing.table_view import RouteTableView
from skyroute.routing.topology import ROUTE_FILTER_SERVERS_MAX, ROUTE_QUEUES_MAX, BrokerGroup, ClusterView
from skyroute.wire.calls.kv import ORDER_TOPICS
from skyroute.wire.calls.route import (
    GROUPS_A_STEP,
    RouteQuery,
    decode_route_query,
    encode_cluster_view,
    encode_member_group,
    encode_route,
    encode_topic_list,
    structure_dialect,
)
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request, Response
from skyroute.wire.fast_path import FastPath, PreparedResponse
from skyroute.wire.fastjson import Dialect
from skyroute.wire.fields import required_name

log = logging.getLogger(__name__)

REMARK_CHARS_MAX: Final = 512
"""Maximum length of a client's text that is repeated in a remark."""

_NOT_READY: Final = Response.error("name server not ready")
_DISABLED: Final = Response.error("disable")
_FAQ: Final = "See https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


class RouteHandlers:
    """Handlers that read the route table."""

    def __init__(
        self,
        table: RouteTableView,
        kv: KvConfig,
        config: NameServerConfig,
        *,
        clock: Clock,
        step_runner: StepRunner,
        upstream: Upstream | None = None,
    ) -> None:
        self._table = table
        self._kv = kv
        self._config = config
        self._clock = clock
        self._upstream = upstream
        self._started_at = clock.monotonic()
        self._prepared = PreparedRoutes(table, self._encode, self._order_config)
        # A form leaves out the topic: one signed request would open all topics.
        self.fast_path = FastPath(None if config.checks_readers else self._prepared)
        """Finds the response to a route request by the request's bytes."""
        self._lists = PreparedLists(step_runner)
        self.is_warm = False
        """Some restored brokers are not confirmed yet."""
        self.known_before: frozenset[str] = frozenset()
        """Topics with a restored route."""
        self.unconfirmed_answers = 0
        """Number of responses that name a restored broker that has not sent anything since."""

    # The route of a topic

    def get_route(self, request: Request, _peer: Peer) -> Response:
        query = decode_route_query(request)
        if self._config.wait_for_brokers and self.is_new:
            # No response is found by the request's bytes while other topics have to wait.
            return _NOT_READY if self._is_waiting(query.topic) else _not_cacheable(self._look_up(query))
        return self._look_up(query)

    def get_route_of_test_cluster(self, request: Request, _peer: Peer) -> Response | Awaitable[Response]:
        """Respond for a test environment: unknown topics are requested from the production name servers."""
        query = msgspec.structs.replace(decode_route_query(request), dialect=Dialect.LEGACY)
        response = _not_cacheable(self._look_up(query))  # a cached response would be in the client's own dialect
        unknown = response.code == ResponseCode.TOPIC_NOT_EXIST
        if unknown and self._upstream is not None and FORWARDED not in request.fields:
            return self._upstream.find_route(query.topic, response)
        return response

    def _is_waiting(self, topic: str) -> bool:
        """Return whether a new server must not serve this topic yet. After a warm restart it serves restored topics."""
        return topic not in self.known_before or not self._table.serving(topic)

    @property
    def is_new(self) -> bool:
        """The server started less than `waitSecondsForService` ago: brokers may not have registered yet."""
        return self._clock.monotonic() - self._started_at < self._config.wait_for_brokers_s

    def _look_up(self, query: RouteQuery) -> Response:
        zone = query.zone
        if zone is None:
            answer = self._prepared.find(query.topic, query.dialect)
            response = None if answer is None else answer.response
        else:
            response = self._encode(query.topic, query.dialect, zone)
        if response is None and self._table.serving(query.topic):
            return Response.error(
                f"the route of {query.topic[:REMARK_CHARS_MAX]} is too long: its brokers have more than"
                f" {ROUTE_QUEUES_MAX} static queues or {ROUTE_FILTER_SERVERS_MAX} filter servers"
            )
        if response is None:
            remark = f"No topic route info in name server for the topic: {query.topic[:REMARK_CHARS_MAX]}\n{_FAQ}"
            return Response(ResponseCode.TOPIC_NOT_EXIST, remark)
        self.unconfirmed_answers += not response.is_cacheable
        return response if zone is None else _not_cacheable(response)

    def _encode(self, topic: str, dialect: Dialect, zone: str | None = None) -> PreparedResponse | None:
        """Encode the route of a topic; None if no broker serves it, or if it is out of bounds.

        A response with an unconfirmed broker is not cached: each one is counted.
        """
        acting_master = self._config.acting_master_enabled
        route = discovery.find_route(self._table, topic, acting_master=acting_master, zone=zone)
        if route is None or not route.is_within_bounds:
            return None
        route = replace(route, order_config=self._order_config(topic))
        is_unconfirmed = self.is_warm and any(self._table.is_unconfirmed(group.name) for group in route.groups)
        return PreparedResponse(body=encode_route(route, dialect), is_cacheable=not is_unconfirmed)

    def _order_config(self, topic: str) -> str | None:
        if self._config.ordered_topics_enabled or self._config.cluster_test_mode:
            return self._kv.get(ORDER_TOPICS, topic)
        return None

    def forget(self, topics: Collection[str], groups: Collection[str] = ()) -> None:
        """Drop the cached responses that changes of these topics and broker groups invalidate."""
        if self._prepared.forget(topics, groups):
            self.fast_path.forget()
        if topics or groups:
            self._lists.forget()

    def forget_all(self) -> None:
        """Drop all cached routes: a setting that all depend on changed."""
        self._prepared.forget_all()
        self.fast_path.forget()

    # Clusters and lists

    def get_cluster_info(self, request: Request, _peer: Peer) -> Answer:
        dialect = structure_dialect(request)
        return self._lists.answer(
            ("cluster info", dialect), len(self._table.group_names), partial(self._write_clusters, dialect)
        )

    def _write_clusters(self, dialect: Dialect) -> Pieces:
        table = self._table
        groups: list[BrokerGroup] = []
        for at, name in enumerate((yield from self._lists.copy(table.group_names, lambda: 0))):
            group = table.group(name)
            groups += () if group is None else (group,)
            if at % GROUPS_A_STEP == 0:
                yield
        return (yield from encode_cluster_view(ClusterView(tuple(groups), table.clusters), dialect))

    def get_member_group(self, request: Request, _peer: Peer) -> Response:
        cluster = required_name(request.fields, "clusterName")
        broker_name = required_name(request.fields, "brokerName")
        addresses = discovery.member_addresses(self._table, broker_name)
        return Response(body=encode_member_group(cluster, broker_name, addresses, structure_dialect(request)))

    def get_all_topics(self, _request: Request, peer: Peer) -> Answer:
        log.debug("all topics listed peer=%s", peer.address)
        if not self._config.all_topic_list_enabled:
            return _DISABLED
        return self._list_topics("all topics", partial(discovery.served_topics, self._table))

    def get_system_topics(self, _request: Request, _peer: Peer) -> Answer:
        return self._lists.answer("system topics", len(self._table.group_names), self._write_system_topics)

    def _write_system_topics(self) -> Pieces:
        return encode_topic_list(*discovery.system_topics(self._table))

    def get_topics_of_cluster(self, request: Request, _peer: Peer) -> Answer:
        cluster = required_name(request.fields, "cluster")
        if not self._config.topic_list_enabled:
            return _DISABLED
        if not self._table.groups_of(cluster):
            return Response(body=b"".join(run_through(encode_topic_list(()))))
        return self._list_topics(
            f"topics of cluster {cluster}", lambda topics: discovery.topics_of_cluster(self._table, cluster, topics)
        )

    def get_unit_topics(self, _request: Request, _peer: Peer) -> Answer:
        return self._list_unit_topics("unit topics", discovery.unit_topics)

    def get_unit_subscription_topics(self, _request: Request, _peer: Peer) -> Answer:
        return self._list_unit_topics("unit subscription topics", discovery.unit_subscription_topics)

    def get_unit_subscription_only_topics(self, _request: Request, _peer: Peer) -> Answer:
        return self._list_unit_topics("unit subscription only topics", discovery.unit_subscription_only_topics)

    def _list_unit_topics(self, name: str, find: Callable[[RouteTableView, Iterable[str]], Iterable[str]]) -> Answer:
        if not self._config.topic_list_enabled:
            return _DISABLED
        return self._list_topics(name, partial(find, self._table))

    def _list_topics(self, name: str, select: Callable[[list[str]], Iterable[str]]) -> Answer:
        return self._lists.answer(name, len(self._table.topics), partial(self._write_topics, select))

    def _write_topics(self, select: Callable[[list[str]], Iterable[str]]) -> Pieces:
        topics = yield from self._lists.copy(self._table.topics, lambda: self._table.topic_edits)
        selected = yield from in_steps(topics, select)
        return (yield from encode_topic_list(selected))


def _not_cacheable(response: Response) -> Response:
    """Return a response that is not cached by the bytes of its request."""
    is_prepared = isinstance(response, PreparedResponse)
    return msgspec.structs.replace(response, is_cacheable=False) if is_prepared else response
