"""Answers found by the bytes of the question are those that the ordinary way would give, or there is none."""

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from skyroute.wire.calls.route import decode_route_query
from skyroute.wire.codes import V4_9_4
from skyroute.wire.command import FORM_BINARY, FORM_JSON, Request, Response
from skyroute.wire.errors import FrameError
from skyroute.wire.fast_path import (
    FORMS_MAX,
    FRAME_BYTES_MAX,
    OWN_FORM_REQUESTS_MAX,
    REQUESTS_MAX,
    EncodedRoute,
    FastPath,
    PreparedResponse,
    PreparedRoute,
)
from skyroute.wire.fastjson import Dialect
from skyroute.wire.header import decode_command, encode_request, response_head
from tests.unit.wire.by_hand import BINARY, binary_header, frame, json_header
from tests.unit.wire.golden import golden_bytes

ROUTE = Response(body=b'{"brokerDatas":[]}')
RESPONSES = [
    ROUTE,
    Response(),
    Response(17, "No topic route info"),
    Response(1, 'a remark with "opaque":7, in it'),
    Response(fields={"masterAddr": "10.0.0.1:10911"}, body=b'"opaque":7,'),
    Response(0, "中\n", {"a": "b"}, b"body", 317),
]


def question(number: object = 7, **rest: object) -> bytes:
    members = {"code": 105, "extFields": {"topic": "T"}, "flag": 0, "language": "JAVA", "opaque": number}
    return frame(json_header(**members | {"serializeTypeCurrentRPC": "JSON", "version": 479} | rest))


def written(header: str) -> bytes:
    return frame(header.encode())


def remembering(*frames: bytes, response: Response = ROUTE) -> FastPath:
    """What a name server does with a lasting answer, for each of the frames."""
    fast_path = FastPath()
    for asked in frames:
        fast_path.remember(asked, decode_command(asked), response)
    return fast_path


def in_the_ordinary_way(asked: bytes, response: Response) -> bytes:
    request = decode_command(asked)
    return response_head(response, request.request_id, request.form) + response.body


def assert_never_found(remembered: bytes, *asked: bytes) -> None:
    fast_path = remembering(remembered)
    for other in (remembered, *asked):
        assert fast_path.find(other) is None


# ------------------------------------------------------------------------------------------------- what is found


def test_nothing_is_found_in_an_empty_cache() -> None:
    assert FastPath().find(question()) is None


@pytest.mark.parametrize("response", RESPONSES)
@pytest.mark.parametrize(("first", "then"), [(7, 8), (7, 7), (99, 10), (123456789, 987654321), (100000000, 999999999)])
def test_an_equal_request_with_another_id_gets_the_same_response(response: Response, first: int, then: int) -> None:
    fast_path = remembering(question(first), response=response)
    found = fast_path.find(question(then))
    assert found is not None
    assert b"".join(found) == in_the_ordinary_way(question(then), response)


def test_a_cached_response_has_four_pieces_with_the_id_second_and_the_body_last() -> None:
    found = remembering(question(10)).find(question(42))
    assert found is not None
    start, number, tail, body = found
    assert (number, body) == (b"42", ROUTE.body)
    assert start.endswith(b'"opaque":')
    assert tail.startswith(b",")
    assert body is ROUTE.body


def test_a_route_request_of_apaches_client_is_cached() -> None:
    asked = golden_bytes("apache-5.5.0/route-json.hex")
    request = decode_command(asked)
    fast_path = remembering(asked)
    again = asked.replace(b'"opaque":%d,' % request.request_id, b'"opaque":%d,' % (request.request_id ^ 1))
    found = fast_path.find(again)
    assert found is not None
    assert b"".join(found) == in_the_ordinary_way(again, ROUTE)


def test_a_route_request_of_our_client_is_cached() -> None:
    request = Request(105, {"topic": "T"})
    found = remembering(encode_request(request, 7)).find(encode_request(request, 8))
    assert found is not None
    assert b"".join(found) == in_the_ordinary_way(encode_request(request, 8), ROUTE)


