"""A fake cluster for admin commands, and how to run a command while this event loop serves it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from click.testing import CliRunner, Result

from skyroute.cli.admin.commands import admin
from skyroute.wire.codes import RequestCode
from tests.support.fake_broker import BROKER, CLUSTER, NAME_SERVER, FakeCluster, Reply, fake_cluster


@asynccontextmanager
async def admin_cluster(*brokers: str, topic: str = "Orders") -> AsyncIterator[FakeCluster]:
    """A cluster with a topic of two queues per broker; the name server returns clusters and topics."""
    async with fake_cluster({topic: 2, CLUSTER: 1}, brokers=brokers or (BROKER,)) as cluster:
        table = {
            server.name: {"brokerName": server.name, "cluster": CLUSTER, "brokerAddrs": {0: server.address}}
            for server in cluster.brokers
        }
        info = {"brokerAddrTable": table, "clusterAddrTable": {CLUSTER: list(table)}}
        answer_json(cluster, RequestCode.GET_BROKER_CLUSTER_INFO, info, broker=NAME_SERVER)
        answer_json(
            cluster,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
            {"topicList": [topic, "%RETRY%g"]},
            broker=NAME_SERVER,
        )
        yield cluster


def answer_json(cluster: FakeCluster, code: int, body: object, *, broker: str | None = None) -> None:
    reply = Reply(body=json.dumps(body).encode())
    cluster.on(code, lambda _command, _peer: reply, broker=broker)


async def run(cluster: FakeCluster, *arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, admin, [*arguments, "-n", cluster.address])


async def run_json(cluster: FakeCluster, *arguments: str) -> Any:
    result = await run(cluster, *arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def cells(text: str) -> list[list[str]]:
    """Return the cells of each line."""
    return [line.split() for line in text.splitlines()]


def invoke(arguments: Sequence[str]) -> Result:
    """Run a command without a cluster."""
    return CliRunner().invoke(admin, list(arguments))
