"""Access control of a controller: brokers, operators, notices, and a controller inside a name server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skyroute.access.errors import SettingsError
from skyroute.cli.nameserver import _controller_server
from skyroute.controller.config import EmbeddedControllerConfig
from tests.support.apache import free_port
from tests.support.connections import AsyncConnection, connection_to, listening_broker
from tests.support.controllers import GROUP, FakeReplica, RunningController, pair_in_sync, running
from tests.support.raw import Request
from tests.support.scraping import page
from tests.support.servers import running as running_name_server
from tests.support.signing import ALICE, ROOT, allow, create_user
from tests.support.waiting import eventually

NO_PERMISSION = 16
NOT_SUPPORTED = 3
DOORS: dict[str, Any] = {
    "authentication_enabled": True,
    "authorization_enabled": True,
    "init_user": ROOT.json,
    "own_credentials": ROOT.credentials_json,
}


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[RunningController]:
    async with running(tmp_path, **DOORS) as here:
        yield here


@pytest.fixture
async def line(guarded: RunningController) -> AsyncIterator[AsyncConnection]:
    async with connection_to(guarded.address) as opened:
        yield opened


async def is_allowed(line: AsyncConnection, request: Request) -> bool:
    return (await line.call(request)).code != NO_PERMISSION


ELECT = {**GROUP, "brokerId": "1", "designateElect": "false", "invokeTime": "1"}


async def test_every_request_needs_a_key(guarded: RunningController, line: AsyncConnection) -> None:
    assert guarded.server.enforcer is not None
    codes = (904, 1001, 1002, 1003, 1004, 1005, 1006, 1009, 1010, 1011, 1012, 1013, 3001, 3005, 9999)
    for code in codes:
        answer = await line.call(code)
        assert (answer.code, answer.remark) == (NO_PERMISSION, "username cannot be null."), code
    assert (await line.call(ROOT.call(1005))).code == 0
    assert (await line.call(ROOT.call(9999))).code == NOT_SUPPORTED


async def test_a_heartbeat_without_a_key_is_not_heard(guarded: RunningController, line: AsyncConnection) -> None:
    beat = {**GROUP, "brokerId": "1", "brokerAddr": "127.0.0.1:1", "epoch": "1", "maxOffset": "1"}
    await line.send_oneway(904, beat)
    await line.send_oneway(904, {**beat, "AccessKey": "root", "Signature": "AAAA"})
    assert (await line.call(1005)).code == NO_PERMISSION  # both were read before
    assert len(guarded.server.heartbeats) == 0
    application = {"appliedBrokerId": "1", "registerCheckCode": "127.0.0.1:1;1"}
    assert (await line.call(ROOT.sign(Request(1013, GROUP | application)))).code == 0
    await line.send_oneway(904, dict(ROOT.sign(Request(904, beat)).fields))
    await eventually(lambda: len(guarded.server.heartbeats) == 1)


async def test_a_broker_by_address_joins_and_cannot_act_as_an_operator(tmp_path: Path) -> None:
    async with (
        running(tmp_path, **DOORS, broker_sources="127.0.0.1") as here,
        connection_to(here.address) as line,
        listening_broker() as listener,
    ):
        broker = FakeReplica(line, listener)
        await broker.apply()
        assert (await broker.register()).code == 0
        assert (await broker.elect()).code == 0
        for value in ("true", "TRUE", "1", "yes"):
            assert (await broker.elect(designateElect=value)).code == NO_PERMISSION
        for code in (1006, 1009, 1010, 1011, 3005):
            assert (await line.call(code)).code == NO_PERMISSION


async def test_the_notice_of_a_new_master_is_signed(guarded: RunningController) -> None:
    async with pair_in_sync(guarded, ROOT) as (first, second):
        await first.line.close()
        notice = await second.listener.receive()
    assert (notice.code, notice.fields["AccessKey"]) == (1008, "root")
    fields = {name: value for name, value in notice.fields.items() if name not in ("AccessKey", "Signature")}
    assert notice.fields["Signature"] == ROOT.sign(Request(1008, fields, notice.body)).fields["Signature"]


async def test_policies_count_and_a_foreign_cluster_name_does_not_help(line: AsyncConnection) -> None:
    await line.call(create_user(ALICE))
    await line.call(allow(ALICE, "Cluster:Mine", "All"))
    assert not await is_allowed(line, ALICE.call(1005))
    mine = {"clusterName": "Mine", "brokerName": "a"}
    assert await is_allowed(line, ALICE.sign(Request(1012, mine)))
    assert not await is_allowed(line, ALICE.sign(Request(1012, GROUP)))
    for code in (1001, 1002, 1004, 1006, 1011):  # found by the name of the group, whatever cluster is named
        assert not await is_allowed(line, ALICE.sign(Request(code, {**ELECT, **mine})))
    await line.call(allow(ALICE, "Cluster:DefaultCluster", "Get"))
    assert await is_allowed(line, ALICE.call(1005))
    assert not await is_allowed(line, ALICE.call(1009, b"enableElectUncleanMaster=true"))


async def test_users_are_kept_beside_the_state_and_decisions_are_recorded(tmp_path: Path) -> None:
    pages = free_port()
    async with running(tmp_path, **DOORS, metrics_port=pages) as here, connection_to(here.address) as line:
        await line.call(1010)
        assert (await line.call(create_user(ALICE))).code == 0
        shown = (await line.call(ROOT.call(1010))).body.decode()
        _, text = await page(f"127.0.0.1:{pages}", "/metrics")
    assert ROOT.secret not in shown
    assert 'rocketmq_controller_access_decisions_total{reason="no_user"} 1.0' in text
    names = {user["username"] for user in json.loads((tmp_path / "access.json").read_text())["users"]}
    assert names == {"root", "alice"}
    records = [json.loads(one) for one in (tmp_path / "audit.log").read_text().splitlines()]
    assert [(one["server"], one["code"], one["is_allowed"]) for one in records] == [
        ("controller", 1010, False),
        ("controller", 3001, True),
    ]


async def test_settings_of_access_control_cannot_be_changed_remotely(line: AsyncConnection) -> None:
    for text in ("authenticationEnabled=false", "accessRulesFile=/tmp/x", "controllerStorePath=/tmp/x", "secure=false"):
        assert (await line.call(ROOT.call(1009, text.encode()))).code == NO_PERMISSION


async def test_a_secure_controller_does_not_start_unprotected(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="the controller would accept connections from other machines"):
        async with running(tmp_path, bind_address="0.0.0.0", secure=True):
            pass


async def test_a_controller_in_a_name_server_has_its_users(tmp_path: Path) -> None:
    async with running_name_server(tmp_path, **DOORS) as here, connection_to(here.address) as names:
        config = EmbeddedControllerConfig(
            **{"bind_address": "127.0.0.1", "listen_port": 0, "store_path": str(tmp_path / "controller"), **DOORS}
        )
        controller = _controller_server(config, here.server)
        await controller.start()
        try:
            async with connection_to(controller.address) as line:
                assert not await is_allowed(line, Request(1005))
                assert not await is_allowed(line, ALICE.call(1005))
                await names.call(create_user(ALICE, "Super"))
                assert await is_allowed(line, ALICE.call(1005))
                assert await is_allowed(line, ROOT.call(3003, username="alice"))
                assert not await is_allowed(names, ALICE.call(319))
        finally:
            await controller.stop()
    assert not (tmp_path / "controller" / "access.json").exists()
