import json
import struct
import tracemalloc
import zlib
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyroute.remoting.stepwise import run_through
from skyroute.routing.registration import DataVersion, TopicTable
from skyroute.routing.topology import QUEUES_MAX, QueueSettings, StaticMapping
from skyroute.wire.calls.registration_body import (
    FILTER_SERVERS_MAX,
    LINES_A_STEP,
    MAPPED_QUEUES_MAX,
    TOPICS_MAX,
    decode_topic_table,
)
from skyroute.wire.command import Request
from skyroute.wire.errors import BodyError
from skyroute.wire.fields import NAME_CHARS_MAX
from tests.unit.wire.by_hand import compressed_registration, piece, registration_stream
from tests.unit.wire.golden import golden_bytes

V4, V5 = 412, 413
VECTOR = golden_bytes("spec/registration-compressed.hex")
MAPPING = (
    b'{"bname":"broker-a","currIdMap":{0:0,1:1},"dirty":false,"epoch":7,"scope":"__global__","topic":"TopicS",'
    b'"totalQueues":2}'
)


def table_of(
    body: bytes, version: int = V5, *, compressed: str = "true", inflated_bytes_max: int = 1 << 20
) -> TopicTable:
    request = Request(code=103, fields={"compressed": compressed}, version=version, body=body)
    return run_through(decode_topic_table(request, inflated_bytes_max))


def settings_of(line: bytes) -> QueueSettings:
    [read] = table_of(compressed_registration([line])).topics.values()
    return read


# ---------------------------------------------------------------------------------------------------- what is read


def test_a_table_of_5_ends_with_its_mappings() -> None:
    body = compressed_registration(
        [b"TopicA 8 4 6 SINGLE_TAG {}"], filter_servers=b'["10.0.0.9:1"]', mappings=[MAPPING]
    )
    assert table_of(body, V5) == TopicTable(
        DataVersion(0, 1758275140000, 3),
        {"TopicA": QueueSettings(8, 4, 6)},
        {"TopicS": StaticMapping("TopicS", "broker-a", 2, 7, current_ids={0: 0, 1: 1})},
        ("10.0.0.9:1",),
    )


@pytest.mark.parametrize("version", [37, 409, V4])
def test_a_table_before_5_ends_without_mappings(version: int) -> None:
    body = compressed_registration([b"TopicA 8 4 6 SINGLE_TAG"], mappings=None)
    assert table_of(body, version) == TopicTable(
        DataVersion(0, 1758275140000, 3), {"TopicA": QueueSettings(8, 4, 6)}, {}, ()
    )


def test_a_table_of_5_without_its_mappings_is_cut_short() -> None:
    with pytest.raises(BodyError, match="truncated"):
        table_of(compressed_registration([], mappings=None), V5)


@pytest.mark.parametrize("version", [V4, V5])
def test_bytes_behind_the_end_are_ignored(version: int) -> None:
    stream = registration_stream([b"TopicA 8 4 6 SINGLE_TAG"]) + b"more"
    assert len(table_of(zlib.compress(stream), version).topics) == 1
    assert len(table_of(zlib.compress(stream) + b"more", version).topics) == 1


@pytest.mark.parametrize("level", range(10))
@pytest.mark.parametrize("compressed", ["false", "", "true"])
def test_a_compressed_body_is_detected_by_its_first_bytes(level: int, compressed: str) -> None:
    body = zlib.compress(registration_stream([b"TopicA 8 4 6 SINGLE_TAG"]), level)
    assert list(table_of(body, compressed=compressed).topics) == ["TopicA"]


def test_a_plain_body_announced_as_compressed_is_refused() -> None:
    with pytest.raises(BodyError, match="cannot be decompressed"):
        table_of(b'{"topicConfigSerializeWrapper":{"topicConfigTable":{}}}')


def test_an_empty_table_is_read() -> None:
    assert table_of(compressed_registration([])).topics == {}


