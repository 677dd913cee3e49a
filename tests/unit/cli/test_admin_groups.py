"""Commands about groups: requests, output and errors."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from skyroute.wire.codes import RequestCode, ResponseCode
from tests.support.fake_broker import CLUSTER, FakeCluster, Reply
from tests.unit.cli.admin_cluster import admin_cluster, answer_json, cells, invoke, run, run_json
from tests.unit.wire.golden import golden_line

PROGRESS = (
    b'{"consumeTps":1.5,"offsetTable":{{"brokerName":"broker-a","queueId":1,"topic":"Orders"}:{"brokerOffset":12,'
    b'"consumerOffset":7,"lastTimestamp":0,"pullOffset":10},{"brokerName":"broker-a","queueId":0,"topic":"Orders"}:'
    b'{"brokerOffset":5,"consumerOffset":5,"lastTimestamp":1758275140000,"pullOffset":5}}}'
)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """A cluster with one broker that has the group `g`."""
    async with admin_cluster() as cluster:
        cluster.topics["%RETRY%g"] = 1
        cluster.on(RequestCode.GET_CONSUME_STATS, lambda _command, _peer: Reply(body=PROGRESS))
        connections = Reply(body=golden_line("client/consumer-connections.txt"))
        cluster.on(RequestCode.GET_CONSUMER_CONNECTION_LIST, lambda _command, _peer: connections)
        yield cluster


# --------------------------------------------------------------------------------------------------------- settings


async def test_a_group_is_created_with_the_defaults_of_mqadmin(cluster: FakeCluster) -> None:
    answer_json(cluster, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {})
    result = await run(cluster, "updateSubGroup", "-c", CLUSTER, "-g", "g", "-r", "5", "--attributes", "+a=b,-c")
    assert result.exit_code == 0
    (request,) = cluster.seen(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    config = json.loads(request.body)
    assert (config["groupName"], config["retryMaxTimes"]) == ("g", 5)
    assert (config["consumeBroadcastEnable"], config["consumeFromMinEnable"]) == (False, False)
    assert config["attributes"] == {"+a": "b", "-c": ""}
    assert f"create subscription group to {cluster.broker().address} success." in result.stdout


async def test_a_retry_policy_is_sent_unchanged(cluster: FakeCluster) -> None:
    answer_json(cluster, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {})
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000]}}
    output = await run_json(
        cluster, "updateSubGroup", "-b", cluster.broker().address, "-g", "g", "-p", json.dumps(policy)
    )
    assert (
        json.loads(cluster.seen(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)[0].body)["groupRetryPolicy"] == policy
    )
    assert output["group"]["retry_policy"] == policy


async def test_deleting_a_group_from_a_cluster_deletes_its_retry_and_dead_letter_topics(cluster: FakeCluster) -> None:
    for code in (
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
    ):
        answer_json(cluster, code, {}, broker=None)
    result = await run(cluster, "deleteSubGroup", "-c", CLUSTER, "-g", "g", "-r", "true")
    assert result.exit_code == 0
    assert cluster.seen(RequestCode.DELETE_SUBSCRIPTIONGROUP)[0].fields["cleanOffset"] == "true"
    assert [request.fields["topic"] for request in cluster.seen(RequestCode.DELETE_TOPIC_IN_BROKER)] == [
        "%RETRY%g",
        "%DLQ%g",
    ]


async def test_deleting_a_group_from_one_broker_keeps_the_topics(cluster: FakeCluster) -> None:
    answer_json(cluster, RequestCode.DELETE_SUBSCRIPTIONGROUP, {})
    await run_json(cluster, "deleteSubGroup", "-b", cluster.broker().address, "-g", "g")
    assert cluster.seen(RequestCode.DELETE_SUBSCRIPTIONGROUP)[0].fields["cleanOffset"] == "false"
    assert cluster.seen(RequestCode.DELETE_TOPIC_IN_BROKER) == []


# ------------------------------------------------------------------------------------------------------ connections


async def test_members_are_listed_with_their_subscriptions(cluster: FakeCluster) -> None:
    lines = (await run(cluster, "consumerConnection", "-g", "g")).stdout.splitlines()
    assert lines[0].split() == ["#ClientId", "#ClientAddr", "#Language", "#Version"]
    assert lines[1].split() == ["192.0.2.2@25552#1794733113236656013", "127.0.0.1:39730", "PYTHON", "V5_3_3"]
    assert "MessageModel: CLUSTERING" in lines
    output = await run_json(cluster, "consumerConnection", "-g", "g", "-b", cluster.broker().address)
    assert [each["expression"] for each in output["subscriptions"]] == ["*", "TagA || TagB"]


async def test_a_group_without_members_is_an_error_in_one_line(cluster: FakeCluster) -> None:
    cluster.refuse(
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        ResponseCode.CONSUMER_NOT_ONLINE,
        "the consumer group[g] not online\nand so on",
    )
    result = await run(cluster, "consumerConnection", "-g", "g")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    assert "not online" in result.stderr


async def test_an_unknown_group_is_an_error(cluster: FakeCluster) -> None:
    result = await run(cluster, "consumerConnection", "-g", "nobody")
    assert result.exit_code == 1
    assert "no broker knows the consumer group nobody" in result.stderr


async def test_members_of_a_producer_group_are_numbered(cluster: FakeCluster) -> None:
    producers = Reply(body=golden_line("client/producer-connections.txt"))
    cluster.on(RequestCode.GET_PRODUCER_CONNECTION_LIST, lambda _command, _peer: producers)
    result = await run(cluster, "producerConnection", "-g", "p", "-t", "Orders")
    assert cells(result.stdout)[1][0] == "0001"
    (output,) = await run_json(cluster, "producerConnection", "-g", "p", "-t", "Orders")
    assert (output["language"], output["version"]) == ("PYTHON", "V5_3_3")


# --------------------------------------------------------------------------------------------------------- progress


async def test_progress_is_printed_by_queue_with_totals(cluster: FakeCluster) -> None:
    result = await run(cluster, "consumerProgress", "-g", "g")
    table = cells(result.stdout)
    assert table[1][:7] == ["Orders", "broker-a", "0", "5", "5", "0", "0"]
    assert table[2] == ["Orders", "broker-a", "1", "12", "7", "5", "3", "N/A"]
    assert result.stdout.endswith("Consume TPS: 1.50\nConsume Diff Total: 5\nConsume Inflight Total: 3\n")


async def test_popped_messages_are_printed_by_topic(cluster: FakeCluster) -> None:
    pops = PROGRESS[:-1] + b',"popTable":{"Orders":{"inFlight":3,"waiting":1}}}'
    cluster.on(RequestCode.GET_CONSUME_STATS, lambda _command, _peer: Reply(body=pops))
    result = await run(cluster, "consumerProgress", "-g", "g")
    assert cells(result.stdout)[-1] == ["Orders", "3", "1"]
    output = await run_json(cluster, "consumerProgress", "-g", "g")
    assert output["pops"] == [{"topic": "Orders", "in_flight": 3, "waiting": 1}]


async def test_progress_in_json_has_times_in_milliseconds(cluster: FakeCluster) -> None:
    output = await run_json(cluster, "consumerProgress", "-g", "g", "-t", "Orders")
    assert cluster.seen(RequestCode.GET_CONSUME_STATS)[0].fields["topic"] == "Orders"
    assert [each["last_at_ms"] for each in output["queues"]] == [1_758_275_140_000, None]
    assert (output["diff_total"], output["inflight_total"], output["tps"]) == (5, 3, 1.5)


async def test_progress_without_a_group_is_a_summary_of_all(cluster: FakeCluster) -> None:
    (output,) = await run_json(cluster, "consumerProgress")
    assert output == {
        "group": "g",
        "count": 1,
        "version": "V5_3_3",
        "type": "PUSH",
        "model": "CLUSTERING",
        "tps": 2,
        "diff_total": 5,
    }


async def test_a_group_that_fails_is_reported_and_the_others_are_printed(cluster: FakeCluster) -> None:
    cluster.refuse(RequestCode.GET_CONSUME_STATS, ResponseCode.SYSTEM_ERROR, "no")
    result = await run(cluster, "consumerProgress")
    assert result.exit_code == 1
    assert "g: " in result.stderr
    assert cells(result.stdout)[1][0] == "g"


async def test_progress_names_the_broker_that_failed() -> None:
    async with admin_cluster("broker-a", "broker-b") as cluster:
        cluster.topics["%RETRY%g"] = 1
        cluster.on(RequestCode.GET_CONSUME_STATS, lambda _command, _peer: Reply(body=PROGRESS))
        cluster.refuse(RequestCode.GET_CONSUME_STATS, ResponseCode.SYSTEM_ERROR, "no", broker="broker-b")
        result = await run(cluster, "consumerProgress", "-g", "g")
    assert result.exit_code == 1
    assert f"1 of 2 failed: {cluster.broker('broker-b').address}" in result.stderr


async def test_the_state_of_one_member_has_queues_and_rates(cluster: FakeCluster) -> None:
    running = Reply(body=golden_line("client/running-consumer.txt"))
    cluster.on(RequestCode.GET_CONSUMER_RUNNING_INFO, lambda _command, _peer: running)
    result = await run(cluster, "consumerStatus", "-g", "g", "-i", "someone", "-s")
    assert result.exit_code == 0
    for title in ("#Consumer Properties#", "#Consumer Subscription#", "#Consumer Offset#", "#Consumer RT&TPS#"):
        assert title in result.stdout
    (request,) = cluster.seen(RequestCode.GET_CONSUMER_RUNNING_INFO)
    assert (request.fields["clientId"], request.fields["jstackEnable"]) == ("someone", "true")


async def test_the_subscriptions_of_all_members_are_compared(cluster: FakeCluster) -> None:
    running = Reply(body=golden_line("client/running-consumer.txt"))
    cluster.on(RequestCode.GET_CONSUMER_RUNNING_INFO, lambda _command, _peer: running)
    output = await run_json(cluster, "consumerStatus", "-g", "g")
    assert [each["client_id"] for each in output["consumers"]] == ["192.0.2.2@25552#1794733113236656013"]
    assert output["same_subscription"] is True


# --------------------------------------------------------------------------------------------------- offset resets


async def test_offsets_are_reset_to_a_time(cluster: FakeCluster) -> None:
    moved = Reply(body=b'{"offsetTable":{{"brokerName":"broker-a","queueId":1,"topic":"Orders"}:3}}')
    cluster.on(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, lambda _command, _peer: moved)
    output = await run_json(cluster, "resetOffsetByTime", "-g", "g", "-t", "Orders", "-s", "1000", "-f", "false")
    assert output == [{"broker_name": "broker-a", "queue_id": 1, "offset": 3}]
    (request,) = cluster.seen(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    assert (request.fields["timestamp"], request.fields["isForce"]) == ("1000", "false")


async def test_offsets_are_written_by_the_command_if_the_broker_only_resets_connected_members(
    cluster: FakeCluster,
) -> None:
    for number in range(3):
        cluster.put(cluster.queue("Orders", 0), b"%d" % number)
    cluster.refuse(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ResponseCode.CONSUMER_NOT_ONLINE, "not online")
    output = await run_json(cluster, "resetOffsetByTime", "-g", "g", "-t", "Orders", "-s", "-1")
    assert {each["queue_id"]: each["offset"] for each in output} == {0: 3, 1: 0}
    assert {request.fields["commitOffset"] for request in cluster.seen(RequestCode.UPDATE_CONSUMER_OFFSET)} == {
        "3",
        "0",
    }


async def test_one_queue_is_reset_to_an_offset(cluster: FakeCluster) -> None:
    answer_json(cluster, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"offsetTable": {}})
    arguments = ("-g", "g", "-t", "Orders", "-s", "now", "-b", cluster.broker().address, "-q", "1", "-o", "0")
    await run_json(cluster, "resetOffsetByTime", *arguments)
    (update,), (order,) = (
        cluster.seen(RequestCode.UPDATE_CONSUMER_OFFSET),
        cluster.seen(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET),
    )
    assert (update.fields["queueId"], update.fields["commitOffset"]) == ("1", "0")
    assert (order.fields["queueId"], order.fields["offset"]) == ("1", "0")


async def test_a_reset_of_one_queue_uses_the_names_of_the_namespace() -> None:
    async with admin_cluster(topic="tenant%Orders") as cluster:
        answer_json(cluster, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"offsetTable": {}})
        arguments = ("-g", "g", "-t", "Orders", "-s", "-1", "-b", cluster.broker().address, "-q", "1")
        output = await run_json(cluster, "resetOffsetByTime", *arguments, "--tenant", "tenant")
        assert output == [{"broker_name": "broker-a", "queue_id": 1, "offset": 0}]
        (request,) = cluster.seen(RequestCode.GET_MAX_OFFSET)
        assert request.fields["topic"] == "tenant%Orders"


async def test_offsets_are_copied_to_another_group(cluster: FakeCluster) -> None:
    cluster.offsets.update({("g", cluster.queue("Orders", 0)): 5, ("g", cluster.queue("Orders", 1)): 7})
    output = await run_json(cluster, "cloneGroupOffset", "-s", "g", "-d", "other", "-t", "Orders")
    assert {each["queue_id"]: each["offset"] for each in output} == {0: 5, 1: 7}
    assert {request.fields["consumerGroup"] for request in cluster.seen(RequestCode.UPDATE_CONSUMER_OFFSET)} == {
        "other"
    }


async def test_cloning_a_group_without_offsets_is_an_error(cluster: FakeCluster) -> None:
    result = await run(cluster, "cloneGroupOffset", "-s", "misspelt", "-d", "other", "-t", "Orders")
    assert result.exit_code == 1
    assert "nothing to clone" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("updateSubGroup -g g", "either -b"),
        ("updateSubGroup -g g -b a:1 -c c", "either -b"),
        ("updateSubGroup -b a:1", "Missing option '-g'"),
        ("updateSubGroup -b a:1 -g g -s maybe", "'maybe' is not a valid boolean"),
        ("updateSubGroup -b a:1 -g g -p [1]", "not a JSON object"),
        ("updateSubGroup -b a:1 -g g --attributes a=b", "expected +name=value or -name"),
        ("resetOffsetByTime -g g -t t -s soon", "'soon' is not a time"),
        ("resetOffsetByTime -g g -t t -s 2026-02-31#00:00:00:000", "is not a time"),
        ("resetOffsetByTime -g g -t t -s now -q 1", "-b and -q go together"),
        ("resetOffsetByTime -g g -t t -s now -o 1", "-o needs -b and -q"),
        ("cloneGroupOffset -s a -d b", "Missing option '-t'"),
        ("producerConnection -g g", "Missing option '-t'"),
    ],
)
def test_invalid_options_are_usage_errors(arguments: str, message: str) -> None:
    result = invoke([*arguments.split(), "-n", "127.0.0.1:1"])
    assert result.exit_code == 2
    assert message in result.stderr
