"""Pulls with an SQL filter: the time limit of their search, and where it continues."""

import pytest

from skyroute.broker.delivery import filters
from skyroute.broker.delivery.filters import SQL92, make_filter, retry_filter
from skyroute.broker.handlers.pull import PullHandlers
from skyroute.broker.store.draft import Draft
from skyroute.message.property_names import RETRY_TOPIC
from skyroute.message.sql92 import EXPRESSION_CHARS_MAX, Condition, compile_expression
from skyroute.remoting.dispatch import DeferredResponse
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.clients import Subscription
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import RequestCode, ResponseCode
from skyroute.wire.command import Request, Response
from tests.unit.broker.state import HOST, State


class SlowClock:
    """A clock that advances a millisecond at each call."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 0.001
        return self.now


@pytest.fixture
def handlers(state: State) -> PullHandlers:
    state.topics.put(TopicConfig("Orders", 1, 1))
    return PullHandlers(
        state.store,
        long_polling=state.long_polling,
        topics=state.topics,
        groups=state.groups,
        offsets=state.offsets,
        clients=state.clients,
        stats=state.stats,
        config=state.config,
        identity=state.identity,
        monotonic=SlowClock().monotonic,
    )


def store(state: State, **properties: str) -> None:
    raw = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
    state.store.append(Draft("Orders", 0, b"body", raw, state.now_ms(), HOST, HOST), state.now_ms())


def a_pull(expression: str, offset: int = 0, *, suspend_ms: int = 0, kind: str = SQL92) -> Request:
    fields = {
        "consumerGroup": "g",
        "topic": "Orders",
        "queueId": "0",
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "6",
        "commitOffset": "0",
        "suspendTimeoutMillis": str(suspend_ms),
        "subscription": expression,
        "subVersion": "0",
        "expressionType": kind,
    }
    return Request(RequestCode.PULL_MESSAGE, fields)


def next_offset(response: object) -> int:
    assert isinstance(response, Response)
    return int((response.fields or {})["nextBeginOffset"])


def test_a_filtered_search_ends_at_its_time_limit_and_continues_later(state: State, handlers: PullHandlers) -> None:
    for number in range(40):
        store(state, a=str(number))
    offset, pulls = 0, 0
    response = handlers.pull(a_pull("a = 39"), state.peer)
    while isinstance(response, Response) and response.code == ResponseCode.PULL_RETRY_IMMEDIATELY:
        assert 1 <= next_offset(response) - offset <= 6
        offset, pulls = next_offset(response), pulls + 1
        response = handlers.pull(a_pull("a = 39", offset), state.peer)
    assert isinstance(response, Response)
    assert (response.code, next_offset(response)) == (ResponseCode.SUCCESS, 40)
    assert pulls >= 6


def test_messages_found_within_the_time_limit_are_returned(state: State, handlers: PullHandlers) -> None:
    for number in range(40):
        store(state, a=str(number))
    response = handlers.pull(a_pull("a < 2"), state.peer)
    assert isinstance(response, Response)
    assert response.code == ResponseCode.SUCCESS
    assert 2 <= next_offset(response) <= 6


def test_a_suspended_pull_returns_retry_immediately_when_its_search_ends_early(
    state: State, handlers: PullHandlers
) -> None:
    store(state, a="0")
    answer = handlers.pull(a_pull("a = 39", 1, suspend_ms=1000), state.peer)
    assert isinstance(answer, DeferredResponse)
    given: list[Response] = []
    answer.then(given.append)
    store(state, a="1")
    state.long_polling.wake_queue("Orders", 0)
    assert given == []  # the search reached the end
    for number in range(2, 40):
        store(state, a=str(number))
    state.long_polling.wake_queue("Orders", 0)
    assert given[0].code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert 3 <= next_offset(given[0]) <= 8


@pytest.mark.parametrize(
    ("expression", "kind"), [("x" * (EXPRESSION_CHARS_MAX + 1), SQL92), ("x" * (filters.TAGS_CHARS_MAX + 1), "TAG")]
)
def test_a_long_expression_is_refused(state: State, handlers: PullHandlers, expression: str, kind: str) -> None:
    with pytest.raises(RefusedError, match="at most") as refusal:
        handlers.pull(a_pull(expression, kind=kind), state.peer)
    assert refusal.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_sql_filters_of_retries_are_compiled_on_first_use(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def compiling(text: str) -> Condition:
        compiled.append(text)
        return compile_expression(text)

    monkeypatch.setattr(filters, "compile_expression", compiling)
    wanted = retry_filter(filters.Filter(), [Subscription(f"T{n}", f"lazy{n} = 1", SQL92) for n in range(100)])
    assert compiled == []
    store(state, **{RETRY_TOPIC: "T7", "lazy7": "1"})
    store(state, **{RETRY_TOPIC: "T7", "lazy7": "2"})
    store(state, **{RETRY_TOPIC: "other"})
    assert wanted.accept_record is not None
    records = [state.store.record_at(state.store.unit("Orders", 0, offset)[0]) for offset in range(3)]  # type: ignore[index]
    assert [wanted.accept_record(record) for record in records if record is not None] == [True, False, True]
    assert compiled == ["lazy7 = 1"]


def test_an_invalid_sql_filter_of_retries_is_compiled_once(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def compiling(text: str) -> Condition:
        compiled.append(text)
        return compile_expression(text)

    monkeypatch.setattr(filters, "compile_expression", compiling)
    wanted = retry_filter(filters.Filter(), [Subscription("T7", "a = = 1", SQL92)])
    store(state, **{RETRY_TOPIC: "T7"})
    record = state.store.record_at(state.store.unit("Orders", 0, 0)[0])  # type: ignore[index]
    assert record is not None
    assert wanted.accept_record is not None
    assert [wanted.accept_record(record) for _ in range(3)] == [True] * 3
    assert compiled == ["a = = 1"]


def test_the_cache_of_sql_filters_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "_compiled", kept := filters._CompiledConditions())
    monkeypatch.setattr(filters, "COMPILED_MAX", 10)
    for number in range(30):
        make_filter(Subscription("T", f"a={number}", SQL92))
    assert len(kept._filters) == 10
