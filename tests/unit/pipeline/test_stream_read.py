"""The driver's side of a stream: offsets, partitions and commits."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from skyroute.blocking import Admin
from skyroute.message.queue_ref import QueueRef
from skyroute.pipeline import spark_versions
from skyroute.pipeline.connections import close_all
from skyroute.pipeline.options import OptionsError
from skyroute.pipeline.source import stream
from skyroute.pipeline.source.errors import DataLossError
from skyroute.pipeline.source.lag_listener import Lag, LagListener
from skyroute.pipeline.source.stream import EarlyStreamReader, StreamReader
from skyroute.pipeline.spark_versions import ReadAllAvailable, ReadMaxRows
from skyroute.testing import Cluster
from skyroute.testing import cluster as started_cluster
from tests.support.waiting import wait_until
from tests.unit.pipeline.reading import Row, bodies, make_topic, rows_of, send, source

ALL = ReadAllAvailable()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with started_cluster(brokers=2, in_memory=True) as started:
        yield started


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Disable the caches of offsets and queues."""
    monkeypatch.setattr(stream, "MAX_OFFSETS_CACHE_S", 0.0)
    monkeypatch.setattr(stream, "QUEUES_CACHE_S", 0.0)
    yield
    close_all()


def open_stream(cluster: Cluster, **given: str) -> StreamReader:
    chosen = source(cluster, **{"startingOffsets": "earliest", **given})
    return StreamReader(chosen.options, chosen.schema())  # as from Spark 4.2 on


def through_json(offset: Any) -> Any:
    """Convert offsets to JSON text and back, as Spark's checkpoint does."""
    return json.loads(json.dumps(offset))


def step(reader: StreamReader, start: Any, limit: Any = ALL) -> tuple[Any, list[bytes]]:
    """Return the end of the next batch, and its bodies."""
    end = through_json(reader.latestOffset(through_json(start), limit))
    return end, bodies(read_between(reader, start, end))


def read_between(reader: StreamReader, start: Any, end: Any) -> list[Row]:
    return rows_of(reader, reader.partitions(through_json(start), end))


def test_a_stream_reads_to_the_end_and_then_new_messages(cluster: Cluster) -> None:
    make_topic(cluster, "On", queues=1)
    send(cluster, "On", 3)
    reader = open_stream(cluster, topic="On")
    start = reader.initialOffset()
    assert start == {"On": {"broker-0:0": 0, "broker-1:0": 0}}
    end, found = step(reader, start)
    assert found == [b"0", b"1", b"2"]
    assert step(reader, end) == (end, [])
    send(cluster, "On", 2, first=3)
    assert step(reader, end) == ({"On": {"broker-0:0": 5, "broker-1:0": 0}}, [b"3", b"4"])


def test_the_initial_offset_does_not_change(cluster: Cluster) -> None:
    make_topic(cluster, "Once", queues=1)
    reader = open_stream(cluster, topic="Once", startingOffsets="latest")
    first = reader.initialOffset()
    send(cluster, "Once", 3)
    assert reader.initialOffset() == first


def test_an_empty_first_batch_saves_a_latest_start(cluster: Cluster) -> None:
    """Without it, a stream killed in its first batch would restart at a later end and skip messages."""
    make_topic(cluster, "Moving", queues=1)
    send(cluster, "Moving", 3)
    reader = open_stream(cluster, topic="Moving", startingOffsets="latest")
    start = reader.initialOffset()
    send(cluster, "Moving", 2, first=3)
    kept, found = step(reader, start)
    assert (kept, found) == (start, [])
    # After a kill, the next query finds the first batch in the checkpoint and requests a new start.
    second = open_stream(cluster, topic="Moving", startingOffsets="latest")
    later = second.initialOffset()
    assert later != start
    assert second.partitions(later, kept) == []
    assert step(second, kept)[1] == [b"3", b"4"]


def test_an_earliest_start_needs_no_empty_first_batch(cluster: Cluster) -> None:
    make_topic(cluster, "Staying", queues=1)
    send(cluster, "Staying", 3)
    reader = open_stream(cluster, topic="Staying")
    assert len(step(reader, reader.initialOffset())[1]) == 3


def test_max_offsets_per_trigger_is_shared_in_proportion_to_lag(cluster: Cluster) -> None:
    make_topic(cluster, "Limited", queues=1)
    send(cluster, "Limited", 90)
    send(cluster, "Limited", 10, broker=1)
    reader = open_stream(cluster, topic="Limited", maxOffsetsPerTrigger="20")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(20)
    end, found = step(reader, reader.initialOffset(), limit)
    assert end == {"Limited": {"broker-0:0": 18, "broker-1:0": 2}}
    assert len(found) == 20