def test_different_requests_have_different_responses() -> None:
    fast_path = FastPath()
    for name in ("A", "B", "C"):
        asked = question(7, extFields={"topic": name})
        fast_path.remember(asked, decode_command(asked), Response(body=name.encode()))
    for name in ("A", "B", "C"):
        found = fast_path.find(question(8, extFields={"topic": name}))
        assert found is not None
        assert found[3] == name.encode()


def test_the_last_cached_response_is_found() -> None:
    fast_path = remembering(question(7))
    fast_path.remember(question(8), decode_command(question(8)), Response(body=b"newer"))
    found = fast_path.find(question(9))
    assert found is not None
    assert found[3] == b"newer"


def test_a_response_can_be_found_again() -> None:
    fast_path = remembering(question(7))
    assert fast_path.find(question(8)) == fast_path.find(question(8))


# --------------------------------------------------------------------------------------------- what is not found


@pytest.mark.parametrize(
    "other",
    [
        question(8, flag=2),
        question(8, flag=1),
        question(8, flag=3),
        question(8, code=106),
        question(8, version=317),
        question(8, extFields={"topic": "U"}),
        question(8, extFields={"topic": "T", "__ZONE_MODE": "true"}),
        question(8, language="GO"),
        question(8, remark="x"),
        question(8) + b" ",
    ],
)
def test_a_request_that_differs_in_more_than_its_id_is_not_found(other: bytes) -> None:
    assert remembering(question(7)).find(other) is None


@pytest.mark.parametrize("flag", [1, 2, 3])
def test_a_one_way_request_is_not_found_as_a_two_way_one(flag: int) -> None:
    fast_path = remembering(question(7, flag=0))
    assert fast_path.find(question(7, flag=flag)) is None
    assert remembering(question(7, flag=flag)).find(question(7, flag=0)) is None


@pytest.mark.parametrize("number", [10, 100, 1234567890])
def test_an_id_of_more_digits_is_not_found(number: int) -> None:
    assert remembering(question(7)).find(question(number)) is None


@pytest.mark.parametrize("number", [-1, -7, -123456789, 1234567890, 2147483647, "7", 7.0, None, True])
def test_an_id_that_is_not_plain_digits_is_not_cached(number: object) -> None:
    assert_never_found(question(number), question(8), question(-8), question(1234567899))


@pytest.mark.parametrize(
    "number", ["x", " 7", "7 ", "-7", "+7", "7.", ".7", "0x", "1e", "1_", '""', "[]", "{}", "\t7", "٣", "²"]
)
def test_an_id_must_be_digits_to_be_found(number: str) -> None:
    plain = json_header(code=105, opaque=0, version=479).decode()
    size = len(number.encode())
    remembered = written(plain.replace('"opaque":0', '"opaque":' + "5" * size))
    asked = written(plain.replace('"opaque":0', f'"opaque":{number}'))
    assert len(asked) == len(remembered)
    assert remembering(remembered).find(remembered) is not None
    assert remembering(remembered).find(asked) is None


@pytest.mark.parametrize("number", ["05", "00", "01"])
def test_an_id_with_leading_zeros_is_not_found(number: str) -> None:
    # It is no JSON: the ordinary way refuses it, and an answer that fast_path it could not be read.
    plain = json_header(code=105, opaque=55, version=479).decode()
    asked = written(plain.replace("55", number))
    with pytest.raises(FrameError):
        decode_command(asked)
    assert remembering(written(plain)).find(asked) is None


