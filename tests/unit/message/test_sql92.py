"""SQL92 conditions have the results of Apache's broker, and refuse what it would silently misread."""

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.message.errors import ExpressionError, IncomparableError
from skyroute.message.sql92 import EXPRESSION_CHARS_MAX, NESTING_MAX, NUMBER_CHARS_MAX, Condition, compile_expression

GOLDEN: Final = Path(__file__).parents[2] / "golden" / "message" / "sql92.json"
CASES: Final[list[dict[str, Any]]] = json.loads(GOLDEN.read_text("ascii"))["cases"]
OUTCOMES: Final = {True: "true", False: "false", None: "null"}
# A comment that the text ends before its line does: Java ignores it, as it ignores everything there.
COMMENT_AT_END: Final = {"a = 5 -- comment", "a = 5 --", "(a = 5) --", "a = 5 --x --y"}


def answer(condition: Condition, properties: Mapping[str, str]) -> str:
    try:
        said = OUTCOMES[condition.evaluate(properties)]
    except IncomparableError:
        said = "error"
    assert condition.matches(properties) is (said == "true")
    return said


def outcome(expression: str, properties: Mapping[str, str]) -> str:
    return answer(compile_expression(expression), properties)


def refusal(expression: str) -> str | None:
    try:
        compile_expression(expression)
    except ExpressionError as error:
        return str(error)
    return None


def test_every_result_is_that_of_apaches_broker() -> None:
    asked, wrong = 0, []
    for case in CASES:
        expression = case["expression"]
        if "refused" in case or ("ignored" in case and expression not in COMMENT_AT_END):
            continue
        condition = compile_expression(expression)
        for said in ("true", "false", "null", "error"):
            for properties in case.get(said, ()):
                asked += 1
                if (ours := answer(condition, properties)) != said:
                    wrong.append((expression, properties, said, ours))
    assert wrong == []
    assert asked > 9000


def test_what_apaches_broker_refuses_is_refused() -> None:
    refused = [case["expression"] for case in CASES if "refused" in case]
    assert len(refused) > 500
    assert [expression for expression in refused if refusal(expression) is None] == []


def test_what_apaches_broker_would_ignore_is_refused_too() -> None:
    cut_short = [case["expression"] for case in CASES if "ignored" in case and case["expression"] not in COMMENT_AT_END]
    assert len(cut_short) > 40
    assert [text for text in cut_short if "would silently ignore the rest" not in (refusal(text) or "")] == []


@pytest.mark.parametrize(
    ("expression", "at", "text"),
    [
        ("", 0, "expected a property, .* found the end"),
        ("a LIKE 'x%'", 2, "found 'LIKE'; there is no LIKE"),
        ("a != 5", 2, "unequal is written <>"),
        ('a = "x"', 4, "single quotes"),
        ("a = 'x", 4, "never closed"),
        ("a > 'b'", 4, "only numbers and properties have an order"),
        ("a IN (5)", 6, "expected text in single quotes, found '5'"),
        ("a IN ('x'", 9, r"expected \), found the end"),
        ("a IS TRUE", 5, "expected NULL, found 'TRUE'"),
        ("a NOT b", 6, "after NOT, found 'b'"),
        ("5 IN ('x')", 0, "the name of a property before IN"),
        ("a BETWEEN 6 AND 4", 10, "the smaller number first"),
        ("a = NULL", 4, "write IS NULL"),
        ("TRUE = 'x'", 7, "expected TRUE or FALSE"),
        ("b = 1 AND 5", 10, "expected a condition"),
        ("a > 0.0", 4, "does not fit into a double"),
        ("a > 9223372036854775808", 4, "at most 9223372036854775807"),
    ],
)
def test_an_error_has_its_position_and_what_was_expected(expression: str, at: int, text: str) -> None:
    with pytest.raises(ExpressionError, match=text) as caught:
        compile_expression(expression)
    assert caught.value.at == at
    assert str(caught.value).endswith(f"at character {at + 1} of the expression")


def test_an_expression_has_a_greatest_length() -> None:
    longest = "a = 5".ljust(EXPRESSION_CHARS_MAX)
    assert compile_expression(longest).matches({"a": "5"})
    with pytest.raises(ExpressionError, match=f"at most {EXPRESSION_CHARS_MAX}"):
        compile_expression(longest + " ")


def test_a_long_chain_of_operands_is_not_nested() -> None:
    row = " OR ".join(f"a = '{number}'" for number in range(600))
    assert compile_expression(row).matches({"a": "599"})
    assert not compile_expression(row).matches({"a": "600"})


@pytest.mark.parametrize("expression", ["a > 5", "a > 5000000000", "a > 5.0", "a > b", "b < a", "a = 5"])
def test_a_long_text_is_not_parsed_as_a_number(expression: str) -> None:
    condition = compile_expression(expression)
    for text in ("9".zfill(NUMBER_CHARS_MAX + 1), "1" * 32_000):
        assert not condition.matches({"a": text, "b": "1"})
        with pytest.raises(IncomparableError, match=f"at most {NUMBER_CHARS_MAX}"):
            condition.evaluate({"a": text, "b": "1"})
    assert condition.evaluate({"a": "9".zfill(NUMBER_CHARS_MAX), "b": "1"}) is not None