def test_min_offsets_per_trigger_delays_a_batch_up_to_the_maximum(cluster: Cluster) -> None:
    make_topic(cluster, "Patient", queues=1)
    send(cluster, "Patient", 3)
    reader = open_stream(cluster, topic="Patient", minOffsetsPerTrigger="5", maxTriggerDelay="300ms")
    start = reader.initialOffset()
    assert step(reader, start) == (start, [])
    wait_until(lambda: reader.latestOffset(start, ALL) != start, "a batch below the minimum")
    reader = open_stream(cluster, topic="Patient", minOffsetsPerTrigger="5", maxTriggerDelay="1h")
    assert step(reader, start) == (start, [])
    send(cluster, "Patient", 2)
    assert len(step(reader, start)[1]) == 5


def test_available_now_stops_at_the_end_seen_at_the_start(cluster: Cluster) -> None:
    make_topic(cluster, "Now", queues=1)
    send(cluster, "Now", 10)
    reader = open_stream(cluster, topic="Now", minOffsetsPerTrigger="100")
    reader.prepareForTriggerAvailableNow()
    send(cluster, "Now", 10)
    end, found = step(reader, reader.initialOffset(), ReadMaxRows(6))
    assert len(found) == 6
    end, found = step(reader, end, ReadMaxRows(6))
    assert len(found) == 4
    assert step(reader, end, ReadMaxRows(6)) == (end, [])


def test_new_queues_and_new_brokers_are_read_from_their_first_message(cluster: Cluster) -> None:
    make_topic(cluster, "Growing", queues=1, broker=0)
    send(cluster, "Growing", 1)
    reader = open_stream(cluster, topic="Growing")
    end, _ = step(reader, reader.initialOffset())
    assert end == {"Growing": {"broker-0:0": 1}}
    make_topic(cluster, "Growing", queues=2, broker=0)
    make_topic(cluster, "Growing", queues=1, broker=1)
    send(cluster, "Growing", 2, queue_id=1, first=10)
    send(cluster, "Growing", 2, broker=1, first=20)
    end, found = step(reader, end)
    assert end == {"Growing": {"broker-0:0": 1, "broker-0:1": 2, "broker-1:0": 2}}
    assert sorted(found) == [b"10", b"11", b"20", b"21"]


def test_new_topics_of_a_pattern_are_found(cluster: Cluster) -> None:
    make_topic(cluster, "Kind1", queues=1)
    reader = open_stream(cluster, subscribePattern="Kind.")
    start = reader.initialOffset()
    make_topic(cluster, "Kind2", queues=1)
    send(cluster, "Kind2", 2)
    assert step(reader, start)[1] == [b"0", b"1"]


def test_a_dead_broker_does_not_block_others_and_its_queues_keep_their_offsets() -> None:
    with started_cluster(brokers=2, in_memory=True) as own:
        make_topic(own, "Away", queues=1)
        reader = open_stream(own, topic="Away", requestTimeoutMs="300")
        start = reader.initialOffset()
        send(own, "Away", 3)
        send(own, "Away", 3, broker=1, first=10)
        assert reader.reportLatestOffset() == {"Away": {"broker-0:0": 3, "broker-1:0": 3}}
        own.kill_broker(1)
        end, found = step(reader, start)
        assert (end, found) == ({"Away": {"broker-0:0": 3, "broker-1:0": 0}}, [b"0", b"1", b"2"])
        assert reader.reportLatestOffset() == {"Away": {"broker-0:0": 3, "broker-1:0": 3}}, "the lag remains"
        own.restart_broker(1)
        assert step(reader, end)[1] == [b"10", b"11", b"12"]


def test_a_recreated_topic_is_data_loss(rocketmq: Cluster) -> None:
    make_topic(rocketmq, "Anew", queues=1)
    send(rocketmq, "Anew", 5)
    strict, lenient = (open_stream(rocketmq, topic="Anew", failOnDataLoss=word) for word in ("true", "false"))
    end, _ = step(strict, strict.initialOffset())
    with Admin(rocketmq.name_server_address) as admin:
        admin.delete_topic("Anew", "DefaultCluster")
    make_topic(rocketmq, "Anew", queues=1)
    send(rocketmq, "Anew", 2)
    with pytest.raises(DataLossError, match=r"Anew@broker-0:0 ends at 2 but was read up to 5"):
        strict.latestOffset(end, ALL)
    end, found = step(lenient, end)
    assert (end, found) == ({"Anew": {"broker-0:0": 0}}, [])
    assert step(lenient, end)[1] == [b"0", b"1"]


