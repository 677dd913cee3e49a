"""Metrics of a broker, with the names of Apache's brokers; docs/metrics.md lists them.

Collected on request. Series by topic or group are bounded by `SERIES_MAX`. Needs `skyroute[metrics]`.
"""

import asyncio
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Any, Final, TypeVar, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from skyroute.broker.clients.client_groups import ClientGroup, GroupMember
from skyroute.broker.components import Components
from skyroute.broker.config import BrokerConfig
from skyroute.broker.consumer_lags import ConsumerLags, Lag
from skyroute.broker.roles import Roles
from skyroute.enforcement.enforcer import Enforcer
from skyroute.message.reserved_topics import (
    TIMER_TOPIC,
    group_of,
    is_dead_letter_topic,
    is_retry_topic,
    is_system_group,
)
from skyroute.observing.exposition import add_histogram
from skyroute.observing.requests import RequestOutcome, RequestTimes
from skyroute.remoting.server import Server
from skyroute.wire.calls.clients import ConsumeType
from skyroute.wire.calls.groups import release_name
from skyroute.wire.codes import LANGUAGES, RequestCode

SERIES_MAX: Final = 1_000
"""Series of one metric: the largest. The number of those left out is a metric, too."""
MEMBERS_PER_TURN: Final = 2_000
"""Members of groups that are counted per turn of the loop."""

HISTOGRAMS_A_STEP: Final = 10
"""Histograms that are made at once: 40 us each."""

_OWN_LABELS: Final = ("cluster", "node_type", "node_id")
_STORAGE_LABELS: Final = ("storage_type", "storage_medium")
_STORAGE: Final = ("local", "disk")
_GROUP_LABELS: Final = ("consumer_group", "topic", "is_retry", "is_system")
_RPC_LABELS: Final = ("protocol_type", "request_code", "response_code", "is_long_polling", "result")
_REMOTING: Final = "remoting"
_MS: Final = 0.001
_BOOL_TEXTS: Final = {False: "false", True: "true"}
_PULLS: Final = (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)
_CONSUME_MODES: Final = {ConsumeType.PULL: "pull", ConsumeType.PUSH: "push", ConsumeType.POP: "pop"}

K = TypeVar("K")
G = TypeVar("G", bound=ClientGroup)
NO_LABELS: Final[tuple[str, ...]] = ()


def _as_they_are(values: Any) -> Sequence[str]:
    return cast("Sequence[str]", values)