@pytest.mark.parametrize(
    "header",
    [
        '{"code":105,"opaque":7}',
        '{"opaque":7}',
        '{"code":105,"extFields":{"topic":"T"},"opaque":7}',
        '{"code":105,"opaque": 7,"version":479}',
        '{"code":105,"opaque":7 ,"version":479}',
        '{"code":105,"opaque" :7,"version":479}',
        '{"code":105,"opaque":\n7,"version":479}',
        '{"code":105,opaque:7,"version":479}',
        '{"code":105,\'opaque\':7,"version":479}',
        '{"code":105,"opaque":"7","version":479}',
        '{"code":105,"opaque":7.0,"version":479}',
        '{"code":105,"opaque":7e0,"version":479}',
        '{"code":105,"opaque":-7,"version":479}',
        '{"code":105,"opaque":1234567890,"version":479}',
        '{"code":105,"opaque":null,"version":479}',
        '{"code":105,"version":479}',
        "{}",
        # said twice, the last counts
        '{"opaque":7,"opaque":8,"code":105}',
        '{"opaque":8,"opaque":8,"code":105}',
        '{"opaque":8,"opaqu\\u0065":8,"code":105}',
        '{"opaqu\\u0065":8,"code":105}',
        # elsewhere
        '{"code":105,"extFields":{"opaque":"7","topic":"T"},"version":479}',
        '{"code":105,"extFields":{"opaque":"7","topic":"T"},"opaque":7,"version":479}',
        '{"code":105,"opaque":7,"extFields":{"topic":"opaque"},"version":479}',
        '{"code":105,"extFields":{"opaque":7,"topic":"T"},"opaque":7,"version":479}',
        '{"code":105,"other":{"opaque":7,"x":1},"version":479}',
        '{"code":105,"other":{"opaque":7,"x":1},"opaque":7,"version":479}',
        '{"code":105,"remark":"\\"opaque\\":7,","opaque":7,"version":479}',
        # escapes
        '{"code":105,"extFields":{"topic":"\\u0054"},"opaque":7,"version":479}',
        '{"code":105,"opaque":7,"remark":"a\\nb","version":479}',
        '{"code":105,"opaque":7,"extFields":{"topic":"a\\\\b"},"version":479}',
    ],
)
def test_a_request_with_an_ambiguous_id_is_not_cached(header: str) -> None:
    others = [header.replace("7", str(digit)) for digit in range(10)]
    assert_never_found(written(header), *map(written, others))


@pytest.mark.parametrize(
    "header",
    [
        '{"code":105,"extFields":{"opaque":0,"topic":"T"},"version":479}',
        '{"extFields":{"a":"b","opaque":0,"topic":"T"},"code":105}',
        '{"code":105,"other":{"opaque":0,"x":1},"version":479}',
        '{"code":105,"other":[{"opaque":0,"x":1}],"version":479}',
        '{"code":105,\'remark\':\'"opaque":0,\',"version":479}',
    ],
)
def test_a_nested_opaque_is_not_taken_for_a_missing_id(header: str) -> None:
    # A question without a number has the number 0, which is what stands there by chance.
    assert decode_command(written(header)).request_id == 0
    fast_path = remembering(written(header))
    for digit in range(1, 10):
        assert fast_path.find(written(header.replace(":0,", f":{digit},"))) is None


@pytest.mark.parametrize("number", [7, 0, 123456789])
def test_a_binary_request_is_neither_cached_nor_found(number: int) -> None:
    asked = frame(binary_header(105, request_id=number, version=479, fields={"topic": "T"}), form=BINARY)
    assert_never_found(asked, question(number))
    trap = frame(binary_header(105, request_id=7, fields={"t": '"opaque":7,'}), form=BINARY)
    assert_never_found(trap)
    assert remembering(question(number)).find(asked) is None


@pytest.mark.parametrize("body", [b"b", b'"opaque":7,', b"\0" * 100])
def test_a_request_with_a_body_is_neither_cached_nor_found(body: bytes) -> None:
    header = question(7)[8:]
    assert_never_found(frame(header, body), frame(header))
    assert remembering(frame(header)).find(frame(header, body)) is None


def test_a_body_is_not_mistaken_for_a_part_of_the_header() -> None:
    whole = question(7)
    header = whole[8:]
    for at in range(1, len(header)):
        split = frame(header[:at], header[at:])
        assert len(split) == len(whole)
        assert remembering(whole).find(split) is None


# --------------------------------------------------------------------------------------------------------- bounds


def padded(size: int, number: int = 7) -> bytes:
    fill = size - len(question(number, remark=""))
    return question(number, remark="x" * fill)