def test_messages_deleted_before_they_were_read_are_data_loss() -> None:
    with started_cluster(in_memory=True, commit_log_file_bytes=16_384) as own:
        make_topic(own, "Gone", queues=1)
        for first in range(0, 300, 50):
            send(own, "Gone", 50, first=first)
        strict, lenient = (open_stream(own, topic="Gone", failOnDataLoss=word) for word in ("true", "false"))
        start = strict.initialOffset()
        own.stop_broker()
        sorted((own.folder / "broker-0" / "commitlog").iterdir())[0].unlink()
        own.restart_broker()
        end = strict.latestOffset(start, ALL)
        with pytest.raises(DataLossError, match=r"offsets 0 to \d+ of Gone@broker-0:0 were deleted"):
            strict.partitions(start, end)
        found = read_between(lenient, start, end)
        assert [row["queue_offset"] for row in found] == list(range(found[0]["queue_offset"], 300))


def test_report_group_offsets_commits_the_offsets_of_the_group(cluster: Cluster) -> None:
    make_topic(cluster, "Reported", queues=1)
    send(cluster, "Reported", 4)
    reader = open_stream(cluster, topic="Reported", groupId="watchers", reportGroupOffsets="true")
    end, _ = step(reader, reader.initialOffset())
    reader.commit(end)
    with Admin(cluster.name_server_address) as admin:
        progress = admin.progress("watchers", topic="Reported")
    assert {queue: each.consumer_offset for queue, each in progress.queues.items()} == {
        QueueRef("Reported", "broker-0", 0): 4,
        QueueRef("Reported", "broker-1", 0): 0,
    }


def open_early(cluster: Cluster, **given: str) -> EarlyStreamReader:
    chosen = source(cluster, **{"startingOffsets": "earliest", **given})
    return EarlyStreamReader(chosen.options, chosen.schema())


def open_plain_early(cluster: Cluster, **given: str) -> EarlyStreamReader:
    chosen = source(cluster, **given)
    return EarlyStreamReader(chosen.options, chosen.schema())


def early_batch(reader: EarlyStreamReader, start: Any) -> tuple[Any, list[bytes]]:
    """Plan and read a batch in the order of calls of Spark 4.0 and 4.1."""
    end = through_json(reader.latestOffset())
    start = through_json(reader.initialOffset()) if start is None else start
    return end, bodies(read_between(reader, start, end))


def test_before_spark_4_2_every_message_is_read_once(cluster: Cluster) -> None:
    make_topic(cluster, "Early", queues=1)
    send(cluster, "Early", 3)
    reader = open_early(cluster, topic="Early")
    end, found = early_batch(reader, None)
    assert found == [b"0", b"1", b"2"]
    send(cluster, "Early", 2, first=3)
    end, found = early_batch(reader, end)
    assert found == [b"3", b"4"]
    restarted = open_early(cluster, topic="Early")
    assert restarted.partitions(end, end) == [], "Spark plans the last batch again"
    send(cluster, "Early", 1, first=5)
    assert early_batch(restarted, end)[1] == [b"5"]


def test_before_spark_4_2_a_stream_from_the_latest_offset_skips_nothing(cluster: Cluster) -> None:
    make_topic(cluster, "EarlyLatest", queues=1)
    send(cluster, "EarlyLatest", 3)
    reader = open_early(cluster, topic="EarlyLatest", startingOffsets="latest")
    end = through_json(reader.latestOffset())
    send(cluster, "EarlyLatest", 2, first=3)
    assert read_between(reader, through_json(reader.initialOffset()), end) == []
    assert early_batch(reader, end)[1] == [b"3", b"4"]


@pytest.mark.parametrize("position", [{"startingOffsets": "group"}, {"startingTimestamp": "-1h"}])
def test_before_spark_4_2_a_first_batch_repeated_after_a_kill_has_the_same_start(
    cluster: Cluster, position: dict[str, str]
) -> None:
    topic = "Early" + next(iter(position))
    make_topic(cluster, topic, queues=1)
    send(cluster, topic, 3)
    given = {"topic": topic, "groupId": "early-starters", **position}
    given |= {} if "startingOffsets" in position else {"startingOffsetsByTimestampStrategy": "latest"}
    reader = open_plain_early(cluster, **given)
    end = through_json(reader.latestOffset())
    start = through_json(reader.initialOffset())
    assert bodies(read_between(reader, start, end)) == [b"0", b"1", b"2"]
    # The driver is killed before Spark commits the batch. It is planned again from a start that has moved.
    restarted = open_plain_early(cluster, topic=topic, startingOffsets="latest")
    assert restarted.partitions(end, end) == []
    later = through_json(restarted.initialOffset())
    assert later != start
    assert bodies(read_between(restarted, later, end)) == [b"0", b"1", b"2"]
    assert restarted.latestOffset() == end, "no empty batch follows"
    send(cluster, topic, 1, first=3)
    assert early_batch(restarted, end)[1] == [b"3"]


