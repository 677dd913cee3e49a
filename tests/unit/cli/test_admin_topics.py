"""Commands about topics, run against a fake cluster."""

from __future__ import annotations

import json

import pytest

from skyroute.wire.codes import RequestCode, ResponseCode
from tests.support.fake_broker import CLUSTER, NAME_SERVER, FakeCluster, Peer, Reply
from tests.support.raw import Command
from tests.unit.cli.admin_cluster import admin_cluster, answer_json, cells, invoke, run, run_json


def offsets(cluster: FakeCluster, broker: str) -> None:
    """Have a broker return offsets of queues. Java writes queues as JSON keys without quotes."""
    spans = ",".join(
        f'{{"brokerName":"{broker}","queueId":{queue},"topic":"Orders"}}:'
        f'{{"lastUpdateTimestamp":{1_758_275_140_000 if queue else 0},"maxOffset":{queue * 5},"minOffset":{queue}}}'
        for queue in (1, 0)
    )
    reply = Reply(body=f'{{"offsetTable":{{{spans}}},"topicPutTps":1.5}}'.encode())
    cluster.on(RequestCode.GET_TOPIC_STATS_INFO, lambda _command, _peer: reply, broker=broker)


async def test_topic_list() -> None:
    async with admin_cluster() as cluster:
        assert (await run(cluster, "topicList")).stdout == "%RETRY%g\nOrders\n"
        assert await run_json(cluster, "topicList") == ["%RETRY%g", "Orders"]


async def test_topic_list_with_clusters_and_groups() -> None:
    async with admin_cluster("a", "b") as cluster:
        answer_json(cluster, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"groupList": ["two", "one"]}, broker="a")
        answer_json(cluster, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"groupList": ["two"]}, broker="b")
        assert await run_json(cluster, "topicList", "-c") == [
            {"topic": "Orders", "clusters": [CLUSTER], "groups": ["one", "two"]}
        ]
        assert cells((await run(cluster, "topicList", "-c")).stdout)[1:] == [
            [CLUSTER, "Orders", "one"],
            [CLUSTER, "Orders", "two"],
        ]


async def test_topic_route() -> None:
    async with admin_cluster("b", "a") as cluster:
        text = (await run(cluster, "topicRoute", "-t", "Orders", "-l")).stdout
        assert cells(text) == [
            ["#ClusterName", "#BrokerName", "#BrokerAddrs", "#ReadQueue", "#WriteQueue", "#Perm"],
            [CLUSTER, "a", f"0={cluster.broker('a').address}", "2", "2", "6"],
            [CLUSTER, "b", f"0={cluster.broker('b').address}", "2", "2", "6"],
            ["Total:", "2", "4", "4"],
        ]
        value = await run_json(cluster, "topicRoute", "-t", "Orders")
    assert [entry["broker"] for entry in value["brokers"]] == ["a", "b"]
    assert value["brokers"][0]["read_queues"] == 2
    assert value["order_config"] is None


async def test_a_topic_without_a_route_fails() -> None:
    async with admin_cluster() as cluster:
        for command in ("topicRoute", "topicStatus", "topicClusterList", "statsAll"):
            result = await run(cluster, command, "-t", "Nope")
            assert (result.exit_code, result.stdout) == (1, "")
            assert f"skyroute admin {command}: no broker serves the topic Nope" in result.stderr


async def test_topic_status() -> None:
    async with admin_cluster("a", "b") as cluster:
        offsets(cluster, "a")
        offsets(cluster, "b")
        rows = cells((await run(cluster, "topicStatus", "-t", "Orders")).stdout)
        value = await run_json(cluster, "topicStatus", "-t", "Orders", "-c", CLUSTER)
    assert [row[:4] for row in rows[1:5]] == [
        [name, queue, queue, str(int(queue) * 5)] for name in "ab" for queue in "01"
    ]
    assert rows[-1] == ["Topic", "Put", "TPS:", "3.00"]
    assert value["put_tps"] == 3.0
    assert value["queues"][1] == {
        "broker": "a",
        "queue_id": 1,
        "min_offset": 1,
        "max_offset": 5,
        "updated_at_ms": 1_758_275_140_000,
    }
    assert value["queues"][0]["updated_at_ms"] is None


