"""How a broker finds the leading controller."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from skyroute.broker.replication import controller_client
from skyroute.broker.replication.controller_client import ControllerClient
from skyroute.remoting.errors import ConnectError
from tests.support.controllers import running


async def test_a_controller_that_does_not_respond_delays_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller_client, "TIMEOUT_S", 3600.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with running(tmp_path) as controller:
            await find_beside(silent.getsockname()[1], controller.address)


async def find_beside(silent_port: int, address: str) -> None:
    client = ControllerClient([f"127.0.0.1:{silent_port}", address])
    try:
        await client.find_leader()
        assert client.leader == address
    finally:
        client.close()


async def test_every_controller_that_failed_is_named() -> None:
    client = ControllerClient(["127.0.0.1:1", "127.0.0.1:2"])
    with pytest.raises(ConnectError, match=r"(?s)no leading controller.*127\.0\.0\.1:[12].*127\.0\.0\.1:[12]"):
        await client.find_leader()
    assert client.leader == ""
