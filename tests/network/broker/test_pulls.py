"""Pulls: their messages and refusals, and the responses of suspended pulls."""

from typing import Any

import pytest

from skyroute.broker.delivery import long_polling
from skyroute.broker.handlers.pull import SUSPEND_MS_MAX
from skyroute.wire.calls.groups import GroupConfig
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.network.broker.calls import (
    COMMIT,
    LITE,
    SUBSCRIPTION,
    SUSPEND,
    found,
    found_bodies,
    heartbeat,
    java_hash,
    place,
    pull,
    send,
)
from tests.network.broker.clusters import Cluster
from tests.support.connections import AsyncConnection
from tests.support.raw import Command, Form, Request
from tests.support.waiting import eventually

WAITING = SUSPEND | SUBSCRIPTION


@pytest.fixture
async def cluster(cluster: Cluster) -> Cluster:
    await cluster.add_topic("T", 2)
    return cluster


async def fill(line: AsyncConnection, *tags: str, topic: str = "T", queue_id: int = 0) -> None:
    """Store messages with these tags; each body is its tag."""
    for tag in tags:
        properties = {"TAGS": tag, "length": str(len(tag))}
        assert (
            await line.call(send(topic, tag.encode(), queue_id=queue_id, properties=properties))
        ).code == ResponseCode.SUCCESS


async def suspended_pull(cluster: Cluster, line: AsyncConnection, request: Request) -> int:
    """Send a pull that is suspended; return its request id."""
    waiting = len(cluster.broker.components.long_polling)
    opaque = await line.send(request)
    await eventually(lambda: len(cluster.broker.components.long_polling) == waiting + 1)
    return opaque


def expire(cluster: Cluster, seconds: float) -> None:
    cluster.clock.advance(seconds)
    cluster.broker.components.long_polling.expire(cluster.clock.monotonic())


# ------------------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("form", ["json", "binary"])
@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
async def test_messages_are_pulled_in_order(cluster: Cluster, code: int, form: Form) -> None:
    line = await cluster.line(form=form)
    await fill(line, "a", "b", "c")
    answer = await line.call(pull(offset=1, code=code, flag=SUBSCRIPTION | LITE))
    assert (answer.code, answer.remark, answer.form) == (ResponseCode.SUCCESS, "FOUND", form)
    assert place(answer) == [3, 0, 3, 0]
    assert [(one.body, one.queue_offset) for one in found(answer)] == [(b"b", 1), (b"c", 2)]


