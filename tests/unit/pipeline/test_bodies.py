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


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("BIGINT", "1.5"),
        ("INT", "1.9"),
        ("INT", "1e1"),
        ("INT", "2147483648"),
        ("INT", "true"),
        ("DOUBLE", "9007199254740993"),
        ("DOUBLE", "123456789012345678901"),
        ("DOUBLE", "1e400"),
        ("DOUBLE", "NaN"),
        ("DOUBLE", "-Infinity"),
        ("DOUBLE", "true"),
        ("FLOAT", "1e39"),
        ("FLOAT", "16777217"),
        ("BOOLEAN", "1"),
        ("STRING", "1"),
        ("STRING", '"\\ud800"'),
        ("TIMESTAMP", "1700000000"),
        ("TIMESTAMP", '"0000-01-01"'),
        ("TIMESTAMP", '"2026-01-01T00:00:00.1234567Z"'),
        ("DECIMAL(10,2)", "1.555"),
        ("ARRAY<INT>", "[1, 2.5]"),
        ("STRUCT<a: INT>", "[]"),
        ("STRUCT<a: DOUBLE>", '{"a": 9007199254740993}'),
    ],
)
def test_a_value_that_its_column_cannot_store_is_a_reason_and_never_another_value(column: str, value: str) -> None:
    body = b'{"v": %s}' % value.encode()
    for neighbours in ((), (b'{"v": null}',), (b"{",)):
        found, reasons = convert_bodies(array(body, *neighbours), wanted(f"v {column}"))
        assert found.to_pylist()[0] is None
        assert reasons[0].startswith("the body is not JSON with these columns: ")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("BIGINT", 9007199254740993),
        ("DOUBLE", 9007199254740994),
        ("DOUBLE", 1e300),
        ("DOUBLE", 0.1),
        ("FLOAT", 16777218),
        ("TINYINT", -128),
    ],
)
def test_a_number_that_its_column_can_store_is_the_same_beside_any_other_body(column: str, value: float) -> None:
    for neighbour in (b'{"v": null}', b"{"):
        found, reasons = convert_bodies(array(b'{"v": %s}' % str(value).encode(), neighbour), wanted(f"v {column}"))
        assert (found.to_pylist()[0], 0 in reasons) == ({"v": value}, False)


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