async def test_topic_status_reports_a_failed_broker_and_prints_the_others() -> None:
    async with admin_cluster("a", "b") as cluster:
        offsets(cluster, "a")
        cluster.refuse(RequestCode.GET_TOPIC_STATS_INFO, ResponseCode.TOPIC_NOT_EXIST, "no such topic", broker="b")
        result = await run(cluster, "topicStatus", "-t", "Orders", "--json")
        failed = cluster.broker("b").address
    assert result.exit_code == 1
    assert {queue["broker"] for queue in json.loads(result.stdout)["queues"]} == {"a"}
    assert result.stderr.startswith(f"skyroute admin topicStatus: {failed}: ")
    assert "no such topic" in result.stderr


async def test_topic_cluster_list() -> None:
    async with admin_cluster() as cluster:
        assert (await run(cluster, "topicClusterList", "-t", "Orders")).stdout == f"{CLUSTER}\n"


async def test_allocate_mq() -> None:
    async with admin_cluster("a") as cluster:
        value = await run_json(cluster, "allocateMQ", "-t", "Orders", "-i", "y, x,z")
    assert value == {"y": [{"broker": "a", "queue_id": 1}], "x": [{"broker": "a", "queue_id": 0}], "z": []}


async def test_stats_all() -> None:
    async with admin_cluster("a", "b") as cluster:
        count = {"sum": 7, "tps": 0.5, "avgpt": 0.0}
        answer_json(cluster, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"groupList": ["g"]})
        answer_json(cluster, RequestCode.VIEW_BROKER_STATS_DATA, {"statsMinute": count}, broker="a")
        cluster.refuse(
            RequestCode.VIEW_BROKER_STATS_DATA, ResponseCode.SYSTEM_ERROR, "The stats <N> <k> not exist", broker="b"
        )
        queue = '{"brokerName":"a","queueId":0,"topic":"Orders"}'
        span = '{"brokerOffset":9,"consumerOffset":5,"pullOffset":9,"lastTimestamp":0}'
        reply = Reply(body=f'{{"consumeTps":0.0,"offsetTable":{{{queue}:{span}}}}}'.encode())
        cluster.on(RequestCode.GET_CONSUME_STATS, lambda _command, _peer: reply)
        value = await run_json(cluster, "statsAll")
        rows = cells((await run(cluster, "statsAll", "-a", "-t", "Orders")).stdout)
    assert value == [
        {
            "topic": "Orders",
            "group": "g",
            "lag": 8,
            "in_tps": 0.5,
            "out_tps": 0.5,
            "in_24_hours": 7,
            "out_24_hours": 7,
        }
    ]
    assert rows[1] == ["Orders", "g", "8", "0.50", "0.50", "7", "7"]


async def test_stats_of_a_topic_without_consumer_groups() -> None:
    async with admin_cluster() as cluster:
        answer_json(cluster, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"groupList": []})
        cluster.refuse(RequestCode.VIEW_BROKER_STATS_DATA, ResponseCode.SYSTEM_ERROR, "The stats <N> <k> not exist")
        rows = cells((await run(cluster, "statsAll")).stdout)
        assert rows[1] == ["Orders", "0", "0.00", "0", "NO_CONSUMER"]
        assert len(cells((await run(cluster, "statsAll", "-a")).stdout)) == 1
        cluster.refuse(RequestCode.VIEW_BROKER_STATS_DATA, ResponseCode.SYSTEM_ERROR, "the disk is gone")
        result = await run(cluster, "statsAll")
    assert result.exit_code == 1
    assert "the disk is gone" in result.stderr


# ----------------------------------------------------------------------------------------------------------- changing


