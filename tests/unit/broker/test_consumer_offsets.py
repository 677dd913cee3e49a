from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyroute.broker.store.errors import StoreDamagedError
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.tables.consumer_offsets import COMMITS_PER_VERSION, OFFSETS_MAX, ConsumerOffsets
from skyroute.remoting.errors import RefusedError
from skyroute.routing.topology import QUEUES_MAX
from skyroute.wire import fastjson


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "consumerOffset.json"


def loaded(path: Path, **bounds: int) -> ConsumerOffsets:
    offsets = ConsumerOffsets(JsonFile(path), lambda: 1_700_000_000_000, **bounds)
    offsets.load()
    return offsets


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_a_commit_may_lower_an_offset(path: Path) -> None:
    offsets = loaded(path)
    assert offsets.get("g", "T", 0) is None
    assert offsets.commit("g", "T", 0, 7)
    assert offsets.commit("g", "T", 0, 5)
    assert offsets.get("g", "T", 0) == 5
    assert offsets.get("g", "T", 1) is None
    assert offsets.get("other", "T", 0) is None


def test_commits_are_ignored_until_a_pull_has_received_the_reset(path: Path) -> None:
    offsets = loaded(path)
    offsets.commit("g", "T", 0, 7)
    offsets.reset("g", "T", 0, 3)
    assert not offsets.commit("g", "T", 0, 8)
    assert offsets.commit("g", "T", 1, 8)
    assert offsets.get("g", "T", 0) == 3
    assert offsets.take_reset("g", "T", 1) is None
    assert offsets.take_reset("g", "T", 0) == 3
    assert offsets.take_reset("g", "T", 0) is None
    assert offsets.commit("g", "T", 0, 4)


def test_pulled_offsets_are_kept_in_memory_only(path: Path) -> None:
    offsets = loaded(path)
    assert offsets.pulled("g", "T", 0) is None
    offsets.commit("g", "T", 0, 2)
    assert offsets.pulled("g", "T", 0) == 2
    offsets.note_pull("g", "T", 0, 9)
    assert offsets.pulled("g", "T", 0) == 9
    offsets.table_file.save_now()
    assert loaded(path).pulled("g", "T", 0) == 2


def test_topics_and_groups_are_found_by_each_other_and_deleted(path: Path) -> None:
    offsets = loaded(path)
    for group, topic in (("g", "A"), ("g", "B"), ("h", "A")):
        offsets.commit(group, topic, 0, 1)
        offsets.note_pull(group, topic, 0, 1)
        offsets.reset(group, topic, 1, 1)
    assert set(offsets.groups_of("A")) == {"g", "h"}
    assert set(offsets.topics_of("g")) == {"A", "B"}
    list(offsets.delete_topic("A"))
    assert set(offsets.topics_of("g")) == {"B"}
    assert offsets.take_reset("h", "A", 1) is None
    list(offsets.delete_group("g"))
    assert set(offsets.topics_of("g")) == set()
    assert repr(offsets) == "<ConsumerOffsets 0 resets=0>"


def test_offsets_are_cloned_from_another_group(path: Path) -> None:
    offsets = loaded(path)
    offsets.commit("g", "T", 0, 5)
    offsets.commit("g", "T", 1, 6)
    offsets.commit("h", "T", 7, 1)
    assert offsets.clone("g", "h", "T")
    assert not offsets.clone("g", "h", "Unknown")
    assert offsets.of("h", "T") == {0: 5, 1: 6}
    offsets.commit("g", "T", 0, 9)
    assert offsets.of("h", "T") == {0: 5, 1: 6}


def test_the_number_of_offsets_is_bounded(path: Path) -> None:
    offsets = loaded(path, offsets_max=3)
    for queue_id in range(3):
        offsets.commit("g", "T", queue_id, 1)
        offsets.note_pull("g", "T", queue_id, 1)
    offsets.note_pull("g", "T", 3, 1)
    with pytest.raises(RefusedError):
        offsets.commit("g", "T", 3, 1)
    with pytest.raises(RefusedError):
        offsets.reset("g", "U", 0, 1)
    with pytest.raises(RefusedError):
        offsets.clone("g", "h", "T")
    assert offsets.commit("g", "T", 2, 2)
    list(offsets.delete_group("g"))
    assert offsets.commit("h", "T", 0, 1)


def test_the_data_version_changes_every_commits_per_version_commits(path: Path) -> None:
    offsets = loaded(path)
    for number in range(COMMITS_PER_VERSION * 2):
        offsets.commit("g", "T", 0, number)
    assert offsets.version.counter == 2


# ---------------------------------------------------------------------------------------------------------- the file


