"""Metrics of a broker under Apache's names, and its readiness."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skyroute import Message, Producer, TransactionOutcome
from skyroute.broker import metrics as metrics_module
from skyroute.broker.config import BrokerConfig
from skyroute.files.errors import FileWriteError
from skyroute.settings.errors import ConfigError
from skyroute.wire.codes import ResponseCode
from tests.network.broker.calls import SUBSCRIPTION, SUSPEND, batch_body, heartbeat, pull, send
from tests.network.broker.clusters import Cluster
from tests.network.broker.pops import pop
from tests.support.apache import free_port
from tests.support.disks import NoSyncDisk
from tests.support.raw import Request, encode
from tests.support.scraping import listed, page, scrape, told
from tests.support.servers import running
from tests.support.waiting import eventually

OWN = frozenset({"cluster", "node_type", "node_id"})


def pages_of(cluster: Cluster) -> str:
    assert cluster.broker._pages is not None
    return cluster.broker._pages.address


@pytest.fixture
async def watched(empty_cluster: Cluster) -> Cluster:
    """A broker with metrics and one topic of two queues."""
    await empty_cluster.start(metrics_port=free_port())
    await empty_cluster.add_topic(queues=2)
    return empty_cluster


def commit(offset: int, *, group: str = "g", queue_id: int = 0) -> Request:
    fields = {"consumerGroup": group, "topic": "T", "queueId": str(queue_id), "commitOffset": str(offset)}
    return Request(15, fields)


# ---------------------------------------------------------------------------------------------------------- messages


async def test_stored_and_pulled_messages_are_counted(watched: Cluster) -> None:
    line = await watched.line()
    for number in range(5):
        assert (await line.call(send(body=b"x" * (number + 1)))).code == ResponseCode.SUCCESS
    assert (await line.call(send(code=320, body=batch_body([(b"a", ""), (b"b", "")])))).code == ResponseCode.SUCCESS
    answer = await line.call(pull(count=3))
    assert answer.code == ResponseCode.SUCCESS
    seen = await scrape(pages_of(watched))
    of_broker = {"cluster": "DefaultCluster", "node_type": "broker", "node_id": "broker-a"}
    of_topic = {"topic": "T", "is_system": "false", **of_broker}
    assert seen("rocketmq_messages_in_total", **of_topic) == 7
    assert seen("rocketmq_throughput_in_total", **of_topic) == watched.broker.components.store.max_position
    assert seen("rocketmq_messages_out_total", consumer_group="g", **of_topic) == 3
    assert seen("rocketmq_throughput_out_total", consumer_group="g", **of_topic) == len(answer.body)
    assert seen("rocketmq_storage_flush_behind_bytes", **of_broker) == watched.broker.components.store.max_position


async def test_metrics_show_the_lag_of_a_group(watched: Cluster) -> None:
    line = await watched.line()
    for queue_id, count in ((0, 6), (1, 2)):
        for _ in range(count):
            await line.call(send(queue_id=queue_id))
            watched.clock.advance(1)
    await line.call(heartbeat())
    await line.call(pull(count=4))
    assert (await line.call(commit(1))).code == ResponseCode.SUCCESS
    seen = await scrape(pages_of(watched))
    told_of = {"consumer_group": "g", "topic": "T", "is_retry": "false", "is_system": "false"}
    assert seen("rocketmq_consumer_lag_messages", **told_of) == 7
    assert seen("rocketmq_consumer_inflight_messages", **told_of) == 3
    assert seen("rocketmq_consumer_ready_messages", **told_of) == 4
    assert seen("rocketmq_consumer_lag_latency_milliseconds", **told_of) == 7000  # the second of eight
    await line.call(commit(6))
    await line.call(commit(2, queue_id=1))
    seen = await scrape(pages_of(watched))
    assert seen("rocketmq_consumer_lag_messages", **told_of) == 0
    assert seen("rocketmq_consumer_lag_latency_milliseconds", **told_of) == 0


def says(outcome: TransactionOutcome) -> Callable[..., TransactionOutcome]:
    return lambda *_: outcome


async def test_transactions_timers_and_dead_letters_are_counted(watched: Cluster) -> None:
    outcomes = [TransactionOutcome.COMMIT, TransactionOutcome.COMMIT, TransactionOutcome.ROLLBACK]
    async with Producer("p", watched.name_server_address, check=says(TransactionOutcome.UNKNOWN)) as producer:
        for outcome in outcomes:
            await producer.send_in_transaction(Message("T", b"t"), says(outcome))
        await producer.send_in_transaction(Message("T", b"open"), says(TransactionOutcome.UNKNOWN))
        await producer.send(Message("T", b"later", deliver_after_s=60))
    line = await watched.line()
    await line.call(heartbeat())
    fields = {"offset": "0", "group": "g", "delayLevel": "-1", "originMsgId": "x", "unitMode": "false"}
    assert (await line.call(36, fields)).code == ResponseCode.SUCCESS
    transactions = watched.broker.components.transactions
    await eventually(lambda: transactions.committed + transactions.rolled_back == 3)
    await transactions.send_checks()  # scans for open transactions
    seen = await scrape(pages_of(watched))
    assert seen("rocketmq_commit_messages_total") == 2
    assert seen("rocketmq_rollback_messages_total") == 1
    assert seen("rocketmq_half_messages") == 1
    assert seen("rocketmq_timing_messages") + seen("rocketmq_timer_enqueue_lag") == 1
    assert seen("rocketmq_send_to_dlq_messages_total", consumer_group="g") == 1
    assert seen("rocketmq_messages_in_total", topic="T") == 2


# ---------------------------------------------------------------------------------------------- requests and clients


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_requests_are_counted_by_result(empty_cluster: Cluster, flush: str) -> None:
    await empty_cluster.start(metrics_port=free_port(), flush_disk_type=flush)
    await empty_cluster.add_topic()
    line = await empty_cluster.line()
    for _ in range(3):
        assert (await line.call(send())).code == ResponseCode.SUCCESS
    await line.send_oneway(send())
    assert (await line.call(send(body=b""))).code != ResponseCode.SUCCESS
    store = empty_cluster.broker.components.store
    await eventually(lambda: store.max_offset("T", 0) == 4)  # under SYNC_FLUSH readers see flushed messages only
    asked = await line.send(pull(offset=4, flag=SUBSCRIPTION | SUSPEND))
    long_polling = empty_cluster.broker.components.long_polling
    await eventually(lambda: len(long_polling) == 1)
    seen = await scrape(pages_of(empty_cluster))
    assert seen("skyroute_broker_suspended_pulls") == 1
    assert not seen.has("rocketmq_rpc_latency_milliseconds_count", request_code="pull_message")
    empty_cluster.clock.advance(2)
    assert (await line.call(send())).code == ResponseCode.SUCCESS
    assert (await line.answer(asked)).code == ResponseCode.SUCCESS
    assert (await line.call(9999)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    seen = await scrape(pages_of(empty_cluster))
    counts = {
        tuple(sample.labels[label] for label in ("request_code", "response_code", "is_long_polling", "result")): (
            sample.value
        )
        for sample in seen.families["rocketmq_rpc_latency_milliseconds"].samples
        if sample.name.endswith("_count")
    }
    assert counts == {
        ("send_message_v2", "success", "false", "success"): 4,
        ("send_message_v2", "success", "false", "oneway"): 1,
        ("send_message_v2", "message_illegal", "false", "success"): 1,
        ("pull_message", "success", "true", "success"): 1,
        ("other", "request_code_not_supported", "false", "success"): 1,
    }
    assert seen("rocketmq_rpc_latency_milliseconds_sum", request_code="pull_message") == 2000
    assert seen("rocketmq_rpc_latency_milliseconds_bucket", request_code="pull_message", le="1000") == 0
    assert seen("rocketmq_rpc_latency_milliseconds_bucket", request_code="pull_message", le="2000") == 1


async def test_connections_are_counted_by_known_language_and_version(watched: Cluster) -> None:
    line, other = await watched.line(), await watched.line()
    await line.call(heartbeat())
    for number, language in enumerate((b"JAVA", b"LAVA", b"KAVA")):  # unknown languages get no labels of their own
        groups = {"clientID": "c", "consumerDataSet": [], "producerDataSet": [{"groupName": f"p{number}"}]}
        frame = encode(Request(34, body=json.dumps(groups).encode()), number)
        await other.write(frame.replace(b'"language":"JAVA"', b'"language":"%s"' % language))
        assert (await other.receive()).code == ResponseCode.SUCCESS
    seen = await scrape(pages_of(watched))
    assert seen("rocketmq_consumer_connections", consumer_group="g", consume_mode="push", is_system="false") == 1
    assert seen("rocketmq_producer_connections", language="other", protocol_type="remoting") == 2
    assert seen("rocketmq_producer_connections", language="java", version="v5_3_3") == 1
    assert seen("skyroute_broker_connections") == 2


async def test_only_the_largest_topics_and_groups_have_their_own_metrics(
    watched: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_module, "SERIES_MAX", 3)
    line = await watched.line()
    await line.call(heartbeat())
    for number in range(5):
        await watched.add_topic(f"Topic{number}")
        for _ in range(number + 1):
            await line.call(send(f"Topic{number}"))
        commit_none = {"consumerGroup": "g", "topic": f"Topic{number}", "queueId": "0", "commitOffset": "0"}
        assert (await line.call(15, commit_none)).code == ResponseCode.SUCCESS
    seen = await scrape(pages_of(watched))
    for name in ("rocketmq_messages_in", "rocketmq_consumer_lag_messages"):
        samples = {sample.labels["topic"]: sample.value for sample in seen.families[name].samples}
        assert samples == {"Topic2": 3, "Topic3": 4, "Topic4": 5}
        assert seen("skyroute_broker_series_omitted", metric=name) == 2


# ------------------------------------------------------------------------------------------------------------ health


async def test_a_broker_is_ready_once_it_is_registered(tmp_path: Path, empty_cluster: Cluster) -> None:
    address = f"127.0.0.1:{free_port()}"
    await empty_cluster.start_live(metrics_port=free_port(), name_server_list=address)
    pages = pages_of(empty_cluster)
    assert await page(pages, "/readyz") == (503, f"not registered yet with a name server of {address}\n")
    assert (await page(pages, "/livez"))[0] == 200
    (tmp_path / "late").mkdir()
    registrar = empty_cluster.broker.components.registrar
    async with running(tmp_path / "late", listen_port=int(address.rpartition(":")[2]), journal_enabled=False):
        await registrar_heard(empty_cluster)
        assert await page(pages, "/readyz") == (200, "ready\n")
    await eventually(lambda: registrar.registered_with == 0)
    assert (await page(pages, "/readyz"))[0] == 200  # clients with its route need no name server
    seen = await scrape(pages)
    assert (seen("skyroute_broker_name_servers"), seen("skyroute_broker_name_servers_registered")) == (1, 0)


async def registrar_heard(cluster: Cluster) -> None:
    registrar = cluster.broker.components.registrar
    await eventually(lambda: registrar.registered_with == 1)


async def test_a_broker_without_name_servers_is_not_ready(empty_cluster: Cluster) -> None:
    await empty_cluster.start(metrics_port=free_port(), name_server_list="")
    status, reason = await page(pages_of(empty_cluster), "/readyz")
    assert (status, "set namesrvAddr" in reason) == (503, True)


async def test_a_broker_whose_disk_failed_is_not_ready(empty_cluster: Cluster, expects_errors: None) -> None:
    class Dying(NoSyncDisk):
        dead = False

        def sync(self, descriptor: int) -> None:
            if self.dead:
                raise FileWriteError("it is dead")

    disk = Dying()
    await empty_cluster.start(metrics_port=free_port(), disk=disk, flush_disk_type="SYNC_FLUSH")
    await empty_cluster.add_topic()
    assert (await page(pages_of(empty_cluster), "/readyz"))[0] == 200
    disk.dead = True
    line = await empty_cluster.line()
    assert (await line.call(send())).code != ResponseCode.SUCCESS
    status, reason = await page(pages_of(empty_cluster), "/readyz")
    assert (status, "restart the broker" in reason) == (503, True)
    await empty_cluster.kill()


# ---------------------------------------------------------------------------------------------------------- settings


async def test_metrics_settings_of_apaches_broker_are_understood(empty_cluster: Cluster) -> None:
    port = free_port()
    await empty_cluster.start(metrics_exporter_type="PROM", prometheus_port=port)
    assert pages_of(empty_cluster) == f"127.0.0.1:{port}"
    assert (await scrape(pages_of(empty_cluster)))("rocketmq_broker_permission") == 6


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        ({}, None),
        ({"metricsPort": "1"}, ("127.0.0.1", 1)),
        ({"metricsPort": "1", "metricsHost": "0.0.0.0"}, ("0.0.0.0", 1)),
        ({"metricsExporterType": "PROM"}, ("0.0.0.0", 5557)),
        ({"metricsExporterType": "prom", "metricsPromExporterHost": "10.0.0.1"}, ("10.0.0.1", 5557)),
        ({"metricsExporterType": "PROM", "metricsPort": "1"}, ("127.0.0.1", 1)),
        ({"metricsExporterType": "DISABLE", "metricsPromExporterPort": "7"}, None),
    ],
)
def test_metrics_are_served_at_the_configured_address(settings: dict[str, str], address: Any) -> None:
    assert BrokerConfig.load(options=settings).metrics_address == address


@pytest.mark.parametrize("kind", ["OTLP_GRPC", "LOG"])
def test_push_exporters_of_metrics_are_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match=f"metricsExporterType={kind} .*PROM"):
        BrokerConfig.load(options={"metricsExporterType": kind})


# --------------------------------------------------------------------------------------------------------- documents


async def test_the_documentation_lists_exactly_the_metrics_that_exist(
    watched: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_module, "SERIES_MAX", 1)
    line = await watched.line()
    await line.call(heartbeat())
    async with watched.producer() as producer:
        for topic in ("T", "%DLQ%g"):
            await watched.add_topic(topic)
            await producer.send(Message(topic, b"x"))
        await line.call(pull())
        await line.call(commit(0))
        await line.call(pop())
        seen = told(await scrape(pages_of(watched)), without=OWN)
    assert seen == listed("Broker metrics") | listed("Process metrics")
