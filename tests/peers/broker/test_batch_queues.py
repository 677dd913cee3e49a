"""Offsets of a batch topic (`queue.type=BatchCQ`), compared with Apache's broker."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from skyroute.wire.calls.topics import decode_topic_stats
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.network.broker.calls import batch_body, pull, send
from tests.support.apache import ApacheBroker, NameServerProcess
from tests.support.raw import Command, RawConnection
from tests.support.waiting import wait_until
from tests.unit.pipeline.reading import bodies, read

TOPIC = {
    **{"topic": "Batches", "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"},
    **{"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "attributes": "+queue.type=BatchCQ"},
}
QUEUE = {"topic": "Batches", "queueId": "0"}
BATCH = send("Batches", batch_body([(b"1", ""), (b"2", "")]), code=RequestCode.SEND_BATCH_MESSAGE)


@pytest.fixture(scope="module")
def apache_broker(name_server: NameServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheBroker]:
    home = tmp_path_factory.mktemp("apache-batches")
    with ApacheBroker("apache-batches", home, [name_server.address], cluster="Apache") as broker:
        yield broker


def offset(connection: RawConnection, code: RequestCode) -> str:
    return connection.call(code, QUEUE).fields["offset"]


def pulled(response: Command) -> tuple[int, str | None, dict[str, str]]:
    names = ("nextBeginOffset", "minOffset", "maxOffset")
    return response.code, response.remark, {name: response.fields[name] for name in names}


def spans(connection: RawConnection) -> list[tuple[int, int, int]]:
    """Queue id, min and max offset of each queue, by the topic status."""
    response = connection.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "Batches"})
    queues = decode_topic_stats(response.body).queues
    return sorted((queue.queue_id, span.min_offset, span.max_offset) for queue, span in queues.items())


def offsets(broker: ApacheBroker) -> list[Any]:
    """All offsets that requests report, of the empty queue and of the queue with one batch."""
    seen: list[Any] = []
    with RawConnection(broker.address) as connection:
        assert connection.call(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC).code == ResponseCode.SUCCESS

        def look() -> None:
            seen.append([offset(connection, code) for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)])
            seen.extend(pulled(connection.call(pull("Batches", start, suspend_ms=0))) for start in (0, 5))
            seen.append(spans(connection))

        look()
        assert connection.call(BATCH).code == ResponseCode.SUCCESS
        wait_until(lambda: offset(connection, RequestCode.GET_MAX_OFFSET) == "2")
        look()
    return seen


def test_an_empty_batch_queue_reports_the_offsets_of_apache(
    first_broker: ApacheBroker, apache_broker: ApacheBroker
) -> None:
    expected = offsets(apache_broker)
    assert expected[0] == ["-1", "0"]
    assert offsets(first_broker) == expected


def test_apache_returns_no_batch_to_a_tag_filter_but_our_spark_source_finds_its_messages(
    apache_broker: ApacheBroker, name_server: NameServerProcess
) -> None:
    """It compares the tag of the whole batch, which has none. Ours returns the batch: the client compares tags."""
    queue = {"topic": "TaggedBatches", "queueId": "0"}
    items = [(b"1", "UNIQ_KEY\x01A\x02TAGS\x01red\x02"), (b"2", "UNIQ_KEY\x01B\x02")]
    batch = send("TaggedBatches", batch_body(items), code=320, properties="UNIQ_KEY\x01WHOLE\x02")
    with RawConnection(apache_broker.address) as connection:
        created = connection.call(RequestCode.UPDATE_AND_CREATE_TOPIC, {**TOPIC, "topic": "TaggedBatches"})
        assert created.code == connection.call(batch).code == ResponseCode.SUCCESS
        wait_until(lambda: connection.call(RequestCode.GET_MAX_OFFSET, queue).fields["offset"] == "2")
        filtered = connection.call(pull("TaggedBatches", expression="red", suspend_ms=0))
    assert filtered.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    place: Any = SimpleNamespace(name_server_address=name_server.address)
    assert bodies(read(place, topic="TaggedBatches", tags="red")) == [b"1"]
