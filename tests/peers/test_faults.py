"""Faults of the network between Apache's parts and ours: nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.reliability.fault_proxy import FAULTS
from tests.reliability.faults import SteadySender, break_every_link, cluster
from tests.reliability.workload import Workload
from tests.support.apache import ApacheBroker, ApacheNameServer, NameServerProcess, SkyrouteNameServer
from tests.support.our_broker import SkyrouteBroker

pytestmark = pytest.mark.peers

FAULT_S = 1.0
LINKS = 3
JAVA_S = LINKS * (len(FAULTS) + 1) * FAULT_S * 1.5


@pytest.mark.parametrize(
    ("name_server", "broker"),
    [
        (ApacheNameServer, SkyrouteBroker),
        (SkyrouteNameServer, ApacheBroker),
        pytest.param(SkyrouteNameServer, SkyrouteBroker, marks=pytest.mark.long),
    ],
)
async def test_every_fault_between_apaches_parts_and_ours_loses_nothing(
    tmp_path: Path, name_server: type[NameServerProcess], broker: type[ApacheBroker]
) -> None:
    async with cluster(tmp_path, name_server=name_server, broker=broker) as here:
        workload = Workload(here.address, rate_per_s=50)
        await workload.create_topics()
        sender = SteadySender(tmp_path / "java", here.address, 25, JAVA_S)
        await asyncio.to_thread(sender.start)
        try:
            async with workload.running():
                await break_every_link(here.proxies, FAULT_S)
                await asyncio.to_thread(sender.wait, timeout_s=120.0)
                sender.add_to(workload)
        finally:
            sender.kill()
    assert len(sender.told["acknowledged"]) > 100
    assert workload.acknowledged > 500
    assert workload.violations() == {}
