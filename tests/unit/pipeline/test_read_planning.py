"""Plans cover every message once, in a sensible number of tasks."""

from hypothesis import given
from hypothesis import strategies as st

from skyroute.message.queue_ref import QueueRef
from skyroute.pipeline.source.offsets import from_json, to_json
from skyroute.pipeline.source.planning import PACKED_RECORDS, QueueRange, plan, share

QUEUES = st.builds(QueueRef, st.sampled_from(["A", "B"]), st.sampled_from(["a", "b-1", "c"]), st.integers(0, 12))
COUNTS = st.one_of(st.integers(0, 20), st.integers(0, 50_000))


def ranges(*sizes: int, start: int = 100) -> list[QueueRange]:
    return [QueueRange(QueueRef("A", "a", place), start, start + size) for place, size in enumerate(sizes)]


@given(
    st.lists(COUNTS, max_size=12),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(1, 5_000),
)
def test_every_message_is_read_once(sizes: list[int], min_partitions: int | None, max_records: int | None) -> None:
    parts = plan(ranges(*sizes), min_partitions=min_partitions, max_records=max_records)
    assert all(len(part) for part in parts)
    if max_records is not None:
        assert max(map(len, parts), default=0) <= max_records
    if min_partitions is not None:
        assert len(parts) >= min(min_partitions, sum(sizes))
    for place, size in enumerate(sizes):
        pieces = sorted((r.start, r.stop) for part in parts for r in part.ranges if r.queue.queue_id == place)
        edges = [100, *(stop for _, stop in pieces)]
        assert [start for start, _ in pieces] == edges[:-1]
        assert edges[-1] == 100 + size


def test_each_queue_is_one_task_and_the_largest_comes_first() -> None:
    parts = plan(ranges(10_000, 30_000, 20_000), min_partitions=None, max_records=None)
    assert [len(part) for part in parts] == [30_000, 20_000, 10_000]


def test_small_queues_share_a_task() -> None:
    assert [len(part.ranges) for part in plan(ranges(*[10] * 8), min_partitions=None, max_records=None)] == [8]
    parts = plan(ranges(*[PACKED_RECORDS // 2 + 1] * 3), min_partitions=None, max_records=None)
    assert [len(part.ranges) for part in parts] == [1, 1, 1]


def test_min_partitions_splits_large_queues() -> None:
    parts = plan(ranges(1_000, 9_000), min_partitions=10, max_records=None)
    assert sorted(map(len, parts)) == [1_000] * 10


@given(st.dictionaries(QUEUES, COUNTS, max_size=20), st.integers(1, 60_000))
def test_a_limit_is_used_in_full_and_shared_in_proportion(lags: dict[QueueRef, int], limit: int) -> None:
    taken = share(limit, lags)
    assert sum(taken.values()) == min(limit, sum(lags.values()))
    assert all(0 < count <= lags[queue] for queue, count in taken.items())
    total = sum(lags.values())
    if limit >= len(lags):
        assert all(taken.get(queue, 0) for queue, lag in lags.items() if lag), "a queue got no share"
    if total > limit:
        for queue, lag in lags.items():
            assert abs(taken.get(queue, 0) - limit * lag / total) <= len(lags) + 1


@given(st.dictionaries(QUEUES, st.integers(-2, 1 << 62)))
def test_offsets_are_written_in_one_order(offsets: dict[QueueRef, int]) -> None:
    shuffled = dict(reversed(list(offsets.items())))
    assert str(to_json(offsets)) == str(to_json(shuffled))
    assert from_json(to_json(offsets)) == offsets
