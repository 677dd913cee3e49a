"""Bodies as text and as columns of JSON objects."""

import pyarrow as pa
import pytest

from skyroute.pipeline.source.bodies import convert_bodies
from skyroute.pipeline.source.body_schema import parse_body_schema
from skyroute.pipeline.spark_versions import arrow_schema


def wanted(columns: str) -> pa.DataType:
    return pa.struct(list(arrow_schema(parse_body_schema(columns))))


def array(*bodies: bytes) -> pa.Array:
    return pa.array(bodies, pa.binary())


def test_json_objects_become_columns() -> None:
    kind = wanted("id BIGINT, lines ARRAY<STRUCT<sku: STRING, n: INT>>, at TIMESTAMP")
    found, reasons = convert_bodies(
        array(
            b'{"id": 1, "lines": [{"sku": "cup", "n": 2}], "at": "2026-01-01T00:00:00Z", "other": 1}', b'{\n"id":\n2}'
        ),
        kind,
    )
    assert (found.type, reasons) == (kind, {})
    first, second = found.to_pylist()
    assert (first["id"], first["lines"], first["at"].year) == (1, [{"sku": "cup", "n": 2}], 2026)
    assert (second["id"], second["lines"]) == (2, None)


def test_bodies_without_the_columns_are_null_with_a_reason_and_shift_no_other() -> None:
    found, reasons = convert_bodies(
        array(b'{"id": 1}{"id": 2}', b"", b'{"id": "x"}', b'{"id": 4}', b"7", b"\xff", b"null"), wanted("id INT")
    )
    assert [row and row["id"] for row in found.to_pylist()] == [None, None, None, 4, None, None, None]
    assert sorted(reasons) == [0, 1, 2, 4, 5]
    assert all(text.startswith("the body is not JSON with these columns: ") for text in reasons.values())


def test_times_and_decimals_beside_a_damaged_body_are_parsed() -> None:
    body = b'{"at": "2026-01-02T00:00:00Z", "m": "1.50"}'
    found, reasons = convert_bodies(array(body, b"{"), wanted("at TIMESTAMP, m DECIMAL(10,2)"))
    assert str(found.to_pylist()[0]["m"]) == "1.50"
    assert found.to_pylist()[0]["at"].isoformat() == "2026-01-02T00:00:00+00:00"
    assert list(reasons) == [1]


def test_text_must_be_utf_8() -> None:
    found, reasons = convert_bodies(array("ü".encode(), b"\xff"), pa.string())
    assert found.to_pylist() == ["ü", None]
    assert list(reasons) == [1]
    assert convert_bodies(pa.array([], pa.binary()), wanted("id INT"))[0].to_pylist() == []


@pytest.mark.parametrize(
    "text", ["id", "id FOO", "id INT,", "a ARRAY<INT", "id INT;", "m MAP<STRING, INT>", "x DECIMAL(a)"]
)
def test_a_wrong_schema_says_what_is_expected(text: str) -> None:
    with pytest.raises(ValueError, match="columns such as id BIGINT"):
        parse_body_schema(text)


def test_types_may_not_be_nested_without_end() -> None:
    with pytest.raises(ValueError, match="at most 32 levels"):
        parse_body_schema("a " + "ARRAY<" * 100 + "INT" + ">" * 100)
