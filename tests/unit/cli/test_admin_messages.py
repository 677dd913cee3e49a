"""Commands about messages: what they ask, what they print, and how they fail."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator

import pytest
from click.testing import Result

from tests.support.fake_broker import BROKER, FakeCluster, Peer, Reply, offset_id
from tests.support.raw import Command
from tests.unit.cli.admin_cluster import admin_cluster, answer_json, cells, invoke, run, run_json

UNIQUE_ID = "C00002025EBF801781BC4A0510E6F400"


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """One broker with three messages in queue 0; its index finds all, and nobody reads the topic."""
    async with admin_cluster() as cluster:
        queue = cluster.queue("Orders", 0)
        cluster.put(queue, b"first", tag="A", keys="k1 k2", properties={"UNIQ_KEY": UNIQUE_ID})
        cluster.put(queue, b"second", tag="B", keys="k2", properties={"UNIQ_KEY": "other"})
        cluster.put(queue, b"\x1b[2Jthird\xff", tag="A", keys="k3")
        answer_json(cluster, 300, {"groupList": []})

        def everything(_command: Command, _peer: Peer) -> Reply:
            return Reply(body=b"".join(record.data for record in cluster.stored(queue)))

        def at_place(command: Command, _peer: Peer) -> Reply:
            found = [r.data for r in cluster.stored(queue) if str(r.position) == command.fields["offset"]]
            return Reply(body=found[0]) if found else Reply(1, remark="can not find message by offset")

        cluster.on(12, everything)
        cluster.on(33, at_place)
        yield cluster


def values(result: Result) -> list[dict[str, object]]:
    """The JSON values that a command printed, one to a line."""
    assert (result.exit_code, result.stderr) == (0, "")
    return [json.loads(line) for line in result.stdout.splitlines()]


# --------------------------------------------------------------------------------------------------------- finding


async def test_of_what_an_index_finds_only_the_key_itself_counts(cluster: FakeCluster) -> None:
    result = await run(cluster, "queryMsgByKey", "-t", "Orders", "-k", "k2")
    assert [row[0] for row in cells(result.stdout)] == ["#Message", UNIQUE_ID, "other"]
    told = await run_json(cluster, "queryMsgByKey", "-t", "Orders", "-k", "k2", "-m", "5", "-b", "1", "-e", "2")
    assert [each["body"] for each in told] == ["first", "second"]
    fields = cluster.seen(12)[-1].fields
    assert (fields["maxNum"], fields["beginTimestamp"], fields["endTimestamp"]) == ("5", "1", "2")


async def test_tags_are_looked_up_where_brokers_can(cluster: FakeCluster) -> None:
    told = await run_json(cluster, "queryMsgByKey", "-t", "Orders", "-k", "B", "-p", "T", "-l", "0@Orders@T@B@x@0")
    assert [each["message_id"] for each in told] == ["other"]
    assert told[0]["index_key"].startswith("1758272400000@Orders@T@B@other@")
    fields = cluster.seen(12)[0].fields
    assert (fields["indexType"], fields["lastKey"]) == ("T", "0@Orders@T@B@x@0")


async def test_no_message_is_a_failure(cluster: FakeCluster) -> None:
    cluster.refuse(12, 22, "can not find message")
    for words in (("queryMsgByKey", "-k", "k1"), ("queryMsgByUniqueKey", "-i", UNIQUE_ID), ("queryMsgById", "-i", "x")):
        result = await run(cluster, words[0], "-t", "Orders", *words[1:])
        assert (result.exit_code, result.stdout) == (1, "")
        assert "no message of Orders has" in result.stderr


async def test_a_broker_that_cannot_look_is_no_lack_of_messages(cluster: FakeCluster) -> None:
    cluster.refuse(12, 1, "the index is broken")
    result = await run(cluster, "queryMsgByKey", "-t", "Orders", "-k", "k1")
    assert result.exit_code == 1
    assert "the index is broken" in result.stderr


async def test_a_message_is_found_by_either_id(cluster: FakeCluster) -> None:
    position = cluster.stored(cluster.queue("Orders", 0))[1].position
    place = offset_id(cluster.broker().address, position)
    found = values(await run(cluster, "queryMsgById", "-t", "Orders", "-i", f"{UNIQUE_ID},{place}", "--json"))
    assert [each["body"] for each in found] == ["first", "second"]
    assert len(cluster.seen(33)) == 1  # the sender's id names no broker, so nobody is called there


async def test_a_place_without_a_message_may_still_be_a_senders_id(cluster: FakeCluster) -> None:
    place = offset_id(cluster.broker().address, 77)
    cluster.put(cluster.queue("Orders", 0), b"odd", properties={"UNIQ_KEY": place})
    (found,) = values(await run(cluster, "queryMsgById", "-t", "Orders", "-i", place, "--json"))
    assert found["body"] == "odd"


async def test_a_message_is_printed_with_what_became_of_it(cluster: FakeCluster) -> None:
    result = await run(cluster, "queryMsgByUniqueKey", "-t", "Orders", "-i", UNIQUE_ID)
    lines = {line.partition(":")[0]: line.partition(":")[2].strip() for line in result.stdout.splitlines()}
    assert (lines["Tags"], lines["Keys"], lines["Message Body"]) == ("[A]", "[k1 k2]", "first")
    assert "WARN: No Consumer" in result.stdout


async def test_where_nobody_can_say_who_reads_a_topic_the_message_is_printed_all_the_same(cluster: FakeCluster) -> None:
    cluster.refuse(300, 1, "no")
    result = await run(cluster, "queryMsgByUniqueKey", "-t", "Orders", "-i", UNIQUE_ID)
    assert result.exit_code == 1
    assert "Message Body:" in result.stdout
    assert "who has consumed it" in result.stderr


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
async def test_what_became_of_a_message(
    cluster: FakeCluster, connected: dict[str, object] | None, consumed_to: int, track: str
) -> None:
    cluster.topics["%RETRY%g"] = 1
    answer_json(cluster, 300, {"groupList": ["g"]})
    if connected is None:
        cluster.refuse(203, 206, "not online")
    else:
        answer_json(cluster, 203, connected)
    queue = b'{"brokerName":"broker-a","queueId":0,"topic":"Orders"}'
    stats = Reply(body=b'{"offsetTable":{%s:{"consumerOffset":%d}}}' % (queue, consumed_to))
    cluster.on(208, lambda _command, _peer: stats)
    told = await run_json(cluster, "queryMsgByOffset", "-t", "Orders", "-b", BROKER, "-i", "0", "-o", "0")
    assert [(each["group"], each["track"]) for each in told["tracks"]] == [("g", track)]


async def test_a_consumer_handles_a_message_now(cluster: FakeCluster) -> None:
    answer_json(cluster, 309, {"consumeResult": "CR_LATER", "spentTimeMills": 3, "remark": "later"})
    words = ("-t", "Orders", "-i", UNIQUE_ID, "-g", "g", "-d", "someone")
    told = await run_json(cluster, "queryMsgByUniqueKey", *words)
    assert (told["result"], told["remark"], told["spent_ms"]) == ("CR_LATER", "later", 3)
    assert cluster.seen(309)[0].fields["clientId"] == "someone"


async def test_a_message_is_sent_once_more(cluster: FakeCluster) -> None:
    told = await run_json(cluster, "queryMsgById", "-t", "Orders", "-i", UNIQUE_ID, "-s", "true")
    assert told["send_result"] == "SEND_OK"
    assert cluster.stored_bodies("Orders").count(b"first") == 2


# --------------------------------------------------------------------------------------------------------- reading


async def test_messages_are_printed_and_cannot_steer_the_terminal(cluster: FakeCluster) -> None:
    lines = (await run(cluster, "printMsg", "-t", "Orders")).stdout.splitlines()
    assert len(lines) == 3
    assert lines[0].endswith("TAGS: A KEYS: k1 k2 BODY: first")
    assert lines[2].endswith("BODY: \\x1b[2Jthird\\xff")


async def test_messages_for_programs_keep_every_byte(cluster: FakeCluster) -> None:
    found = values(await run(cluster, "printMsg", "-t", "Orders", "-s", "A", "--json"))
    assert [each["body"] for each in found] == ["first", None]
    assert base64.b64decode(str(found[1]["body_base64"])) == b"\x1b[2Jthird\xff"


async def test_bodies_can_be_left_out(cluster: FakeCluster) -> None:
    result = await run(cluster, "printMsg", "-t", "Orders", "-d", "false")
    assert "first" not in result.stdout
    assert "BODY: NOT PRINT BODY" in result.stdout


async def test_reading_ends_at_the_number_and_moves_nobody(cluster: FakeCluster) -> None:
    words = ("-t", "Orders", "-b", BROKER, "-i", "0", "-o", "1", "-c", "1", "-g", "mine")
    (found,) = values(await run(cluster, "consumeMessage", *words, "--json"))
    assert (found["body"], found["queue_offset"]) == ("second", 1)
    assert cluster.seen(11)[0].fields["consumerGroup"] == "mine"
    assert cluster.seen(15) == []


async def test_a_queue_that_is_not_there_is_a_failure(cluster: FakeCluster) -> None:
    result = await run(cluster, "consumeMessage", "-t", "Orders", "-b", BROKER, "-i", "9")
    assert result.exit_code == 1
    assert "no such queue" in result.stderr


# --------------------------------------------------------------------------------------------------------- sending


async def test_a_message_is_sent_to_the_queue_that_was_named(cluster: FakeCluster) -> None:
    words = ("-t", "Orders", "-p", "hellö", "-k", "a b", "-c", "T", "-b", BROKER, "-i", "1")
    table = cells((await run(cluster, "sendMessage", *words)).stdout)
    assert table[1][:3] == [BROKER, "1", "SEND_OK"]
    (record,) = cluster.stored(cluster.queue("Orders", 1))
    assert (record.body, record.tag, record.properties["KEYS"]) == ("hellö".encode(), "T", "a b")


async def test_a_send_that_fails_is_one_line(cluster: FakeCluster) -> None:
    cluster.refuse(310, 16, "no permission")
    result = await run(cluster, "sendMessage", "-t", "Orders", "-p", "x")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.count("\n") == 1


async def test_sends_are_timed_queue_after_queue(cluster: FakeCluster) -> None:
    told = await run_json(cluster, "checkMsgSendRT", "-t", "Orders", "-a", "3", "-s", "10")
    assert [(each["queue_id"], each["ok"]) for each in told["sends"]] == [(0, True), (1, True), (0, True)]
    assert told["average_ms"] > 0
    assert b"a" * 10 in cluster.stored_bodies("Orders")


async def test_a_timed_send_that_fails_is_shown_as_such(cluster: FakeCluster) -> None:
    cluster.refuse(310, 13, "too large", times=1)
    result = await run(cluster, "checkMsgSendRT", "-t", "Orders", "-a", "3")
    assert result.exit_code == 1
    assert [row[2] for row in cells(result.stdout)[1:4]] == ["false", "true", "true"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("queryMsgById -t t", "Missing option '-i'"),
        ("queryMsgById -t t -i x -g g", "-g and -d go together"),
        ("queryMsgById -t t -i x -f nonsense", "is no charset"),
        ("queryMsgByKey -t t -k k -m 0", "0 is not in the range"),
        ("queryMsgByKey -t t -k k -p X", "'X' is not one of"),
        ("queryMsgByOffset -t t -b b -i 0 -o -1", "-1 is not in the range"),
        ("printMsg -t t -b yesterday", "is no time"),
        ("consumeMessage -t t -i 1", "say which, with -b"),
        ("consumeMessage -t t -b b -o 1", "say which, with -b and -i"),
        ("consumeMessage -t t -s 2 -e 1", "-s must not be later than -e"),
        ("sendMessage -t t", "Missing option '-p'"),
        ("sendMessage -t t -p x -i 1", "say which, with -b"),
        ("checkMsgSendRT -t t -a 1", "1 is not in the range"),
    ],
)
def test_a_mistake_on_the_command_line_is_a_usage_error(words: str, complaint: str) -> None:
    result = invoke([*words.split(), "-n", "127.0.0.1:1"])
    assert result.exit_code == 2
    assert complaint in result.stderr
