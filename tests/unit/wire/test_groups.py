import msgspec
import pytest

from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.groups import (
    Connection,
    GroupConfig,
    QueueProgress,
    decode_consume_stats,
    decode_consumer_connections,
    decode_group_config,
    decode_group_page,
    decode_producer_connections,
    decode_reset_offsets,
    encode_consume_stats_query,
    encode_consumer_connections_query,
    encode_group_config_query,
    encode_group_deletion,
    encode_group_page_query,
    encode_group_update,
    encode_producer_connections_query,
    encode_reset_order,
    release_name,
)
from skyroute.wire.command import Response
from skyroute.wire.data_version import Version
from skyroute.wire.errors import BodyError, FieldError
from tests.unit.wire.golden import golden_line

EXPONENTIAL = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5000, "max": 7_200_000, "multiplier": 2}}
GROUP = GroupConfig("golden-group", retry_times_max=3, retry_policy=EXPONENTIAL)


# --------------------------------------------------------------------------------------------------------- settings


def test_the_settings_of_a_group_are_read() -> None:
    assert decode_group_config(golden_line("client/group-config.txt")) == GROUP


def test_group_settings_are_encoded_with_brokers_names() -> None:
    request = encode_group_update(GROUP)
    assert (request.code, request.fields) == (200, {})
    assert msgspec.json.decode(request.body) == msgspec.json.decode(golden_line("client/group-config.txt"))


def test_only_changes_of_attributes_are_sent() -> None:
    config = GroupConfig("g", attributes={"kept": "1"})
    body = msgspec.json.decode(encode_group_update(config, {"set": "2", "dropped": None}).body)
    assert body["attributes"] == {"+set": "2", "-dropped": ""}


def test_a_group_without_a_policy_of_its_own_waits_as_brokers_do_by_default() -> None:
    page = decode_group_page(Response(body=golden_line("client/group-configs.txt")))
    assert page.groups["two-group"] == GroupConfig("two-group", retry_times_max=3)


def test_all_groups_are_read_with_their_version_and_their_number() -> None:
    page = decode_group_page(Response(fields={"totalGroupNum": "10"}, body=golden_line("client/group-configs.txt")))
    assert (len(page.groups), page.total) == (10, 10)
    assert page.groups["golden-group"] == GROUP
    assert page.version == Version(counter=7, state_version=0, timestamp=1_794_733_113_232)


def test_a_broker_without_paging_sends_no_total() -> None:
    assert decode_group_page(Response(body=b'{"subscriptionGroupTable":{}}')).total is None


def test_an_invalid_total_of_groups_is_refused() -> None:
    with pytest.raises(FieldError):
        decode_group_page(Response(fields={"totalGroupNum": "ten"}, body=b"{}"))


def test_the_next_page_begins_where_the_last_ended_unless_the_table_has_changed() -> None:
    first, second = encode_group_page_query(), encode_group_page_query(2000, Version(counter=7, timestamp=5))
    assert (first.code, second.code) == (201, 201)
    assert first.fields["groupSeq"] == "0"
    assert second.fields["groupSeq"] == "2000"
    assert msgspec.json.decode(second.fields["dataVersion"])["counter"] == 7


def test_a_deletion_has_whether_to_delete_offsets() -> None:
    assert encode_group_deletion("g", with_offsets=True).fields == {"groupName": "g", "cleanOffset": "true"}
    request = encode_group_deletion("g", with_offsets=False)
    assert (request.code, request.fields["cleanOffset"]) == (207, "false")


def test_one_group_is_requested_by_name() -> None:
    request = encode_group_config_query("g")
    assert (request.code, request.fields) == (352, {"group": "g"})


# ------------------------------------------------------------------------------------------------------ connections


def test_connections_of_a_consumer_group_are_decoded() -> None:
    found = decode_consumer_connections(golden_line("client/consumer-connections.txt"))
    assert found.connections == (
        Connection("192.0.2.2@25552#1794733113236656013", "127.0.0.1:39730", "PYTHON", 479),
    )  # fmt: skip
    assert (found.consume_type, found.model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert found.start_from == "CONSUME_FROM_FIRST_OFFSET"
    wanted = found.subscriptions["TwoTopic"]
    assert (wanted.expression, wanted.tags, wanted.expression_type) == ("TagA || TagB", ("TagA", "TagB"), "TAG")


def test_connections_of_a_producer_group_are_decoded() -> None:
    (found,) = decode_producer_connections(golden_line("client/producer-connections.txt"))
    assert (found.address, found.language, found.release) == ("127.0.0.1:39716", "PYTHON", "V5_3_3")


def test_connections_are_requested_by_group() -> None:
    consumers, producers = encode_consumer_connections_query("g"), encode_producer_connections_query("g")
    assert (consumers.code, consumers.fields) == (203, {"consumerGroup": "g"})
    assert (producers.code, producers.fields) == (204, {"producerGroup": "g"})


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (211, "older than V4_0_0"),
        (212, "V4_0_0_SNAPSHOT"),
        (213, "V4_0_0"),
        (407, "V4_9_7"),
        (411, "V4_9_9"),
        (412, "V5_0_0_SNAPSHOT"),
        (479, "V5_3_3"),
        (513, "V5_5_0"),
        (611, "V5_9_9"),
        (612, "HIGHER_VERSION"),
    ],
)
def test_a_release_is_called_what_apaches_tools_call_it(version: int, name: str) -> None:
    assert release_name(version) == name


# --------------------------------------------------------------------------------------------------------- progress


def test_how_far_a_group_has_come_is_read() -> None:
    found = decode_consume_stats(golden_line("client/consume-stats.txt"))
    progress = found.queues[QueueRef("TopicTest", "broker-a", 0)]
    assert progress == QueueProgress(5, 3, 4, 1_700_000_000_000)
    assert (progress.lag, progress.inflight, found.tps) == (2, 1, 1.5)


def test_progress_is_requested_for_all_topics_or_one() -> None:
    assert encode_consume_stats_query("g").fields == {"consumerGroup": "g"}
    request = encode_consume_stats_query("g", "T")
    assert (request.code, request.fields) == (208, {"consumerGroup": "g", "topic": "T"})


def test_where_a_group_was_moved_to_is_read() -> None:
    moved = decode_reset_offsets(golden_line("client/moved-offsets.txt"))
    assert moved == {QueueRef("TwoTopic", "broker-a", queue_id): 0 for queue_id in range(4)}


def test_a_group_is_moved_in_all_queues_to_a_time() -> None:
    request = encode_reset_order("T", "g", 1000, force=False)
    assert request.code == 222
    assert request.fields == {
        "topic": "T",
        "group": "g",
        "timestamp": "1000",
        "isForce": "false",
        "queueId": "-1",
        "offset": "-1",
    }


def test_a_group_is_moved_in_one_queue_to_an_offset() -> None:
    fields = encode_reset_order("T", "g", 0, queue_id=0, offset=0).fields
    assert (fields["queueId"], fields["offset"], fields["isForce"]) == ("0", "0", "true")


@pytest.mark.parametrize(
    "decode",
    [
        decode_group_config,
        decode_consumer_connections,
        decode_producer_connections,
        decode_consume_stats,
        decode_reset_offsets,
    ],
)
def test_what_is_no_json_is_refused(decode: object) -> None:
    with pytest.raises(BodyError):
        decode(b"{nonsense")  # type: ignore[operator]  # each takes bytes, and returns something else