def test_a_request_of_the_maximum_length_is_cached() -> None:
    assert len(padded(FRAME_BYTES_MAX)) == FRAME_BYTES_MAX
    found = remembering(padded(FRAME_BYTES_MAX)).find(padded(FRAME_BYTES_MAX, 8))
    assert found is not None
    assert b"".join(found) == in_the_ordinary_way(padded(FRAME_BYTES_MAX, 8), ROUTE)


def test_a_longer_request_is_not_found() -> None:
    assert_never_found(padded(FRAME_BYTES_MAX + 1), padded(FRAME_BYTES_MAX + 1, 8))


@pytest.mark.parametrize("size", [FRAME_BYTES_MAX + 1, 1 << 20])
def test_a_longer_request_takes_no_memory(size: int) -> None:
    fast_path = remembering(padded(size))
    assert len(fast_path._requests) == 0


def test_the_number_of_cached_requests_has_a_limit() -> None:
    fast_path = FastPath()
    request = decode_command(question(7))
    frames = [frame(b'{"opaque":7,"topic":"%d"}' % topic) for topic in range(REQUESTS_MAX + 5)]
    for asked in frames:
        fast_path.remember(asked, request, ROUTE)
        assert len(fast_path._requests) <= REQUESTS_MAX
    assert sum(fast_path.find(asked) is not None for asked in frames) == len(fast_path._requests)


def test_a_forgotten_response_is_not_found_until_it_is_cached_again() -> None:
    fast_path = remembering(question(7), question(7, code=106))
    fast_path.forget()
    assert fast_path.find(question(7)) is None
    assert fast_path.find(question(7, code=106)) is None
    fast_path.remember(question(7), decode_command(question(7)), Response(body=b"newer"))
    found = fast_path.find(question(8))
    assert found is not None
    assert found[3] == b"newer"


def test_two_caches_share_nothing() -> None:
    remembering(question(7))
    assert FastPath().find(question(7)) is None


@pytest.mark.parametrize("fields", [{"opaque": "7"}, {"opaque": "", "a": "b"}, {'x"opaque': "7"}, {'"opaque': "7"}])
def test_a_response_may_have_a_field_named_opaque(fields: dict[str, str]) -> None:
    response = Response(fields=fields, body=b"body")
    found = remembering(question(7), response=response).find(question(8))
    if found is not None:
        assert b"".join(found) == in_the_ordinary_way(question(8), response)


# ---------------------------------------------------------------------------------------- topics not asked for yet

NAMES = ("T", "Orders", "中", "a b", "x" * 100, "a\\nb", "/", "opaque", "topic")


class OneRouteEach:
    """Every name has a route of its own; who looked it up is told by `looked_up`."""

    def __init__(self, *, is_cacheable: bool = True) -> None:
        self.by_topic: dict[str, PreparedRoute] = {}
        self.is_cacheable = is_cacheable
        self.looked_up: list[tuple[str, Dialect]] = []

    def find(self, topic: str, dialect: Dialect) -> EncodedRoute | None:
        self.looked_up.append((topic, dialect))
        return self.answer(topic, dialect) if topic in NAMES else None

    def dialect_of(self, request: Request) -> Dialect:
        return decode_route_query(request).dialect

    def answer(self, topic: str, dialect: Dialect) -> EncodedRoute:
        body = f"{topic} {dialect.value}".encode()
        return EncodedRoute(PreparedResponse(body=body, is_cacheable=self.is_cacheable))


def having_learnt(*frames: bytes, routes: OneRouteEach | None = None) -> FastPath:
    fast_path = FastPath(routes or OneRouteEach())
    for asked in frames:
        fast_path.remember(asked, decode_command(asked), ROUTE)
    return fast_path


def number_first(number: int, topic: str, version: int = 479) -> bytes:
    return frame(json_header(code=105, opaque=number, flag=0, extFields={"topic": topic}, version=version))


