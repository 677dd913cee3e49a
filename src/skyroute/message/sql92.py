"""SQL92 conditions: compile an expression once, then evaluate it on each message's properties.

The results are those of Apache's broker, and some are surprising. Before writing an expression, know this:

* A property is text, and a missing one is unknown. Compared with a number, the text is read as the Java type of that
  number: `a > 5` wants a 32-bit integer, `a > 5000000000` a 64-bit one, `a > 5.0` a double. Text that cannot be read
  so makes the whole expression not match, unless an AND or OR was decided before it came to that.
* Truth has three values, and only true matches. `a <> 5` is unknown where `a` is missing, but `5 <> a` is true; two
  missing properties are equal; and `NOT CONTAINS` and its like are false where the property is missing.
* `NOT` binds tighter than a comparison: `NOT a = 5` is `(NOT a) = 5`, never true. Write `NOT (a = 5)`.
* A property is never a condition itself: bare `a` is false, or unknown. `a = TRUE` works; `TRUE = a` never matches.
* Only numbers have an order: `a > 'b'` is refused, `a > b` reads both as doubles. The minus of a property is unknown.
* The literal `0.0` is refused, as is every number that a double cannot tell from 0 or infinity.

Where we differ from Apache's broker, on purpose:

* Its parser does not look for the end of the text, and ignores whatever follows a complete expression. So it takes
  `a LIKE 'x%'` and `a + 1 > 2` for just `a`, `a > 5 b` for `a > 5`, `a = 007` and `a = 0L` for `a = 0`. We refuse all
  of these. The one thing that may follow is a comment from `--` to the end of the text, with or without a line end.
* An expression may have at most `EXPRESSION_CHARS_MAX` characters and `NESTING_MAX` levels. Its parser has no bounds.
* Text of more than `NUMBER_CHARS_MAX` characters is never read as a number.
* We compare characters and it compares UTF-16 units, so half of a character outside the basic plane is never found.
"""

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from skyroute.message.errors import ExpressionError, IncomparableError

EXPRESSION_CHARS_MAX: Final = 8_192
"""Maximum length of an expression: an `IN` of 700 values. Compiling takes at most 15 ms."""

NUMBER_CHARS_MAX: Final = 128
"""Maximum length of a property that is parsed as a number. An expression may parse one a thousand times."""

NESTING_MAX: Final = 64
"""Maximum nesting of brackets, signs, `NOT` and chained comparisons. Keeps parsing and evaluation below the
interpreter's recursion limit."""

_Number = int | float
_Value = str | _Number | None  # to the type checker a bool is an int
_Evaluate = Callable[[Mapping[str, str]], _Value]
_Truth = Callable[[Mapping[str, str]], bool | None]
_Compare = Callable[[Any, Any], bool]  # of two values of one type

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1

