"""Properties: finding one, decoding all, adding and deleting agree.

Input: the string of properties as in a record; its first name is looked for.
"""

from skyroute.message.errors import PropertyError
from skyroute.message.properties import (
    PROPERTIES_BYTES_MAX,
    add_properties,
    decode_properties,
    delete_property,
    encode_properties,
    find_property,
    split_properties,
)


def check(data: bytes) -> None:
    found = decode_properties(data)
    assert found == split_properties(data.decode("utf-8", "replace"))
    for name, value in found.items():
        assert value
        if "\ufffd" not in name:  # the replacement of bytes that are not UTF-8
            assert find_property(data, name) == value
    for name in ("KEYS", "\x01", "", "no such name", data[:4].decode("utf-8", "replace")):
        if "\ufffd" not in name:
            assert find_property(data, name) == found.get(name)
            without = delete_property(data, name)
            assert find_property(without, name) is None
            rest = decode_properties(without)
            assert rest == {each: value for each, value in found.items() if each != name}
    if len(data) <= PROPERTIES_BYTES_MAX:
        check_encoded(data, found)


def check_encoded(data: bytes, found: dict[str, str]) -> None:
    try:
        assert decode_properties(encode_properties(found)) == found
        more = add_properties(data, {"KEYS": "a b"})
    except PropertyError:
        return  # replaced bytes take more space
    assert decode_properties(more) == found | {"KEYS": "a b"}
