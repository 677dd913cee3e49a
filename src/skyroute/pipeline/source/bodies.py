"""Converts bodies to text or to the columns of JSON objects, in Arrow."""

import json
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

_FIELD: Final = "v"


def convert_bodies(bodies: pa.Array, wanted: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    """Return bodies as the wanted type, and why some could not be converted, by their place; these are null."""
    if pa.types.is_binary(wanted):
        return bodies, {}
    if pa.types.is_string(wanted):
        return _as_text(bodies)
    converted = _parse_all(bodies, wanted)
    return (converted, {}) if converted is not None else _parse_each(bodies, wanted)


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
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    if table.num_rows != len(bodies):
        return None
    return table.column(0).combine_chunks() if table.column(0).num_chunks != 1 else table.column(0).chunk(0)


def _parse_each(bodies: pa.Array, wanted: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    rows: list[pa.Array] = []
    reasons: dict[int, str] = {}
    for place, body in enumerate(bodies.to_pylist()):
        try:
            rows.append(_as_array(json.loads(body), wanted))
        except (ValueError, RecursionError, pa.ArrowException, TypeError, OverflowError) as error:
            rows.append(pa.nulls(1, wanted))
            reasons[place] = f"the body is not JSON with these columns: {error}"
    return pa.concat_arrays(rows), reasons


def _as_array(value: Any, wanted: pa.DataType) -> pa.Array:
    if value is not None and not isinstance(value, dict):
        raise TypeError(f"it has a {type(value).__name__}, not an object")
    try:
        return pa.array([value], wanted)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        # Dates, times and decimals are text in JSON.
        parsed = _parse_all(pa.array([json.dumps(value).encode()], pa.binary()), wanted)
        if parsed is None:
            raise
        return parsed