@dataclass(slots=True)
class BrokerMetrics:
    """Reads the components of a broker while it runs."""

    config: BrokerConfig
    components: Callable[[], Components | None]
    servers: Sequence[Server]
    times: RequestTimes
    enforcer: Enforcer | None = None
    _left_out: Counter[str] = field(default_factory=Counter, init=False)

    async def collect(self) -> AsyncIterator[Metric]:
        self._left_out.clear()
        for family in (await self._rpc(), *self._peers(), *self._decisions()):
            yield family
        components = self.components()
        if components is None:
            return
        parts = (self._flow, self._tables, self._store, self._waiting, self._pop, self._replication)
        for part in parts:
            for family in part(components):
                yield family
                await asyncio.sleep(0)  # a thousand samples take a while
        for long_part in (self._clients, self._lags):
            async for family in long_part(components):
                yield family
        left_out = (((name,), count) for name, count in self._left_out.items())
        yield self._gauge("skyroute_broker_series_omitted", "Series beyond the largest 1000", ("metric",), left_out)

    # Metric families

    def _gauge(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        numbers: Iterable[tuple[K, float]],
        values: Callable[[K], Sequence[str]] = _as_they_are,
    ) -> Metric:
        """Return a gauge with a number per key; `values` gives the label values of a key."""
        return self._fill(GaugeMetricFamily(name, text, labels=(*_OWN_LABELS, *labels)), numbers, values)

    def _counter(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        numbers: Iterable[tuple[K, float]],
        values: Callable[[K], Sequence[str]] = _as_they_are,
    ) -> Metric:
        return self._fill(CounterMetricFamily(name, text, labels=(*_OWN_LABELS, *labels)), numbers, values)

    def _fill(
        self,
        family: GaugeMetricFamily | CounterMetricFamily,
        numbers: Iterable[tuple[K, float]],
        values: Callable[[K], Sequence[str]],
    ) -> Metric:
        """Add the largest numbers, at most `SERIES_MAX`."""
        for key, number in self._largest(family.name, list(numbers), lambda pair: pair[1]):
            family.add_metric((*self._own, *values(key)), number)
        return family

    def _largest(self, name: str, found: list[K], size: Callable[[K], float]) -> list[K]:
        if len(found) <= SERIES_MAX:
            return found
        self._left_out[name] += len(found) - SERIES_MAX
        return nlargest(SERIES_MAX, found, key=size)

    @property
    def _own(self) -> tuple[str, str, str]:
        return self.config.cluster_name, "broker", self.config.broker_name

    # Requests and connections

    def _decisions(self) -> Iterator[Metric]:
        enforcer = self.enforcer
        if enforcer is None or enforcer.gate is None:
            return
        counts = (((reason.value,), count) for reason, count in enforcer.counts.items())
        text = "Decisions of access control by reason"
        yield self._counter("skyroute_broker_access_decisions", text, ("reason",), counts)
        dropped = [(NO_LABELS, enforcer.audit_records_dropped)]
        yield self._counter("skyroute_broker_audit_records_dropped", "Audit records not written", (), dropped)

    async def _rpc(self) -> Metric:
        family = HistogramMetricFamily(
            "rocketmq_rpc_latency_milliseconds", "Request latency", labels=(*_OWN_LABELS, *_RPC_LABELS)
        )
        for number, (labels, times) in enumerate(self.times.by(_rpc_labels).items(), 1):
            add_histogram(family, (*self._own, *labels), self.times.bounds_s, times, unit_s=_MS)
            if number % HISTOGRAMS_A_STEP == 0:
                await asyncio.sleep(0)
        return family

    def _peers(self) -> Iterator[Metric]:
        connections = sum(server.connection_count for server in self.servers)
        turned_away = sum(server.turned_away + server.address_refused for server in self.servers)
        yield self._gauge("skyroute_broker_connections", "Open connections", (), [(NO_LABELS, connections)])
        yield self._counter(
            "skyroute_broker_connections_rejected", "Connections rejected", (), [(NO_LABELS, turned_away)]
        )

    async def _clients(self, components: Components) -> AsyncIterator[Metric]:
        clients = components.clients
        producers = await _count_members(clients.producer_groups.values(), lambda _, member: _client(member))
        yield self._gauge(
            "rocketmq_producer_connections",
            "Connected producers",
            ("language", "version", "protocol_type"),
            producers.items(),
            lambda client: (*client, _REMOTING),
        )
        consumers = await _count_members(
            clients.consumer_groups.values(),
            lambda group, member: (group.name, *_client(member), _CONSUME_MODES[group.type]),
        )
        yield self._gauge(
            "rocketmq_consumer_connections",
            "Connected consumers",
            ("consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system"),
            consumers.items(),
            lambda of: (*of, _REMOTING, _BOOL_TEXTS[is_system_group(of[0])]),
        )

    # Messages

    def _flow(self, components: Components) -> Iterator[Metric]:
        stored, fetched = components.stats.topics, components.stats.fetches
        is_system = components.topics.is_system

        def of_topic(topic: str) -> Sequence[str]:
            return topic, _BOOL_TEXTS[is_system(topic)]

        def of_pair(pair: tuple[str, str]) -> Sequence[str]:
            return *pair, _BOOL_TEXTS[is_system_group(pair[0]) or is_system(pair[1])]

        labels: tuple[str, ...] = ("topic", "is_system")
        messages = ((topic, flow.messages) for topic, flow in stored.items())
        yield self._counter("rocketmq_messages_in", "Messages stored", labels, messages, of_topic)
        sizes = ((topic, flow.bytes) for topic, flow in stored.items())
        yield self._counter("rocketmq_throughput_in", "Bytes stored", labels, sizes, of_topic)
        labels = ("consumer_group", "topic", "is_system")
        given = ((pair, flow.messages) for pair, flow in fetched.items())
        yield self._counter("rocketmq_messages_out", "Messages delivered to consumer groups", labels, given, of_pair)
        given = ((pair, flow.bytes) for pair, flow in fetched.items())
        yield self._counter("rocketmq_throughput_out", "Bytes delivered to consumer groups", labels, given, of_pair)
        yield self._counter(
            "rocketmq_send_to_dlq_messages",
            "Messages sent to the dead-letter queue",
            ("consumer_group", "is_system"),
            ((group_of(topic) or "", flow.messages) for topic, flow in stored.items() if is_dead_letter_topic(topic)),
            lambda group: (group, _BOOL_TEXTS[is_system_group(group)]),
        )

    async def _lags(self, components: Components) -> AsyncIterator[Metric]:
        of_groups = ConsumerLags(components)
        lags = self._largest("rocketmq_consumer_lag_messages", await of_groups.find(), lambda lag: lag.messages)
        ages_ms = await of_groups.ages_ms(lags)
        for name, text, numbers in (
            ("lag_messages", "Consumer lag: messages not consumed yet", [lag.messages for lag in lags]),
            (
                "inflight_messages",
                "Lagging messages that are delivered and not acknowledged",
                [lag.inflight for lag in lags],
            ),
            (
                "ready_messages",
                "Lagging messages that are not delivered yet",
                [lag.messages - lag.inflight for lag in lags],
            ),
            ("lag_latency_milliseconds", "Age of the oldest message that is not consumed", ages_ms),
        ):
            yield self._gauge(
                f"rocketmq_consumer_{name}",
                text,
                _GROUP_LABELS,
                zip(lags, numbers, strict=True),
                lambda lag: _group_values(components, lag),
            )
            await asyncio.sleep(0)

    # Tables, store and waiting requests

    def _tables(self, components: Components) -> Iterator[Metric]:
        for name, text, number in (
            ("rocketmq_broker_permission", "Broker permission: 2 write, 4 read, 6 both", self.config.broker_permission),
            ("rocketmq_topic_number", "Topics", len(components.topics.all())),
            ("rocketmq_consumer_group_number", "Consumer groups", len(components.groups.all())),
            ("skyroute_broker_name_servers", "Configured name servers", len(self.config.name_servers)),
            (
                "skyroute_broker_name_servers_registered",
                "Name servers with a registration of this broker",
                components.registrar.registered_with,
            ),
        ):
            yield self._gauge(name, text, (), [(NO_LABELS, number)])

    def _store(self, components: Components) -> Iterator[Metric]:
        store = components.store
        disk = shutil.disk_usage(store.folder)
        found = [
            ("size_bytes", "Used bytes of the store's disk", disk.total - disk.free),
            (
                "flush_behind_bytes",
                "Bytes of the commit log that are not flushed",
                store.max_position - store.flushed_position,
            ),
            ("dispatch_behind_bytes", "Always 0: consume queues are updated at once", 0),
        ]
        if (oldest_ms := store.oldest_ms) is not None:
            kept_ms = int(components.clock.wall() * 1000) - oldest_ms
            found.append(("message_reserve_time_milliseconds", "Age of the oldest message", kept_ms))
        for name, text, number in found:
            yield self._gauge(f"rocketmq_storage_{name}", text, _STORAGE_LABELS, [(_STORAGE, number)])
        yield self._gauge(
            "skyroute_broker_disk_used_ratio", "Used share of the disk", (), [(NO_LABELS, store.disk_used())]
        )
        for name, text, number in (
            ("damaged_ranges", "Damaged ranges of the commit log", store.damage.count),
            ("damaged_bytes", "Bytes in damaged ranges of the commit log", store.damage.bytes),
            (
                "cut_bytes",
                "Bytes cut from the end of the commit log and kept in commitlog.cut",
                sum(cut.size for cut in store.damage.cuts),
            ),
        ):
            yield self._gauge(f"skyroute_broker_log_{name}", text, (), [(NO_LABELS, number)])

    def _waiting(self, components: Components) -> Iterator[Metric]:
        transactions, timers = components.transactions, components.timers
        timers_behind = max(components.store.max_offset(TIMER_TOPIC, 0) - timers.read_end, 0)
        watermark = [(("send",), components.flushing.waiting_count)]
        yield self._gauge("rocketmq_processor_watermark", "Sends that wait for a flush", ("processor",), watermark)
        yield self._gauge(
            "skyroute_broker_suspended_pulls", "Pulls in long polling", (), [(NO_LABELS, len(components.long_polling))]
        )
        yield self._gauge("rocketmq_half_messages", "Open transactions", (), [(NO_LABELS, transactions.open_count)])
        yield self._counter(
            "rocketmq_commit_messages", "Transactions committed", (), [(NO_LABELS, transactions.committed)]
        )
        yield self._counter(
            "rocketmq_rollback_messages", "Transactions rolled back", (), [(NO_LABELS, transactions.rolled_back)]
        )
        for name, text, number in (
            ("rocketmq_timing_messages", "Timer messages that are not due", len(timers)),
            ("rocketmq_timer_enqueue_lag", "Timer messages that are not in the timer wheel yet", timers_behind),
        ):
            yield self._gauge(name, text, _STORAGE_LABELS, [(_STORAGE, number)])

    def _pop(self, components: Components) -> Iterator[Metric]:
        popping, acks = components.popping, components.acknowledgements
        revival, revive_log = components.revival, components.revive_log
        yield self._gauge(
            "skyroute_broker_pop_in_flight_messages",
            "Popped messages that are not acknowledged",
            ("consumer_group", "topic"),
            components.in_flight.counts().items(),
        )
        yield self._gauge(
            "skyroute_broker_pop_waiting", "Pops in long polling", (), [(NO_LABELS, len(components.pop_polling))]
        )
        for name, text, number in (
            ("popped_messages", "Messages popped", popping.popped),
            ("acked_messages", "Messages acknowledged", acks.acked),
            ("late_acks", "Acknowledgements without effect", acks.late_acks),
            ("changed_messages", "Changes of an invisible time", acks.changed),
            ("revived_messages", "Messages redelivered", revival.revived),
            ("dropped_messages", "Messages not redelivered", revival.dropped),
            ("check_points", "Check points written", revive_log.check_points_written),
            ("acks_written", "Acknowledgements written", revive_log.acks_written),
            ("ack_seconds", "Time from pop to acknowledgement", acks.ack_latency_ms * _MS),
        ):
            yield self._counter(f"skyroute_broker_pop_{name}", text, (), [(NO_LABELS, number)])

    def _replication(self, components: Components) -> Iterator[Metric]:
        slave, acting = components.ha_slave, components.acting
        is_connected = slave is not None and slave.is_connected
        if components.roles is None:
            in_sync = components.ha_master.in_sync
            lags = [(each.behind_bytes, each.behind_s) for each in components.ha_master.slaves()]
        else:
            in_sync, lags, is_connected = _controlled_replication(components, components.roles)
        for name, text, value in (
            ("slave_connected", "1 if the master sends its log to this slave", int(is_connected)),
            (
                "slave_lag_bytes",
                "Bytes of the master's log that this slave lacks",
                0 if slave is None else slave.behind_bytes,
            ),
            ("acting_master", "1 if this slave acts for its master", int(acting is not None and acting.is_acting)),
            ("escaped_messages", "Messages sent to another broker for the master", acting.escape.sent if acting else 0),
            ("in_sync_replicas", "Brokers of the group in sync; the master counts", in_sync),
            ("replica_lag_bytes", "Largest lag of a slave in bytes", max((lag for lag, _ in lags), default=0)),
            ("replica_lag_seconds", "Largest lag of a slave in seconds", max((lag_s for _, lag_s in lags), default=0)),
        ):
            yield self._gauge(f"skyroute_broker_{name}", text, (), [(NO_LABELS, value)])


