import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyroute.wire.errors import FieldError
from skyroute.wire.fields import (
    NAME_CHARS_MAX,
    is_name,
    optional_int,
    optional_name,
    required_int,
    required_name,
    required_text,
    truth,
)

INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
NO_NUMBERS = [
    " 1",
    "1 ",
    "1_000",
    "+-1",
    "--1",
    "+",
    "-",
    "0x10",
    "1.0",
    "1e3",
    "one",
    "٣",
    "½",
    "²",
    "1\n",
    "9" * 5000,
]


@pytest.mark.parametrize("value", ["TopicTest", " ", "中\n", "0"])
def test_a_required_text_is_taken_verbatim(value: str) -> None:
    assert required_text({"topic": value}, "topic") == value


@pytest.mark.parametrize("fields", [{}, {"topic": ""}, {"Topic": "TopicTest"}])
def test_a_missing_text_is_refused_by_name(fields: dict[str, str]) -> None:
    with pytest.raises(FieldError, match="topic is required"):
        required_text(fields, "topic")


@pytest.mark.parametrize("value", ["broker-a", "10.0.0.1:10911", "%RETRY%group", "主题/1", "a b"])
def test_a_name_is_taken_verbatim(value: str) -> None:
    assert required_name({"brokerName": value}, "brokerName") == value


@pytest.mark.parametrize("value", ["a\n", "\0", "a\x1b[31m", "a\x7fb", "a\u2028b", "a\u202eb"])
def test_a_name_has_no_control_characters(value: str) -> None:
    with pytest.raises(FieldError, match="brokerName is too long, or has control characters") as caught:
        required_name({"brokerName": value}, "brokerName")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("letter", ["x", "主", "😀", "\u3000"])
def test_a_name_has_a_maximum_length(letter: str) -> None:
    longest = letter * NAME_CHARS_MAX
    assert NAME_CHARS_MAX == 512
    assert is_name(longest)
    assert not is_name(longest + letter)
    assert required_name({"brokerName": longest}, "brokerName") == longest
    assert optional_name({"brokerName": longest}, "brokerName") == longest
    for read in (required_name, optional_name):
        with pytest.raises(FieldError, match="brokerName is too long, or has control characters") as caught:
            read({"brokerName": longest + letter}, "brokerName")
        assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("fields", [{}, {"brokerName": ""}])
def test_an_optional_name_may_be_absent(fields: dict[str, str]) -> None:
    assert optional_name(fields, "brokerName") is None


@pytest.mark.parametrize("fields", [{}, {"brokerName": ""}])
def test_a_missing_name_is_refused_by_name(fields: dict[str, str]) -> None:
    with pytest.raises(FieldError, match="brokerName is required"):
        required_name(fields, "brokerName")


@pytest.mark.parametrize(
    ("value", "number"),
    [("0", 0), ("1", 1), ("-1", -1), ("+1", 1), ("007", 7), (str(INT64_MAX), INT64_MAX), (str(INT64_MIN), INT64_MIN)],
)
def test_a_required_number_is_decimal_with_an_optional_sign(value: str, number: int) -> None:
    assert required_int({"brokerId": value}, "brokerId") == number


@pytest.mark.parametrize("value", NO_NUMBERS)
def test_what_is_no_decimal_number_is_refused_by_name(value: str) -> None:
    with pytest.raises(FieldError, match="brokerId is not a number"):
        required_int({"brokerId": value}, "brokerId")
    with pytest.raises(FieldError, match="brokerId is not a number"):
        optional_int({"brokerId": value}, "brokerId", 0)


def test_a_refusal_shows_no_more_than_the_start_of_a_long_value() -> None:
    with pytest.raises(FieldError) as caught:
        required_int({"brokerId": "x" * 1_000_000}, "brokerId")
    assert len(str(caught.value)) < 100


@pytest.mark.parametrize("value", [str(INT64_MAX + 1), str(INT64_MIN - 1), "99999999999999999999"])
def test_a_required_number_fits_64_bits(value: str) -> None:
    with pytest.raises(FieldError, match="brokerId is out of range"):
        required_int({"brokerId": value}, "brokerId")


@pytest.mark.parametrize("fields", [{}, {"brokerId": ""}])
def test_a_missing_number_is_refused_by_name(fields: dict[str, str]) -> None:
    with pytest.raises(FieldError, match="brokerId is required"):
        required_int(fields, "brokerId")


@pytest.mark.parametrize("fields", [{}, {"bodyCrc32": ""}])
def test_an_optional_number_has_a_default(fields: dict[str, str]) -> None:
    assert optional_int(fields, "bodyCrc32", 5) == 5


def test_an_optional_number_fits_32_bits_by_default() -> None:
    assert optional_int({"n": "2147483647"}, "n", 0) == 2147483647
    assert optional_int({"n": "-2147483648"}, "n", 0) == -2147483648
    assert optional_int({"n": "2147483648"}, "n", 0, INT64_MAX) == 2147483648
    for value in ("2147483648", "-2147483649"):
        with pytest.raises(FieldError, match="out of range"):
            optional_int({"n": value}, "n", 0)


@pytest.mark.parametrize(
    ("value", "true"),
    [
        ("true", True),
        ("TRUE", True),
        ("tRuE", True),
        ("false", False),
        ("", False),
        ("1", False),
        ("yes", False),
        (" true", False),
    ],
)
def test_only_true_in_any_case_is_true(value: str, true: bool) -> None:
    assert truth({"compressed": value}, "compressed") is true


def test_an_absent_boolean_is_false() -> None:
    assert truth({}, "compressed") is False


@settings(deadline=None)
@given(st.integers(INT64_MIN, INT64_MAX))
def test_any_64_bit_number_is_read(number: int) -> None:
    assert required_int({"n": str(number)}, "n") == number


@settings(deadline=None)
@given(st.text(max_size=30))
def test_any_text_is_a_number_or_refused(text: str) -> None:
    try:
        number = required_int({"n": text}, "n")
    except FieldError:
        return
    assert number == int(text)
