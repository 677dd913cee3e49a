"""Commands about groups: what they ask, what they print, and how they fail."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

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
    """One broker, which knows the group `g`."""
    async with admin_cluster() as cluster:
        cluster.topics["%RETRY%g"] = 1
        cluster.on(208, lambda _command, _peer: Reply(body=PROGRESS))
        connections = Reply(body=golden_line("client/consumer-connections.txt"))
        cluster.on(203, lambda _command, _peer: connections)
        yield cluster


# --------------------------------------------------------------------------------------------------------- settings


async def test_a_group_is_made_with_mqadmins_defaults(cluster: FakeCluster) -> None:
    answer_json(cluster, 200, {})
    result = await run(cluster, "updateSubGroup", "-c", CLUSTER, "-g", "g", "-r", "5", "--attributes", "+a=b,-c")
    assert result.exit_code == 0
    (asked,) = cluster.seen(200)
    config = json.loads(asked.body)
    assert (config["groupName"], config["retryMaxTimes"]) == ("g", 5)
    assert (config["consumeBroadcastEnable"], config["consumeFromMinEnable"]) == (False, False)
    assert config["attributes"] == {"+a": "b", "-c": ""}
    assert f"create subscription group to {cluster.broker().address} success." in result.stdout


async def test_a_retry_policy_goes_to_the_broker_as_it_is(cluster: FakeCluster) -> None:
    answer_json(cluster, 200, {})
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000]}}
    told = await run_json(
        cluster, "updateSubGroup", "-b", cluster.broker().address, "-g", "g", "-p", json.dumps(policy)
    )
    assert json.loads(cluster.seen(200)[0].body)["groupRetryPolicy"] == policy
    assert told["group"]["retry_policy"] == policy


async def test_deleting_from_a_cluster_takes_what_was_to_be_tried_again_too(cluster: FakeCluster) -> None:
    for code in (207, 215, 216):
        answer_json(cluster, code, {}, broker=None)
    result = await run(cluster, "deleteSubGroup", "-c", CLUSTER, "-g", "g", "-r", "true")
    assert result.exit_code == 0
    assert cluster.seen(207)[0].fields["cleanOffset"] == "true"
    assert [asked.fields["topic"] for asked in cluster.seen(215)] == ["%RETRY%g", "%DLQ%g"]


async def test_deleting_from_one_broker_leaves_the_topics(cluster: FakeCluster) -> None:
    answer_json(cluster, 207, {})
    await run_json(cluster, "deleteSubGroup", "-b", cluster.broker().address, "-g", "g")
    assert cluster.seen(207)[0].fields["cleanOffset"] == "false"
    assert cluster.seen(215) == []


# ------------------------------------------------------------------------------------------------------ connections


async def test_consumers_are_listed_with_what_they_subscribe_to(cluster: FakeCluster) -> None:
    lines = (await run(cluster, "consumerConnection", "-g", "g")).stdout.splitlines()
    assert lines[0].split() == ["#ClientId", "#ClientAddr", "#Language", "#Version"]
    assert lines[1].split() == ["192.0.2.2@25552#1794733113236656013", "127.0.0.1:39730", "PYTHON", "V5_3_3"]
    assert "MessageModel: CLUSTERING" in lines
    told = await run_json(cluster, "consumerConnection", "-g", "g", "-b", cluster.broker().address)
    assert [each["expression"] for each in told["subscriptions"]] == ["*", "TagA || TagB"]


async def test_a_group_without_members_is_one_line(cluster: FakeCluster) -> None:
    cluster.refuse(203, 206, "the consumer group[g] not online\nand so on")
    result = await run(cluster, "consumerConnection", "-g", "g")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1
    assert "not online" in result.stderr


async def test_an_unknown_group_is_said_to_be_unknown(cluster: FakeCluster) -> None:
    result = await run(cluster, "consumerConnection", "-g", "nobody")
    assert result.exit_code == 1
    assert "no broker knows the consumer group nobody" in result.stderr


async def test_producers_are_numbered(cluster: FakeCluster) -> None:
    producers = Reply(body=golden_line("client/producer-connections.txt"))
    cluster.on(204, lambda _command, _peer: producers)
    result = await run(cluster, "producerConnection", "-g", "p", "-t", "Orders")
    assert cells(result.stdout)[1][0] == "0001"
    (told,) = await run_json(cluster, "producerConnection", "-g", "p", "-t", "Orders")
    assert (told["language"], told["version"]) == ("PYTHON", "V5_3_3")


# --------------------------------------------------------------------------------------------------------- progress


async def test_progress_is_printed_queue_by_queue_with_totals(cluster: FakeCluster) -> None:
    result = await run(cluster, "consumerProgress", "-g", "g")
    table = cells(result.stdout)
    assert table[1][:7] == ["Orders", "broker-a", "0", "5", "5", "0", "0"]
    assert table[2] == ["Orders", "broker-a", "1", "12", "7", "5", "3", "N/A"]
    assert result.stdout.endswith("Consume TPS: 1.50\nConsume Diff Total: 5\nConsume Inflight Total: 3\n")


async def test_progress_for_programs_has_times_as_numbers(cluster: FakeCluster) -> None:
    told = await run_json(cluster, "consumerProgress", "-g", "g", "-t", "Orders")
    assert cluster.seen(208)[0].fields["topic"] == "Orders"
    assert [each["last_at_ms"] for each in told["queues"]] == [1_758_275_140_000, None]
    assert (told["diff_total"], told["inflight_total"], told["tps"]) == (5, 3, 1.5)


async def test_all_groups_are_printed_at_a_glance(cluster: FakeCluster) -> None:
    (told,) = await run_json(cluster, "consumerProgress")
    assert told == {
        "group": "g",
        "count": 1,
        "version": "V5_3_3",
        "type": "PUSH",
        "model": "CLUSTERING",
        "tps": 2,
        "diff_total": 5,
    }


async def test_a_group_that_cannot_be_looked_at_is_named_and_the_rest_is_printed(cluster: FakeCluster) -> None:
    cluster.refuse(208, 1, "no")
    result = await run(cluster, "consumerProgress")
    assert result.exit_code == 1
    assert "g: " in result.stderr
    assert cells(result.stdout)[1][0] == "g"


async def test_of_several_brokers_one_that_fails_is_named() -> None:
    async with admin_cluster("broker-a", "broker-b") as cluster:
        cluster.topics["%RETRY%g"] = 1
        cluster.on(208, lambda _command, _peer: Reply(body=PROGRESS))
        cluster.refuse(208, 1, "no", broker="broker-b")
        result = await run(cluster, "consumerProgress", "-g", "g")
    assert result.exit_code == 1
    assert f"1 of 2 failed: {cluster.broker('broker-b').address}" in result.stderr


async def test_one_member_tells_of_its_queues_and_its_pace(cluster: FakeCluster) -> None:
    running = Reply(body=golden_line("client/running-consumer.txt"))
    cluster.on(307, lambda _command, _peer: running)
    result = await run(cluster, "consumerStatus", "-g", "g", "-i", "someone", "-s")
    assert result.exit_code == 0
    for title in ("#Consumer Properties#", "#Consumer Subscription#", "#Consumer Offset#", "#Consumer RT&TPS#"):
        assert title in result.stdout
    (asked,) = cluster.seen(307)
    assert (asked.fields["clientId"], asked.fields["jstackEnable"]) == ("someone", "true")


async def test_all_members_are_compared(cluster: FakeCluster) -> None:
    running = Reply(body=golden_line("client/running-consumer.txt"))
    cluster.on(307, lambda _command, _peer: running)
    told = await run_json(cluster, "consumerStatus", "-g", "g")
    assert [each["client_id"] for each in told["consumers"]] == ["192.0.2.2@25552#1794733113236656013"]
    assert told["same_subscription"] is True


# --------------------------------------------------------------------------------------------------- moving groups


async def test_a_group_is_moved_to_a_time(cluster: FakeCluster) -> None:
    moved = Reply(body=b'{"offsetTable":{{"brokerName":"broker-a","queueId":1,"topic":"Orders"}:3}}')
    cluster.on(222, lambda _command, _peer: moved)
    told = await run_json(cluster, "resetOffsetByTime", "-g", "g", "-t", "Orders", "-s", "1000", "-f", "false")
    assert told == [{"broker_name": "broker-a", "queue_id": 1, "offset": 3}]
    (asked,) = cluster.seen(222)
    assert (asked.fields["timestamp"], asked.fields["isForce"]) == ("1000", "false")


async def test_where_the_broker_moves_connected_members_only_the_rest_is_moved_from_here(cluster: FakeCluster) -> None:
    for number in range(3):
        cluster.put(cluster.queue("Orders", 0), b"%d" % number)
    cluster.refuse(222, 206, "not online")
    told = await run_json(cluster, "resetOffsetByTime", "-g", "g", "-t", "Orders", "-s", "-1")
    assert {each["queue_id"]: each["offset"] for each in told} == {0: 3, 1: 0}
    assert {asked.fields["commitOffset"] for asked in cluster.seen(15)} == {"3", "0"}


async def test_one_queue_is_moved_to_an_offset(cluster: FakeCluster) -> None:
    answer_json(cluster, 222, {"offsetTable": {}})
    words = ("-g", "g", "-t", "Orders", "-s", "now", "-b", cluster.broker().address, "-q", "1", "-o", "0")
    await run_json(cluster, "resetOffsetByTime", *words)
    (update,), (order,) = cluster.seen(15), cluster.seen(222)
    assert (update.fields["queueId"], update.fields["commitOffset"]) == ("1", "0")
    assert (order.fields["queueId"], order.fields["offset"]) == ("1", "0")


async def test_offsets_are_cloned_for_the_topic(cluster: FakeCluster) -> None:
    cluster.offsets.update({("g", cluster.queue("Orders", 0)): 5, ("g", cluster.queue("Orders", 1)): 7})
    told = await run_json(cluster, "cloneGroupOffset", "-s", "g", "-d", "other", "-t", "Orders")
    assert {each["queue_id"]: each["offset"] for each in told} == {0: 5, 1: 7}
    assert {asked.fields["consumerGroup"] for asked in cluster.seen(15)} == {"other"}


async def test_nothing_to_clone_is_a_failure(cluster: FakeCluster) -> None:
    result = await run(cluster, "cloneGroupOffset", "-s", "misspelt", "-d", "other", "-t", "Orders")
    assert result.exit_code == 1
    assert "nothing to clone" in result.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("updateSubGroup -g g", "one of the two"),
        ("updateSubGroup -g g -b a:1 -c c", "one of the two"),
        ("updateSubGroup -b a:1", "Missing option '-g'"),
        ("updateSubGroup -b a:1 -g g -s maybe", "'maybe' is not a valid boolean"),
        ("updateSubGroup -b a:1 -g g -p [1]", "not a JSON object"),
        ("updateSubGroup -b a:1 -g g --attributes a=b", "write +name=value or -name"),
        ("resetOffsetByTime -g g -t t -s soon", "'soon' is no time"),
        ("resetOffsetByTime -g g -t t -s 2026-02-31#00:00:00:000", "is no time"),
        ("resetOffsetByTime -g g -t t -s now -q 1", "-b and -q go together"),
        ("resetOffsetByTime -g g -t t -s now -o 1", "-o moves in one queue"),
        ("cloneGroupOffset -s a -d b", "Missing option '-t'"),
        ("producerConnection -g g", "Missing option '-t'"),
    ],
)
def test_a_mistake_on_the_command_line_is_a_usage_error(words: str, complaint: str) -> None:
    result = invoke([*words.split(), "-n", "127.0.0.1:1"])
    assert result.exit_code == 2
    assert complaint in result.stderr
