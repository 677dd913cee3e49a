"""Commands about messages: requests, output and errors."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator

import pytest
from click.testing import Result

from skyroute.wire.codes import RequestCode, ResponseCode
from tests.support.fake_broker import BROKER, FakeCluster, Peer, Reply, offset_id
from tests.support.raw import Command
from tests.unit.cli.admin_cluster import admin_cluster, answer_json, cells, invoke, run, run_json

UNIQUE_ID = "C00002025EBF801781BC4A0510E6F400"


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """A broker with three messages in queue 0. Its index returns all of them; no group reads the topic."""
    async with admin_cluster() as cluster:
        queue = cluster.queue("Orders", 0)
        cluster.put(queue, b"first", tag="A", keys="k1 k2", properties={"UNIQ_KEY": UNIQUE_ID})
        cluster.put(queue, b"second", tag="B", keys="k2", properties={"UNIQ_KEY": "other"})
        cluster.put(queue, b"\x1b[2Jthird\xff", tag="A", keys="k3")
        answer_json(cluster, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"groupList": []})

        def everything(_command: Command, _peer: Peer) -> Reply:
            return Reply(body=b"".join(record.data for record in cluster.stored(queue)))

        def at_place(command: Command, _peer: Peer) -> Reply:
            found = [r.data for r in cluster.stored(queue) if str(r.position) == command.fields["offset"]]
            return (
                Reply(body=found[0])
                if found
                else Reply(ResponseCode.SYSTEM_ERROR, remark="can not find message by offset")
            )

        cluster.on(RequestCode.QUERY_MESSAGE, everything)
        cluster.on(RequestCode.VIEW_MESSAGE_BY_ID, at_place)
        yield cluster


def values(result: Result) -> list[dict[str, object]]:
    """Return the JSON values that a command printed, one per line."""
    assert (result.exit_code, result.stderr) == (0, "")
    return [json.loads(line) for line in result.stdout.splitlines()]


# --------------------------------------------------------------------------------------------------------- finding


async def test_messages_with_other_keys_are_removed_from_the_result_of_the_index(cluster: FakeCluster) -> None:
    result = await run(cluster, "queryMsgByKey", "-t", "Orders", "-k", "k2")
    assert [row[0] for row in cells(result.stdout)] == ["#Message", UNIQUE_ID, "other"]
    output = await run_json(cluster, "queryMsgByKey", "-t", "Orders", "-k", "k2", "-m", "5", "-b", "1", "-e", "2")
    assert [each["body"] for each in output] == ["first", "second"]
    fields = cluster.seen(RequestCode.QUERY_MESSAGE)[-1].fields
    assert (fields["maxNum"], fields["beginTimestamp"], fields["endTimestamp"]) == ("5", "1", "2")


async def test_a_query_by_tag_sends_the_index_type(cluster: FakeCluster) -> None:
    output = await run_json(cluster, "queryMsgByKey", "-t", "Orders", "-k", "B", "-p", "T", "-l", "0@Orders@T@B@x@0")
    assert [each["message_id"] for each in output] == ["other"]
    assert output[0]["index_key"].startswith("1758272400000@Orders@T@B@other@")
    fields = cluster.seen(RequestCode.QUERY_MESSAGE)[0].fields
    assert (fields["indexType"], fields["lastKey"]) == ("T", "0@Orders@T@B@x@0")


async def test_a_message_that_does_not_exist_is_an_error(cluster: FakeCluster) -> None:
    cluster.refuse(RequestCode.QUERY_MESSAGE, ResponseCode.QUERY_NOT_FOUND, "can not find message")
    for arguments in (
        ("queryMsgByKey", "-k", "k1"),
        ("queryMsgByUniqueKey", "-i", UNIQUE_ID),
        ("queryMsgById", "-i", "x"),
    ):
        result = await run(cluster, arguments[0], "-t", "Orders", *arguments[1:])
        assert (result.exit_code, result.stdout) == (1, "")
        assert "no message of Orders has" in result.stderr


async def test_a_failed_query_is_not_reported_as_a_missing_message(cluster: FakeCluster) -> None:
    cluster.refuse(RequestCode.QUERY_MESSAGE, ResponseCode.SYSTEM_ERROR, "the index is broken")
    result = await run(cluster, "queryMsgByKey", "-t", "Orders", "-k", "k1")
    assert result.exit_code == 1
    assert "the index is broken" in result.stderr


async def test_a_message_is_found_by_unique_id_and_by_offset_id(cluster: FakeCluster) -> None:
    position = cluster.stored(cluster.queue("Orders", 0))[1].position
    place = offset_id(cluster.broker().address, position)
    found = values(await run(cluster, "queryMsgById", "-t", "Orders", "-i", f"{UNIQUE_ID},{place}", "--json"))
    assert [each["body"] for each in found] == ["first", "second"]
    assert len(cluster.seen(RequestCode.VIEW_MESSAGE_BY_ID)) == 1  # the unique id contains no broker address


async def test_an_id_without_a_record_at_its_position_is_tried_as_a_unique_id(cluster: FakeCluster) -> None:
    place = offset_id(cluster.broker().address, 77)
    cluster.put(cluster.queue("Orders", 0), b"odd", properties={"UNIQ_KEY": place})
    (found,) = values(await run(cluster, "queryMsgById", "-t", "Orders", "-i", place, "--json"))
    assert found["body"] == "odd"


async def test_a_message_is_printed_with_its_tracking(cluster: FakeCluster) -> None:
    result = await run(cluster, "queryMsgByUniqueKey", "-t", "Orders", "-i", UNIQUE_ID)
    lines = {line.partition(":")[0]: line.partition(":")[2].strip() for line in result.stdout.splitlines()}
    assert (lines["Tags"], lines["Keys"], lines["Message Body"]) == ("[A]", "[k1 k2]", "first")
    assert "WARN: No Consumer" in result.stdout


async def test_a_message_is_printed_even_if_its_groups_cannot_be_read(cluster: FakeCluster) -> None:
    cluster.refuse(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, ResponseCode.SYSTEM_ERROR, "no")
    result = await run(cluster, "queryMsgByUniqueKey", "-t", "Orders", "-i", UNIQUE_ID)
    assert result.exit_code == 1
    assert "Message Body:" in result.stdout
    assert "consumer groups: " in result.stderr


@pytest.mark.parametrize(
    ("connected", "consumed_to", "track"),
    [
        ({"consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}, 1, "CONSUMED"),
        ({"consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING"}, 0, "NOT_CONSUME_YET"),
        ({"consumeType": "CONSUME_PASSIVELY", "messageModel": "BROADCASTING"}, 1, "CONSUME_BROADCASTING"),
        ({"consumeType": "CONSUME_ACTIVELY", "messageModel": "CLUSTERING"}, 1, "PULL"),
        (
            {
                "consumeType": "CONSUME_PASSIVELY",
                "messageModel": "CLUSTERING",
                "subscriptionTable": {"Orders": {"topic": "Orders", "subString": "B", "tagsSet": ["B"]}},
            },
            1,
            "CONSUMED_BUT_FILTERED",
        ),
        (None, 1, "NOT_ONLINE"),
    ],
)
async def test_tracking_of_a_message(
    cluster: FakeCluster, connected: dict[str, object] | None, consumed_to: int, track: str
) -> None:
    cluster.topics["%RETRY%g"] = 1
    answer_json(cluster, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"groupList": ["g"]})
    if connected is None:
        cluster.refuse(RequestCode.GET_CONSUMER_CONNECTION_LIST, ResponseCode.CONSUMER_NOT_ONLINE, "not online")
    else:
        answer_json(cluster, RequestCode.GET_CONSUMER_CONNECTION_LIST, connected)
    queue = b'{"brokerName":"broker-a","queueId":0,"topic":"Orders"}'
    stats = Reply(body=b'{"offsetTable":{%s:{"consumerOffset":%d}}}' % (queue, consumed_to))
    cluster.on(RequestCode.GET_CONSUME_STATS, lambda _command, _peer: stats)
    output = await run_json(cluster, "queryMsgByOffset", "-t", "Orders", "-b", BROKER, "-i", "0", "-o", "0")
    assert [(each["group"], each["track"]) for each in output["tracks"]] == [("g", track)]


async def test_a_message_is_consumed_directly_by_a_member(cluster: FakeCluster) -> None:
    answer_json(
        cluster,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        {"consumeResult": "CR_LATER", "spentTimeMills": 3, "remark": "later"},
    )
    arguments = ("-t", "Orders", "-i", UNIQUE_ID, "-g", "g", "-d", "someone")
    output = await run_json(cluster, "queryMsgByUniqueKey", *arguments)
    assert (output["result"], output["remark"], output["spent_ms"]) == ("CR_LATER", "later", 3)
    assert cluster.seen(RequestCode.CONSUME_MESSAGE_DIRECTLY)[0].fields["clientId"] == "someone"


async def test_a_message_is_sent_again(cluster: FakeCluster) -> None:
    output = await run_json(cluster, "queryMsgById", "-t", "Orders", "-i", UNIQUE_ID, "-s", "true")
    assert output["send_result"] == "SEND_OK"
    assert cluster.stored_bodies("Orders").count(b"first") == 2


# --------------------------------------------------------------------------------------------------------- reading


async def test_terminal_escape_sequences_in_messages_are_escaped(cluster: FakeCluster) -> None:
    lines = (await run(cluster, "printMsg", "-t", "Orders")).stdout.splitlines()
    assert len(lines) == 3
    assert lines[0].endswith("TAGS: A KEYS: k1 k2 BODY: first")
    assert lines[2].endswith("BODY: \\x1b[2Jthird\\xff")


async def test_json_has_the_body_in_base64(cluster: FakeCluster) -> None:
    found = values(await run(cluster, "printMsg", "-t", "Orders", "-s", "A", "--json"))
    assert [each["body"] for each in found] == ["first", None]
    assert base64.b64decode(str(found[1]["body_base64"])) == b"\x1b[2Jthird\xff"


async def test_bodies_can_be_omitted(cluster: FakeCluster) -> None:
    result = await run(cluster, "printMsg", "-t", "Orders", "-d", "false")
    assert "first" not in result.stdout
    assert "BODY: NOT PRINT BODY" in result.stdout


async def test_consume_message_stops_at_the_maximum_and_commits_nothing(cluster: FakeCluster) -> None:
    arguments = ("-t", "Orders", "-b", BROKER, "-i", "0", "-o", "1", "-c", "1", "-g", "mine")
    (found,) = values(await run(cluster, "consumeMessage", *arguments, "--json"))
    assert (found["body"], found["queue_offset"]) == ("second", 1)
    assert cluster.seen(RequestCode.PULL_MESSAGE)[0].fields["consumerGroup"] == "mine"
    assert cluster.seen(RequestCode.UPDATE_CONSUMER_OFFSET) == []


async def test_a_queue_that_does_not_exist_is_an_error(cluster: FakeCluster) -> None:
    result = await run(cluster, "consumeMessage", "-t", "Orders", "-b", BROKER, "-i", "9")
    assert result.exit_code == 1
    assert "no such queue" in result.stderr


# --------------------------------------------------------------------------------------------------------- sending


async def test_a_message_is_sent_to_the_given_queue(cluster: FakeCluster) -> None:
    arguments = ("-t", "Orders", "-p", "hellö", "-k", "a b", "-c", "T", "-b", BROKER, "-i", "1")
    table = cells((await run(cluster, "sendMessage", *arguments)).stdout)
    assert table[1][:3] == [BROKER, "1", "SEND_OK"]
    (record,) = cluster.stored(cluster.queue("Orders", 1))
    assert (record.body, record.tag, record.properties["KEYS"]) == ("hellö".encode(), "T", "a b")


async def test_a_failed_send_is_an_error_in_one_line(cluster: FakeCluster) -> None:
    cluster.refuse(RequestCode.SEND_MESSAGE_V2, ResponseCode.NO_PERMISSION, "no permission")
    result = await run(cluster, "sendMessage", "-t", "Orders", "-p", "x")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1


async def test_send_latency_is_measured_on_every_queue(cluster: FakeCluster) -> None:
    output = await run_json(cluster, "checkMsgSendRT", "-t", "Orders", "-a", "3", "-s", "10")
    assert [(each["queue_id"], each["ok"]) for each in output["sends"]] == [(0, True), (1, True), (0, True)]
    assert output["average_ms"] > 0
    assert b"a" * 10 in cluster.stored_bodies("Orders")


async def test_a_failed_send_is_printed_in_the_latency_table(cluster: FakeCluster) -> None:
    cluster.refuse(RequestCode.SEND_MESSAGE_V2, ResponseCode.MESSAGE_ILLEGAL, "too large", times=1)
    result = await run(cluster, "checkMsgSendRT", "-t", "Orders", "-a", "3")
    assert result.exit_code == 1
    assert [row[2] for row in cells(result.stdout)[1:4]] == ["false", "true", "true"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("queryMsgById -t t", "Missing option '-i'"),
        ("queryMsgById -t t -i x -g g", "-g and -d go together"),
        ("queryMsgById -t t -i x -f nonsense", "unknown charset"),
        ("queryMsgByKey -t t -k k -m 0", "0 is not in the range"),
        ("queryMsgByKey -t t -k k -p X", "'X' is not one of"),
        ("queryMsgByOffset -t t -b b -i 0 -o -1", "-1 is not in the range"),
        ("printMsg -t t -b yesterday", "is not a time"),
        ("consumeMessage -t t -i 1", "-i needs -b"),
        ("consumeMessage -t t -b b -o 1", "-o needs -b and -i"),
        ("consumeMessage -t t -s 2 -e 1", "-s must not be later than -e"),
        ("sendMessage -t t", "Missing option '-p'"),
        ("sendMessage -t t -p x -i 1", "-i needs -b"),
        ("checkMsgSendRT -t t -a 1", "1 is not in the range"),
    ],
)
def test_invalid_options_are_usage_errors(arguments: str, message: str) -> None:
    result = invoke([*arguments.split(), "-n", "127.0.0.1:1"])
    assert result.exit_code == 2
    assert message in result.stderr