_BLANKS: Final = re.compile(r"[ \t\n\r\f]*")
_LINE_END: Final = re.compile(r"[\n\r]")
# Alternatives are ordered so that the longest one wins. A number has no leading zeros.
_TOKEN: Final = re.compile(
    r"""(?P<decimal>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
      | (?P<whole>0|[1-9][0-9]*[lL]?)
      | (?P<text>'[^']*(?:''[^']*)*')
      | (?P<name>[A-Za-z_$][A-Za-z0-9_$]*)
      | (?P<symbol><>|<=|>=|[-+=<>(),])""",
    re.VERBOSE,
)
_KEYWORDS: Final = frozenset(
    {"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"}
)
_CONSTANTS: Final[Mapping[str, bool | None]] = {"TRUE": True, "FALSE": False, "NULL": None}
_ORDERS: Final[Mapping[str, _Compare]] = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_MIRRORED: Final[Mapping[_Compare, _Compare]] = {
    operator.gt: operator.lt,
    operator.ge: operator.le,
    operator.lt: operator.gt,
    operator.le: operator.ge,
}
_TEXT_TESTS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
_HINTS: Final = {
    "!": "unequal is written <>",
    '"': "text goes into single quotes",
    "LIKE": "there is no LIKE; CONTAINS, STARTSWITH and ENDSWITH look for part of a text",
    "&": "write AND",
    "|": "write OR",
    ".": "a name has only letters, digits, _ and $",
    "'": "this quote is never closed",
    "*": "there is no arithmetic",
    "/": "there is no arithmetic, and a comment ends with */",
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a message's properties. Created by `compile_expression`."""

    text: str
    _truth: _Truth = field(repr=False, compare=False)

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether a message with these properties matches."""
        try:
            return self._truth(properties) is True
        except IncomparableError:
            return False

    def evaluate(self, properties: Mapping[str, str]) -> bool | None:
        """Return true, false, or None for unknown.

        Raises:
            IncomparableError: a property does not have the type of the comparison.
        """
        return self._truth(properties)


def compile_expression(text: str) -> Condition:
    """Compile an SQL92 expression. The module's docstring describes the language.

    Raises:
        ExpressionError: it is invalid, too long, or nested too deeply.
    """
    if len(text) > EXPRESSION_CHARS_MAX:
        raise ExpressionError(
            f"the expression has {len(text)} characters; at most {EXPRESSION_CHARS_MAX} are taken", EXPRESSION_CHARS_MAX
        )
    return Condition(text, _Parser(text).parse())


def _check_length(text: str) -> None:
    if len(text) > NUMBER_CHARS_MAX:
        raise IncomparableError(f"{text[:80]!r}... has {len(text)} characters (expected at most {NUMBER_CHARS_MAX})")


def _read_whole(text: str, largest: int) -> int:
    """Read an integer as Java's `Integer.valueOf` and `Long.valueOf` do: digits of any script, no blanks."""
    _check_length(text)
    digits = text[1:] if text.startswith(("+", "-")) else text
    # Java looks at UTF-16 units, so it knows no digits outside the basic plane.
    if not digits.isdecimal() or (not digits.isascii() and max(digits) > "\uffff"):
        raise IncomparableError(f"{text[:80]!r} is not an integer")
    digits = digits.lstrip("0")
    # 64 bits have 19 digits. Longer numbers are refused without converting them.
    number = (int(digits or "0") if len(digits) < 20 else largest + 2) * (-1 if text[0] == "-" else 1)
    if not -largest - 1 <= number <= largest:
        raise IncomparableError(f"{text[:80]!r} does not fit into {(largest + 1).bit_length()} bits")
    return number


def _read_int(text: str) -> int:
    if len(text) < 10 and text.isdecimal() and text.isascii():
        return int(text)
    return _read_whole(text, _INT_MAX)


def _read_long(text: str) -> int:
    return _read_whole(text, _LONG_MAX)


_DOUBLE: Final = re.compile(
    r"""[\0-\x20]*+ (?:
        (?P<decimal>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?
      | (?P<word>[+-]?(?:NaN|Infinity))
      | (?P<hexadecimal>[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?
    ) [\0-\x20]*""",
    re.VERBOSE,
)


def _read_double(text: str) -> float:
    """Read a number as Java's `Double.valueOf` does. Not a number is `nan`."""
    _check_length(text)
    found = _DOUBLE.fullmatch(text)
    if found is None:
        raise IncomparableError(f"{text[:80]!r} is not a number")
    written = found[found.lastgroup or 0]
    if found.lastgroup != "hexadecimal":
        return float(written)
    try:
        return float.fromhex(written)
    except OverflowError:
        return -math.inf if written.startswith("-") else math.inf


def _read_ranked(text: str) -> float:
    """Parse a double for a comparison with a literal."""
    number = _read_double(text)
    # Java sorts NaN above all numbers. A literal is finite, so that infinity compares with it in the same way.
    return math.inf if math.isnan(number) else number


def _reader(literal: _Number) -> Callable[[str], _Number]:
    """Return what reads a property as the Java type of this literal."""
    if isinstance(literal, float):
        return _read_ranked
    # Java gives a literal its type before its sign, so -2147483648 has 64 bits.
    return _read_int if abs(literal) <= _INT_MAX else _read_long


def _rank(number: float) -> tuple[bool, float, float]:
    """Return what sorts like Java's `Double.compareTo`: -0.0 before 0.0, NaN last."""
    return (True, 0.0, 0.0) if math.isnan(number) else (False, number, math.copysign(1.0, number))


def _in_order(left: str | _Number, right: str | _Number, compare: _Compare) -> bool:
    """Compare two values by size. There are no booleans here: the parser lets none through."""
    if isinstance(left, str):
        if isinstance(right, str):
            return compare(_rank(_read_double(left)), _rank(_read_double(right)))
        return compare(_reader(right)(left), right)
    if isinstance(right, str):
        return compare(left, _reader(left)(right))
    if isinstance(left, int) and isinstance(right, int):
        return compare(left, right)
    # An integer meets a double as a double, less what that rounds away.
    return compare(float(left), float(right))


def _is_equal(left: str | _Number, right: str | _Number) -> bool:
    """Compare two values that are both known."""
    if isinstance(left, bool):
        if isinstance(right, str):
            # Java casts the wrong one of the two. Turned around it works.
            raise IncomparableError("a condition cannot be compared with text on its right")
        return isinstance(right, bool) and left is right
    if isinstance(right, bool):
        # Length first: `lower` on a long text is slow.
        return isinstance(left, str) and (len(left) == 4 and left.lower() == "true") is right
    if isinstance(left, str):
        return left == right if isinstance(right, str) else _reader(right)(left) == right
    return _in_order(left, right, operator.eq)


@dataclass(frozen=True, slots=True)
class _Operand:
    """A part of an expression."""

    at: int
    evaluate: _Evaluate
    literal: bool = False
    value: _Value = None
    """A literal's value, or the number that signs make of one."""
    name: str | None = None
    """Name of the property, if this is one."""
    truth: _Truth | None = None
    """Set if this is a condition: a test of any kind, or TRUE, FALSE, NULL."""
    height: int = 0

    @property
    def number(self) -> _Number | None:
        return self.value if isinstance(self.value, int | float) and not isinstance(self.value, bool) else None


def _literal(at: int, value: _Value) -> _Operand:
    return _Operand(at, lambda _: value, literal=True, value=value)


def _constant(at: int, *, truth: bool | None) -> _Operand:
    return _Operand(at, lambda _: truth, literal=True, value=truth, truth=lambda _: truth)


def _property(at: int, name: str) -> _Operand:
    return _Operand(at, lambda properties: properties.get(name), name=name)


def _negated(truth: _Truth) -> _Truth:
    def negated(properties: Mapping[str, str]) -> bool | None:
        answer = truth(properties)
        return None if answer is None else not answer

    return negated


def _joined(tests: tuple[_Truth, ...], *, decisive: bool) -> _Truth:
    """The first false decides AND, the first true decides OR; later operands are not evaluated."""

    def joined(properties: Mapping[str, str]) -> bool | None:
        known = True
        for test in tests:
            answer = test(properties)
            if answer is decisive:
                return decisive
            if answer is None:
                known = False
        return not decisive if known else None

    return joined


def _is_null(left: _Operand) -> _Truth:
    evaluate = left.evaluate
    return lambda properties: evaluate(properties) is None


def _equal(left: _Operand, right: _Operand) -> _Truth:
    name, evaluate_left, evaluate_right = left.name, left.evaluate, right.evaluate
    if name is not None and right.literal and isinstance(wanted := right.value, str):
        return lambda properties: None if (text := properties.get(name)) is None else text == wanted
    if name is not None and (number := right.number) is not None:
        read = _reader(number)
        return lambda properties: None if (text := properties.get(name)) is None else read(text) == number

    def equal(properties: Mapping[str, str]) -> bool | None:
        first, second = evaluate_left(properties), evaluate_right(properties)
        # An unknown on the right alone is simply not equal.
        if first is None:
            return True if second is None else None
        return second is not None and _is_equal(first, second)

    return equal


def _ordered(left: _Operand, right: _Operand, compare: _Compare) -> _Truth:
    if left.number is not None and right.name is not None:
        left, right, compare = right, left, _MIRRORED[compare]
    name, evaluate_left, evaluate_right = left.name, left.evaluate, right.evaluate
    if name is not None and (number := right.number) is not None:
        read = _reader(number)
        return lambda properties: None if (text := properties.get(name)) is None else compare(read(text), number)

    def ordered(properties: Mapping[str, str]) -> bool | None:
        if (first := evaluate_left(properties)) is None or (second := evaluate_right(properties)) is None:
            return None
        return _in_order(first, second, compare)

    return ordered


def _among(name: str, words: frozenset[str], *, inside: bool) -> _Truth:
    return lambda properties: None if (text := properties.get(name)) is None else (text in words) is inside


def _has_part(left: _Operand, holds: Callable[[str, str], bool], part: str, *, wanted: bool) -> _Truth:
    evaluate = left.evaluate
    if not part:
        return lambda _: False
    return lambda properties: isinstance(value := evaluate(properties), str) and holds(value, part) is wanted


class _Parser:
    """Reads an expression from left to right, one token ahead.

    From the loosest: OR, AND, then = <> IS, then order, BETWEEN, IN and parts of text, then NOT and signs.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._last_line_end = max(text.rfind("\n"), text.rfind("\r"))
        self._depth = 0
        self._kind = ""
        """A keyword in capitals, a symbol, a group of `_TOKEN`, `end`, or `unknown`."""
        self._at = self._stop = 0
        self._advance()

    def parse(self) -> _Truth:
        operand = self._junction("OR")
        # Java takes a comment without a line end for two minus signs, and stops in front of them.
        if self._kind != "end" and not self._text.startswith("--", self._at):
            raise self._unexpected("AND, OR, or the end (Apache's broker would silently ignore the rest)")
        return self._as_truth(operand)

    def _advance(self) -> None:
        text, at = self._text, self._stop
        while True:
            at = found.end() if (found := _BLANKS.match(text, at)) else at
            # A comment has a line end. Without one, Java reads two signs: `a > --5` is `a > 5`.
            if text.startswith("--", at) and at < self._last_line_end:
                at = found.end() if (found := _LINE_END.search(text, at)) else at
            elif text.startswith("/*", at) and (end := text.find("*/", at + 2)) >= 0:
                at = end + 2
            else:
                break
        self._at = at
        found = _TOKEN.match(text, at)
        if found is None:
            self._kind = "end" if at == len(text) else "unknown"
            self._stop = min(at + 1, len(text))
            return
        self._stop = found.end()
        self._kind = found.lastgroup or ""
        if self._kind == "symbol":
            self._kind = found[0]
        elif self._kind == "name" and (word := found[0].upper()) in _KEYWORDS:
            self._kind = word

    def _unexpected(self, expected: str) -> ExpressionError:
        word = self._text[self._at : self._stop]
        found = "the end" if self._kind == "end" else repr(word[:80])
        hint = _HINTS.get(word.upper())
        return self._error(f"expected {expected}, found {found}" + (f"; {hint}" if hint else ""), self._at)

    def _error(self, text: str, at: int) -> ExpressionError:
        return ExpressionError(f"{text}, at character {at + 1} of the expression", at)

    def _take(self, kind: str) -> bool:
        if self._kind != kind:
            return False
        self._advance()
        return True

    def _expect(self, kind: str) -> None:
        if not self._take(kind):
            raise self._unexpected(kind)

    def _take_text(self) -> str:
        if self._kind != "text":
            raise self._unexpected("text in single quotes")
        text = self._text[self._at + 1 : self._stop - 1].replace("''", "'")
        self._advance()
        return text

    def _condition(self, truth: _Truth, *parts: _Operand) -> _Operand:
        height = 1 + max(part.height for part in parts)
        if height > NESTING_MAX:
            raise self._too_deep()
        return _Operand(parts[0].at, truth, truth=truth, height=height)

    def _too_deep(self) -> ExpressionError:
        return self._error(f"more than {NESTING_MAX} levels of nesting", self._at)

    def _as_truth(self, operand: _Operand) -> _Truth:
        if operand.truth is not None:
            return operand.truth
        if (name := operand.name) is not None:
            # Properties are text, and text is not true.
            return lambda properties: None if properties.get(name) is None else False
        raise self._error("expected a condition, found a value that is neither true nor false", operand.at)

    def _junction(self, word: str) -> _Operand:
        """Parse operands separated by OR, or by AND."""
        is_or = word == "OR"
        first = self._junction("AND") if is_or else self._equality()
        if self._kind != word:
            return first
        parts = [first]
        while self._take(word):
            parts.append(self._junction("AND") if is_or else self._equality())
        # One loop over all operands, not nested calls, however many there are.
        return self._condition(_joined(tuple(map(self._as_truth, parts)), decisive=is_or), *parts)

    def _equality(self) -> _Operand:
        left = self._comparison()
        while self._kind in {"=", "<>", "IS"}:
            kind = self._kind
            self._advance()
            if kind == "IS":
                inverted = self._take("NOT")
                self._expect("NULL")
                right, truth = left, _is_null(left)
            else:
                inverted = kind == "<>"
                right = self._comparison()
                self._check_equal(left, right)
                truth = _equal(left, right)
            left = self._condition(_negated(truth) if inverted else truth, left, right)
        return left

    def _check_equal(self, left: _Operand, right: _Operand) -> None:
        for operand in (left, right):
            if operand.literal and operand.value is None:
                raise self._error("NULL equals nothing; write IS NULL or IS NOT NULL", operand.at)
        if left.literal and left.truth is not None and right.literal and right.truth is None:
            raise self._error("expected TRUE or FALSE to compare with TRUE or FALSE", right.at)

    def _comparison(self) -> _Operand:
        left = self._unary()
        while True:
            if (compare := _ORDERS.get(self._kind)) is not None:
                self._advance()
                right = self._unary()
                left = self._condition(self._order(left, compare, right), left, right)
                continue
            inverted = self._take("NOT")
            kind = self._kind
            if (holds := _TEXT_TESTS.get(kind)) is not None:
                self._advance()
                left = self._condition(_has_part(left, holds, self._take_text(), wanted=not inverted), left)
            elif kind == "BETWEEN":
                self._advance()
                left = self._between(left, inverted=inverted)
            elif kind == "IN":
                self._advance()
                left = self._in(left, inverted=inverted)
            elif inverted:
                raise self._unexpected("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH after NOT")
            else:
                return left

    def _order(self, left: _Operand, compare: _Compare, right: _Operand) -> _Truth:
        for operand in (left, right):
            if operand.truth is not None or (operand.literal and operand.number is None):
                raise self._error("only numbers and properties have an order", operand.at)
        return _ordered(left, right, compare)

    def _between(self, value: _Operand, *, inverted: bool) -> _Operand:
        low = self._unary()
        self._expect("AND")
        high = self._unary()
        if inverted:
            sides = self._order(value, operator.lt, low), self._order(value, operator.gt, high)
        else:
            sides = self._order(value, operator.ge, low), self._order(value, operator.le, high)
            # Java looks at bare literals only: `BETWEEN 5 AND -5` is fine, and is never true.
            if low.literal and high.literal and _ordered(low, high, operator.gt)({}):
                raise self._error("BETWEEN needs the smaller number first", low.at)
        return self._condition(_joined(sides, decisive=inverted), value, low, high)

    def _in(self, value: _Operand, *, inverted: bool) -> _Operand:
        if value.name is None:
            raise self._error("expected the name of a property before IN", value.at)
        self._expect("(")
        words = {self._take_text()}
        while self._take(","):
            words.add(self._take_text())
        self._expect(")")
        return self._condition(_among(value.name, frozenset(words), inside=not inverted), value)

    def _unary(self) -> _Operand:
        kind, at = self._kind, self._at
        if kind not in {"(", "+", "-", "NOT"}:
            return self._single()
        if self._depth == NESTING_MAX:
            raise self._too_deep()
        self._depth += 1
        self._advance()
        if kind == "(":
            operand = self._junction("OR")
            self._expect(")")
        else:
            operand = self._unary()
        self._depth -= 1
        if kind == "NOT":
            return self._condition(_negated(self._as_truth(operand)), operand)
        return self._minus(at, operand) if kind == "-" else operand

    def _minus(self, at: int, operand: _Operand) -> _Operand:
        if (number := operand.number) is not None:
            return _Operand(at, lambda _: -number, value=-number)
        evaluate = operand.evaluate

        def minus(properties: Mapping[str, str]) -> None:
            # Other values have no minus, but evaluating them may still fail.
            evaluate(properties)

        return _Operand(at, minus, height=operand.height + 1)

    def _single(self) -> _Operand:
        kind, at = self._kind, self._at
        if kind == "text":
            return _literal(at, self._take_text())
        word = self._text[at : self._stop]
        if kind == "name":
            operand = _property(at, word)
        elif kind == "whole":
            operand = _literal(at, self._whole(word.rstrip("lL"), at))
        elif kind == "decimal":
            operand = _literal(at, self._decimal(word, at))
        elif kind in _CONSTANTS:
            operand = _constant(at, truth=_CONSTANTS[kind])
        else:
            raise self._unexpected("a property, a number, text in single quotes, TRUE, FALSE, NULL, NOT or (")
        self._advance()
        return operand

    def _whole(self, word: str, at: int) -> int:
        if len(word) > 19 or int(word) > _LONG_MAX:
            raise self._error(f"the integer {word[:80]} is too large (expected at most {_LONG_MAX})", at)
        return int(word)

    def _decimal(self, word: str, at: int) -> float:
        number = float(word)
        if number == 0 or math.isinf(number):
            raise self._error(
                f"{word[:80]} does not fit into a double (expected 4.9E-324 to 1.7976931348623157E308)", at
            )
        return number