def test_the_largest_table_is_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    offsets = loaded(path)
    for number in range(OFFSETS_MAX // QUEUES_MAX):
        for queue_id in range(QUEUES_MAX):
            offsets.commit(f"g{number}", "T", queue_id, number)
    offsets.table_file.save_now()
    again = loaded(path)
    assert repr(again) == repr(offsets)
    assert again.get("g7", "T", QUEUES_MAX - 1) == 7


def test_an_offset_file_of_apache_is_read(path: Path) -> None:
    write(
        path,
        b'{"dataVersion":{"counter":4,"stateVersion":0,"timestamp":9},"groupTopicMap":{"g":["T"]},'
        b'"offsetTable":{"T@g":{0:12,1:3},"%RETRY%g@g":{0:0},"odd":{0:1}},"later":"kept"}',
    )
    offsets = loaded(path)
    assert offsets.of("g", "T") == {0: 12, 1: 3}
    assert set(offsets.topics_of("g")) == {"T", "%RETRY%g"}
    assert offsets.version.counter == 4
    assert fastjson.loads(b"".join(offsets.pieces()))["later"] == "kept"


def test_the_file_is_written_as_apaches_broker_reads_it(path: Path) -> None:
    offsets = loaded(path)
    offsets.commit("g", "T", 1, 12)
    offsets.commit("g", "%RETRY%g", 0, 0)
    offsets.table_file.save_now()
    assert path.read_bytes() == (
        b'{"dataVersion":{"counter":0,"stateVersion":0,"timestamp":1700000000000},"groupTopicMap":{"g":["T","%RETRY%g"]},'
        b'"offsetTable":{"T@g":{"1":12},"%RETRY%g@g":{"0":0}}}'
    )


@pytest.mark.parametrize("content", [b"[]", b'{"offsetTable":{"T@g":{"x":1}}}', b'{"offsetTable":{"T@g":1}}'])
def test_a_damaged_table_is_refused_and_not_read_as_empty(path: Path, content: bytes) -> None:
    write(path, content)
    with pytest.raises(StoreDamagedError):
        loaded(path)


class Model:
    """The model: one plain table for each kind of offset."""

    def __init__(self) -> None:
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.resets: dict[tuple[str, str, int], int] = {}

    def commit(self, *where: Any) -> bool:
        if where[:3] in self.resets:
            return False
        self.offsets[where[:3]] = where[3]
        return True

    def reset(self, *where: Any) -> None:
        self.offsets[where[:3]] = self.resets[where[:3]] = where[3]

    def take_reset(self, *where: Any) -> int | None:
        return self.resets.pop(where[:3], None)

    def clone(self, source: str, destination: str, topic: str) -> bool:
        found = {key[2]: value for key, value in self.offsets.items() if key[:2] == (source, topic)}
        if found:
            for key in [key for key in self.offsets if key[:2] == (destination, topic)]:
                del self.offsets[key]
            self.offsets |= {(destination, topic, queue_id): value for queue_id, value in found.items()}
        return bool(found)

    def delete_group(self, group: str) -> None:
        for table in (self.offsets, self.resets):
            for key in [key for key in table if key[0] == group]:
                del table[key]

    def delete_topic(self, topic: str) -> None:
        for table in (self.offsets, self.resets):
            for key in [key for key in table if key[1] == topic]:
                del table[key]


GROUPS, TOPICS = st.sampled_from("gh"), st.sampled_from(["T", "%RETRY%g"])
QUEUE = (GROUPS, TOPICS, st.integers(0, 2))
STEPS = st.one_of(
    st.tuples(st.just("commit"), st.tuples(*QUEUE, st.integers(0, 1 << 40))),
    st.tuples(st.just("reset"), st.tuples(*QUEUE, st.integers(0, 1 << 40))),
    st.tuples(st.just("take_reset"), st.tuples(*QUEUE)),
    st.tuples(st.just("clone"), st.tuples(GROUPS, GROUPS, TOPICS)),
    st.tuples(st.just("delete_group"), st.tuples(GROUPS)),
    st.tuples(st.just("delete_topic"), st.tuples(TOPICS)),
)


@given(st.lists(STEPS, max_size=30))
@settings(max_examples=80, deadline=None)
def test_offsets_match_the_model_before_and_after_a_restart(steps: list[tuple[str, Any]]) -> None:
    with TemporaryDirectory() as folder:
        path, model = Path(folder) / "consumerOffset.json", Model()
        offsets = loaded(path)
        for name, arguments in steps:
            outcome = getattr(offsets, name)(*arguments)
            if isinstance(outcome, Iterator):  # deletes in steps
                outcome = next((step for step in outcome if step), None)
            assert outcome == getattr(model, name)(*arguments)
            for group in "gh":
                for topic in ("T", "%RETRY%g"):
                    for queue_id in range(3):
                        key = (group, topic, queue_id)
                        assert offsets.get(*key) == model.resets.get(key, model.offsets.get(key))
        assert repr(offsets).startswith(f"<ConsumerOffsets {len(model.offsets)} ")
        offsets.table_file.save_now()
        again = loaded(path)
        for key in model.offsets:
            assert again.get(*key) == model.offsets[key]
