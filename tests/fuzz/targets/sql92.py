"""SQL92 expressions: brackets change nothing, NOT inverts, and a condition joined with itself is itself.

Input: properties, a line feed, and the expression.
"""

from collections.abc import Mapping

from skyroute.message.errors import ExpressionError, IncomparableError
from skyroute.message.properties import split_properties
from skyroute.message.sql92 import Condition, compile_expression


def truth(condition: Condition, properties: Mapping[str, str]) -> bool | str | None:
    try:
        return condition.evaluate(properties)
    except IncomparableError:
        return "incomparable"


def check(data: bytes) -> None:
    raw_properties, _, raw = data.partition(b"\n")
    text = raw.decode("utf-8", "replace")
    try:
        condition = compile_expression(text)
    except ExpressionError as error:
        if not 0 <= error.at <= len(text):
            raise AssertionError(f"an error at {error.at} of {len(text)} characters") from error
        return
    properties = split_properties(raw_properties.decode("utf-8", "replace"))
    for given in ({}, properties, {"a": "5", "b": "x"} | properties):
        found = truth(condition, given)
        assert found in (True, False, None, "incomparable")
        assert condition.matches(given) is (found is True)
        if "--" in text:
            continue  # a comment if a line end follows, and two signs if none does
        inverted = not found if isinstance(found, bool) else found
        for other, expected in (
            (f"({text}\n)", found),
            (f"NOT ({text}\n)", inverted),
            (f"({text}\n) OR ({text}\n)", found),
            (f"({text}\n) AND ({text}\n)", found),
        ):
            try:
                rewritten = compile_expression(other)
            except ExpressionError as error:
                if "nesting" not in str(error) and "characters" not in str(error):
                    raise AssertionError(other) from error
                continue
            assert truth(rewritten, given) == expected, other
