"""Commands about brokers and name servers, run against a fake cluster."""

from __future__ import annotations

import json
import re

import pytest

from skyroute.wire.codes import RequestCode, ResponseCode
from tests.support.fake_broker import CLUSTER, NAME_SERVER, FakeCluster, Reply
from tests.unit.cli.admin_cluster import admin_cluster, answer_json, cells, invoke, run, run_json
from tests.unit.wire.golden import golden_line


def return_state(cluster: FakeCluster, broker: str, **changes: str | None) -> None:
    """Have a broker return the state of a recorded broker, with changes."""
    table = json.loads(golden_line("client/broker-state.txt"))["table"] | changes
    answer_json(
        cluster,
        RequestCode.GET_BROKER_RUNTIME_INFO,
        {"table": {key: value for key, value in table.items() if value is not None}},
        broker=broker,
    )


async def test_cluster_list() -> None:
    async with admin_cluster("a") as cluster:
        return_state(cluster, "a", putTps="1.239 7.0 8.0", sendThreadPoolQueueSize="3", timerCongestNum="25000")
        head, row = (await run(cluster, "clusterList")).stdout.splitlines()
        value = await run_json(cluster, "clusterList", "-c", CLUSTER)
    assert re.split(r"  +", head) == [
        *("#Cluster Name", "#Broker Name", "#BID", "#Addr", "#Version", "#InTPS(LOAD)", "#OutTPS(LOAD)"),
        *("#Timer(Progress)", "#PCWait(ms)", "#Hour", "#SPACE", "#ACTIVATED"),
    ]
    values = re.split(r"  +", row)
    assert values[:6] == [CLUSTER, "a", "0", cluster.broker("a").address, "V5_5_0", "1.24(3,0ms)"]
    assert values[6:9] == ["0.00(0,0ms|0,0ms)", "0-0(2.5w, 0.0, 0.0)", "0"]
    assert values[10:] == ["0.1800", "true"]
    (broker,) = value
    assert (broker["broker"], broker["in_tps"], broker["send_queue"], broker["active"]) == ("a", 1.239, 3, True)


@pytest.mark.parametrize("earliest", ["-1", "soon", None])
async def test_a_missing_state_value_is_printed_as_unknown(earliest: str | None) -> None:
    async with admin_cluster("a") as cluster:
        return_state(cluster, "a", earliestMessageTimeStamp=earliest, ackThreadPoolQueueSize=None, putTps="")
        (broker,) = await run_json(cluster, "clusterList")
        assert (broker["kept_hours"], broker["ack_queue"], broker["in_tps"]) == (None, None, None)
        assert "|N,0ms)" in (await run(cluster, "clusterList")).stdout


async def test_a_broker_that_fails_stays_in_the_list() -> None:
    async with admin_cluster("a", "b") as cluster:
        return_state(cluster, "a")
        cluster.refuse(RequestCode.GET_BROKER_RUNTIME_INFO, ResponseCode.SYSTEM_BUSY, "too busy", broker="b")
        result = await run(cluster, "clusterList")
        address = cluster.broker("b").address
        assert cells(result.stdout)[2] == [CLUSTER, "b", "0", address]
        assert result.exit_code == 1
        assert result.stderr == (
            f"skyroute admin clusterList: {address}: {address} refused with 2 (SYSTEM_BUSY): too busy\n"
        )
        cluster.refuse(RequestCode.GET_BROKER_RUNTIME_INFO, ResponseCode.SYSTEM_BUSY, "too busy", broker="a")
        result = await run(cluster, "clusterList", "-m", "--json")
    assert result.exit_code == 1
    assert [entry["in_today"] for entry in json.loads(result.stdout)] == [None, None]
    assert result.stderr.count("\n") == 2


async def test_cluster_list_with_more_stats() -> None:
    async with admin_cluster("a") as cluster:
        counts = {"YesterdayMorning": "10", "TodayMorning": "15", "TodayNow": "18"}
        return_state(
            cluster, "a", **{f"msg{kind}Total{when}": n for kind in ("Put", "Get") for when, n in counts.items()}
        )
        rows = cells((await run(cluster, "clusterList", "-m")).stdout)
    assert rows[1] == [CLUSTER, "a", "5", "5", "3", "3"]


async def test_cluster_list_repeats_with_an_interval() -> None:
    async with admin_cluster("a") as cluster:
        return_state(cluster, "a")
        replies = iter([await cluster_info(cluster)] * 2)
        cluster.on(
            RequestCode.GET_BROKER_CLUSTER_INFO,
            lambda _command, _peer: next(replies, Reply(ResponseCode.SYSTEM_ERROR, remark="that is all")),
            broker=NAME_SERVER,
        )
        result = await run(cluster, "clusterList", "-i", "0")
    assert result.stdout.count("#Cluster Name") == 2
    assert result.exit_code == 1
    assert "that is all" in result.stderr


