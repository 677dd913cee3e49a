"""Parses the option `bodySchema`, such as `id BIGINT, price DOUBLE, lines ARRAY<STRUCT<sku: STRING, n: INT>>`.

Spark has a parser, but only in Java, and a schema is needed in a process that has none.
"""

import re
from typing import Final, NoReturn

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

DEPTH_MAX: Final = 32
"""Levels of nested types."""

_EXPECTED: Final = "columns such as id BIGINT, price DOUBLE, lines ARRAY<STRUCT<sku: STRING, n: INT>>"
_TOKEN: Final = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|([<>:,()]))")
_PLAIN: Final[dict[str, type[DataType]]] = {
    "string": StringType,
    "boolean": BooleanType,
    "tinyint": ByteType,
    "byte": ByteType,
    "smallint": ShortType,
    "short": ShortType,
    "int": IntegerType,
    "integer": IntegerType,
    "bigint": LongType,
    "long": LongType,
    "float": FloatType,
    "real": FloatType,
    "double": DoubleType,
    "timestamp": TimestampType,
}


def parse_body_schema(text: str) -> StructType:
    """Return the columns of a JSON body.

    Raises:
        ValueError: the text has another form; the error says what is expected.
    """
    return _Parser(text).columns()


def find_unsupported(kind: DataType) -> DataType | None:
    """Return the first type in a JSON body's columns that cannot be parsed; None if all can."""
    if isinstance(kind, StructType):
        return next(filter(None, (find_unsupported(field.dataType) for field in kind.fields)), None)
    if isinstance(kind, ArrayType):
        return find_unsupported(kind.elementType)
    return None if isinstance(kind, DecimalType) or type(kind) in _PLAIN.values() else kind


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        at = 0
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            if match is None:
                raise ValueError(f"{_EXPECTED}; {text[at : at + 20]!r} is not part of one")
            quoted, word, sign = match.groups()
            self._tokens.append(quoted.replace("``", "`") if quoted else word or sign)
            at = match.end()
        self._tokens.reverse()  # the next one is the last

    def columns(self) -> StructType:
        found = self._fields(0)
        if self._tokens:
            raise self._error()
        return found

    def _fields(self, depth: int) -> StructType:
        fields: list[StructField] = []
        while True:
            name = self._take()
            self._skip(":")
            fields.append(StructField(name, self._type(depth)))
            if not self._skip(","):
                return StructType(fields)

    def _type(self, depth: int) -> DataType:
        if depth > DEPTH_MAX:
            raise ValueError(f"{_EXPECTED}, with at most {DEPTH_MAX} levels")
        name = self._take().lower()
        if name in _PLAIN:
            return _PLAIN[name]()
        if name in ("decimal", "dec", "numeric"):
            precision, scale = 10, 0
            if self._skip("("):
                precision = self._number()
                scale = self._number() if self._skip(",") else 0
                self._expect(")")
            return DecimalType(precision, scale)
        if name not in ("struct", "array"):
            self._fail(name)
        self._expect("<")
        found: DataType = self._fields(depth + 1) if name == "struct" else ArrayType(self._type(depth + 1))
        self._expect(">")
        return found

    def _take(self) -> str:
        if not self._tokens:
            raise ValueError(f"{_EXPECTED}; the text ends too early")
        return self._tokens.pop()

    def _number(self) -> int:
        word = self._take()
        if not word.isdigit():
            self._fail(word)
        return int(word)

    def _skip(self, sign: str) -> bool:
        if self._tokens and self._tokens[-1] == sign:
            self._tokens.pop()
            return True
        return False

    def _expect(self, sign: str) -> None:
        if not self._skip(sign):
            raise self._error()

    def _fail(self, word: str) -> NoReturn:
        raise ValueError(f"{_EXPECTED}; {word!r} is not a type")

    def _error(self) -> ValueError:
        return ValueError(f"{_EXPECTED}; {self._tokens[-1] if self._tokens else 'the end'!r} is unexpected")