def _controlled_replication(components: Components, roles: Roles) -> tuple[int, list[tuple[int, float]], bool]:
    """Return, in controller mode, the replicas in sync, the lags of slaves, and whether a master sends to this one."""
    state, end, now = roles.mode.state, components.store.max_position, components.clock.monotonic()
    if state is None:
        return 0, [], roles.mode.is_connected
    followers = [follower for _, follower, _ in roles.mode.sender.slaves()]
    lags = [(max(end - (each.acked or 0), 0), 0.0 if each.has(end) else now - each.caught_up_at) for each in followers]
    return roles.mode.in_sync_count, lags, False


async def _count_members(groups: Iterable[G], key: Callable[[G, GroupMember], K]) -> Counter[K]:
    """Count the members of groups by a key, in steps."""
    counts: Counter[K] = Counter()
    counted = 0
    for group in list(groups):
        members = list(group.members)
        counts.update(key(group, member) for member in members)
        counted += len(members)
        if counted >= MEMBERS_PER_TURN:
            counted = 0
            await asyncio.sleep(0)
    return counts


def _group_values(components: Components, lag: Lag) -> Sequence[str]:
    is_system = is_system_group(lag.group) or components.topics.is_system(lag.topic)
    return lag.group, lag.topic, _BOOL_TEXTS[is_retry_topic(lag.topic)], _BOOL_TEXTS[is_system]


def _rpc_labels(outcome: RequestOutcome) -> tuple[str, str, str, str, str]:
    """Return what Apache's brokers say of a request."""
    return (
        _REMOTING,
        outcome.request_name.lower(),
        outcome.response_name.lower(),
        _BOOL_TEXTS[outcome.was_deferred and outcome.request_code in _PULLS],
        "oneway" if outcome.is_oneway else "success",
    )


def _client(member: GroupMember) -> tuple[str, str]:
    """Return language and version; an unknown language is `other`, because a client can send any text."""
    return (member.language if member.language in LANGUAGES else "OTHER").lower(), release_name(member.version).lower()