@pytest.mark.parametrize("version", [317, 479])
@pytest.mark.parametrize("write", [lambda n, t, v: question(n, extFields={"topic": t}, version=v), number_first])
def test_a_topic_not_requested_yet_is_found_by_the_form_of_the_request(write: Any, version: int) -> None:
    fast_path = having_learnt(write(77, "Orders", version))
    # As long as the first, so of the same form.
    for number, topic in ((88, "Orders"), (8888888, "T"), (88888, "a b")):
        asked = write(number, topic, version)
        found = fast_path.find(asked)
        dialect = Dialect.STRICT if version == 479 else Dialect.LEGACY
        assert found is not None
        if topic != "Orders":
            assert b"".join(found) == in_the_ordinary_way(asked, Response(body=f"{topic} {dialect.value}".encode()))
    assert fast_path.find(write(8, "Unknown", version)) is None
    assert fast_path.found == 3


def test_a_topic_that_was_requested_is_not_looked_up_again() -> None:
    routes = OneRouteEach()
    fast_path = having_learnt(question(7777777), routes=routes)
    route = routes.by_topic["Orders"] = PreparedRoute(("broker-a",))
    route.strict = EncodedRoute(PreparedResponse(body=b"kept", is_cacheable=True))
    found = fast_path.find(question(77, extFields={"topic": "Orders"}))
    assert found is not None
    assert (found[3], routes.looked_up) == (b"kept", [])


def test_a_response_that_is_not_cacheable_is_not_found() -> None:
    fast_path = having_learnt(question(77, extFields={"topic": "Orders"}), routes=OneRouteEach(is_cacheable=False))
    assert fast_path.find(question(7777777)) is None
    assert fast_path.found == 0


@pytest.mark.parametrize(
    "header",
    [
        # The topic twice, or as Java's reader alone takes it.
        '{"code":105,"extFields":{"topic":"T","topic":"T"},"opaque":7,"version":479}',
        '{"code":105,"extFields":{"topic":"T"},"topic":"T","opaque":7,"version":479}',
        '{"code":105,"extFields":{"topic":"T"},"remark":"topic","opaque":7,"version":479}',
        '{"code":105,"extFields":{"topic":"T",topic:"T"},"opaque":7,"version":479}',
        '{"code":105,"extFields":{"topic":"T",\'topic\':"T"},"opaque":7,"version":479}',
        '{"code":105,"extFields":{topic:"T"},"opaque":7,"version":479}',
        '{"code":105,"extFields":{"topic": "T"},"opaque":7,"version":479}',
        '{"code":106,"extFields":{"topic":"T"},"opaque":7,"version":479}',
    ],
)
def test_a_request_with_an_ambiguous_topic_adds_no_form(header: str) -> None:
    assert having_learnt(written(header))._forms == {}


@pytest.mark.parametrize("topic", [b"a\\nb", b"\\u0054", b"\xff\xfe", b"\xed\xa0\x80"])
def test_an_escaped_topic_is_not_found(topic: bytes) -> None:
    fast_path = having_learnt(question(7, extFields={"topic": "x" * len(topic)}))
    asked = question(8, extFields={"topic": "y" * len(topic)}).replace(b"y" * len(topic), topic)
    assert fast_path.find(asked) is None


def test_the_number_of_forms_has_a_limit() -> None:
    fast_path = having_learnt()
    for at in range(FORMS_MAX + 5):
        asked = question(7, remark=str(at))
        fast_path.remember(asked, decode_command(asked), ROUTE)
        assert len(fast_path._forms) <= FORMS_MAX


def test_requests_above_the_limit_are_found_by_their_form() -> None:
    names = [f"T{at:05}" for at in range(REQUESTS_MAX + 1)]
    fast_path = having_learnt(*(question(7, extFields={"topic": name}) for name in names))
    assert len(fast_path._forms) == 1
    assert fast_path._requests == {}
    found = fast_path.find(question(7, extFields={"topic": "Orders"}))
    assert found is not None
    assert found[3] == b"Orders strict"
    assert fast_path._requests == {}


