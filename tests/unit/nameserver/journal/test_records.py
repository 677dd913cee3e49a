"""The records of every kind of change."""

import msgspec
import pytest

from skyroute.nameserver.journal.records import TOPICS_A_RECORD, Numbered, encode, split, weight_of
from skyroute.nameserver.journal.schema import Kind, Record, State, record_decoder
from skyroute.nameserver.server_events import Change, KvChanged
from skyroute.routing.events import Cause, TopicsChanged
from tests.unit.nameserver.journal.changes import EIGHT, EVERY_KIND, FOUR, MAPPING, NEW, OLD


def written(change: Change) -> Record:
    line = encode(Numbered(5, 1_700_000_000_123, 42, change), "ns-1")
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    return record_decoder.decode(line)


@pytest.mark.parametrize("change", EVERY_KIND, ids=lambda change: type(change).__name__)
def test_every_record_has_time_server_and_kind(change: Change) -> None:
    record = written(change)
    assert (record.v, record.seq, record.wall_ms, record.mono_ms, record.server) == (
        1,
        5,
        1_700_000_000_123,
        42,
        "ns-1",
    )
    assert record.kind in list(Kind)
    assert record.cause == getattr(change, "cause", None)
    assert record.broker == getattr(change, "broker_name", None)


def test_a_large_change_is_split_into_equivalent_records() -> None:
    def some(letter: str, count: int) -> list[str]:
        return [f"{letter}{number}" for number in range(count)]

    changed = dict.fromkeys(some("c", TOPICS_A_RECORD + 1), (FOUR, EIGHT))
    whole = TopicsChanged(
        "c",
        "b",
        Cause.REGISTERED,
        NEW,
        dict.fromkeys(some("a", 2 * TOPICS_A_RECORD), FOUR),
        changed,
        dict.fromkeys(some("r", 3), EIGHT),
    )
    parts = [part for part in split(whole) if isinstance(part, TopicsChanged)]
    assert [(len(part.added), len(part.changed), len(part.removed)) for part in parts] == [
        *((0, 0, 3), (0, TOPICS_A_RECORD, 0), (0, 1, 0)),
        *((TOPICS_A_RECORD, 0, 0), (TOPICS_A_RECORD, 0, 0)),
    ]
    for name in ("added", "changed", "removed"):
        assert {key: value for part in parts for key, value in getattr(part, name).items()} == getattr(whole, name)
    assert {(part.cluster, part.broker_name, part.cause, part.version) for part in parts} == {
        ("c", "b", Cause.REGISTERED, NEW)
    }
    assert [list(split(change)) for change in EVERY_KIND] == [[change] for change in EVERY_KIND]


def test_every_kind_of_record_has_a_change() -> None:
    assert {written(change).kind for change in EVERY_KIND} | {Kind.GAP} == set(Kind)


def test_a_record_has_every_field_of_its_change() -> None:
    records = {record.kind: record for record in map(written, EVERY_KIND)}
    topics = records[Kind.TOPICS_CHANGED]
    assert (topics.added, topics.changed, topics.removed) == ({"T1": FOUR}, {"T2": (FOUR, EIGHT)}, {"T3": EIGHT})
    assert topics.version == NEW
    assert topics.topics == {"T1", "T2", "T3"}
    assert records[Kind.MAPPINGS_CHANGED].mappings == {"T": (None, MAPPING)}
    changed = records[Kind.BROKER_CHANGED]
    assert changed.before == State(broker_id=1, version=OLD)
    assert changed.after == State(broker_id=0, ha_address="a:2", version=NEW)
    group = records[Kind.GROUP_CHANGED]
    assert (group.before, group.after) == (None, State(cluster="c", zone="z", acting_master=True))
    kv = records[Kind.KV_CHANGED]
    assert (kv.namespace, kv.key, kv.before, kv.after) == ("n", "k", State(value="old"), None)
    assert records[Kind.SETTINGS_CHANGED].settings == {"enableTopicList": ("true", "false")}


def test_fields_that_do_not_apply_are_left_out() -> None:
    line = encode(Numbered(5, 1, 2, EVERY_KIND[-1]), "ns-1")
    assert set(msgspec.json.decode(line)) == {"v", "seq", "wall_ms", "mono_ms", "server", "kind"}


def test_invalid_unicode_is_written_escaped() -> None:
    record = written(KvChanged("n", "k", None, "half a pair: \ud800", "p"))
    assert record.after == State(value="half a pair: \\ud800")


def test_the_weight_of_a_change_counts_its_names() -> None:
    many = TopicsChanged("c", "b", Cause.REGISTERED, None, dict.fromkeys(map(str, range(1000)), FOUR), {}, {})
    assert weight_of(many) == 1001
    assert all(0 < weight_of(change) < 20 for change in EVERY_KIND)