def test_the_data_version_may_have_a_state_version_or_none() -> None:
    for version, read in (
        (b'{"counter":1,"stateVersion":2,"timestamp":3}', DataVersion(2, 3, 1)),
        (b'{"counter":1,"timestamp":3}', DataVersion(0, 3, 1)),
        (b"{}", DataVersion(0, 0, 0)),
    ):
        assert table_of(compressed_registration([], version=version)).version == read


# ----------------------------------------------------------------------------------------------------- topic lines


@pytest.mark.parametrize(
    ("line", "read"),
    [
        (b"T 8 4 6 SINGLE_TAG", QueueSettings(8, 4, 6)),
        (b"T 8 4 6 MULTI_TAG", QueueSettings(8, 4, 6)),
        (b"T 8 4 6 SINGLE_TAG {}", QueueSettings(8, 4, 6)),
        (b'T 8 4 6 SINGLE_TAG {"+message.type":"FIFO"}', QueueSettings(8, 4, 6)),
        (b'T 8 4 6 SINGLE_TAG {"a": "b c",  "d":"e"} f', QueueSettings(8, 4, 6)),
        (b"T 8 4 6 SINGLE_TAG not even JSON \\", QueueSettings(8, 4, 6)),
        (b"T 8 4 6 SINGLE_TAG ", QueueSettings(8, 4, 6)),
        (b"T 0 0 0 SINGLE_TAG", QueueSettings(0, 0, 0)),
        (b"T 65536 1 255 SINGLE_TAG", QueueSettings(65536, 1, 255)),
    ],
)
def test_a_topic_line_is_read_up_to_its_attributes(line: bytes, read: QueueSettings) -> None:
    assert settings_of(line) == read


@pytest.mark.parametrize("name", ["T", "%RETRY%group", "主题/1", "a:b,{}"])
def test_a_topic_line_may_start_with_any_name_that_has_no_blank(name: str) -> None:
    assert list(table_of(compressed_registration([f"{name} 8 4 6 SINGLE_TAG".encode()])).topics) == [name]


def test_a_repeated_topic_has_its_last_settings() -> None:
    body = compressed_registration([b"T 8 8 6 SINGLE_TAG", b"U 1 1 6 SINGLE_TAG", b"T 4 4 4 SINGLE_TAG"])
    assert table_of(body).topics == {"T": QueueSettings(4, 4, 4), "U": QueueSettings(1, 1, 6)}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b" ",
        b"T",
        b"T 8 4 6",
        b"T 8 4 SINGLE_TAG",
        b" 8 4 6 SINGLE_TAG",
        b"T  8 4 6 SINGLE_TAG",
        b"T 8 4 6  SINGLE_TAG",
        b"T\t8\t4\t6\tSINGLE_TAG",
        b"T x 4 6 SINGLE_TAG",
        b"T 8 x 6 SINGLE_TAG",
        b"T 8 4 x SINGLE_TAG",
        b"T 8 4 6.0 SINGLE_TAG",
        b"T 8 4 0x6 SINGLE_TAG",
        b"T 8 4 6 single_tag",
        b"T 8 4 6 NO_TAG",
        b"T 8 4 6 SINGLE_TAG{}",
        b"T 2147483648 4 6 SINGLE_TAG",
        b"T 8 -2147483649 6 SINGLE_TAG",
        b"T 8 4 99999999999 SINGLE_TAG",
        b"T " + b"9" * 5000 + b" 4 6 SINGLE_TAG",
        b"T\0 8 4 6 SINGLE_TAG",
        b"T\n 8 4 6 SINGLE_TAG",
        b"\x1b[2J 8 4 6 SINGLE_TAG",
        b"\xff 8 4 6 SINGLE_TAG",
        b"T 8 4 6 SINGLE_TAG \xff",
    ],
)
def test_one_bad_topic_line_refuses_the_whole_body(line: bytes) -> None:
    with pytest.raises(BodyError, match="Failed to decode RegisterBrokerBody") as caught:
        table_of(compressed_registration([b"Good 8 4 6 SINGLE_TAG", line]))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


# ------------------------------------------------------------------------------------- filter servers and mappings


