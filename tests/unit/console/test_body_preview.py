"""Message bodies on pages: their form, their size, and invisible characters."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.console.cluster_data import body_preview
from skyroute.console.cluster_data.body_preview import (
    HEX_BYTES_MAX,
    JSON_DEPTH_MAX,
    PREVIEW_CHARS,
    TEXT_BYTES_MAX,
    Form,
    preview,
    show_body,
)


@pytest.mark.parametrize(
    ("body", "form"),
    [
        (b"one coffee", Form.TEXT),
        ("你好\n\tworld\r\n".encode(), Form.TEXT),
        (b"", Form.TEXT),
        (b"17", Form.TEXT),
        (b' {"a": 1}', Form.JSON),
        (b"[]", Form.JSON),
        (b'{"a": 1', Form.TEXT),
        (b"\x00\x01", Form.HEX),
        (b"caf\xe9", Form.HEX),
        ("a\u202etxt".encode(), Form.TEXT),
    ],
)
def test_the_form_fits_the_body(body: bytes, form: Form) -> None:
    """Objects and lists are JSON, other UTF-8 is text, and the rest is hex."""
    assert show_body(body).form is form


def test_formatted_json_keeps_numbers_and_duplicate_names() -> None:
    shown = show_body(b'{"price":1.10,"price":12345678901234567890123,"none":[]}')
    assert shown.text == '{\n  "price": 1.10,\n  "price": 12345678901234567890123,\n  "none": []\n}'


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=20).map(lambda v: [v]))
def test_formatted_json_has_the_same_value(value: object) -> None:
    shown = show_body(json.dumps(value).encode())
    assert shown.form is Form.JSON
    assert json.loads(shown.text) == value


def test_deep_json_is_shown_as_text() -> None:
    """A few bytes must not become megabytes of indentation; brackets in strings do not count."""
    deep = JSON_DEPTH_MAX + 1
    assert show_body(b"[" * deep + b"]" * deep, Form.JSON).form is Form.TEXT
    assert show_body(b'["' + b"[" * deep + b'\\"[[["]').form is Form.JSON


def test_a_body_that_is_not_json_is_shown_as_text() -> None:
    assert show_body(b"{oops", Form.JSON).text == "{oops"
    assert show_body(b'{"a":"\xff"}', Form.JSON).text == '{"a":"\\xff"}'


def test_long_bodies_are_truncated() -> None:
    """The result has the number of bytes shown, and no half character."""
    text = show_body(b"x" + "é".encode() * TEXT_BYTES_MAX)
    assert (text.form, text.shown_bytes) == (Form.TEXT, TEXT_BYTES_MAX)
    assert text.text == "x" + "é" * (TEXT_BYTES_MAX // 2 - 1)
    dump = show_body(bytes(HEX_BYTES_MAX + 1))
    assert (dump.form, dump.shown_bytes) == (Form.HEX, HEX_BYTES_MAX)
    assert dump.text.count("\n") == HEX_BYTES_MAX // 16 - 1


def test_hex_has_offset_bytes_and_characters() -> None:
    """A short last row stays aligned."""
    assert show_body(bytes(range(0x38, 0x4A)), Form.HEX).text == (
        "00000000  38 39 3a 3b 3c 3d 3e 3f  40 41 42 43 44 45 46 47  89:;<=>?@ABCDEFG\n"
        "00000010  48 49                                             HI"
    )


@given(st.binary(max_size=300), st.sampled_from([None, *Form]))
def test_any_bytes_can_be_shown(body: bytes, form: Form | None) -> None:
    """No control character reaches the page."""
    shown = show_body(body, form).text + preview(body)
    assert not set(shown) & {"\x00", "\x1b", "\u202e", "\u2066"}
    shown.encode()


def test_invisible_characters_are_escaped() -> None:
    """A text cannot change its writing direction."""
    assert show_body("a\u202ecod.exe\x1b[31m".encode(), Form.TEXT).text == r"a\u202ecod.exe\x1b[31m"


def test_a_preview_is_one_short_line() -> None:
    """A binary body has none."""
    assert preview(b"one\n  two") == "one two"
    assert preview(b"x" * 1000) == "x" * PREVIEW_CHARS + "…"
    assert preview(b"x" + "é".encode() * 400) == "x" + "é" * (PREVIEW_CHARS - 1) + "…"
    assert preview(b"\x00abc") == ""


@pytest.mark.parametrize("body", [b'["' + b'\\"' * 1000, b"[" + b'"\\' * 1000])
def test_unterminated_strings_are_scanned_once(body: bytes) -> None:
    """The bracket and one string up to the end: a match per quote would take time with the square of the size."""
    assert len(body_preview._STRING_OR_BRACKET.findall(body)) == 2
