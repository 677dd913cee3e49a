from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.settings.errors import ConfigError, MalformedPropertiesError
from skyroute.settings.properties import format_properties, parse_properties, read_properties

# A single surrogate is half of a character, and cannot be encoded.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("listenPort=9876", "listenPort", "9876"),
        ("listenPort:9876", "listenPort", "9876"),
        ("listenPort 9876", "listenPort", "9876"),
        ("listenPort\t9876", "listenPort", "9876"),
        ("  listenPort \t = \f 9876", "listenPort", "9876"),
        ("listenPort : 9876", "listenPort", "9876"),
        ("listenPort = = 9876", "listenPort", "= 9876"),
        ("listenPort==9876", "listenPort", "=9876"),
        ("listenPort", "listenPort", ""),
        ("listenPort=", "listenPort", ""),
        ("=value", "", "value"),
        ("key=value with blanks  ", "key", "value with blanks  "),
        ("key=# no comment", "key", "# no comment"),
        (r"a\ b\=c\:d=e", "a b=c:d", "e"),
        (r"key=\ leading", "key", " leading"),
        (r"key=tab\tline\nreturn\rfeed\fend", "key", "tab\tline\nreturn\rfeed\fend"),
        (r"key=C:\\dir", "key", "C:\\dir"),
        (r"key=\q\"", "key", 'q"'),
        (r"key=\u0041\u00e9\u4E2D", "key", "Aé中"),
        (r"key=\ud83d\ude00", "key", "😀"),
        (r"k\u0065y=value", "key", "value"),
        ("key=中", "key", "中"),
    ],
)
def test_a_line_is_split_and_unescaped_as_java_does(line: str, key: str, value: str) -> None:
    assert parse_properties(line) == {key: value}


@pytest.mark.parametrize("text", ["", "\n\r\n \t\f\n", "# comment", " ! comment", "# continued?\\\n", "\\", "\\\n\n"])
def test_blank_lines_and_comments_are_ignored(text: str) -> None:
    assert parse_properties(text) == {}


@pytest.mark.parametrize("line_end", ["\n", "\r", "\r\n"])
def test_every_line_end_is_accepted(line_end: str) -> None:
    assert parse_properties(f"a=1{line_end}b=2{line_end}{line_end}c=3") == {"a": "1", "b": "2", "c": "3"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("key=one,\\\n    two", {"key": "one,two"}),
        ("key=one,\\\r\n\ttwo\\\r\nthree", {"key": "one,twothree"}),
        ("key=even\\\\\nother=1", {"key": "even\\", "other": "1"}),
        ("key=odd\\\\\\\nnext", {"key": "odd\\next"}),
        ("key=a\\\n# no comment", {"key": "a# no comment"}),
        ("key=a\\\n\nother=1", {"key": "a", "other": "1"}),
        ("key=a\\", {"key": "a"}),
        ("# a comment is never continued\\\nkey=1", {"key": "1"}),
        ("k\\\n  ey=1", {"key": "1"}),
    ],
)
def test_an_odd_backslash_at_the_end_continues_the_line(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_the_last_of_two_duplicates_wins() -> None:
    assert parse_properties("a=1\nb=2\na=3") == {"a": "3", "b": "2"}


@pytest.mark.parametrize("text", [r"a=\u12", r"a=\u12g4", r"a=\u", r"\u00=1"])
def test_a_malformed_escape_is_refused(text: str) -> None:
    with pytest.raises(MalformedPropertiesError, match="malformed"):
        parse_properties(text)


@pytest.mark.parametrize("text", [r"a=\ud83d", r"a=\ude00\ud83d", r"a=\ud83dx"])
def test_half_a_surrogate_pair_is_refused(text: str) -> None:
    with pytest.raises(MalformedPropertiesError, match="surrogate"):
        parse_properties(text)


@given(st.dictionaries(TEXTS, TEXTS))
def test_formatted_properties_are_parsed_back_the_same(properties: dict[str, str]) -> None:
    text = format_properties(properties)
    assert text.isascii()
    assert parse_properties(text) == properties


@given(TEXTS)
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        parsed = parse_properties(text)
    except MalformedPropertiesError:
        return
    assert parse_properties(format_properties(parsed)) == parsed


def test_a_file_in_utf_8_is_read_as_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.properties"
    path.write_bytes("env=größe 中".encode())
    assert read_properties(path) == {"env": "größe 中"}


def test_a_file_that_is_not_utf_8_is_read_as_iso_8859_1(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.properties"
    path.write_bytes("env=größe".encode("iso-8859-1"))
    assert read_properties(path) == {"env": "größe"}


def test_a_byte_order_mark_is_not_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.properties"
    path.write_bytes(b"\xef\xbb\xbflistenPort=1")
    assert read_properties(path) == {"listenPort": "1"}


def test_the_error_for_an_unreadable_file_has_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing\.properties: No such file or directory"):
        read_properties(tmp_path / "missing.properties")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_properties(tmp_path)
    with pytest.raises(ConfigError, match="null byte"):
        read_properties("a\0b")


def test_the_error_for_a_malformed_file_has_its_path(tmp_path: Path) -> None:
    path = tmp_path / "namesrv.properties"
    path.write_text(r"a=\u12")
    with pytest.raises(MalformedPropertiesError, match=r"namesrv\.properties"):
        read_properties(path)
