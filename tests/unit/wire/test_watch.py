"""Waiting for routes to change, as bytes: both directions, and what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.wire.calls.watch import (
    BODY_BYTES_MAX,
    TIMEOUT_MS,
    TIMEOUT_MS_MAX,
    TOPICS_MAX,
    Bookmark,
    RouteChange,
    WatchAnswer,
    WatchQuery,
    decode_watch,
    decode_watch_answer,
    encode_watch,
    encode_watch_answer,
)
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Request, Response
from skyroute.wire.errors import BodyError, FieldError, WireError

names = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=20)
revisions = st.integers(0, (1 << 63) - 1)
bookmarks = st.builds(Bookmark, st.text("0123456789abcdef", min_size=1, max_size=64), revisions)
queries = st.builds(
    WatchQuery,
    st.none() | st.lists(names, min_size=1, max_size=5, unique=True).map(tuple),
    st.none() | bookmarks,
    st.integers(0, TIMEOUT_MS_MAX),
)
changes = st.builds(
    RouteChange, revision=revisions, wall_ms=revisions, topics=st.lists(names, min_size=1, max_size=3).map(tuple)
)
answers = st.builds(WatchAnswer, bookmarks, revisions, st.lists(changes, max_size=3).map(tuple), st.booleans())


def request(body: object = None, **fields: str) -> Request:
    return Request(RequestCode.WATCH_ROUTES, fields, body=b"" if body is None else json.dumps(body).encode())


@given(queries)
def test_a_watch_is_decoded_as_encoded(query: WatchQuery) -> None:
    assert decode_watch(encode_watch(query)) == query


@given(answers)
def test_a_watch_response_is_decoded_as_encoded(answer: WatchAnswer) -> None:
    assert decode_watch_answer(encode_watch_answer(answer)) == answer


def test_the_bytes_are_those_of_the_document() -> None:
    asked = encode_watch(WatchQuery(("A", "B"), Bookmark("life", 7), 30_000))
    assert (asked.code, asked.fields) == (21001, {"timeoutMillis": "30000", "life": "life", "revision": "7"})
    assert asked.body == b'{"topics":["A","B"]}'
    change = RouteChange(revision=8, wall_ms=1_758_275_140_000, topics=("B",))
    answered = encode_watch_answer(WatchAnswer(Bookmark("life", 9), 5, (change,)))
    assert answered.fields == {"life": "life", "revision": "9", "floor": "5"}
    assert answered.body == b'{"changes":[{"revision":8,"time":1758275140000,"topics":["B"]}]}'
    assert encode_watch_answer(WatchAnswer(Bookmark("life", 9), 9, compacted=True)).fields == {
        "life": "life",
        "revision": "9",
        "floor": "9",
        "compacted": "true",
    }


def test_the_code_fits_a_binary_header() -> None:
    assert RequestCode.WATCH_ROUTES < 1 << 15


def test_what_is_left_out_has_a_default() -> None:
    assert decode_watch(request({"topics": ["T", "T"]})) == WatchQuery(("T",), None, TIMEOUT_MS)
    assert decode_watch(request(anyTopic="TRUE")) == WatchQuery(None, None, TIMEOUT_MS)
    assert decode_watch(request(anyTopic="true", timeoutMillis="999999999")).timeout_ms == TIMEOUT_MS_MAX
    assert decode_watch(request(anyTopic="true", timeoutMillis="-5")).timeout_ms == 0


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (request(), "the watch has no topics"),
        (request({"topics": []}), "the watch has no topics"),
        (request({"topics": ["T"]}, life="x"), "revision is required"),
        (request({"topics": ["T"]}, life="x", revision="many"), "revision is not a number"),
        (request({"topics": ["T"]}, timeoutMillis="soon"), "timeoutMillis is not a number"),
    ],
)
def test_a_field_that_makes_no_sense_is_refused(asked: Request, reason: str) -> None:
    with pytest.raises(FieldError, match=reason):
        decode_watch(asked)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (request({"topics": 7}), "not a list of topics"),
        (request(["T"]), "not a list of topics"),
        (request({"topics": [""]}), "control characters"),
        (request({"topics": ["a\nb"]}), "control characters"),
        (request({"topics": ["a" * 513]}), "more than 512"),
        (request({"topics": [f"t{number}" for number in range(TOPICS_MAX + 1)]}), "set anyTopic=true"),
        (Request(RequestCode.WATCH_ROUTES, {}, body=b" " * (BODY_BYTES_MAX + 1)), "at most"),
    ],
)
def test_topics_that_make_no_sense_are_refused(asked: Request, reason: str) -> None:
    with pytest.raises(BodyError, match=reason):
        decode_watch(asked)


@pytest.mark.parametrize(
    "answer",
    [
        Response(),
        Response(fields={"life": "x"}),
        Response(fields={"life": "x", "revision": "?"}),
        Response(fields={"life": "x", "revision": "1"}, body=b"{"),
        Response(fields={"life": "x", "revision": "1"}, body=b'{"changes":[{}]}'),
    ],
)
def test_an_invalid_watch_response_is_refused(answer: Response) -> None:
    with pytest.raises(WireError):
        decode_watch_answer(answer)