@pytest.mark.parametrize(("text", "truth"), [("true", True), ("TRUE", True), ("true ", False), ("TRUE" * 8000, False)])
def test_only_the_text_true_is_true(text: str, truth: bool) -> None:
    assert compile_expression("a = TRUE").matches({"a": text}) is truth


def test_brackets_may_nest_up_to_the_bound() -> None:
    assert compile_expression("(" * NESTING_MAX + "a IS NULL" + ")" * NESTING_MAX).matches({})
    with pytest.raises(ExpressionError, match=f"more than {NESTING_MAX} levels"):
        compile_expression("(" * (NESTING_MAX + 1) + "a IS NULL" + ")" * (NESTING_MAX + 1))


@pytest.mark.parametrize(
    ("opening", "middle", "closing"),
    [
        ("(", "a IS NULL", ")"),
        ("NOT ", "(a IS NULL)", ""),
        ("NOT (", "a IS NULL", ")"),
        ("-", "5 < 6", ""),
        ("+", "5 < 6", ""),
        ("b = -(", "a IS NULL", ")"),
        ("", "a IS NULL", " = TRUE"),
        ("", "a IS NULL", " <> FALSE"),
        ("(", "a IS NULL", ") CONTAINS 'x' = FALSE"),
    ],
)
def test_nothing_nests_without_bound(opening: str, middle: str, closing: str) -> None:
    def nested(levels: int) -> str:
        return opening * levels + middle + closing * levels

    assert compile_expression(nested(NESTING_MAX // 2 - 2)).matches({})
    with pytest.raises(ExpressionError, match=f"more than {NESTING_MAX} levels"):
        compile_expression(nested(300))


def test_depth_is_counted_across_brackets_and_rows() -> None:
    row = " = TRUE" * (NESTING_MAX // 2)
    assert compile_expression(f"((a IS NULL){row})").matches({})
    with pytest.raises(ExpressionError, match="levels of nesting"):
        compile_expression(f"((((a IS NULL){row}){row}){row})")


WORDS: Final = (
    "a b $ 5 0 6.5 .5 5000000000 'x' '' ' NOT AND OR = <> > >= < <= ( ) , + - -- /* */ IN BETWEEN IS NULL TRUE FALSE "
    "CONTAINS STARTSWITH ENDSWITH ! LIKE"
)
TOKENS = st.sampled_from([*WORDS.split(), "\n"])
SOUPS = st.lists(TOKENS, max_size=12).map(" ".join) | st.lists(TOKENS, max_size=12).map("".join)
VALUES = st.sampled_from(["5", "6", "-1", "6.5", "x", "true", "", "NaN", "5000000000"]) | st.text(max_size=5)
PROPERTIES = st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES)
TESTS = st.sampled_from(
    [
        "a = 5",
        "5 <> a",
        "b = 'x'",
        "c > 1.5",
        "a <= b",
        "a = b",
        "b IS NULL",
        "c IN ('x', '5')",
        "b NOT CONTAINS 'x'",
        "a BETWEEN 5 AND 6",
        "a = TRUE",
        "TRUE",
        "FALSE",
        "NULL",
        "c",
    ]
)
CONDITIONS = st.recursive(
    TESTS,
    lambda inner: (
        st.builds("({}) {} ({})".format, inner, st.sampled_from(["AND", "OR"]), inner) | inner.map("NOT ({})".format)
    ),
    max_leaves=5,
)


@given(st.text() | SOUPS, PROPERTIES)
def test_any_text_is_a_condition_or_an_error(text: str, properties: dict[str, str]) -> None:
    try:
        condition = compile_expression(text)
    except ExpressionError as error:
        assert 0 <= error.at <= len(text)  # noqa: PT017 - most texts are refused, not all
    else:
        assert condition.matches(properties) in {True, False}


@given(CONDITIONS, PROPERTIES)
def test_a_double_negation_has_the_same_result(condition: str, properties: dict[str, str]) -> None:
    assert outcome(f"NOT (NOT ({condition}))", properties) == outcome(condition, properties)


@given(CONDITIONS, CONDITIONS, PROPERTIES)
def test_negation_turns_and_into_or(first: str, second: str, properties: dict[str, str]) -> None:
    for outer, inner in (("AND", "OR"), ("OR", "AND")):
        whole = outcome(f"NOT (({first}) {outer} ({second}))", properties)
        assert whole == outcome(f"NOT ({first}) {inner} NOT ({second})", properties)


@given(CONDITIONS, PROPERTIES, st.sampled_from(["\t", "\r\n", "  ", "/* ** OR */", " -- AND '\n"]))
def test_blanks_comments_and_the_case_of_keywords_do_not_matter(
    condition: str, properties: dict[str, str], blank: str
) -> None:
    words = [word.lower() if word.isalpha() and word.isupper() else word for word in condition.split(" ")]
    assert outcome(blank.join(words), properties) == outcome(condition, properties)


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 31) + 1, (1 << 31) - 1))
def test_a_number_beyond_32_bits_needs_a_literal_beyond_32_bits(value: int, literal: int) -> None:
    fits = -(1 << 31) <= value < 1 << 31
    expected = "error" if not fits else "true" if value > literal else "false"
    assert outcome(f"a > {literal}", {"a": str(value)}) == expected
    assert outcome("a >= -9223372036854775807", {"a": str(value)}) == ("true" if value > -(1 << 63) else "false")


def test_an_error_can_be_pickled() -> None:
    error = ExpressionError("what is this", 7)
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.at) == ("what is this", 7)