@pytest.mark.parametrize("written", [b"", b"x", b"{", b"{}", b"5", b"[5]", b"[", b"null"])
def test_a_list_of_filter_servers_that_cannot_be_read_is_empty(written: bytes) -> None:
    body = compressed_registration([b"T 8 4 6 SINGLE_TAG"], filter_servers=written, mappings=[MAPPING])
    table = table_of(body)
    assert table.filter_servers == ()
    assert (len(table.topics), len(table.mappings)) == (1, 1)


@pytest.mark.parametrize("ids", [b"{0:0,1:1}", b'{"0":0,"1":1}', b"{ 0 : 0, 1 : 1 }", b"{'0':0,1:1,}"])
def test_a_mapping_has_bare_or_quoted_queue_ids(ids: bytes) -> None:
    body = compressed_registration([], mappings=[MAPPING.replace(b"{0:0,1:1}", ids)])
    assert table_of(body).mappings["TopicS"].current_ids == {0: 0, 1: 1}


def test_each_mapping_is_kept_under_its_own_topic() -> None:
    mappings = [MAPPING, MAPPING.replace(b"TopicS", b"TopicT"), MAPPING.replace(b'"epoch":7', b'"epoch":8')]
    read = table_of(compressed_registration([], mappings=mappings)).mappings
    assert {topic: mapping.epoch for topic, mapping in read.items()} == {"TopicS": 8, "TopicT": 7}


@pytest.mark.parametrize(
    "mapping",
    [
        b"",
        b"{}",
        b"null",
        b"[]",
        b"{",
        b'{"bname":"b"}',
        b'{"topic":"T"}',
        b'{"bname":"","topic":"T"}',
        b'{"bname":"b","topic":""}',
        b'{"bname":"b\\n","topic":"T"}',
        b'{"bname":"b","topic":"T\\u0000"}',
        b'{"bname":"b","topic":"T","currIdMap":{"x":0}}',
        b"[" * 100_000,
    ],
)
def test_a_mapping_that_makes_no_sense_is_refused(mapping: bytes) -> None:
    with pytest.raises(BodyError, match="Failed to decode RegisterBrokerBody"):
        table_of(compressed_registration([], mappings=[mapping]))


# ------------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("compressed", ["true", "false"])
def test_a_compressed_body_cut_at_any_length_is_refused(compressed: str) -> None:
    for length in range(1, len(VECTOR)):
        with pytest.raises(BodyError, match="Failed to decode RegisterBrokerBody"):
            table_of(VECTOR[:length], compressed=compressed)


@pytest.mark.parametrize("version", [V4, V5])
def test_an_inflated_stream_cut_at_any_length_is_refused(version: int) -> None:
    stream = registration_stream(
        [b"TopicA 8 8 6 SINGLE_TAG {}", b"TopicB 4 4 4 SINGLE_TAG {}"], mappings=None if version == V4 else [MAPPING]
    )
    assert len(table_of(zlib.compress(stream), version).topics) == 2
    for length in range(len(stream)):
        with pytest.raises(BodyError, match="Failed to decode RegisterBrokerBody"):
            table_of(zlib.compress(stream[:length], 1), version)


def counts_at() -> list[int]:
    """Where in the vector's inflated stream each of its counts lies."""
    stream = zlib.decompress(VECTOR)
    version_at = 0
    topics_at = version_at + 4 + int.from_bytes(stream[:4])
    first_at = topics_at + 4
    second_at = first_at + 4 + int.from_bytes(stream[first_at : first_at + 4])
    filters_at = second_at + 4 + int.from_bytes(stream[second_at : second_at + 4])
    mappings_at = filters_at + 4 + int.from_bytes(stream[filters_at : filters_at + 4])
    return [version_at, topics_at, first_at, second_at, filters_at, mappings_at, mappings_at + 4]


@pytest.mark.parametrize("at", counts_at())
@pytest.mark.parametrize("lie", [-1, -(1 << 31), (1 << 31) - 1, 1_000_000, 300])
def test_a_count_beyond_what_is_there_is_refused(at: int, lie: int) -> None:
    stream = zlib.decompress(VECTOR)
    lying = stream[:at] + struct.pack(">i", lie) + stream[at + 4 :]
    tracemalloc.start()
    try:
        with pytest.raises(BodyError, match="Failed to decode RegisterBrokerBody"):
            table_of(zlib.compress(lying))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The inflated text, and nothing of the size that was claimed.
    assert peak < 1_000_000


