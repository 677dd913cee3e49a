"""Converts between Arrow, numpy and texts.

pyarrow's own functions, such as `pa.array`, import pandas, which takes 0.2 s in a new worker.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def number_array(
    values: NDArray[Any], kind: pa.DataType | None = None, is_null: NDArray[Any] | None = None
) -> pa.Array:
    """Return numbers as an array of their own type, or of another one of the same width, such as timestamps."""
    values = np.ascontiguousarray(values)
    validity = None if is_null is None else pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    return pa.Array.from_buffers(
        kind or pa.from_numpy_dtype(values.dtype), len(values), [validity, pa.py_buffer(values)]
    )


def text_array(texts: Sequence[str | None]) -> pa.Array:
    """Return texts."""
    raw = [(text or "").encode() for text in texts]
    offsets = np.cumsum([0, *map(len, raw)], dtype=np.int32)
    is_null = np.array([text is None for text in texts], bool)
    validity = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
    return pa.Array.from_buffers(pa.string(), len(raw), [validity, pa.py_buffer(offsets), pa.py_buffer(b"".join(raw))])


def repeated_text(text: str, count: int) -> pa.Array:
    """Return one text many times."""
    raw = text.encode()
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(len(raw))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(raw * count)])


def null_texts(count: int) -> pa.Array:
    """Return a null for each of these texts."""
    validity, offsets = np.zeros((count + 7) // 8, np.uint8), np.zeros(count + 1, np.int32)
    return pa.Array.from_buffers(pa.string(), count, [pa.py_buffer(validity), pa.py_buffer(offsets), pa.py_buffer(b"")])


def as_numbers(values: pa.Array) -> NDArray[Any]:
    """Return the numbers of an array without nulls."""
    kind = values.type.to_pandas_dtype()
    return np.frombuffer(values.buffers()[1], kind)[values.offset :][: len(values)]


def as_flags(values: pa.Array) -> NDArray[Any]:
    """Return the booleans of an array without nulls."""
    bits = np.unpackbits(np.frombuffer(values.buffers()[1], np.uint8), bitorder="little")
    return bits[values.offset :][: len(values)].astype(bool)
