"""Names, namespaces, tags and queues, held against Apache's answers."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from skyroute.message.errors import InvalidNameError, TagExpressionError
from skyroute.message.flags import TransactionState, transaction_of, with_transaction
from skyroute.message.names import (
    check_consumer_group,
    check_file_name,
    check_group,
    check_open_to_senders,
    check_producer_group,
    check_topic,
)
from skyroute.message.queue_ref import QueueRef
from skyroute.message.reserved_topics import (
    CLOSED_TO_SENDERS,
    SYSTEM_TOPICS,
    dead_letter_topic,
    group_of,
    is_dead_letter_topic,
    is_system_group,
    is_system_topic,
    namespace_of,
    pop_retry_topic,
    reply_topic,
    retry_topic,
    with_namespace,
    without_namespace,
)
from skyroute.message.tags import java_hash, parse_tag_expression, tag_code
from tests.unit.message.samples import FACTS


def refusal(check: Callable[[str], None], name: str) -> str:
    try:
        check(name)
    except InvalidNameError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", FACTS["topic_names"])
def test_invalid_names_have_apaches_error_texts(name: str) -> None:
    assert refusal(check_topic, name) == FACTS["topic_names"][name]
    assert refusal(check_group, name) == FACTS["group_names"][name]


def test_the_systems_own_topics() -> None:
    assert set(FACTS["system_topics"]) == SYSTEM_TOPICS
    assert set(FACTS["closed_topics"]) == CLOSED_TO_SENDERS
    assert refusal(check_open_to_senders, "SCHEDULE_TOPIC_XXXX") == FACTS["closed_text"]
    assert is_system_topic("TBW102")
    assert is_system_topic("rmq_sys_anything")
    assert not is_system_topic("orders")
    assert not refusal(check_open_to_senders, "TBW102")


def test_default_groups_are_refused() -> None:
    assert "DEFAULT_PRODUCER" in refusal(check_producer_group, "DEFAULT_PRODUCER")
    assert "DEFAULT_CONSUMER" in refusal(check_consumer_group, "DEFAULT_CONSUMER")
    assert not refusal(check_producer_group, "DEFAULT_CONSUMER")
    assert not refusal(check_consumer_group, "g")
    assert is_system_group("CID_RMQ_SYS_TRANS")


def test_derived_names() -> None:
    assert [pop_retry_topic("g", "t"), pop_retry_topic("g", "t", version=2)] == FACTS["pop_retry"]
    assert reply_topic("c") == FACTS["reply_topic"]
    assert group_of(retry_topic("g")) == group_of(dead_letter_topic("g")) == group_of("%RETRY%g+t") == "g"
    assert group_of("orders") is None
    assert is_dead_letter_topic(dead_letter_topic("g"))


@pytest.mark.parametrize(("namespace", "name", "wrapped", "unwrapped", "found"), FACTS["namespaces"])
def test_namespaces(namespace: str, name: str, wrapped: str, unwrapped: str, found: str) -> None:
    assert with_namespace(namespace, name) == wrapped
    assert without_namespace(namespace, name) == unwrapped
    assert (namespace_of(name) or "") == found


@pytest.mark.parametrize("text", FACTS["hashes"])
def test_the_hash_is_javas(text: str) -> None:
    assert java_hash(text) == FACTS["hashes"][text]


def test_no_tag_has_code_0() -> None:
    assert tag_code(None) == tag_code("") == 0
    assert tag_code("TagA") == 2598919


@pytest.mark.parametrize("text", FACTS["tag_expressions"])
def test_tag_expressions_are_read_as_apache_reads_them(text: str) -> None:
    expected = FACTS["tag_expressions"][text]
    if expected == "error":
        with pytest.raises(TagExpressionError):
            parse_tag_expression(text)
    else:
        found = parse_tag_expression(text)
        assert [found.text, sorted(found.tags), sorted(found.codes)] == expected


def test_a_broker_selects_by_code_and_a_client_by_tag() -> None:
    # These two have the same hash.
    expression = parse_tag_expression("Aa")
    assert expression.may_want(tag_code("BB"))
    assert expression.wants("Aa")
    assert not expression.wants("BB")
    assert not expression.wants(None)
    assert not expression.may_want(tag_code("other"))


def test_a_negative_code_is_found_in_either_width() -> None:
    code = java_hash("a" * 100)
    assert code < 0
    assert parse_tag_expression("a" * 100).may_want(code)
    assert parse_tag_expression("a" * 100).may_want(code & 0xFFFFFFFF)


def test_everything_is_wanted_by_a_star() -> None:
    for text in ("*", "", None):
        everything = parse_tag_expression(text)
        assert everything.wants_everything
        assert everything.may_want(5)
        assert everything.wants(None)


def test_queues_sort_as_in_java() -> None:
    expected = [QueueRef(topic, broker, queue) for topic, broker, queue, _ in FACTS["queue_order"]]
    shuffled = random.Random(7).sample(expected, len(expected))
    assert sorted(shuffled) == expected
    assert [queue.ring_text for queue in expected] == [text for *_, text in FACTS["queue_order"]]
    assert expected[0] <= expected[0]
    with pytest.raises(TypeError):
        assert expected[0] < 1


def test_the_transaction_is_two_bits_taken_together() -> None:
    assert transaction_of(0x301 | 0xC) is TransactionState.ROLLED_BACK
    assert with_transaction(0x301 | 0xC, TransactionState.COMMITTED) == 0x301 | 0x8


def test_a_queue_is_short_in_a_log() -> None:
    assert str(QueueRef("Orders", "broker-a", 3)) == "Orders@broker-a:3"


@pytest.mark.parametrize("name", ["T", "%RETRY%g", "a.b", "主题", "..a", "a" * 255])
def test_a_valid_folder_name_names_one_folder(name: str, tmp_path: Path) -> None:
    check_file_name(name)
    (tmp_path / name).mkdir()
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["", ".", "..", "/etc", "../x", "a/b", "a/../../b", "a\0b", "a" * 256, "主" * 86])
def test_a_name_that_leads_elsewhere_cannot_be_a_folder(name: str) -> None:
    with pytest.raises(InvalidNameError, match="cannot be the name of a folder"):
        check_file_name(name)


@pytest.mark.parametrize("check", [check_topic, check_group])
def test_a_refusal_does_not_repeat_a_name_of_megabytes(check: Callable[[str], None]) -> None:
    for name in ("/" * 1_000_000, "x" * 1_000_000):
        with pytest.raises(InvalidNameError) as caught:
            check(name)
        assert len(str(caught.value)) < 1_000