@pytest.mark.parametrize(
    ("offset", "queue_id", "code", "remark", "offsets"),
    [
        (3, 0, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", [3, 0, 3, 0]),
        (4, 0, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", [3, 0, 3, 0]),
        (1 << 62, 0, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", [3, 0, 3, 0]),
        (-1, 0, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", [0, 0, 3, 0]),
        (0, 1, ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", [0, 0, 0, 0]),
        (5, 1, ResponseCode.PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE", [0, 0, 0, 0]),
        (-1, 1, ResponseCode.PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE", [0, 0, 0, 0]),
    ],
)
async def test_a_pull_outside_the_queue_returns_where_to_continue(
    cluster: Cluster, line: AsyncConnection, offset: int, queue_id: int, code: int, remark: str, offsets: list[int]
) -> None:
    await fill(line, "a", "b", "c")
    answer = await line.call(pull(offset=offset, queue_id=queue_id))
    assert (answer.code, answer.remark, place(answer), answer.body) == (code, remark, offsets, b"")


async def test_a_pull_skips_expired_messages(empty_cluster: Cluster) -> None:
    cluster = empty_cluster
    await cluster.start(commit_log_file_bytes=4096, retention_ms=3_600_000)
    await cluster.add_topic("T")
    line = await cluster.line()
    for _ in range(3):
        await line.call(send(body=bytes(3000)))
    cluster.clock.advance(2 * 3600)
    await line.call(send(body=b"young"))
    assert (await line.call(329)).code == ResponseCode.SUCCESS
    answer = await line.call(pull(offset=0))
    assert (answer.code, answer.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL")
    start = place(answer)[0]
    assert place(answer) == [start, start, 4, 0]
    assert 0 < start <= 3
    assert found_bodies(await line.call(pull(offset=start)))[-1] == b"young"


async def test_an_offset_reset_is_reported_to_one_pull(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, "a", "b", "c")
    cluster.broker.components.offsets.reset("g", "T", 0, 1)
    answer = await line.call(pull(offset=3, flag=SUBSCRIPTION | COMMIT, commit=3))
    assert (answer.code, answer.remark, place(answer)) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", [1, 0, 3, 0])
    assert cluster.broker.components.offsets.get("g", "T", 0) == 1
    assert (await line.call(pull(offset=3))).code == ResponseCode.PULL_NOT_FOUND


# -------------------------------------------------------------------------------------------------------------- checks


def _forbid_group(cluster: Cluster) -> None:
    cluster.broker.components.groups.put(GroupConfig("g", enabled=False))


def _forbid_topic(cluster: Cluster) -> None:
    cluster.broker.components.topics.put(TopicConfig("T", 2, 2, 2))


def _forbid_broker(cluster: Cluster) -> None:
    cluster.broker.config.broker_permission = 2


def _forbid_lite(cluster: Cluster) -> None:
    cluster.broker.config.lite_pull_enabled = False


def _know_no_groups(cluster: Cluster) -> None:
    cluster.broker.config.auto_create_groups = False


def _forbid_conditions(cluster: Cluster) -> None:
    cluster.broker.config.property_filter_enabled = False


@pytest.mark.parametrize(
    ("forbid", "request_", "code", "kind", "text"),
    [
        (_forbid_broker, pull(), ResponseCode.NO_PERMISSION, "1", "the broker[127.0.0.1] pulling message is forbidden"),
        (
            _forbid_lite,
            pull(code=361),
            ResponseCode.NO_PERMISSION,
            "1",
            "the broker[127.0.0.1] for lite pull consumer is forbidden",
        ),
        (
            _know_no_groups,
            pull(group="new"),
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            None,
            "subscription group [new] does not exist, create it with",
        ),
        (_forbid_group, pull(), ResponseCode.NO_PERMISSION, "2", "subscription group no permission, g"),
        (None, pull("Nothing"), ResponseCode.TOPIC_NOT_EXIST, None, "topic[Nothing] not exist, apply first please!"),
        (_forbid_topic, pull(), ResponseCode.NO_PERMISSION, "3", "the topic[T] pulling message is forbidden"),
        (
            None,
            pull(queue_id=2),
            ResponseCode.INVALID_PARAMETER,
            None,
            "queueId[2] is illegal, topic:[T] topicConfig.readQueueNums:[2] consumer:[",
        ),
        (
            None,
            pull(queue_id=-1),
            ResponseCode.INVALID_PARAMETER,
            None,
            "queueId[-1] is illegal, topic:[T] topicConfig.readQueueNums:[2]",
        ),
        (
            None,
            pull(expression="||"),
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            None,
            "parse the consumer's subscription failed",
        ),
        (None, pull(expression="a >", kind="SQL92"), ResponseCode.SUBSCRIPTION_PARSE_FAILED, None, ""),
        (
            None,
            pull(expression="x", kind="XPATH"),
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            None,
            "unknown filter type 'XPATH'",
        ),
        (
            _forbid_conditions,
            pull(expression="a > 1", kind="SQL92"),
            ResponseCode.SYSTEM_ERROR,
            None,
            "The broker does not support consumer to",
        ),
        (None, pull(flag=0), ResponseCode.SUBSCRIPTION_NOT_EXIST, None, "the consumer's group info not exist"),
    ],
)
async def test_invalid_pulls_are_refused(
    cluster: Cluster, line: AsyncConnection, forbid: Any, request_: Request, code: int, kind: str | None, text: str
) -> None:
    if forbid is not None:
        forbid(cluster)
    answer = await line.call(request_)
    assert answer.code == code, answer
    assert (answer.remark or "").startswith(text)
    assert answer.remark
    assert answer.fields.get("forbiddenType") == kind


async def test_a_pull_without_a_known_subscription_is_refused(cluster: Cluster, line: AsyncConnection) -> None:
    await line.call(heartbeat("g", "Other"))
    answer = await line.call(pull(flag=0))
    assert (answer.code, answer.remark) == (
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        "the consumer's subscription not exist",
    )
    await line.call(heartbeat("g", "T", version=5))
    answer = await line.call(pull(flag=0, version=6))
    assert (answer.code, answer.remark) == (
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        "the consumer's subscription not latest",
    )
    assert (await line.call(pull(flag=0, version=5))).code == ResponseCode.PULL_NOT_FOUND


async def test_a_broadcast_pull_is_refused_where_it_is_forbidden(cluster: Cluster, line: AsyncConnection) -> None:
    cluster.broker.components.groups.put(GroupConfig("g", broadcast=False))
    await line.call(heartbeat(messageModel="BROADCASTING"))
    answer = await line.call(pull(flag=0))
    text = "the consumer group[g] can not consume by broadcast way"
    assert (answer.code, answer.remark, answer.fields["forbiddenType"]) == (ResponseCode.NO_PERMISSION, text, "4")


async def test_a_group_may_be_forbidden_to_read_one_topic(cluster: Cluster, line: AsyncConnection) -> None:
    await line.call(heartbeat())
    order = {"group": "g", "topic": "T", "readable": "false"}
    assert (await line.call(353, order)).code == ResponseCode.SUCCESS
    answer = await line.call(pull(flag=0))
    text = "the consumer group[g] is forbidden for topic[T]"
    assert (answer.code, answer.remark, answer.fields["forbiddenType"]) == (ResponseCode.NO_PERMISSION, text, "5")


@pytest.mark.parametrize(
    "missing", ["consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "suspendTimeoutMillis"]
)
async def test_the_refusal_names_a_missing_field(line: AsyncConnection, missing: str) -> None:
    request = pull(flag=WAITING)
    fields = {name: value for name, value in request.fields.items() if name != missing}
    answer = await line.call(11, fields)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, f"{missing} is required")


# ------------------------------------------------------------------------------------------------------------- filters


async def test_a_pull_returns_only_messages_with_its_tags(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, "a", "b", "c", "a", "b")
    answer = await line.call(pull(expression="a || c"))
    assert (found_bodies(answer), place(answer)) == ([b"a", b"c", b"a"], [5, 0, 5, 0])
    answer = await line.call(pull(offset=1, expression="nothing"))
    assert (answer.code, answer.remark, place(answer)) == (
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        "NO_MATCHED_MESSAGE",
        [5, 0, 5, 0],
    )


async def test_messages_with_equal_tag_hashes_are_all_returned(cluster: Cluster, line: AsyncConnection) -> None:
    assert java_hash("Aa") == java_hash("BB")
    await fill(line, "Aa", "BB", "CC")
    assert found_bodies(await line.call(pull(expression="Aa"))) == [b"Aa", b"BB"]


async def test_a_pull_returns_only_messages_that_its_sql_filter_accepts(
    cluster: Cluster, line: AsyncConnection
) -> None:
    await fill(line, "a", "bb", "ccc")
    answer = await line.call(pull(expression="length >= 2 AND TAGS <> 'ccc'", kind="SQL92"))
    assert (found_bodies(answer), place(answer)) == ([b"bb"], [3, 0, 3, 0])
    answer = await line.call(pull(expression="length > 5", kind="SQL92"))
    assert (answer.code, place(answer)) == (ResponseCode.PULL_RETRY_IMMEDIATELY, [3, 0, 3, 0])


async def test_a_group_with_an_invalid_sql_filter_is_refused(line: AsyncConnection) -> None:
    for version, kind in enumerate(("SQL92", "XPATH")):
        wrong = {"topic": "T", "subString": "a >", "expressionType": kind, "subVersion": version}
        await line.call(heartbeat(subscriptionDataSet=[wrong]))
        answer = await line.call(pull(flag=0, version=version))
        assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
        assert answer.remark


async def test_retries_can_be_filtered_by_the_subscription_of_their_original_topic(
    cluster: Cluster, line: AsyncConnection
) -> None:
    wanted = {"topic": "T", "subString": "length > 1", "expressionType": "SQL92", "subVersion": 5}
    retries = {"topic": "%RETRY%g", "subString": "*", "expressionType": "TAG", "subVersion": 5}
    await line.call(heartbeat(subscriptionDataSet=[wanted, retries]))
    for body, origin in ((b"a", "T"), (b"bb", "T"), (b"c", "Other")):
        properties = {"length": str(len(body)), "RETRY_TOPIC": origin}
        assert (await line.call(send("%RETRY%g", body, properties=properties))).code == ResponseCode.SUCCESS
    assert found_bodies(await line.call(pull("%RETRY%g", flag=0))) == [b"a", b"bb", b"c"]
    cluster.broker.config.filter_retry_topics = True
    assert found_bodies(await line.call(pull("%RETRY%g", flag=0))) == [b"bb", b"c"]


async def test_a_pull_without_expression_uses_the_subscription_of_the_heartbeat(
    cluster: Cluster, line: AsyncConnection
) -> None:
    await fill(line, "a", "b", "c")
    await line.call(heartbeat(expression="b || c"))
    assert found_bodies(await line.call(pull(flag=0))) == [b"b", b"c"]


# -------------------------------------------------------------------------------------------------------------- limits


async def test_a_pull_returns_at_most_the_requested_number_of_messages(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, *"abcde")
    answer = await line.call(pull(offset=1, count=2))
    assert (found_bodies(answer), place(answer)) == ([b"b", b"c"], [3, 0, 5, 0])
    for count in (0, -1):
        assert found_bodies(await line.call(pull(count=count))) == [b"a"]
    cluster.broker.config.pull_messages_max = 3
    assert found_bodies(await line.call(pull(count=1000))) == [b"a", b"b", b"c"]


async def test_a_pull_returns_at_most_the_allowed_bytes_and_at_least_one_message(
    cluster: Cluster, line: AsyncConnection
) -> None:
    for _ in range(3):
        await line.call(send(body=bytes(1000)))
    size = len((await line.call(pull(count=1))).body)
    cluster.broker.config.pull_bytes_max = 2 * size
    assert len(found(await line.call(pull(maxMsgBytes="100000")))) == 2
    cluster.broker.config.pull_bytes_max = 1
    assert len(found(await line.call(pull()))) == 1


async def test_a_pull_response_has_the_flags_of_topic_and_group(cluster: Cluster, line: AsyncConnection) -> None:
    await cluster.add_topic("Unit", sys_flag=1)
    cluster.broker.components.groups.put(GroupConfig("flagged", sys_flag=4))
    for topic, group, flags in (("T", "g", ("0", "0")), ("Unit", "flagged", ("1", "4"))):
        fields = (await line.call(pull(topic, group=group))).fields
        assert (fields["topicSysFlag"], fields["groupSysFlag"]) == flags


async def test_a_pull_with_the_commit_flag_commits_its_offset(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, "a", "b")
    await line.call(pull(offset=1, commit=1))
    assert cluster.broker.components.offsets.get("g", "T", 0) is None
    await line.call(pull(offset=1, commit=1, flag=SUBSCRIPTION | COMMIT))
    assert cluster.broker.components.offsets.get("g", "T", 0) == 1
    await suspended_pull(cluster, line, pull(offset=2, commit=2, flag=WAITING | COMMIT))
    assert cluster.broker.components.offsets.get("g", "T", 0) == 2
    cluster.broker.components.offsets.commit("g", "T", 0, 7)
    await fill(await cluster.line(), "c")
    await line.receive()
    assert cluster.broker.components.offsets.get("g", "T", 0) == 7


async def test_a_refused_pull_commits_nothing(cluster: Cluster, line: AsyncConnection) -> None:
    await line.call(pull(commit=5, flag=COMMIT))
    await line.call(pull(queue_id=9, commit=5, flag=SUBSCRIPTION | COMMIT))
    assert cluster.broker.components.offsets.get("g", "T", 0) is None
    assert cluster.broker.components.offsets.get("g", "T", 9) is None


# ------------------------------------------------------------------------------------------------------------- waiting


async def test_a_message_wakes_the_suspended_pulls_of_its_queue(cluster: Cluster, line: AsyncConnection) -> None:
    waiting = [await suspended_pull(cluster, line, pull(group=group, flag=WAITING)) for group in ("g", "h")]
    elsewhere = await suspended_pull(cluster, line, pull(queue_id=1, flag=WAITING))
    await fill(await cluster.line(), "a")
    for opaque in waiting:
        answer = await line.answer(opaque)
        assert (answer.code, found_bodies(answer), place(answer)) == (ResponseCode.SUCCESS, [b"a"], [1, 0, 1, 0])
    assert len(cluster.broker.components.long_polling) == 1
    await fill(await cluster.line(), "b", queue_id=1)
    assert found_bodies(await line.answer(elsewhere)) == [b"b"]
    assert len(cluster.broker.components.long_polling) == 0


async def test_messages_of_one_batch_wake_a_pull_once_and_come_together(
    cluster: Cluster, line: AsyncConnection
) -> None:
    waiting = await suspended_pull(cluster, line, pull(flag=WAITING))
    sender = await cluster.line()
    sent = [await sender.send(send(body=b"%d" % number)) for number in range(3)]
    answer = await line.answer(waiting)
    assert found_bodies(answer)[0] == b"0"
    assert [(await sender.answer(opaque)).code for opaque in sent] == [ResponseCode.SUCCESS] * 3


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
async def test_messages_that_do_not_match_keep_a_pull_suspended_and_are_read_once(
    cluster: Cluster, line: AsyncConnection, kind: str
) -> None:
    expression = "wanted" if kind == "TAG" else "TAGS = 'wanted'"
    waiting = await suspended_pull(cluster, line, pull(flag=WAITING, expression=expression, kind=kind))
    sender = await cluster.line()
    await fill(sender, "other", "another")
    assert (
        await sender.call(pull(offset=2))
    ).code == ResponseCode.PULL_NOT_FOUND  # woken pulls have been answered by now
    assert len(cluster.broker.components.long_polling) == 1
    expire(cluster, 16)
    answer = await line.answer(waiting)
    assert (answer.code, place(answer)) == (ResponseCode.PULL_NOT_FOUND, [2, 0, 2, 0])
    waiting = await suspended_pull(cluster, line, pull(offset=2, flag=WAITING, expression=expression, kind=kind))
    await fill(sender, "other", "wanted")
    answer = await line.answer(waiting)
    assert (found_bodies(answer), place(answer)) == ([b"wanted"], [4, 0, 4, 0])


async def test_a_suspended_pull_without_messages_ends_with_pull_not_found(
    cluster: Cluster, line: AsyncConnection
) -> None:
    await fill(line, "a")
    waiting = await suspended_pull(cluster, line, pull(offset=1, flag=WAITING, suspend_ms=3_000))
    expire(cluster, 2.5)
    assert len(cluster.broker.components.long_polling) == 1
    expire(cluster, 1)
    answer = await line.answer(waiting)
    assert (answer.code, answer.remark, place(answer)) == (
        ResponseCode.PULL_NOT_FOUND,
        "OFFSET_OVERFLOW_ONE",
        [1, 0, 1, 0],
    )
    assert len(cluster.broker.components.long_polling) == 0


@pytest.mark.parametrize("suspend_ms", [SUSPEND_MS_MAX + 1, (1 << 63) - 1])
async def test_the_suspend_time_of_a_pull_is_bounded(cluster: Cluster, line: AsyncConnection, suspend_ms: int) -> None:
    waiting = await suspended_pull(cluster, line, pull(flag=WAITING, suspend_ms=suspend_ms))
    expire(cluster, SUSPEND_MS_MAX / 1000 + 0.5)
    assert (await line.answer(waiting)).code == ResponseCode.PULL_NOT_FOUND


@pytest.mark.parametrize("suspend_ms", [0, -5])
async def test_a_pull_without_the_suspend_flag_returns_at_once(line: AsyncConnection, suspend_ms: int) -> None:
    assert (await line.call(pull("TBW102", flag=WAITING, suspend_ms=suspend_ms))).code == ResponseCode.PULL_NOT_FOUND
    assert (await line.call(pull("TBW102", flag=SUBSCRIPTION))).code == ResponseCode.PULL_NOT_FOUND


async def test_short_polling_replaces_disabled_long_polling(cluster: Cluster, line: AsyncConnection) -> None:
    cluster.broker.config.long_polling_enabled = False
    waiting = await suspended_pull(cluster, line, pull(flag=WAITING))
    expire(cluster, 1.5)
    assert (await line.answer(waiting)).code == ResponseCode.PULL_NOT_FOUND


async def test_an_offset_reset_ends_a_suspended_pull_at_once(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, "a", "b")
    waiting = await suspended_pull(cluster, line, pull(offset=2, flag=WAITING))
    other = await suspended_pull(cluster, line, pull(offset=2, group="h", flag=WAITING))
    order = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true"}
    assert (await (await cluster.line()).call(222, order)).code == ResponseCode.SUCCESS
    answer = await line.answer(waiting)
    assert (answer.code, answer.remark, place(answer)) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", [0, 0, 2, 0])
    assert len(cluster.broker.components.long_polling) == 1
    expire(cluster, 16)
    assert (await line.answer(other)).code == ResponseCode.PULL_NOT_FOUND


async def test_a_closed_connection_drops_its_suspended_pulls(cluster: Cluster, line: AsyncConnection) -> None:
    gone = await cluster.line()
    await suspended_pull(cluster, line, pull(flag=WAITING))
    for queue_id in (0, 1):
        await suspended_pull(cluster, gone, pull(queue_id=queue_id, flag=WAITING))
    gone.abort()
    await eventually(lambda: len(cluster.broker.components.long_polling) == 1)
    await fill(await cluster.line(), "a")
    assert found_bodies(await line.receive()) == [b"a"]


async def test_a_pull_above_the_limit_of_suspended_pulls_returns_at_once(
    cluster: Cluster, line: AsyncConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_polling, "SUSPENDED_MAX", 2)
    for _ in range(2):
        await suspended_pull(cluster, line, pull(flag=WAITING))
    assert (await line.call(pull(flag=WAITING))).code == ResponseCode.PULL_NOT_FOUND
    assert len(cluster.broker.components.long_polling) == 2


async def woken(cluster: Cluster, line: AsyncConnection, opaque: int) -> Command:
    await fill(await cluster.line(), "new")
    return await line.answer(opaque)


async def test_a_suspended_pull_uses_the_newest_subscription_of_its_group(
    cluster: Cluster, line: AsyncConnection
) -> None:
    await line.call(heartbeat(expression="old", version=1))
    waiting = await suspended_pull(cluster, line, pull(flag=SUSPEND, version=1))
    await line.call(heartbeat(expression="old || new", version=2))
    answer = await woken(cluster, line, waiting)
    assert (answer.code, found_bodies(answer)) == (ResponseCode.SUCCESS, [b"new"])


async def test_a_suspended_pull_is_refused_if_reading_becomes_forbidden(
    cluster: Cluster, line: AsyncConnection
) -> None:
    waiting = await suspended_pull(cluster, line, pull(flag=WAITING))
    _forbid_group(cluster)
    answer = await woken(cluster, line, waiting)
    assert (answer.code, answer.fields["forbiddenType"], answer.body) == (ResponseCode.NO_PERMISSION, "2", b"")


async def test_a_suspended_pull_is_refused_when_its_topic_is_deleted(cluster: Cluster, line: AsyncConnection) -> None:
    await fill(line, "a")
    waiting = await suspended_pull(cluster, line, pull(offset=1, flag=WAITING))
    assert (await (await cluster.line()).call(215, {"topic": "T"})).code == ResponseCode.SUCCESS
    expire(cluster, 16)
    assert (await line.answer(waiting)).code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_refused_suspended_pull_does_not_affect_another(cluster: Cluster, line: AsyncConnection) -> None:
    await line.call(heartbeat("h"))
    refused = await suspended_pull(cluster, line, pull(group="h", flag=SUSPEND))
    served = await suspended_pull(cluster, line, pull(flag=WAITING))
    await line.call(35, {"clientID": "10.0.0.1@1#2", "consumerGroup": "h"})
    await fill(await cluster.line(), "a")
    assert (await line.answer(refused)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
    assert found_bodies(await line.answer(served)) == [b"a"]