def test_before_spark_4_2_a_limit_is_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_versions, "HAS_READ_LIMITS", False)
    with pytest.raises(OptionsError, match=r"maxOffsetsPerTrigger needs Spark 4\.2 or newer"):
        open_early(cluster, topic="Early", maxOffsetsPerTrigger="10")


def test_a_stream_starts_at_the_offsets_of_a_group(cluster: Cluster) -> None:
    make_topic(cluster, "Grouped", queues=1)
    send(cluster, "Grouped", 5)
    reported = open_stream(cluster, topic="Grouped", groupId="before", reportGroupOffsets="true")
    step(reported, reported.initialOffset())  # a pull creates the group
    reported.commit({"Grouped": {"broker-0:0": 3, "broker-1:0": 0}})
    reader = open_stream(cluster, topic="Grouped", groupId="before", startingOffsets="group")
    assert reader.initialOffset() == {"Grouped": {"broker-0:0": 3, "broker-1:0": 0}}
    unknown = open_stream(cluster, topic="Grouped", groupId="nobody-yet", startingOffsets="group")
    assert unknown.initialOffset() == {"Grouped": {"broker-0:0": 0, "broker-1:0": 0}}


def test_a_reported_group_is_found_without_its_topic(cluster: Cluster) -> None:
    make_topic(cluster, "Seen", queues=1)
    send(cluster, "Seen", 4)
    reader = open_stream(cluster, topic="Seen", groupId="seers", reportGroupOffsets="true")
    end, _ = step(reader, reader.initialOffset())
    reader.commit(end)
    with Admin(cluster.name_server_address) as admin:
        wait_until(lambda: "seers" in admin.groups())
        assert admin.progress("seers").queues[QueueRef("Seen", "broker-0", 0)].lag == 0


def test_the_last_batch_of_available_now_is_reported(cluster: Cluster) -> None:
    make_topic(cluster, "Last", queues=1)
    send(cluster, "Last", 4)
    reader = open_stream(cluster, topic="Last", groupId="finishers", reportGroupOffsets="true")
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    end, _ = step(reader, start)
    assert step(reader, end)[0] == end, "Spark asks once more after the last batch, and then ends"
    with Admin(cluster.name_server_address) as admin:
        progress = admin.progress("finishers", topic="Last")
    assert progress.queues[QueueRef("Last", "broker-0", 0)].consumer_offset == 4


def test_largest_offsets_are_cached_for_an_idle_stream(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    make_topic(cluster, "Idle", queues=1)
    monkeypatch.setattr(stream, "MAX_OFFSETS_CACHE_S", 60.0)
    reader = open_stream(cluster, topic="Idle")
    end, _ = step(reader, reader.initialOffset())
    send(cluster, "Idle", 1)
    assert reader.latestOffset(end, ALL) == end
    assert reader.reportLatestOffset() == end


class QueryProgress:
    """The fields of Spark's progress event that the listener reads."""

    def __init__(self, **sources: tuple[str | None, str | None]) -> None:
        self.id, self.name, self.batchId = "1-2", "orders", 7
        self.sources = [type("Source", (), {"endOffset": e, "latestOffset": n})() for e, n in sources.values()]


def test_a_listener_reports_the_lag_of_each_queue() -> None:
    reported: list[Lag] = []
    progress = QueryProgress(
        ours=('{"A": {"a:0": 3, "a:1": 5}}', '{"A": {"a:0": 10, "a:1": 5, "b:0": 2}}'), files=(None, '"3"')
    )
    LagListener(reported.append).onQueryProgress(type("Event", (), {"progress": progress})())
    (lag,) = reported
    assert lag.queues == {QueueRef("A", "a", 0): 7, QueueRef("A", "a", 1): 0, QueueRef("A", "b", 0): 2}
    assert (lag.total, lag.query_name, lag.batch_id) == (9, "orders", 7)