async def cluster_info(cluster: FakeCluster) -> Reply:
    table = {"a": {"brokerName": "a", "cluster": CLUSTER, "brokerAddrs": {0: cluster.broker("a").address}}}
    return Reply(body=json.dumps({"brokerAddrTable": table, "clusterAddrTable": {CLUSTER: ["a"]}}).encode())


async def test_cluster_rt_sends_to_the_topic_with_the_brokers_name() -> None:
    async with admin_cluster("a", topic="a") as cluster:
        (value,) = await run_json(cluster, "clusterRT", "-a", "3", "-s", "10")
        assert [record.body for queue in (0, 1) for record in cluster.stored(cluster.queue("a", queue, "a"))] == [
            b"a" * 10
        ] * 3
        assert (value["broker"], value["successes"], value["failures"]) == ("a", 3, 0)
        assert value["rt_ms"] > 0
        line = (await run(cluster, "clusterRT", "-a", "3", "-p", "true", "-m", "room")).stdout
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\|room\|FakeCluster\|a\|\d+\n", line)


async def test_cluster_rt_counts_and_reports_failed_sends() -> None:
    async with admin_cluster("a", topic="a") as cluster:
        for code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            cluster.refuse(code, ResponseCode.NO_PERMISSION, "not here")
        result = await run(cluster, "clusterRT", "-a", "2", "--json")
    assert json.loads(result.stdout)[0]["failures"] == 2
    assert result.exit_code == 1
    assert "skyroute admin clusterRT: a: " in result.stderr


async def test_broker_status() -> None:
    async with admin_cluster("a", "b") as cluster:
        return_state(cluster, "a")
        return_state(cluster, "b", brokerVersionDesc="V4_9_7")
        first, second = (server.address for server in cluster.brokers)
        lines = (await run(cluster, "brokerStatus", "-b", first)).stdout.splitlines()
        assert ["brokerVersionDesc", ":", "V5_5_0"] in [line.split() for line in lines]
        lines = (await run(cluster, "brokerStatus", "-c", CLUSTER)).stdout.splitlines()
        assert [second, "brokerVersionDesc", ":", "V4_9_7"] in [line.split() for line in lines]
        value = await run_json(cluster, "brokerStatus", "-c", CLUSTER)
    assert value[second]["brokerVersionDesc"] == "V4_9_7"


async def test_get_broker_config() -> None:
    async with admin_cluster("a", "b") as cluster:
        cluster.on(RequestCode.GET_BROKER_CONFIG, lambda _command, _peer: Reply(body=b"brokerName=x\nbrokerId=0\n"))
        first, second = (server.address for server in cluster.brokers)
        text = (await run(cluster, "getBrokerConfig", "-b", first)).stdout
        assert text == f"============{first}============\nbrokerId   = 0\nbrokerName = x\n"
        cluster.refuse(RequestCode.GET_BROKER_CONFIG, ResponseCode.SYSTEM_ERROR, "no", broker="b")
        result = await run(cluster, "getBrokerConfig", "-c", CLUSTER, "--json")
    assert json.loads(result.stdout) == {first: {"brokerId": "0", "brokerName": "x"}}
    assert result.exit_code == 1
    assert second in result.stderr


async def test_secrets_in_settings_are_masked() -> None:
    async with admin_cluster("a") as cluster:
        cluster.on(
            26, lambda _command, _peer: Reply(body=b"brokerId=0\ninitAuthenticationUser={u:geheim}\nmyPasswd=\n")
        )
        (server,) = cluster.brokers
        text = (await run(cluster, "getBrokerConfig", "-b", server.address)).stdout
        shown = json.loads((await run(cluster, "getBrokerConfig", "-b", server.address, "--json")).stdout)
    assert "geheim" not in text
    assert shown == {server.address: {"brokerId": "0", "initAuthenticationUser": "******", "myPasswd": ""}}


