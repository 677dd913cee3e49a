"""The property string, as Apache reads it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.message import property_names
from skyroute.message.errors import PropertyError
from skyroute.message.properties import (
    add_properties,
    decode_properties,
    delete_property,
    encode_properties,
    find_property,
    join_properties,
    split_properties,
)
from tests.unit.message.samples import FACTS, PROPERTIES

PIECES = st.text(st.sampled_from("ab\x01\x02红"), max_size=20)


@pytest.mark.parametrize("text", FACTS["properties"])
def test_properties_are_read_as_apache_reads_them(text: str) -> None:
    assert split_properties(text) == FACTS["properties"][text]
    assert decode_properties(text.encode()) == FACTS["properties"][text]


@pytest.mark.parametrize(("text", "name", "left"), FACTS["deletions"])
def test_properties_are_deleted_as_apache_deletes_them(text: str, name: str, left: str) -> None:
    assert delete_property(text.encode(), name) == left.encode()


@given(PROPERTIES)
def test_properties_are_decoded_as_encoded(properties: dict[str, str]) -> None:
    assert split_properties(join_properties(properties)) == properties
    assert decode_properties(encode_properties(properties)) == properties


@given(PIECES)
def test_what_was_read_can_be_written_again(text: str) -> None:
    properties = split_properties(text)
    assert split_properties(join_properties(properties)) == properties


@given(PIECES, st.text(st.sampled_from("ab\x01\x02红"), max_size=3))
def test_one_property_is_found_as_if_all_were_read(text: str, name: str) -> None:
    assert find_property(text.encode(), name) == split_properties(text).get(name)


@given(PIECES, st.sampled_from(["a", "b", "ab", "红", "", "a\x01"]))
def test_deleting_a_property_leaves_the_others(text: str, name: str) -> None:
    expected = split_properties(text)
    expected.pop(name, None)
    assert decode_properties(delete_property(text.encode(), name)) == expected


@given(PIECES, PROPERTIES)
def test_added_properties_win(text: str, more: dict[str, str]) -> None:
    assert decode_properties(add_properties(text.encode(), more)) == split_properties(text) | more


@given(st.binary(max_size=60))
def test_any_bytes_are_properties(raw: bytes) -> None:
    assert find_property(raw, "a") == decode_properties(raw).get("a")


@pytest.mark.parametrize(
    "properties",
    [{"": "1"}, {"a": ""}, {"a\x01": "1"}, {"a\x02": "1"}, {"a": "1\x02"}, {"\x01": "1"}, {"a": "\ud800"}],
)
def test_properties_that_would_not_be_decoded_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(PropertyError):
        encode_properties(properties)


def test_properties_have_a_bound() -> None:
    assert len(encode_properties({"a": "x" * 32764})) == 32767
    with pytest.raises(PropertyError, match="32768 bytes"):
        encode_properties({"a": "x" * 32765})
    with pytest.raises(PropertyError, match="32770 bytes"):
        add_properties(b"b\x01" + b"x" * 32763, {"a": "1"})


def test_we_know_every_name_that_apache_knows() -> None:
    ours = {value for name, value in vars(property_names).items() if name.isupper() and isinstance(value, str)}
    assert ours >= set(FACTS["property_names"])
    assert set(FACTS["reserved_properties"]) == property_names.RESERVED_NAMES
