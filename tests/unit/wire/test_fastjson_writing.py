import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyroute.wire.fastjson import Dialect, dumps, loads, write, write_numbers, write_text

LEGACY, STRICT = Dialect.LEGACY, Dialect.STRICT
BOTH = pytest.mark.parametrize("dialect", Dialect)

TEXTS = st.text(max_size=20)
VALUES = st.recursive(
    st.booleans() | st.integers(-(1 << 53) + 1, (1 << 53) - 1) | TEXTS,
    lambda children: st.lists(children, max_size=4) | st.dictionaries(TEXTS, children, max_size=4),
    max_leaves=8,
)


@BOTH
@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("text", b'"text"'),
        ("", b'""'),
        (True, b"true"),
        (False, b"false"),
        (0, b"0"),
        (-5, b"-5"),
        (1758275140000, b"1758275140000"),
        ([], b"[]"),
        ({}, b"{}"),
        ((1, "a", True, [2]), b'[1,"a",true,[2]]'),
        ({"a": 1, "b": [1, 2], "c": {"d": "e"}}, b'{"a":1,"b":[1,2],"c":{"d":"e"}}'),
        ({"a": None, "b": 1}, b'{"b":1}'),
        ({"a": None}, b"{}"),
        ({"a": {"b": None}}, b'{"a":{}}'),
    ],
)
def test_plain_values_are_written_alike_in_both_dialects(dialect: Dialect, value: object, written: bytes) -> None:
    assert dumps(value, dialect) == written


def test_numeric_names_are_bare_in_the_legacy_dialect() -> None:
    assert dumps({0: "a", 1: "b", -1: "c"}, LEGACY) == b'{0:"a",1:"b",-1:"c"}'


def test_numeric_names_are_quoted_in_the_strict_dialect() -> None:
    assert dumps({0: "a", 1: "b"}, STRICT) == b'{"0":"a","1":"b"}'


def test_the_strict_dialect_sorts_numeric_names_as_numbers() -> None:
    assert dumps({10: "c", 9: "b", 0: "a", 100: "d"}, STRICT) == b'{"0":"a","9":"b","10":"c","100":"d"}'


def test_the_strict_dialect_sorts_names() -> None:
    assert dumps({"b": 1, "a10": 2, "a9": 3, "B": 4, "": 5}, STRICT) == b'{"":5,"B":4,"a10":2,"a9":3,"b":1}'


def test_the_strict_dialect_sorts_names_whose_values_cannot_be_compared() -> None:
    assert dumps({"b": {"x": 1}, "a": [1], "c": "z"}, STRICT) == b'{"a":[1],"b":{"x":1},"c":"z"}'


def test_the_legacy_dialect_keeps_the_order_it_is_given() -> None:
    assert dumps({"b": 1, "a": 2, "c": 3}, LEGACY) == b'{"b":1,"a":2,"c":3}'


@BOTH
def test_lists_keep_their_order(dialect: Dialect) -> None:
    assert dumps(["b", "a"], dialect) == b'["b","a"]'


@BOTH
@pytest.mark.parametrize(
    ("character", "written"),
    [
        ('"', r"\""),
        ("\\", r"\\"),
        ("\b", r"\b"),
        ("\f", r"\f"),
        ("\n", r"\n"),
        ("\r", r"\r"),
        ("\t", r"\t"),
        ("\0", r"\u0000"),
        ("\x01", r"\u0001"),
        ("\x0b", r"\u000B"),
        ("\x0e", r"\u000E"),
        ("\x1b", r"\u001B"),
        ("\x1f", r"\u001F"),
        (" ", " "),
        ("'", "'"),
        ("<", "<"),
        ("~", "~"),
    ],
)
def test_controls_and_quotes_are_escaped_in_both_dialects(dialect: Dialect, character: str, written: str) -> None:
    assert dumps(character, dialect) == f'"{written}"'.encode()
    assert dumps({character: 1}, dialect) == f'{{"{written}":1}}'.encode()


