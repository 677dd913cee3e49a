"""Admin commands about controllers, run against a controller in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from skyroute import Admin
from skyroute.cli.admin.commands import admin
from skyroute.client.errors import ArgumentError, BrokerRefusedError
from tests.support.controllers import RunningController, pair_in_sync, running
from tests.support.fake_broker import CLUSTER, Reply
from tests.support.waiting import eventually
from tests.unit.cli.admin_cluster import admin_cluster, answer_json, run_json


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[RunningController]:
    async with running(tmp_path) as here:
        yield here


async def run(controller: RunningController, command: str, *arguments: str) -> Result:
    words = [command, "-a", controller.address, *arguments]
    return await asyncio.to_thread(CliRunner().invoke, admin, words)


async def value(controller: RunningController, command: str, *arguments: str) -> Any:
    result = await run(controller, command, *arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


async def test_the_leading_controller_is_printed(controller: RunningController) -> None:
    found = await value(controller, "getControllerMetaData")
    assert found == {
        "group": "skyroute-controller",
        "leader_id": "n0",
        "leader_address": controller.address,
        "peers": {"n0": controller.address},
    }
    lines = (await run(controller, "getControllerMetaData")).stdout.splitlines()
    assert lines[0].split() == ["#ControllerGroup", "skyroute-controller"]
    assert lines[-1] == f"#Peer: n0:{controller.address}"


async def test_the_first_controller_that_knows_a_leader_is_asked(controller: RunningController) -> None:
    result = await run(controller, "getControllerMetaData", "-a", f"127.0.0.1:1;{controller.address}")
    assert result.exit_code == 0
    result = await run(controller, "getControllerMetaData", "-a", "127.0.0.1:1")
    assert result.exit_code == 1
    assert "no leading controller: '127.0.0.1:1' cannot be reached" in result.stderr


async def test_replicas_are_listed_with_role_and_sync_state(controller: RunningController) -> None:
    async with pair_in_sync(controller) as (first, second):
        await second.line.close()
        await eventually(lambda: controller.offset(2) is None)
        replicas = await value(controller, "getSyncStateSet", "-b", "a")
        assert [(each["broker_id"], each["role"], each["in_sync"], each["alive"]) for each in replicas] == [
            (1, "master", True, True),
            (2, "slave", True, False),
        ]
        assert replicas[0]["address"] == first.listener.address
        assert (replicas[0]["master_epoch"], replicas[0]["sync_set_epoch"]) == (1, 2)
        head, master, _ = (await run(controller, "getSyncStateSet", "-b", "a")).stdout.splitlines()
        assert "#SyncStateSetEpoch" in head
        assert master.split()[:4] == ["a", "1", first.listener.address, "master"]
    assert await value(controller, "getSyncStateSet", "-b", "nobody") == []
    assert (await run(controller, "getSyncStateSet")).exit_code == 2


async def test_an_operator_elects_a_master(controller: RunningController) -> None:
    async with pair_in_sync(controller) as (_, second):
        arguments = ("-c", "C", "-bn", "a", "-b", "2")
        elected = await value(controller, "electMaster", *arguments)
        assert elected == {
            "cluster": "C",
            "broker": "a",
            "broker_id": 2,
            "address": second.listener.address,
            "master_epoch": 2,
            "sync_set_epoch": 3,
        }
        again = await run(controller, "electMaster", *arguments)
        assert again.exit_code == 1
        assert "2011" in again.stderr
        refused = await run(controller, "electMaster", "-c", "C", "-bn", "a", "-b", "1")
        assert "2012" in refused.stderr  # it left the sync state set with the election


async def test_only_dead_replicas_are_removed_unless_told_otherwise(controller: RunningController) -> None:
    async with pair_in_sync(controller) as (_, second):
        arguments = ("-c", "C", "-bn", "a", "-b", "2")
        refused = await run(controller, "cleanBrokerMetadata", *arguments)
        assert (refused.exit_code, "2009" in refused.stderr) == (1, True)
        await second.line.close()
        await eventually(lambda: controller.offset(2) is None)
        done = await run(controller, "cleanBrokerMetadata", *arguments)
        assert done.stdout == "clear broker a metadata from controller success!\n"
        assert [each["broker_id"] for each in await value(controller, "getSyncStateSet", "-b", "a")] == [1]
        assert (await run(controller, "cleanBrokerMetadata", "-bn", "a")).exit_code == 2
        assert (await run(controller, "cleanBrokerMetadata", "-bn", "a", "-l")).exit_code == 0
        assert await value(controller, "getSyncStateSet", "-b", "a") == []
    assert (await run(controller, "cleanBrokerMetadata", "-bn", "a", "-l", "-b", "x")).exit_code == 2


async def test_settings_are_printed_and_changed(controller: RunningController) -> None:
    done = await value(controller, "updateControllerConfig", "-k", "enableElectUncleanMaster", "-v", "true")
    assert done == {"controllers": [controller.address]}
    settings = await value(controller, "getControllerConfig")
    assert settings[controller.address]["enableElectUncleanMaster"] == "true"
    refused = await run(controller, "updateControllerConfig", "-k", "controllerStorePath", "-v", "/x")
    assert refused.exit_code == 1


async def test_epochs_of_a_broker_end_where_its_log_ends() -> None:
    epochs = [
        {"epoch": 1, "startOffset": 0, "endOffset": 700},
        {"epoch": 2, "startOffset": 700, "endOffset": 2**63 - 1},
    ]
    history = {"clusterName": CLUSTER, "brokerName": "a", "brokerId": 1, "epochList": epochs, "maxOffset": 900}
    async with admin_cluster("a") as cluster:
        answer_json(cluster, 1007, history, broker="a")
        (found,) = await run_json(cluster, "getBrokerEpoch", "-b", "a")
        assert (found["broker_id"], found["epochs"][1]) == (1, {"epoch": 2, "start_offset": 700, "end_offset": 900})
        cluster.on(1007, lambda _command, _peer: Reply(code=3, remark="not supported"), broker="a")
        with pytest.raises(BrokerRefusedError, match="not supported"):
            async with Admin(cluster.address) as client:
                await client.broker_epochs(cluster.broker("a").address)


async def test_wrong_arguments_are_refused_before_a_request() -> None:
    async with Admin("127.0.0.1:1") as client:
        with pytest.raises(ArgumentError, match="expected addresses"):
            await client.controllers(" ; ")
        with pytest.raises(ArgumentError, match="broker_id is 0"):
            await client.elect_master("127.0.0.1:1", "C", "a", 0)
        with pytest.raises(ArgumentError, match="broker_ids is empty"):
            await client.remove_replicas("127.0.0.1:1", "a", [])
        with pytest.raises(ArgumentError, match="several broker names"):
            await client.replicas("127.0.0.1:1", "a")
