"""Our broker exports the metrics of Apache's broker, with the same settings and messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from skyroute import Consumer, Message, Producer, StartPosition, TransactionOutcome
from tests.support.apache import ApacheBroker, SkyrouteNameServer, free_port
from tests.support.our_broker import SkyrouteBroker
from tests.support.scraping import Scrape, listed, parse
from tests.support.waiting import eventually

pytestmark = pytest.mark.peers

MESSAGES = 10
TIMEOUT_S = 60.0
OTEL = frozenset({"otel_scope_name", "otel_scope_version"})
LATE = ("rocketmq_timing_messages", "rocketmq_half_messages", "rocketmq_consumer_lag_messages")
MISSING_LABELS = {
    "rocketmq_messages_in": {"message_type"},
    "rocketmq_throughput_in": {"message_type"},
    "rocketmq_commit_messages": {"topic"},
    "rocketmq_rollback_messages": {"topic"},
    "rocketmq_half_messages": {"topic"},
    "rocketmq_timing_messages": {"topic"},
}
"""Labels that Apache's metrics have and ours lack."""


@asynccontextmanager
async def traffic(name_server: str) -> AsyncIterator[None]:
    """Send messages, transactions and a timer, and consume them; both clients stay connected for the block."""
    seen = asyncio.Event()
    count = 0

    def handle(_message: object) -> None:
        nonlocal count
        count += 1
        if count == MESSAGES + 1:
            seen.set()

    outcomes = [TransactionOutcome.COMMIT, TransactionOutcome.ROLLBACK, TransactionOutcome.UNKNOWN]
    async with Producer("p", name_server, check=lambda *_: TransactionOutcome.UNKNOWN) as producer:
        for number in range(MESSAGES):
            await producer.send(Message("Metered", b"x" * number * 100 + b"x"))
        for outcome in outcomes:
            await producer.send_in_transaction(Message("Metered", b"t"), lambda *_, outcome=outcome: outcome)
        await producer.send(Message("Metered", b"later", deliver_after_s=3600))
        consumer = Consumer("g", name_server, start=StartPosition.FIRST)
        consumer.subscribe("Metered", "*", handle)
        async with consumer, asyncio.timeout(TIMEOUT_S):
            await seen.wait()
            yield


async def complete_metrics(address: str) -> Scrape:
    """Return the metrics once they include those of committed offsets, half messages and timers, which come later."""
    scrapes: list[Scrape] = []

    async def is_complete() -> bool:
        scrapes.append(parse(await asyncio.to_thread(_read, f"http://{address}/metrics")))
        return all(map(scrapes[-1].has, LATE))

    await eventually(is_complete, f"metrics {LATE}", timeout_s=TIMEOUT_S)
    return scrapes[-1]


def _read(url: str) -> str:
    with urlopen(url, timeout=TIMEOUT_S) as page:
        text: bytes = page.read()
    return text.decode()


async def metrics_of(kind: type[ApacheBroker], home: Path) -> Scrape:
    port = free_port()
    settings = {
        **{"metricsExporterType": "PROM", "metricsPromExporterPort": str(port), "metricsPromExporterHost": "127.0.0.1"},
        "timerWheelEnable": "true",
    }
    with (
        SkyrouteNameServer("ns", home / "ns") as name_server,
        kind("a", home / "broker", [name_server.address], config=settings),
    ):
        async with traffic(name_server.address):
            return await complete_metrics(f"127.0.0.1:{port}")


async def test_our_metrics_have_the_names_types_labels_and_values_of_apaches(lib: Path, tmp_path: Path) -> None:
    theirs, ours = (
        await metrics_of(ApacheBroker, tmp_path / "theirs"),
        await metrics_of(SkyrouteBroker, tmp_path / "ours"),
    )
    compared = 0
    for name, family in ours.families.items():
        if not name.startswith("rocketmq_") or not family.samples:
            continue
        if name == "rocketmq_send_to_dlq_messages":
            continue  # no message went to a dead-letter queue
        assert name in theirs.families, name
        assert family.type == theirs.families[name].type, name
        labels = {label for sample in family.samples for label in sample.labels}
        of_apache = {label for sample in theirs.families[name].samples for label in sample.labels} - OTEL
        assert labels == of_apache - MISSING_LABELS.get(name, set()), name
        compared += 1
    assert compared >= len([name for name in listed("Broker metrics") if name.startswith("rocketmq_")]) - 1
    for name, wanted in (
        ("rocketmq_messages_out_total", {"consumer_group": "g", "topic": "Metered", "is_system": "false"}),
        ("rocketmq_commit_messages_total", {}),
        ("rocketmq_rollback_messages_total", {}),
        ("rocketmq_broker_permission", {}),
        ("rocketmq_consumer_connections", {"consumer_group": "g", "consume_mode": "push", "language": "python"}),
    ):
        assert ours(name, **wanted) == theirs(name, **wanted), name