async def test_update_topic_changes_every_master() -> None:
    async with admin_cluster("a", "b") as cluster:
        cluster.on(RequestCode.UPDATE_AND_CREATE_TOPIC, lambda _command, _peer: Reply())
        arguments = ("-t", "New", "-c", CLUSTER, "-r", "3", "-w", "4", "-p", "4", "-u", "true", "-s", "TRUE")
        result = await run(cluster, "updateTopic", *arguments, "-a", "+message.type=FIFO,-other")
        requests = cluster.seen(RequestCode.UPDATE_AND_CREATE_TOPIC)
    assert result.stdout.splitlines() == [f"create topic to {server.address} success." for server in cluster.brokers]
    assert len(requests) == 2
    fields = requests[0].fields
    assert (fields["topic"], fields["readQueueNums"], fields["writeQueueNums"]) == ("New", "3", "4")
    assert (fields["perm"], fields["topicSysFlag"], fields["order"]) == ("4", "3", "false")
    assert fields["attributes"] == "+message.type=FIFO,-other"


async def test_update_topic_fails_if_one_broker_fails() -> None:
    async with admin_cluster("a", "b") as cluster:
        cluster.on(RequestCode.UPDATE_AND_CREATE_TOPIC, lambda _command, _peer: Reply(), broker="a")
        cluster.refuse(RequestCode.UPDATE_AND_CREATE_TOPIC, ResponseCode.INVALID_PARAMETER, "not so", broker="b")
        result = await run(cluster, "updateTopic", "-t", "New", "-c", CLUSTER)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "1 of 2 failed: " in result.stderr
    assert "not so" in result.stderr


async def test_an_ordered_topic_gets_an_order_config() -> None:
    async with admin_cluster("a", "b") as cluster:
        kept = {"Orders": "x:1;a:7"}
        cluster.on(RequestCode.UPDATE_AND_CREATE_TOPIC, lambda _command, _peer: Reply())
        cluster.on(
            RequestCode.GET_KV_CONFIG,
            lambda command, _peer: Reply(fields={"value": kept[command.fields["key"]]}),
            broker=NAME_SERVER,
        )

        def keep(command: Command, _peer: Peer) -> Reply:
            kept[command.fields["key"]] = command.fields["value"]
            return Reply()

        cluster.on(RequestCode.PUT_KV_CONFIG, keep, broker=NAME_SERVER)
        address = cluster.broker("a").address
        one = await run_json(cluster, "updateTopic", "-t", "Orders", "-b", address, "-o", "true", "-w", "5")
        assert one == {"topic": "Orders", "brokers": [address], "order_config": "x:1;a:5"}
        every = await run_json(cluster, "updateTopic", "-t", "Orders", "-c", CLUSTER, "-o", "true", "-w", "6")
        assert every["order_config"] == "a:6;b:6"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["updateTopic", "-c", "C"], "Missing option '-t'"),
        (["updateTopic", "-c", "C", "-t", "T", "-r", "x"], "Invalid value for '-r'"),
        (["updateTopic", "-c", "C", "-t", "T", "-p", "16"], "Invalid value for '-p'"),
        (["updateTopic", "-c", "C", "-t", "T", "-o", "maybe"], "Invalid value for '-o'"),
        (["updateTopic", "-c", "C", "-t", "T", "-a", "x=1"], "expected +name=value or -name"),
        (["updateTopicPerm", "-c", "C", "-t", "T"], "Missing option '-p'"),
        (["deleteTopic", "-t", "T"], "Missing option '-c'"),
        (["updateOrderConf", "-t", "T", "-m", "post"], "Invalid value for '-m'"),
        (["updateOrderConf", "-t", "T", "-m", "put", "-n", "127.0.0.1:1"], "put needs -v"),
        (["allocateMQ", "-t", "T"], "Missing option '-i'"),
        (["topicRoute"], "Missing option '-t'"),
    ],
)
def test_invalid_options_are_usage_errors(arguments: list[str], message: str) -> None:
    result = invoke(arguments)
    assert result.exit_code == 2
    assert message in result.stderr


