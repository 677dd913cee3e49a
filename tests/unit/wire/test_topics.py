from collections.abc import Callable

import pytest

from skyroute.message.queue_ref import QueueRef
from skyroute.routing.topology import BrokerGroup
from skyroute.wire.calls.topics import (
    PAGE_MAX,
    QueueSpan,
    TopicConfig,
    decode_cluster_view,
    decode_topic_config,
    decode_topic_list,
    decode_topic_page,
    decode_topic_readers,
    decode_topic_stats,
    decode_write_permission,
    encode_cluster_query,
    encode_name_server_topic_deletion,
    encode_topic_config_query,
    encode_topic_deletion,
    encode_topic_list_query,
    encode_topic_page_query,
    encode_topic_readers_query,
    encode_topic_stats_query,
    encode_topic_update,
    encode_write_permission,
    read_attribute_changes,
    write_attribute_changes,
)
from skyroute.wire.command import Request, Response
from skyroute.wire.data_version import Version
from skyroute.wire.errors import BodyError, FieldError
from tests.unit.wire.golden import golden_line

ORDERS = TopicConfig("Orders", 2, 2, attributes={"message.type": "FIFO"})


@pytest.mark.parametrize(
    ("request_", "code", "fields"),
    [
        (encode_cluster_query(), 106, {}),
        (encode_topic_list_query(), 206, {}),
        (encode_name_server_topic_deletion("Orders"), 216, {"topic": "Orders"}),
        (encode_name_server_topic_deletion("Orders", "C"), 216, {"topic": "Orders", "clusterName": "C"}),
        (encode_write_permission("broker-a", allowed=False), 205, {"brokerName": "broker-a"}),
        (encode_write_permission("broker-a", allowed=True), 327, {"brokerName": "broker-a"}),
        (encode_topic_deletion("Orders"), 215, {"topic": "Orders"}),
        (encode_topic_config_query("Orders"), 351, {"topic": "Orders", "lo": "true"}),
        (encode_topic_stats_query("Orders"), 202, {"topic": "Orders"}),
        (encode_topic_readers_query("Orders"), 300, {"topic": "Orders"}),
    ],
)
def test_each_request_has_its_code_and_fields(request_: Request, code: int, fields: dict[str, str]) -> None:
    assert (request_.code, request_.fields, request_.body) == (code, fields, b"")


def test_a_topic_is_created_with_javas_fields() -> None:
    request = encode_topic_update(
        TopicConfig("Orders", 4, 8, 4, sys_flag=3, ordered=True), {"message.type": "FIFO", "other": None}
    )
    assert request.code == 17
    assert request.fields == {
        "topic": "Orders",
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "8",
        "perm": "4",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "3",
        "order": "true",
        "attributes": "+message.type=FIFO,-other",
    }


@pytest.mark.parametrize("changes", [{}, {"a": "1"}, {"a": None}, {"a": "1=2", "b": None, "c": ""}])
def test_changes_of_attributes_are_read_as_they_are_written(changes: dict[str, str | None]) -> None:
    assert read_attribute_changes(write_attribute_changes(changes)) == changes


@pytest.mark.parametrize("text", ["a=1", "a", "+a", "-a=1", "+", "-", "+=1", "+a=1,-a", "+a=1,b"])
def test_what_is_no_change_of_attributes_is_refused(text: str) -> None:
    with pytest.raises(FieldError, match="attributes: "):
        read_attribute_changes(text)


def test_clusters_are_read() -> None:
    view = decode_cluster_view(golden_line("client/cluster-info.txt"))
    assert view.clusters == {"PeerCluster": ("broker-a",)}
    assert view.groups == (BrokerGroup("broker-a", "PeerCluster", {0: "127.0.0.1:31540"}),)


def test_clusters_come_sorted_with_the_master_first() -> None:
    view = decode_cluster_view(
        b'{"brokerAddrTable":{"b":{"brokerAddrs":{1:"h:2",0:"h:1"},"brokerName":"b","cluster":"Y","zoneName":"z"},'
        b'"a":{"brokerAddrs":{},"brokerName":"a","cluster":"X","enableActingMaster":true}},'
        b'"clusterAddrTable":{"Y":["b"],"X":["c","a"]}}'
    )
    assert list(view.clusters.items()) == [("X", ("a", "c")), ("Y", ("b",))]
    assert [(group.name, list(group.addresses.values())) for group in view.groups] == [("a", []), ("b", ["h:1", "h:2"])]
    assert [(group.acting_master, group.zone) for group in view.groups] == [(True, None), (False, "z")]


def test_topics_are_read() -> None:
    topics = decode_topic_list(golden_line("client/topic-list.txt"))
    assert len(topics) == 17
    assert "Orders" in topics
    assert decode_topic_list(b"") == []


def test_a_topics_settings_are_read() -> None:
    assert decode_topic_config(golden_line("client/topic-config.txt")) == ORDERS


def test_a_page_of_topics_is_read() -> None:
    page = decode_topic_page(Response(0, fields={"totalTopicNum": "17"}, body=golden_line("client/topic-configs.txt")))
    assert (len(page.topics), page.total) == (17, 17)
    assert page.topics["Orders"] == ORDERS
    assert page.version == Version(counter=6, state_version=0, timestamp=1794732974999)


def test_a_broker_without_paging_sends_all_topics() -> None:
    page = decode_topic_page(Response(0, body=b'{"topicConfigTable":{},"dataVersion":{"counter":1,"timestamp":2}}'))
    assert (page.topics, page.total) == ({}, None)


def test_the_next_page_is_requested_by_index_and_version() -> None:
    assert encode_topic_page_query().fields == {"topicSeq": "0", "maxTopicNum": str(PAGE_MAX), "dataVersion": ""}
    assert encode_topic_page_query(2000, Version(6, 1, 7)).fields == {
        "topicSeq": "2000",
        "maxTopicNum": str(PAGE_MAX),
        "dataVersion": '{"counter":6,"stateVersion":1,"timestamp":7}',
    }


def test_where_queues_begin_and_end_is_read() -> None:
    stats = decode_topic_stats(golden_line("client/topic-offsets.txt"))
    assert stats.queues == {
        QueueRef("Orders", "broker-a", 0): QueueSpan(0, 2, 1794732975551),
        QueueRef("Orders", "broker-a", 1): QueueSpan(0, 1, 1794732975548),
    }
    assert stats.put_tps == 0.0


def test_readers_come_sorted() -> None:
    assert decode_topic_readers(b'{"groupList":["b","a"]}') == ["a", "b"]


@pytest.mark.parametrize("field", ["wipeTopicCount", "addTopicCount"])
def test_the_count_of_affected_topics_is_decoded(field: str) -> None:
    assert decode_write_permission(Response(0, fields={field: "17"})) == 17
    with pytest.raises(FieldError):
        decode_write_permission(Response(0, fields={field: "many"}))


@pytest.mark.parametrize("decode", [decode_cluster_view, decode_topic_config, decode_topic_stats, decode_topic_readers])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"null"])
def test_invalid_bodies_are_refused(decode: Callable[[bytes], object], body: bytes) -> None:
    with pytest.raises(BodyError):
        decode(body)