def test_a_count_of_topics_that_are_all_empty_ends_at_the_first() -> None:
    stream = piece(b"{}") + struct.pack(">i", 100_000) + bytes(400_000)
    with pytest.raises(BodyError):
        table_of(zlib.compress(stream))


@pytest.mark.parametrize(
    "body", [b"\x78\xda\x00", b"\x78\x9c" + b"\xff" * 50, b"\x78\x01" + bytes(50), VECTOR[:2] + b"x" * 99]
)
@pytest.mark.parametrize("compressed", ["true", "false"])
def test_a_body_that_starts_like_zlib_and_is_invalid_is_refused(body: bytes, compressed: str) -> None:
    with pytest.raises(BodyError, match="Failed to decode RegisterBrokerBody"):
        table_of(body, compressed=compressed)


def test_a_flipped_byte_anywhere_is_noticed() -> None:
    for at in range(len(VECTOR)):
        damaged = VECTOR[:at] + bytes([VECTOR[at] ^ 0x10]) + VECTOR[at + 1 :]
        with pytest.raises(BodyError):
            table_of(damaged)


# ------------------------------------------------------------------------------------------------------- bombs


def test_a_body_may_inflate_to_the_limit_exactly() -> None:
    stream = registration_stream([b"TopicA 8 8 6 SINGLE_TAG"])
    assert len(table_of(zlib.compress(stream, 9), inflated_bytes_max=len(stream)).topics) == 1
    with pytest.raises(BodyError, match=f"more than {len(stream) - 1} bytes"):
        table_of(zlib.compress(stream, 9), inflated_bytes_max=len(stream) - 1)