async def test_an_invalid_topic_name_sends_no_request() -> None:
    async with admin_cluster() as cluster:
        result = await run(cluster, "updateTopic", "-t", "a b", "-c", CLUSTER)
        assert result.exit_code == 1
        assert "illegal characters" in result.stderr
        assert not cluster.heard


async def test_update_topic_perm() -> None:
    async with admin_cluster("a") as cluster:
        cluster.on(RequestCode.UPDATE_AND_CREATE_TOPIC, lambda _command, _peer: Reply())
        address = cluster.broker("a").address
        value = await run_json(cluster, "updateTopicPerm", "-t", "Orders", "-p", "4", "-b", address)
        assert value == [{"address": address, "before": 6, "after": 4}]
        (request,) = cluster.seen(RequestCode.UPDATE_AND_CREATE_TOPIC)
        assert (request.fields["perm"], request.fields["readQueueNums"]) == ("4", "2")
        result = await run(cluster, "updateTopicPerm", "-t", "Orders", "-p", "4", "-b", "127.0.0.1:1")
        assert result.exit_code == 1
        assert "127.0.0.1:1: not a master with the topic Orders" in result.stderr
        assert len(cluster.seen(RequestCode.UPDATE_AND_CREATE_TOPIC)) == 1


async def test_delete_topic_deletes_from_brokers_first() -> None:
    async with admin_cluster("a", "b") as cluster:
        cluster.on(RequestCode.DELETE_TOPIC_IN_BROKER, lambda _command, _peer: Reply())
        cluster.on(RequestCode.DELETE_TOPIC_IN_NAMESRV, lambda _command, _peer: Reply(), broker=NAME_SERVER)
        result = await run(cluster, "deleteTopic", "-t", "Orders", "-c", CLUSTER)
        assert result.stdout == f"delete topic [Orders] from cluster [{CLUSTER}] success.\n"
        assert [command.code for _, command in cluster.heard][-3:] == [215, 215, 216]
        assert cluster.heard[-1][1].fields["clusterName"] == CLUSTER
        cluster.refuse(RequestCode.DELETE_TOPIC_IN_BROKER, ResponseCode.SYSTEM_ERROR, "no", broker="b")
        result = await run(cluster, "deleteTopic", "-t", "Orders", "-c", CLUSTER)
        assert result.exit_code == 1
        assert len(cluster.seen(RequestCode.DELETE_TOPIC_IN_NAMESRV)) == 1


async def test_the_error_of_an_unknown_cluster_lists_the_known_ones() -> None:
    async with admin_cluster() as cluster:
        result = await run(cluster, "deleteTopic", "-t", "Orders", "-c", "Nope")
    assert result.exit_code == 1
    assert f"there is no cluster Nope; the name servers know {CLUSTER}" in result.stderr


async def test_update_order_conf() -> None:
    async with admin_cluster() as cluster:
        arguments = ("updateOrderConf", "-t", "Orders", "-m")
        for code in (RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG):
            cluster.on(code, lambda _command, _peer: Reply(), broker=NAME_SERVER)
        cluster.on(
            RequestCode.GET_KV_CONFIG, lambda _command, _peer: Reply(fields={"value": "a:4"}), broker=NAME_SERVER
        )
        assert await run_json(cluster, *arguments, "put", "-v", "a:4") == {"topic": "Orders", "order_config": "a:4"}
        (put,) = cluster.seen(RequestCode.PUT_KV_CONFIG)
        assert put.fields == {"namespace": "ORDER_TOPIC_CONFIG", "key": "Orders", "value": "a:4"}
        assert await run_json(cluster, *arguments, "get") == {"topic": "Orders", "order_config": "a:4"}
        assert (await run(cluster, *arguments, "delete")).stdout == "delete orderConf success. topic=[Orders]\n"
        assert len(cluster.seen(RequestCode.DELETE_KV_CONFIG)) == 1
        cluster.refuse(RequestCode.GET_KV_CONFIG, ResponseCode.QUERY_NOT_FOUND, "none", broker=NAME_SERVER)
        result = await run(cluster, *arguments, "get")
    assert result.exit_code == 1
    assert "Orders has no order config" in result.stderr