@pytest.mark.parametrize(
    ("character", "legacy", "strict"),
    [
        ("/", "/", r"\/"),
        ("\xa0", "\xa0", r"\u00A0"),
        ("ÿ", "ÿ", r"\u00FF"),
        ("中", "中", r"\u4E2D"),
        ("\ufeff", "\ufeff", r"\uFEFF"),
        ("\uffff", "\uffff", r"\uFFFF"),
        ("😀", "😀", r"\uD83D\uDE00"),
        ("\U0010ffff", "\U0010ffff", r"\uDBFF\uDFFF"),
    ],
)
def test_the_strict_dialect_escapes_the_slash_and_all_beyond_ascii(character: str, legacy: str, strict: str) -> None:
    assert dumps({"k": character, character: "v"}, LEGACY) == f'{{"k":"{legacy}","{legacy}":"v"}}'.encode()
    assert dumps(character, STRICT) == f'"{strict}"'.encode()
    assert dumps({character: "v"}, STRICT) == f'{{"{strict}":"v"}}'.encode()


def test_the_strict_dialect_escapes_delete() -> None:
    assert dumps("~\x7f", STRICT) == rb'"~\u007F"'


@BOTH
def test_half_a_character_does_not_break_the_body(dialect: Dialect) -> None:
    assert json.loads(dumps({"zoneName": "a\ud800b"}, dialect)).keys() == {"zoneName"}


@BOTH
@pytest.mark.parametrize("value", [1.5, object(), {1, 2}, {"a": object()}, [None]])
def test_what_has_no_form_in_a_body_is_our_own_mistake(dialect: Dialect, value: object) -> None:
    with pytest.raises(TypeError):
        dumps(value, dialect)


@settings(deadline=None, max_examples=50)
@given(VALUES)
def test_the_strict_dialect_is_standard_json(value: Any) -> None:
    written = dumps(value, STRICT)
    assert json.loads(written) == value
    assert written.isascii()


@settings(deadline=None, max_examples=50)
@given(VALUES)
def test_the_legacy_dialect_is_read_back(value: Any) -> None:
    assert loads(dumps(value, LEGACY)) == value


@settings(deadline=None)
@given(dialect=st.sampled_from(Dialect), ids=st.dictionaries(st.integers(0, 1 << 40), TEXTS, max_size=5))
def test_numeric_names_are_read_back_from_both_dialects(dialect: Dialect, ids: dict[int, str]) -> None:
    assert loads(dumps({"brokerAddrs": ids}, dialect)) == {"brokerAddrs": {str(key): text for key, text in ids.items()}}


@settings(deadline=None, max_examples=50)
@given(value=VALUES, dialect=st.sampled_from(Dialect))
def test_there_is_never_a_blank_outside_of_texts(value: Any, dialect: Dialect) -> None:
    # Peers written in Go cut addresses out of the raw bytes.
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    blanks = compact.count(" ")
    assert dumps(value, dialect).count(b" ") == blanks


@BOTH
def test_a_character_is_written_alike_alone_and_among_others(dialect: Dialect) -> None:
    # The second of two texts needs an escape, so it never takes the short way of plain ones.
    for number in range(0x250):
        alone, among = write_text(chr(number), dialect), write_text(f"\t{chr(number)}", dialect)
        assert among == f'"\\t{alone[1:]}'


@settings(deadline=None)
@given(value=VALUES, dialect=st.sampled_from(Dialect))
def test_a_value_is_written_as_the_text_that_is_dumped(value: Any, dialect: Dialect) -> None:
    assert write(value, dialect).encode() == dumps(value, dialect)


@given(numbers=st.dictionaries(*2 * (st.integers(-(2**31), 2**31 - 1),)), dialect=st.sampled_from(Dialect))
def test_numbers_are_written_as_any_map_is(numbers: dict[int, int], dialect: Dialect) -> None:
    assert write_numbers(numbers, dialect) == write(numbers, dialect)
