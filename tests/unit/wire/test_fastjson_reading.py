import json
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyroute.wire.fastjson import BARE_KEYS_MAX, LARGE_BYTES, SMALL_BYTES, JsonError, loads, standardise
from tests.support.hang_guard import hang_guard

TEXTS = st.text(max_size=20)
NUMBERS = st.integers(-(1 << 80), 1 << 80) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(TEXTS, children, max_size=4),
    max_leaves=8,
)
BARE_NAMES = st.from_regex(r"\A(?:-?[0-9]{1,19}|[A-Za-z_$][A-Za-z0-9_$]{0,15})\Z")

# ------------------------------------------------------------------------------------------------ standard JSON


@settings(deadline=None, max_examples=50)
@given(value=VALUES, ascii_only=st.booleans(), indent=st.none() | st.integers(0, 3))
def test_standard_json_is_read_as_the_standard_library_reads_it(
    value: Any, ascii_only: bool, indent: int | None
) -> None:
    written = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert loads(written.encode()) == value


@settings(deadline=None, max_examples=50)
@given(value=VALUES, ascii_only=st.booleans(), indent=st.none() | st.integers(0, 3))
def test_standard_json_means_the_same_once_standardised(value: Any, ascii_only: bool, indent: int | None) -> None:
    written = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert json.loads(standardise(written.encode())) == value


# ------------------------------------------------------------------------------------------------ Java's leniencies


@pytest.mark.parametrize(
    ("written", "value"),
    [
        # Bare names.
        (b'{0:"10.0.0.1:10911",1:"10.0.0.2:10911"}', {"0": "10.0.0.1:10911", "1": "10.0.0.2:10911"}),
        (b"{0:0,1:1}", {"0": 0, "1": 1}),
        (b"{-1:0}", {"-1": 0}),
        (b"{topic:1,_a$9:2}", {"topic": 1, "_a$9": 2}),
        (b"{ 0 : 1 ,\n\t1\r: 2 }", {"0": 1, "1": 2}),
        (b'{"a":{0:{1:{2:[3]}}}}', {"a": {"0": {"1": {"2": [3]}}}}),
        (b"{null:null,true:true,false:false}", {"null": None, "true": True, "false": False}),
        ("{名:1}".encode(), {"名": 1}),
        (b'[{0:1},{"0":1}]', [{"0": 1}, {"0": 1}]),
        # Single quotes.
        (b"{'a':'b'}", {"a": "b"}),
        (b"{'a' : ['b', 'c']}", {"a": ["b", "c"]}),
        (b"''", ""),
        (b"'say \"hi\"'", 'say "hi"'),
        (rb"'it\'s'", "it's"),
        (rb"'back\\slash'", "back\\slash"),
        ("{'名':'中😀'}".encode(), {"名": "中😀"}),
        (b"{'a':\"it's\"}", {"a": "it's"}),
        # Superfluous commas.
        (b"[1,,2]", [1, 2]),
        (b"[,1]", [1]),
        (b"[1,]", [1]),
        (b"[,]", []),
        (b"[,,,]", []),
        (b"[1, , ,2, ]", [1, 2]),
        (b'{,"a":1,,"b":2,}', {"a": 1, "b": 2}),
        (b"{,}", {}),
        (b"{a:[1,],b:{},}", {"a": [1], "b": {}}),
        # What only looks special.
        (b'{"a":"{0:1}"}', {"a": "{0:1}"}),
        (b'{0:",,","a":"x:y"}', {"0": ",,", "a": "x:y"}),
        (rb'{0:"\"0:1,,\\"}', {"0": '"0:1,,\\'}),
        (b'{0:"\\u4e2d\\ud83d\\ude00\\/\\n"}', {"0": "中😀/\n"}),
        (b'{0:1.5e3,1:-0.5,2:true,3:null,4:""}', {"0": 1500.0, "1": -0.5, "2": True, "3": None, "4": ""}),
        # Repeated: the last value counts.
        (b'{"a":1,"a":2}', {"a": 2}),
        (b'{0:1,"0":2}', {"0": 2}),
        # References to what was written before stay as they are.
        (b'{0:{"$ref":"$.a"}}', {"0": {"$ref": "$.a"}}),
    ],
)
def test_what_java_reads_is_read(written: bytes, value: Any) -> None:
    assert loads(written) == value


@settings(deadline=None, max_examples=50)
@given(names=st.lists(BARE_NAMES, unique=True, max_size=5), values=st.lists(VALUES, min_size=5, max_size=5))
def test_any_value_under_bare_names_is_read(names: list[str], values: list[Any]) -> None:
    members = dict(zip(names, values, strict=False))
    written = "{" + ",".join(f"{name}:{json.dumps(member)}" for name, member in members.items()) + "}"
    assert loads(written.encode()) == members


@settings(deadline=None)
@given(TEXTS.filter(lambda text: all(character.isprintable() for character in text)))
def test_any_text_in_single_quotes_is_read(text: str) -> None:
    quoted = text.replace("\\", "\\\\").replace("'", "\\'")
    assert loads(f"{{a:'{quoted}'}}".encode()) == {"a": text}


@pytest.mark.parametrize(
    "written",
    [
        b"",
        b" ",
        b"\n\t",
        b",",
        b":",
        b"{",
        b"}",
        b"[",
        b"]",
        b"{]",
        b"[}",
        b"{a}",
        b"{a:}",
        b"{a:,}",
        b"{:1}",
        b"{a::1}",
        b"{a:b}",
        b"{a:1 b:2}",
        b"{'a' 'b'}",
        b"['a' 'b']",
        b'["a" 1]',
        b"[1:2]",
        b"{a:1}}",
        b"{a:1}{b:2}",
        b"{a:1},",
        b"{a:1}x",
        b'"a',
        b"'a",
        b'{a:"b}',
        b"{a:'b}",
        b"\\",
        b'{"a":"\\q"}',
        b"{a:01x}",
        b"{a:NaN}",
        b"{a:1e999}",
        b"\0",
        b"{a:\0}",
        b"undefined",
    ],
)
def test_what_is_in_no_dialect_is_refused(written: bytes) -> None:
    with pytest.raises(JsonError):
        loads(written)