async def test_update_broker_config_changes_a_setting_on_every_master() -> None:
    async with admin_cluster("a", "b") as cluster:
        cluster.on(RequestCode.UPDATE_BROKER_CONFIG, lambda _command, _peer: Reply())
        addresses = [server.address for server in cluster.brokers]
        arguments = ("updateBrokerConfig", "-k", "flushDiskType", "-v", "SYNC_FLUSH")
        result = await run(cluster, *arguments, "-c", CLUSTER)
        assert result.stdout.splitlines() == [f"update broker config success, {address}" for address in addresses]
        assert [command.body for command in cluster.seen(RequestCode.UPDATE_BROKER_CONFIG)] == [
            b"flushDiskType=SYNC_FLUSH\n"
        ] * 2
        cluster.refuse(
            RequestCode.UPDATE_BROKER_CONFIG,
            ResponseCode.NO_PERMISSION,
            "Can not update config in black list.",
            broker="b",
        )
        result = await run(cluster, *arguments, "-b", addresses[1])
    assert result.exit_code == 1
    assert "black list" in result.stderr


@pytest.mark.parametrize(
    ("command", "code"),
    [("cleanExpiredCQ", RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE), ("cleanUnusedTopic", RequestCode.CLEAN_UNUSED_TOPIC)],
)
async def test_cleaning_runs_on_all_brokers_a_cluster_or_one_broker(command: str, code: int) -> None:
    async with admin_cluster("a", "b") as cluster:
        cluster.on(code, lambda _command, _peer: Reply())
        addresses = [server.address for server in cluster.brokers]
        assert await run_json(cluster, command) == {"brokers": addresses}
        assert await run_json(cluster, command, "-c", CLUSTER) == {"brokers": addresses}
        assert await run_json(cluster, command, "-b", addresses[0]) == {"brokers": addresses[:1]}
        assert len(cluster.seen(code)) == 5


async def test_name_server_settings_are_printed_and_changed() -> None:
    async with admin_cluster() as cluster:
        cluster.on(RequestCode.GET_NAMESRV_CONFIG, lambda _command, _peer: Reply(body=b"a=1\n"), broker=NAME_SERVER)
        cluster.on(RequestCode.UPDATE_NAMESRV_CONFIG, lambda _command, _peer: Reply(), broker=NAME_SERVER)
        assert await run_json(cluster, "getNamesrvConfig") == {cluster.address: {"a": "1"}}
        await run_json(cluster, "updateNamesrvConfig", "-k", "a", "-v", "2")
        (request,) = cluster.seen(RequestCode.UPDATE_NAMESRV_CONFIG)
        assert request.body == b"a=2\n"


@pytest.mark.parametrize(
    ("command", "code", "field"),
    [
        ("wipeWritePerm", RequestCode.WIPE_WRITE_PERM_OF_BROKER, "wipeTopicCount"),
        ("addWritePerm", RequestCode.ADD_WRITE_PERM_OF_BROKER, "addTopicCount"),
    ],
)
async def test_write_permission_reports_the_number_of_topics(command: str, code: int, field: str) -> None:
    async with admin_cluster() as cluster:
        cluster.on(code, lambda _command, _peer: Reply(fields={field: "17"}), broker=NAME_SERVER)
        result = await run(cluster, command, "-b", "a")
        assert result.stdout.endswith(f"in name server[{cluster.address}] OK, 17\n")
        assert await run_json(cluster, command, "-b", "a") == [{"name_server": cluster.address, "topics": 17}]


async def test_key_value_config_is_set_and_deleted() -> None:
    async with admin_cluster() as cluster:
        for code in (RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG):
            cluster.on(code, lambda _command, _peer: Reply(), broker=NAME_SERVER)
        place = ("-s", "space", "-k", "key")
        assert await run_json(cluster, "updateKvConfig", *place, "-v", "=v") == {"name_servers": [cluster.address]}
        assert await run_json(cluster, "deleteKvConfig", *place) == {"name_servers": [cluster.address]}
        assert cluster.seen(RequestCode.PUT_KV_CONFIG)[0].fields == {"namespace": "space", "key": "key", "value": "=v"}
        assert cluster.seen(RequestCode.DELETE_KV_CONFIG)[0].fields == {"namespace": "space", "key": "key"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["clusterList", "-i", "often"], "Invalid value for '-i'"),
        (["clusterRT", "-a", "1"], "Invalid value for '-a'"),
        (["updateBrokerConfig", "-c", "C", "-k", "a"], "Missing option '-v'"),
        (["updateNamesrvConfig", "-v", "a"], "Missing option '-k'"),
        (["wipeWritePerm"], "Missing option '-b'"),
        (["updateKvConfig", "-k", "a", "-v", "b"], "Missing option '-s'"),
        (["cleanExpiredCQ", "-b", "h:1", "-c", "C"], "either -b"),
    ],
)
def test_invalid_options_are_usage_errors(arguments: list[str], message: str) -> None:
    result = invoke(arguments)
    assert result.exit_code == 2
    assert message in result.stderr
