"""How bodies are shown: in the form that suits them, whole or cut, and with nothing that deceives the eye."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
def test_form_suits_the_body(body: bytes, form: Form) -> None:
    """Objects and lists are JSON, other UTF-8 is text, and all else bytes."""
    assert show_body(body).form is form


def test_json_keeps_what_was_written() -> None:
    """Numbers keep their digits, and a name that stands twice is shown twice."""
    shown = show_body(b'{"price":1.10,"price":12345678901234567890123,"none":[]}')
    assert shown.text == '{\n  "price": 1.10,\n  "price": 12345678901234567890123,\n  "none": []\n}'


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=20).map(lambda v: [v]))
def test_pretty_json_says_the_same(value: object) -> None:
    """What is shown of JSON reads back as what it was, unless a character in it had to be written out."""
    shown = show_body(json.dumps(value).encode())
    assert shown.form is Form.JSON
    assert json.loads(shown.text) == value


def test_deep_json_is_shown_as_text() -> None:
    """A few bytes must not become megabytes of indentation; brackets within strings do not count."""
    deep = JSON_DEPTH_MAX + 1
    assert show_body(b"[" * deep + b"]" * deep, Form.JSON).form is Form.TEXT
    assert show_body(b'["' + b"[" * deep + b'\\"[[["]').form is Form.JSON


def test_what_is_no_json_is_text_even_if_asked_for() -> None:
    """A page says that it is none, and shows it."""
    assert show_body(b"{oops", Form.JSON).text == "{oops"
    assert show_body(b'{"a":"\xff"}', Form.JSON).text == '{"a":"\\xff"}'


def test_long_bodies_are_cut() -> None:
    """A cut says how much is shown, and cuts no character in two."""
    text = show_body(b"x" + "é".encode() * TEXT_BYTES_MAX)
    assert (text.form, text.shown_bytes) == (Form.TEXT, TEXT_BYTES_MAX)
    assert text.text == "x" + "é" * (TEXT_BYTES_MAX // 2 - 1)
    dump = show_body(bytes(HEX_BYTES_MAX + 1))
    assert (dump.form, dump.shown_bytes) == (Form.HEX, HEX_BYTES_MAX)
    assert dump.text.count("\n") == HEX_BYTES_MAX // 16 - 1


def test_bytes_are_written_as_everywhere() -> None:
    """Place, sixteen bytes, and the signs that they stand for; a short last row stays in line."""
    assert show_body(bytes(range(0x38, 0x4A)), Form.HEX).text == (
        "00000000  38 39 3a 3b 3c 3d 3e 3f  40 41 42 43 44 45 46 47  89:;<=>?@ABCDEFG\n"
        "00000010  48 49                                             HI"
    )


@given(st.binary(max_size=300), st.sampled_from([None, *Form]))
def test_any_bytes_can_be_shown(body: bytes, form: Form | None) -> None:
    """Whatever it is, a page can be made of it, and nothing in it steers how the rest is read."""
    shown = show_body(body, form).text + preview(body)
    assert not set(shown) & {"\x00", "\x1b", "\u202e", "\u2066"}
    shown.encode()


def test_deceiving_characters_are_written_out() -> None:
    """A text that runs backwards is not shown backwards."""
    assert show_body("a\u202ecod.exe\x1b[31m".encode(), Form.TEXT).text == r"a\u202ecod.exe\x1b[31m"


def test_preview_is_one_short_line() -> None:
    """Of text its beginning; of other things nothing."""
    assert preview(b"one\n  two") == "one two"
    assert preview(b"x" * 1000) == "x" * PREVIEW_CHARS + "…"
    assert preview(b"x" + "é".encode() * 400) == "x" + "é" * (PREVIEW_CHARS - 1) + "…"
    assert preview(b"\x00abc") == ""


def test_looking_at_hostile_json_takes_no_time() -> None:
    """Quotes that never end are gone through once, and not once for each of them."""
    began = time.perf_counter()
    show_body(b'["' + b'\\"' * (TEXT_BYTES_MAX // 2 - 1))
    show_body(b"[" + b'"\\' * (TEXT_BYTES_MAX // 2 - 1))
    assert time.perf_counter() - began < 1.0
