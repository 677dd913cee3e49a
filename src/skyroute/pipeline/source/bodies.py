"""Converts bodies to text or to the columns of JSON objects, in Arrow."""

import json
import math
from collections.abc import Callable
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

_FIELD: Final = "v"
_EXACT: Final = {pa.float32(): 1 << 24, pa.float64(): 1 << 53}
"""The largest whole number up to which each type has all whole numbers."""
_YEAR_MAX: Final = 9999


def convert_bodies(bodies: pa.Array, wanted: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    """Return bodies as the wanted type, and why some could not be converted, by their place; these are null."""
    if pa.types.is_binary(wanted):
        return bodies, {}
    if pa.types.is_string(wanted):
        return _as_text(bodies)
    converted = _parse_all(bodies, wanted)
    if converted is not None and _is_exact(converted):
        return converted, {}
    return _parse_right_ones(bodies, wanted)


def _as_text(bodies: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    try:
        return bodies.cast(pa.string()), {}
    except pa.ArrowInvalid:
        texts: list[str | None] = []
        reasons: dict[int, str] = {}
        for place, body in enumerate(bodies.to_pylist()):
            try:
                texts.append(body.decode())
            except UnicodeDecodeError as error:
                texts.append(None)
                reasons[place] = f"the body is not UTF-8 text: {error}"
        return pa.array(texts, pa.string()), reasons


def _parse_all(bodies: pa.Array, wanted: pa.DataType) -> pa.Array | None:
    """Parse all bodies at once; None if one is invalid, or Arrow cannot parse this type.

    Each body is wrapped in an object, so that a body with no object, or with two, cannot shift the others.
    """
    lines = pc.binary_join_element_wise(
        pa.scalar(b'{"%s":' % _FIELD.encode(), pa.binary()),
        bodies,
        pa.scalar(b"}\n", pa.binary()),
        pa.scalar(b"", pa.binary()),
    )
    if not len(lines):
        return pa.array([], wanted)
    size = pc.sum(pc.binary_length(lines)).as_py()
    data = pa.BufferReader(lines.buffers()[2].slice(0, size))
    parsing = pj.ParseOptions(
        explicit_schema=pa.schema([(_FIELD, wanted)]), newlines_in_values=True, unexpected_field_behavior="ignore"
    )
    reading = pj.ReadOptions(use_threads=False, block_size=size + 1)
    try:
        table = pj.read_json(data, read_options=reading, parse_options=parsing)
        table.validate(full=True)  # text may not be UTF-8
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    if table.num_rows != len(bodies):
        return None
    return table.column(0).combine_chunks() if table.column(0).num_chunks != 1 else table.column(0).chunk(0)


def _is_exact(values: pa.Array) -> bool:
    """Whether Arrow cannot have changed a value: it rounds large whole numbers in float columns, and overflows.

    It also accepts years that Spark does not.
    """
    kind = values.type
    if pa.types.is_struct(kind):
        return all(map(_is_exact, values.flatten()))
    if pa.types.is_list(kind):
        return _is_exact(values.flatten())
    if pa.types.is_floating(kind):
        return bool(pc.all(pc.less(pc.abs(values), _EXACT[kind]), min_count=0).as_py())
    if pa.types.is_timestamp(kind):
        return _has_spark_years(values)
    return True


def _has_spark_years(times: pa.Array) -> bool:
    years = pc.min_max(pc.year(times.cast(pa.timestamp("us")))).as_py()
    return years["min"] is None or 1 <= years["min"] <= years["max"] <= _YEAR_MAX


def _parse_right_ones(bodies: pa.Array, wanted: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    """Parse the bodies that have exact values of the wanted type."""
    reasons: dict[int, str] = {}
    for place, body in enumerate(bodies.to_pylist()):
        try:
            _check(json.loads(body.decode(), parse_constant=_refuse_constant), wanted, "the body")
        except (ValueError, RecursionError) as error:
            reasons[place] = f"the body is not JSON with these columns: {error}"
    places = [place for place in range(len(bodies)) if place not in reasons]
    parsed = _parse_all(bodies.take(pa.array(places, pa.int64())), wanted)
    if parsed is None:
        pieces = []
        for place in places:
            piece = _parse_all(bodies.slice(place, 1), wanted)
            if piece is None:
                reasons[place] = "the body is not JSON with these columns: it has a name twice, or a value out of range"
            pieces.append(pa.nulls(1, wanted) if piece is None else piece)
        parsed = pa.concat_arrays(pieces)
    rows: list[int | None] = [None] * len(bodies)
    for row, place in enumerate(places):
        rows[place] = row
    return parsed.take(pa.array(rows, pa.int64())), reasons


def _check(value: Any, wanted: pa.DataType, name: str) -> None:
    """Check that a value has the wanted type exactly. Arrow finds other problems, such as too many digits.

    Raises:
        ValueError: it has not.
    """
    if value is None:
        return
    if pa.types.is_struct(wanted):
        if not isinstance(value, dict):
            _refuse(value, "an object", name)
        for field in wanted:
            _check(value.get(field.name), field.type, field.name)
    elif pa.types.is_list(wanted):
        if not isinstance(value, list):
            _refuse(value, "an array", name)
        for each in value:
            _check(each, wanted.value_type, name)
    else:
        fits, expected = next((fits, expected) for is_of, fits, expected in _CHECKS if is_of(wanted))
        if not fits(value, wanted):
            _refuse(value, expected, name)


def _is_integer(value: Any, wanted: pa.DataType) -> bool:
    bound = 1 << (wanted.bit_width - 1)
    return type(value) is int and -bound <= value < bound


def _is_float(value: Any, wanted: pa.DataType) -> bool:
    if type(value) not in (int, float):
        return False
    try:
        with np.errstate(over="ignore"):
            stored = float(np.float32(value)) if wanted == pa.float32() else float(value)
    except OverflowError:
        return False
    return math.isfinite(stored) and (type(value) is float or stored == value)


def _is_time(value: Any, wanted: pa.DataType) -> bool:
    if not isinstance(value, str):
        return False
    parsed = _parse_all(pa.array([json.dumps(value).encode()], pa.binary()), wanted)
    return parsed is not None and _has_spark_years(parsed)


_CHECKS: Final[tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, pa.DataType], bool], str], ...]] = (
    (pa.types.is_integer, _is_integer, "a whole number that the column can store"),
    (pa.types.is_floating, _is_float, "a number that the column can store"),
    (pa.types.is_boolean, lambda value, _: isinstance(value, bool), "true or false"),
    (pa.types.is_decimal, lambda value, _: type(value) in (int, float, str), "a number"),
    (pa.types.is_timestamp, _is_time, "an ISO time"),
    (pa.types.is_string, lambda value, _: isinstance(value, str), "a text"),
)
"""Types, the check of a value, and what is expected of it."""


def _refuse(value: object, expected: str, name: str) -> NoReturn:
    raise ValueError(f"{name} has {json.dumps(value)[:100]} (expected {expected})")


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number of JSON")