def test_signed_requests_are_cached_whole() -> None:
    signed = [question(7, extFields={"Signature": f"{at:09}", "topic": "T"}) for at in range(OWN_FORM_REQUESTS_MAX + 9)]
    fast_path = having_learnt(*signed)
    assert len(fast_path._requests) == OWN_FORM_REQUESTS_MAX
    assert len(fast_path._forms) == FORMS_MAX
    assert fast_path.find(signed[0]) is not None
    assert fast_path.find(signed[OWN_FORM_REQUESTS_MAX - 1]) is not None
    assert fast_path.find(signed[-1]) is None


# ------------------------------------------------------------------------------------------------ anything at all


DIGITS = st.integers(1, 9).flatmap(lambda count: st.tuples(*[st.integers(10 ** (count - 1), 10**count - 1)] * 2))
TEXTS = st.text(max_size=8) | st.sampled_from(["opaque", '"opaque":7,', "T", "\\", "'", "中"])
SCALARS = st.none() | st.booleans() | st.integers(-10, 1 << 31) | st.sampled_from([0, 7, 7.0, 0.5]) | TEXTS
KEYS = st.sampled_from(["opaque", "topic", "a", "0", "code"]) | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=4,
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "code": st.integers(0, 400),
        "extFields": st.dictionaries(KEYS, TEXTS | SCALARS, max_size=3),
        "flag": st.integers(0, 3),
        "language": st.sampled_from(["JAVA", "GO", "x", 3]),
        "opaque": st.integers(-20, 120) | st.integers(0, (1 << 31) - 1) | st.sampled_from(["7", None, 7.0, "0"]),
        "remark": TEXTS | st.none(),
        "serializeTypeCurrentRPC": st.just("JSON"),
        "version": st.integers(0, 500),
        "other": VALUES,
        "": VALUES,
    },
)
SEPARATORS = st.tuples(st.sampled_from([",", ", ", " ,", ",\n", ",\t"]), st.sampled_from([":", ": ", " :", ":\n"]))
PLAIN_SEPARATORS = st.just((",", ":"))


def decoded(asked: bytes) -> Request | None:
    try:
        return decode_command(asked)
    except FrameError:
        return None


def other_numbers(asked: bytes) -> set[bytes]:
    """The same bytes with other digits wherever a run of them follows a name such as the number's."""
    others = {asked}
    start = asked.find(b'"opaque":')
    while start >= 0:
        at = start + len(b'"opaque":')
        end = at
        while asked[end : end + 1].isdigit():
            end += 1
        for digit in b"0159":
            others.add(asked[:at] + bytes([digit]) * (end - at) + asked[end:])
            others.add(asked[:at] + b"1" * bool(end - at) + bytes([digit]) * (end - at - 1) + asked[end:])
        start = asked.find(b'"opaque":', at)
    return others


@settings(deadline=None, max_examples=250)
@given(
    header=HEADERS,
    order=st.randoms(use_true_random=False),
    separators=PLAIN_SEPARATORS | SEPARATORS,
    ascii_only=st.booleans(),
    form=st.sampled_from([FORM_JSON, FORM_JSON, FORM_JSON, FORM_BINARY]),
    body=st.sampled_from([b"", b"", b"", b"b"]),
    response=st.sampled_from(RESPONSES),
)
def test_a_found_response_equals_the_ordinary_one(
    header: dict[str, Any],
    order: Any,
    separators: tuple[str, str],
    ascii_only: bool,
    form: int,
    body: bytes,
    response: Response,
) -> None:
    names = list(header)
    order.shuffle(names)
    text = json.dumps({name: header[name] for name in names}, separators=separators, ensure_ascii=ascii_only)
    asked = frame(text.encode("utf-8", "replace"), body, form)
    remembered = decoded(asked)
    assume(remembered is not None)
    assert remembered is not None
    fast_path = FastPath()
    fast_path.remember(asked, remembered, response)
    for other in sorted(other_numbers(asked)):
        found = fast_path.find(other)
        if found is None:
            continue
        request = decode_command(other)
        assert int(found[1]) == request.request_id
        assert (request.code, request.fields, request.version) == (
            remembered.code,
            remembered.fields,
            remembered.version,
        )
        assert (request.flag, request.form, request.body) == (remembered.flag, FORM_JSON, b"")
        assert b"".join(found) == in_the_ordinary_way(other, response)


