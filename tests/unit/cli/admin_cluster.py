"""A cluster that answers what admin commands ask, and a way to run one while this loop serves it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from click.testing import CliRunner, Result

from skyroute.cli.admin.commands import admin
from tests.support.fake_broker import BROKER, CLUSTER, NAME_SERVER, FakeCluster, Reply, fake_cluster


@asynccontextmanager
async def admin_cluster(*brokers: str, topic: str = "Orders") -> AsyncIterator[FakeCluster]:
    """A cluster with one topic that has two queues on each broker; name servers also know clusters and topics."""
    async with fake_cluster({topic: 2, CLUSTER: 1}, brokers=brokers or (BROKER,)) as cluster:
        table = {
            server.name: {"brokerName": server.name, "cluster": CLUSTER, "brokerAddrs": {0: server.address}}
            for server in cluster.brokers
        }
        info = {"brokerAddrTable": table, "clusterAddrTable": {CLUSTER: list(table)}}
        answer_json(cluster, 106, info, broker=NAME_SERVER)
        answer_json(cluster, 206, {"topicList": [topic, "%RETRY%g"]}, broker=NAME_SERVER)
        yield cluster


def answer_json(cluster: FakeCluster, code: int, body: object, *, broker: str | None = None) -> None:
    reply = Reply(body=json.dumps(body).encode())
    cluster.on(code, lambda _command, _peer: reply, broker=broker)


async def run(cluster: FakeCluster, *words: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, admin, [*words, "-n", cluster.address])


async def run_json(cluster: FakeCluster, *words: str) -> Any:
    result = await run(cluster, *words, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def cells(text: str) -> list[list[str]]:
    """The words of each line."""
    return [line.split() for line in text.splitlines()]


def invoke(words: Sequence[str]) -> Result:
    """Run a command that needs nobody."""
    return CliRunner().invoke(admin, list(words))