def test_nesting_is_decoded_up_to_the_bound() -> None:
    value = loads(b'{0:{"a":' * 40 + b"1" + b"}}" * 40)
    for _ in range(40):
        value = value["0"]["a"]
    assert value == 1


@pytest.mark.parametrize("opening", [b"[", b"{a:", b'{"a":', b"[{0:"])
def test_nesting_beyond_reason_is_refused(opening: bytes) -> None:
    closing = b"".join(b"]" if mark == 0x5B else b"}" for mark in reversed(opening) if mark in b"[{")
    depth = 20_000
    with pytest.raises(JsonError):
        loads(opening * depth)
    with pytest.raises(JsonError):
        loads(opening * depth + b"1" + closing * depth)


@pytest.mark.parametrize(
    "written", [b'"\xff"', b"'\xff'", b"{0:'\xff'}", b'{"a":"\xed\xa0\x80"}', b"{\xff:0}", b"\xff"]
)
def test_what_is_not_utf_8_is_refused(written: bytes) -> None:
    with pytest.raises(JsonError):
        loads(written)


# ------------------------------------------------------------------------------------------------------- bounds


@settings(deadline=None)
@given(st.text(max_size=80))
def test_any_text_can_be_standardised(text: str) -> None:
    assert isinstance(standardise(text.encode()), bytes)


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="{}[]:,\"'\\ \n\t0a-.中\u2028", max_size=60))
def test_any_text_of_punctuation_is_decoded_or_refused(text: str) -> None:
    with suppress(JsonError):
        assert not isinstance(loads(text.encode()), bytes)


@settings(deadline=None)
@given(st.text(alphabet="{}[]:,\"'\\ \n\t0a-.中\u2028", max_size=60))
def test_standardising_twice_changes_nothing_more(text: str) -> None:
    once = standardise(text.encode())
    with suppress(JsonError):
        value = loads(once)
        assert loads(standardise(once)) == value


MARKS = [b'"', b"'", b"{", b"[", b"}", b",", b":", b"\\", b" ", b"\n", b"a", "中".encode()]
PAIRS = [b"a:", b"a,", b"a ", b" :", b", ", b"\"'", b"'\"", b"\\n", b"{0:", b"a:{"]


@pytest.mark.parametrize("unit", [*MARKS, *PAIRS])
def test_repeated_characters_take_linear_time(unit: bytes) -> None:
    data = unit * (200_000 // len(unit))
    with hang_guard():
        assert isinstance(standardise(data), bytes)
        with suppress(JsonError):
            loads(data)


@pytest.mark.parametrize("quote", [b'"', b"'"])
@pytest.mark.parametrize("unit", [b"x", b"\\\\", b"\\n", b'\\"', b"\\'", b"{", b"a:"])
def test_an_unterminated_text_takes_linear_time(quote: bytes, unit: bytes) -> None:
    data = quote + unit * (200_000 // len(unit))
    with hang_guard():
        assert isinstance(standardise(data), bytes)
        with pytest.raises(JsonError):
            loads(data)


def test_beyond_a_certain_size_only_bare_names_are_allowed_for() -> None:
    padding = b"x" * SMALL_BYTES
    assert loads(b'{0:"' + padding + b'"}') == {"0": padding.decode()}
    with pytest.raises(JsonError):
        loads(b"{0:'" + padding + b"'}")


def test_beyond_the_longest_body_only_standard_json_is_read() -> None:
    padding = b"x" * (LARGE_BYTES - len(b'{0:""}'))
    assert list(loads(b'{0:"' + padding + b'"}')) == ["0"]
    with pytest.raises(JsonError):
        loads(b'{0:"x' + padding + b'"}')
    assert list(loads(b'{"0":"x' + padding + b'"}')) == ["0"]


def test_too_many_bare_names_are_refused() -> None:
    with pytest.raises(JsonError, match=f"more than {BARE_KEYS_MAX} bare keys"):
        loads(b"{" + b"0:0," * (BARE_KEYS_MAX + 1) + b"1:1}")


def test_a_table_with_bare_names_takes_linear_memory() -> None:
    members = ",".join(
        f'"Topic{number}":{{"attributes":{{}},"perm":6,"currIdMap":{{0:{number}}}}}' for number in range(5000)
    )
    data = f"{{{members}}}".encode()
    tracemalloc.start()
    try:
        value = loads(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert value["Topic4999"]["currIdMap"] == {"0": 4999}
    assert peak < 50 * len(data)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'{"a":"x\ud83dy"}', "x?y"),
        (r'{"a":"x\uDE00"}', "x?"),
        (r'{"a":"\ud83d\ud83d\ude00"}', "?\U0001f600"),
        (r'{"a":"\\\ud83d"}', "\\?"),
        (r'{"a":"\\ud83d\ud83d"}', r"\ud83d?"),
        (r'{"a":"\n\ud83d\ud7ff"}', "\n?\ud7ff"),
    ],
)
def test_half_a_character_is_a_request_mark_as_for_java(text: str, value: str) -> None:
    assert loads(text.encode()) == {"a": value}


def test_a_broken_escape_is_no_half_character() -> None:
    with pytest.raises(JsonError):
        loads(rb'{"a":"\ud83"}')