@pytest.mark.parametrize("compressed", ["true", "false"])
def test_a_bomb_is_refused_at_the_limit(compressed: str) -> None:
    bomb = zlib.compress(bytes(64 << 20), 9)
    assert len(bomb) < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(BodyError, match="more than 1048576 bytes"):
            table_of(bomb, compressed=compressed, inflated_bytes_max=1 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_too_many_topics_are_refused_before_decoding() -> None:
    stream = piece(b"{}") + struct.pack(">i", TOPICS_MAX + 1) + bytes(TOPICS_MAX + 1)
    with pytest.raises(BodyError, match=f"more than {TOPICS_MAX} topics"):
        table_of(zlib.compress(stream, 1), inflated_bytes_max=1 << 21)


def test_too_many_mappings_are_refused_before_decoding() -> None:
    # Read first and counted then, the 163 kB that inflate to two million of them hold everybody up for seconds.
    count = MAPPED_QUEUES_MAX + 1
    stream = piece(b"{}") + struct.pack(">i", 0) + piece(b"[]") + struct.pack(">i", count) + bytes(count)
    with pytest.raises(BodyError, match=f"more than {MAPPED_QUEUES_MAX} queues of static topics"):
        table_of(zlib.compress(stream, 1))


def test_ten_thousand_topics_share_their_settings() -> None:
    body = compressed_registration([f"Topic{number} 8 8 6 SINGLE_TAG {{}}".encode() for number in range(10_000)])
    topics = table_of(body).topics
    assert len(topics) == 10_000
    assert len({id(read) for read in topics.values()}) == 1


def test_as_many_topics_as_are_allowed_are_read() -> None:
    lines = [b"%d 8 8 6 SINGLE_TAG" % number for number in range(TOPICS_MAX + 1)]
    assert len(table_of(compressed_registration(lines[:-1]), inflated_bytes_max=1 << 26).topics) == TOPICS_MAX
    with pytest.raises(BodyError, match=f"more than {TOPICS_MAX} topics"):
        table_of(compressed_registration(lines), inflated_bytes_max=1 << 26)


@pytest.mark.parametrize("name", ["x" * NAME_CHARS_MAX, "主" * NAME_CHARS_MAX])
def test_a_topic_has_a_longest_name(name: str) -> None:
    assert list(table_of(compressed_registration([f"{name} 8 4 6 SINGLE_TAG".encode()])).topics) == [name]
    with pytest.raises(BodyError, match="topic is not a name"):
        table_of(compressed_registration([f"{name}x 8 4 6 SINGLE_TAG".encode()]))


def test_filter_servers_are_bounded_in_number() -> None:
    servers = ["10.0.0.9:1"] * FILTER_SERVERS_MAX
    body = compressed_registration([], filter_servers=json.dumps(servers).encode())
    assert table_of(body).filter_servers == tuple(servers)
    with pytest.raises(BodyError, match=f"more than {FILTER_SERVERS_MAX} filter servers"):
        table_of(compressed_registration([], filter_servers=json.dumps([*servers, "f:1"]).encode()))


@pytest.mark.parametrize("server", ["", "a\nb", "x" * (NAME_CHARS_MAX + 1)])
def test_a_filter_server_has_a_name(server: str) -> None:
    with pytest.raises(BodyError, match="filter server is not a name"):
        table_of(compressed_registration([], filter_servers=json.dumps(["f:1", server]).encode()))


@pytest.mark.parametrize("parts", [1, 1000])
def test_mapped_queues_are_bounded_over_all_static_topics_together(parts: int) -> None:
    # Every part counts as one, and so does each of its queues.
    ids = dict.fromkeys(range(MAPPED_QUEUES_MAX // parts - 1), 0)
    mappings = [json.dumps({"bname": "b", "topic": f"T{number}", "currIdMap": ids}).encode() for number in range(parts)]
    body = compressed_registration([], mappings=mappings)
    assert len(table_of(body, inflated_bytes_max=1 << 22).mappings) == parts
    body = compressed_registration([], mappings=[*mappings, b'{"bname":"b","topic":"One"}'])
    with pytest.raises(BodyError, match=f"more than {MAPPED_QUEUES_MAX} queues of static topics"):
        table_of(body, inflated_bytes_max=1 << 22)


@pytest.mark.parametrize("lines", [0, 1, LINES_A_STEP, LINES_A_STEP + 1, 3 * LINES_A_STEP])
def test_a_long_table_is_read_a_few_lines_at_a_time(lines: int) -> None:
    body = compressed_registration([b"T%d 8 8 6 SINGLE_TAG" % number for number in range(lines)])
    request = Request(code=103, version=V5, body=body)
    steps = decode_topic_table(request)
    yielded = len(list(steps))
    assert yielded >= -(-lines // LINES_A_STEP)
    assert run_through(decode_topic_table(request)) == table_of(body)
    assert len(table_of(body).topics) == lines


# ------------------------------------------------------------------------------------------------- anything at all


@settings(deadline=None)
@given(
    lines=st.lists(
        st.tuples(
            st.text(min_size=1, max_size=10).filter(lambda name: name.isprintable() and " " not in name),
            *[st.integers(0, QUEUES_MAX)] * 2,
            st.integers(0, (1 << 31) - 1),
        ),
        max_size=5,
    ),
    version=st.sampled_from([V4, V5]),
    level=st.integers(0, 9),
)
def test_any_table_written_compressed_is_read_as_it_was(
    lines: list[tuple[str, int, int, int]], version: int, level: int
) -> None:
    written = [f"{name} {read} {write} {permission} SINGLE_TAG".encode() for name, read, write, permission in lines]
    body = zlib.compress(registration_stream(written, mappings=None if version == V4 else ()), level)
    assert table_of(body, version).topics == {name: QueueSettings(*numbers) for name, *numbers in lines}


@settings(deadline=None)
@given(tail=st.binary(max_size=60), compressed=st.sampled_from(["true", "false"]))
def test_any_bytes_after_a_zlib_header_are_decoded_or_refused(tail: bytes, compressed: str) -> None:
    with suppress(BodyError):
        assert isinstance(table_of(b"\x78\xda" + tail, compressed=compressed), TopicTable)