@settings(deadline=None)
@given(
    header=HEADERS.filter(lambda header: b"opaque" not in json.dumps({**header, "opaque": 0}).encode()[:-12]),
    numbers=DIGITS,
    response=st.sampled_from(RESPONSES),
)
def test_a_plain_request_is_found_with_any_id_of_equal_length(
    header: dict[str, Any], numbers: tuple[int, int], response: Response
) -> None:
    header.pop("opaque", None)
    first, then = (
        frame(json.dumps({"opaque": number, **header}, separators=(",", ":"), ensure_ascii=False).encode())
        for number in numbers
    )
    assume(header and b"\\" not in first and first.count(b"opaque") == 1 and decoded(first) is not None)
    found = remembering(first, response=response).find(then)
    assert found is not None
    assert b"".join(found) == in_the_ordinary_way(then, response)


@settings(deadline=None, max_examples=120)
@given(
    at=st.integers(0, 120),
    removed=st.integers(0, 3),
    inserted=st.sampled_from([b"", b'"opaque":8,', b'"', b"'", b"\\", b",", b":", b"0", b"9", b"{", b"}", b" ", b"[]"]),
    number=st.sampled_from([0, 7, 42]),
)
def test_a_damaged_request_is_found_only_if_it_would_get_that_response(
    at: int, removed: int, inserted: bytes, number: int
) -> None:
    remembered = question(number)
    header = remembered[8:]
    damaged = frame(header[:at] + inserted + header[at + removed :])
    for first, then in ((remembered, damaged), (damaged, remembered), (damaged, damaged)):
        if decoded(first) is None:
            continue
        for other in sorted(other_numbers(then)):
            found = remembering(first).find(other)
            if found is not None:
                assert b"".join(found) == in_the_ordinary_way(other, ROUTE)


@settings(deadline=None, max_examples=250)
@given(
    header=HEADERS,
    fields=st.dictionaries(KEYS, TEXTS, max_size=2),
    order=st.randoms(use_true_random=False),
    topic=st.sampled_from(NAMES),
    other=st.sampled_from(NAMES) | st.sampled_from(['"', "\\", "\n", 'T"},"flag":1,"x":{"', "\x7f"]),
    digits=st.integers(1, 10),
)
def test_a_response_found_by_form_equals_the_ordinary_one(
    header: dict[str, Any], fields: dict[str, str], order: Any, topic: str, other: str, digits: int
) -> None:
    header = {**header, "code": 105, "extFields": fields | {"topic": topic}, "opaque": 7}
    names = list(header)
    order.shuffle(names)
    text = json.dumps({name: header[name] for name in names}, separators=(",", ":"), ensure_ascii=False)
    asked = frame(text.encode("utf-8", "replace"))
    remembered = decoded(asked)
    assume(remembered is not None)
    assert remembered is not None
    first, then = (f'"topic":{json.dumps(name, ensure_ascii=False)}'.encode() for name in (topic, other))
    raw = f'"topic":"{other}"'.encode()
    for changed in (then, raw):
        content = asked[8:].replace(first, changed).replace(b'"opaque":7,', b'"opaque":%b,' % (b"8" * digits))
        again = frame(content)
        known = having_learnt(asked)
        # The form of a question as long as this one.
        known._forms = {(again[:8] + form[0][8:], *form[1:]): dialect for form, dialect in known._forms.items()}
        known._requests.clear()
        found = known.find(again)
        if found is None:
            continue
        request = decode_command(again)
        assert (request.code, request.flag, request.version, request.form, request.body) == (
            105,
            remembered.flag,
            remembered.version,
            FORM_JSON,
            b"",
        )
        assert {**request.fields, "topic": ""} == {**remembered.fields, "topic": ""}
        dialect = Dialect.STRICT if request.version >= V4_9_4 else Dialect.LEGACY
        if not request.fields.get("acceptStandardJsonOnly"):
            body = f"{request.fields['topic']} {dialect.value}".encode()
            assert b"".join(found) == in_the_ordinary_way(again, Response(body=body))
