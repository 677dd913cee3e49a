import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.broker.delivery import filters
from skyroute.broker.delivery.filters import make_filter
from skyroute.client.consuming.subscription import make_subscription, sql
from skyroute.message.host import encode_host
from skyroute.message.message import StoredMessage
from skyroute.message.positions import LogPosition, QueueOffset
from skyroute.message.properties import encode_properties
from skyroute.message.record import encode_record
from skyroute.message.sql92 import EXPRESSION_CHARS_MAX
from skyroute.message.tags import parse_tag_expression, tag_code
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.clients import Subscription
from skyroute.wire.codes import ResponseCode

HOST = encode_host("10.0.0.1", 10911)


def record(**properties: str) -> bytes:
    raw = encode_properties(properties)
    offset, position = QueueOffset(0), LogPosition(0)
    message = StoredMessage("T", 0, offset, position, b"body", raw, 0, 0, 0, HOST, 0, HOST, 0, position, 0, 0, "")
    return encode_record(message)


@pytest.mark.parametrize("subscription", [Subscription("T"), Subscription("T", "*", "TAG", 7, ("A",), (65,))])
def test_a_subscription_to_all_messages_has_no_filter(subscription: Subscription) -> None:
    assert make_filter(subscription) == (None, None)


def test_tags_are_matched_by_their_hashes() -> None:
    accept_code, accept_record = make_filter(make_subscription("T", "TagA || TagB", 0))
    assert accept_code is not None
    assert accept_record is None
    assert [accept_code(tag_code(tag)) for tag in ("TagA", "TagB", "TagC", None)] == [True, True, False, False]


def test_the_hashes_in_a_subscription_count_and_not_its_expression() -> None:
    accept_code, _ = make_filter(Subscription("T", "TagA", codes=(tag_code("TagB"),)))
    assert accept_code is not None
    assert not accept_code(tag_code("TagA"))
    assert accept_code(tag_code("TagB"))


BLANKS = "".join(map(chr, range(0x21)))
"""Characters that Java trims."""


@given(st.lists(st.text(min_size=1).filter(lambda tag: "|" not in tag and tag.strip(BLANKS)), min_size=1), st.text())
def test_the_tag_filter_matches_the_tag_expression(tags: list[str], sent: str) -> None:
    text = "||".join(tags)
    accept_code, _ = make_filter(make_subscription("T", text, 0))
    wanted = parse_tag_expression(text)
    for tag in (*tags, sent):
        assert (accept_code is None or accept_code(tag_code(tag))) == wanted.may_want(tag_code(tag))


def test_an_sql92_filter_tests_the_properties_of_the_record() -> None:
    accept_code, accept_record = make_filter(make_subscription("T", sql("amount > 10 AND TAGS = 'A'"), 0))
    assert accept_code is None
    assert accept_record is not None
    assert accept_record(record(amount="11", TAGS="A"))
    assert not accept_record(record(amount="9", TAGS="A"))
    assert not accept_record(record(TAGS="A"))
    assert not accept_record(record(amount="much", TAGS="A"))


def test_a_damaged_record_matches_no_filter() -> None:
    _, accept_record = make_filter(make_subscription("T", sql("a IS NULL"), 0))
    assert accept_record is not None
    assert not accept_record(b"no record")


@pytest.mark.parametrize("expression", ["a >", "a > 'b'", "x" * (EXPRESSION_CHARS_MAX + 1), "*"])
def test_an_invalid_sql92_expression_is_refused(expression: str) -> None:
    with pytest.raises(RefusedError) as refused:
        make_filter(Subscription("T", expression, "SQL92"))
    assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_an_unknown_filter_type_is_refused() -> None:
    with pytest.raises(RefusedError, match="unknown filter type 'CLASS'") as refused:
        make_filter(Subscription("T", "a", "CLASS"))
    assert refused.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_sql92_can_be_disabled_and_tags_cannot() -> None:
    with pytest.raises(RefusedError, match="by SQL92") as refused:
        make_filter(Subscription("T", "a = 1", "SQL92"), by_properties=False)
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert make_filter(Subscription("T", "A", codes=(65,)), by_properties=False).accept_code is not None


def test_an_expression_is_compiled_once() -> None:
    first = make_filter(Subscription("T", "once = 1", "SQL92", version=1))
    assert make_filter(Subscription("U", "once = 1", "SQL92", version=2)) is first


def test_the_cache_of_conditions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = filters._CompiledConditions()
    monkeypatch.setattr(filters, "COMPILED_CHARS_MAX", 12)
    first, second = compiled.filter_of("a = 1"), compiled.filter_of("b = 1")
    assert compiled.filter_of("a = 1") is first
    compiled.filter_of("c = 1")
    assert compiled.filter_of("a = 1") is first
    assert compiled.filter_of("b = 1") is not second


def test_an_expression_longer_than_the_cache_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = filters._CompiledConditions()
    monkeypatch.setattr(filters, "COMPILED_CHARS_MAX", 3)
    assert compiled.filter_of("a = 1").accept_record is not None
