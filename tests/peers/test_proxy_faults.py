"""Faults of the network between Apache's proxy and our servers: its clients lose nothing that was acknowledged."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skyroute import Admin
from tests.reliability.fault_proxy import FAULTS
from tests.reliability.faults import break_every_link, cluster
from tests.support.apache import PeerUnavailableError
from tests.support.apache_proxy import ApacheProxy, python_client, run_official_client

pytestmark = [pytest.mark.peers, pytest.mark.long]

FAULT_S = 1.0
LINKS = 3
SENDING_S = LINKS * (len(FAULTS) + 1) * FAULT_S * 1.5
INVISIBLE_S = 10
PER_S = 20


async def test_clients_of_apaches_proxy_lose_nothing_through_every_fault(tmp_path: Path) -> None:
    try:
        python_client()
    except PeerUnavailableError as error:
        pytest.skip(str(error))
    async with cluster(tmp_path) as here:
        async with Admin(here.address) as admin:
            await admin.create_topic("Faulty", read_queues=4, write_queues=4, attributes={"message.type": "NORMAL"})
        proxy = ApacheProxy(tmp_path / "proxy", here.address, "PeerCluster")
        await asyncio.to_thread(proxy.start)
        try:
            sending = asyncio.to_thread(
                run_official_client,
                "python",
                tmp_path / "sender",
                proxy.address,
                *("keep_sending", "Faulty", str(SENDING_S), str(PER_S)),
                timeout_s=180.0,
            )
            receiving = asyncio.to_thread(
                run_official_client,
                "python",
                tmp_path / "receiver",
                proxy.address,
                *("keep_receiving", "receivers", "Faulty", str(INVISIBLE_S), "240"),
                timeout_s=300.0,
            )
            sent, received, _ = await asyncio.gather(sending, receiving, break_every_link(here.proxies, FAULT_S))
        finally:
            proxy.kill()
    acknowledged = {line["body"] for line in sent if line["acknowledged"]}
    assert len(acknowledged) > SENDING_S * PER_S / 4, sent[-5:]
    assert any(not line["acknowledged"] for line in sent) or any("error" in line for line in received), "no fault hit"
    came = {line["body"] for line in received if "body" in line}
    assert "last" in came, received[-5:]
    assert acknowledged <= came
