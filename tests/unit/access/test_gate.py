from base64 import b64encode
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from skyroute.access.audit import decode_record
from skyroute.access.errors import RulesError, SettingsError
from skyroute.access.gate import DECISIONS_MAX, Audited, Gate, GateSettings, Reason, check_settings
from skyroute.access.needs import Door
from skyroute.access.policies import Acl, Decision, Entry
from skyroute.access.resources import parse_action, parse_resource
from skyroute.access.rules import Rules
from skyroute.access.sources import parse_patterns, parse_sources
from skyroute.access.users import Password, User
from skyroute.client.session.signing import Credentials
from skyroute.wire.calls.send import SignedSendRequest, decode_send, read_send_header, read_signed_send_header
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Request
from skyroute.wire.header import decode_request_header

SECRET = "alice-secret"
CLOSED = GateSettings("c1", authorization=True, open_doors=frozenset())


def entry(resource: str, actions: str, decision: str = "Allow", *sources: str) -> Entry:
    words = frozenset(map(parse_action, actions.split(",")))
    return Entry(parse_resource(resource), words, Decision(decision), parse_sources(sources))


def rules(*entries: Entry, is_super: bool = False) -> Rules:
    return Rules({"alice": User("alice", Password(SECRET), is_super)}, {"alice": Acl(entries)} if entries else {})


def signed(code: int, fields: dict[str, str] | None = None, body: bytes = b"", name: str = "alice") -> Request:
    request = Request(code, dict(fields or {}), body=body)
    Credentials(name, SECRET).sign(request)
    return request


def direct(fields: dict[str, str], name: str = "alice") -> SignedSendRequest:
    request = read_signed_send_header(header_of(signed(310, fields, b"body", name)))
    assert request is not None
    request.body = b"body"
    return request


def reason(gate: Gate, request: Request, source: str = "10.0.0.1", *names: str) -> Reason:
    if isinstance(request, SignedSendRequest) and (known := gate.check_again(request, source)) is not None:
        return known.reason  # as a server does
    return gate.check(request, source, names).reason


def test_authorization_alone_is_refused_at_the_start() -> None:
    with pytest.raises(SettingsError, match="authenticationEnabled"):
        check_settings(authentication=False, authorization=True)
    for authentication, authorization in ((True, True), (True, False), (False, False)):
        check_settings(authentication=authentication, authorization=authorization)


@pytest.mark.parametrize("door", [Door.CLIENT, Door.BROKER, Door.OPERATOR])
def test_only_the_door_of_readers_can_be_open(door: Door) -> None:
    with pytest.raises(SettingsError):
        GateSettings("c1", open_doors=frozenset({door}))


def test_the_texts_of_failures_are_apaches() -> None:
    gate = Gate(CLOSED, rules())
    wrong = signed(105, {"topic": "orders"})
    wrong.fields["topic"] = "payments"
    texts = {
        "username cannot be null.": Request(105, {"topic": "orders"}),
        "User:bob is not found.": signed(105, {"topic": "orders"}, name="bob"),
        "check signature failed.": wrong,
        "User:alice has no permission to access Topic:orders from 10.0.0.1, no matched policies.": signed(
            105, {"topic": "orders"}
        ),
    }
    for text, request in texts.items():
        response = gate.check(request, "10.0.0.1").response()
        assert (response.code, response.remark) == (16, text)
    gate.use(rules(entry("Topic:orders", "All", "Deny")))
    denied = gate.check(signed(105, {"topic": "orders"}), "10.0.0.1")
    assert denied.text == "User:alice has no permission to access Topic:orders from 10.0.0.1, the decision is deny."


def test_a_disabled_user_is_refused_but_only_its_key_learns_that() -> None:
    gate = Gate(CLOSED, Rules({"alice": User("alice", Password(SECRET), is_super=True, is_enabled=False)}))
    assert gate.check(signed(105, {"topic": "orders"}), "10.0.0.1").text == "User:alice is disabled."
    wrong = Request(105, {"topic": "orders", "AccessKey": "alice", "Signature": "x"})
    assert reason(gate, wrong) is Reason.BAD_SIGNATURE


def test_the_longest_prefix_decides() -> None:
    gate = Gate(
        CLOSED, rules(entry("Topic:o*", "Pub"), entry("Topic:or*", "Pub", "Deny"), entry("Topic:orders", "Pub"))
    )
    allowed = [name for name in ("o1", "or1", "orders", "x") if gate.check(signed(310, {"b": name}), "::1").is_allowed]
    assert allowed == ["o1", "orders"]


def test_changed_rules_count_at_once() -> None:
    gate = Gate(CLOSED, rules(entry("Topic:orders", "Pub")))
    request = signed(310, {"b": "orders"})
    assert reason(gate, request) is Reason.POLICY
    gate.use(rules(entry("Topic:orders", "Sub")))
    assert reason(gate, request) is Reason.NO_POLICY


def test_only_readers_pass_an_open_door() -> None:
    gate = Gate(GateSettings("c1", authorization=True), rules())
    assert reason(gate, Request(105, {"topic": "orders"})) is Reason.OPEN_DOOR
    for code in (310, 103, 318, 25, 3001, 999_999):
        assert reason(gate, Request(code)) is Reason.NO_USER


def test_a_broker_that_cannot_sign_comes_in_by_address() -> None:
    settings = GateSettings("c1", authorization=True, broker_sources=parse_sources(["10.0.0.0/8"]))
    gate = Gate(settings, rules())
    assert reason(gate, Request(103, {"clusterName": "c1"}), "10.0.0.1") is Reason.BROKER_SOURCE
    assert reason(gate, Request(103, {"clusterName": "c1"}), "11.0.0.1") is Reason.NO_USER
    # The address stands in for a key at this door only, and not for a wrong key.
    assert reason(gate, Request(318), "10.0.0.1") is Reason.NO_USER
    assert reason(gate, signed(103, {"clusterName": "c1"}, name="bob"), "10.0.0.1") is Reason.UNKNOWN_USER


def test_a_certificate_is_a_user() -> None:
    gate = Gate(CLOSED, rules(entry("Cluster:c1", "Update")))
    request = Request(103, {"clusterName": "c1"})
    assert reason(gate, request, "10.0.0.1", "other", "alice") is Reason.POLICY
    assert not gate.check(request, "10.0.0.1", ("alice",)).is_reusable
    assert reason(gate, request, "10.0.0.1", "other") is Reason.NO_USER
    named = Request(103, {"clusterName": "c1", "AccessKey": "alice", "Signature": "x"})
    assert reason(gate, named, "10.0.0.1", "alice") is Reason.BAD_SIGNATURE


def test_a_white_address_needs_no_signature() -> None:
    user = User("alice", Password(SECRET), trusted_sources=parse_patterns(["10.0.0.*"]))
    gate = Gate(CLOSED, Rules({"alice": user}, {}, parse_patterns(["192.168.*.*"])))
    named = Request(310, {"b": "orders", "AccessKey": "alice"})
    assert reason(gate, named, "10.0.0.7") is Reason.TRUSTED_SOURCE
    assert reason(gate, named, "10.0.1.7") is Reason.BAD_SIGNATURE
    assert reason(gate, Request(310, {"b": "orders"}), "10.0.0.7") is Reason.NO_USER
    assert reason(gate, Request(310, {"b": "orders"}), "192.168.3.4") is Reason.TRUSTED_SOURCE
    assert not gate.check(named, "10.0.0.7").is_reusable
    assert not gate.check(named, "192.168.3.4").is_reusable


def test_a_response_is_reusable_only_if_every_address_is_allowed() -> None:
    request = signed(105, {"topic": "orders"})
    assert Gate(CLOSED, rules(entry("Topic:orders", "Pub"))).check(request, "10.0.0.1").is_reusable
    bound = Gate(CLOSED, rules(entry("Topic:orders", "Pub", "Allow", "10.0.0.0/8")))
    assert bound.check(request, "10.0.0.1").is_allowed
    assert not bound.check(request, "10.0.0.1").is_reusable


def test_a_request_that_was_decoded_directly_has_no_user() -> None:
    request = signed(310, {"a": "pg", "b": "t", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"})
    gate = Gate(CLOSED, rules(is_super=True))
    assert reason(gate, request) is Reason.SUPER_USER
    fields = ",".join(f'"{name}":"{value}"' for name, value in request.fields.items())
    direct = read_send_header(f'{{"code":310,"extFields":{{{fields}}}}}'.encode())
    assert direct is not None
    assert reason(gate, direct) is Reason.NO_USER


SEND = {
    **{"a": "pg", "b": "t", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "KEYS\x01k\x02"},
    **{"j": "0", "k": "false", "m": "false", "n": "broker-a"},
}


def header_of(request: Request) -> bytes:
    return msgspec.json.encode({"code": request.code, "extFields": request.fields})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"l": "16"},
        {"n": ""},
        {"i": ""},
        {"SecurityToken": "token"},
        {"e": "-1", "g": "1758275140000"},
        {"d": "04"},
        {"d": "+4"},
        {"other": "field"},
        {"k": None, "m": None, "j": None},
    ],
)
@pytest.mark.parametrize("is_right", [True, False])
def test_a_send_that_is_decoded_directly_is_decided_as_any_other(
    changes: dict[str, str | None],
    is_right: bool,
) -> None:
    fields = {name: value for name, value in (SEND | changes).items() if value is not None}
    request = signed(310, fields, b"body")
    if not is_right:
        request.fields["i"] += "x"
    gate = Gate(CLOSED, rules(entry("Topic:t", "Pub")))
    expected = Reason.POLICY if is_right else Reason.BAD_SIGNATURE
    ordinary = decode_request_header(0, header_of(request))
    direct = read_signed_send_header(header_of(request))
    assert (direct is None) == (changes.keys() <= {"other", "d"} and bool(changes))
    for one in (ordinary, direct, ordinary, direct):  # the second time, the verdict is remembered
        if one is not None:
            one.body = b"body"
            assert reason(gate, one) is expected
            assert decode_send(one).topic == "t"


def test_a_remembered_verdict_about_a_send_is_for_its_user_topic_and_source_only() -> None:
    gate = Gate(CLOSED, rules(entry("Topic:t", "Pub", "Allow", "10.0.0.1")))
    assert gate.check_again(direct(SEND), "10.0.0.1") is None
    assert reason(gate, direct(SEND)) is Reason.POLICY
    known = gate.check_again(direct(SEND), "10.0.0.1")
    assert known is not None
    assert (known.reason, gate.counts[Reason.POLICY]) == (Reason.POLICY, 2)
    assert reason(gate, direct(SEND | {"b": "other"})) is Reason.NO_POLICY
    assert reason(gate, direct(SEND), "10.0.0.2") is Reason.NO_POLICY
    assert reason(gate, direct(SEND, "bob")) is Reason.UNKNOWN_USER
    forged = direct(SEND)
    forged.body = b"another"
    assert gate.check_again(forged, "10.0.0.1") is None
    assert reason(gate, forged) is Reason.BAD_SIGNATURE
    gate.use(rules(entry("Topic:t", "Pub", "Deny")))
    assert reason(gate, direct(SEND)) is Reason.DENIED
    assert gate.check_again(direct(SEND), "10.0.0.1") is None


@pytest.mark.parametrize(("is_super", "why"), [(True, Reason.SUPER_USER), (False, Reason.AUTHENTICATED)])
def test_a_send_that_needs_no_policy_is_known_as_well_until_the_rules_change(is_super: bool, why: Reason) -> None:
    settings = replace(CLOSED, authorization=is_super)
    gate = Gate(settings, Rules({"alice": User("alice", Password(SECRET), is_super=is_super)}))
    assert reason(gate, direct(SEND)) is why
    known = gate.check_again(direct(SEND), "10.0.0.1")
    assert known is not None
    assert known.reason is why
    assert gate.check_again(direct(SEND), "10.0.0.2") is None, "checked from each address"
    gate.use(Rules({"alice": User("alice", Password("another one"), is_super=is_super)}))
    assert reason(gate, direct(SEND)) is Reason.BAD_SIGNATURE


def test_a_send_of_a_trusted_address_or_a_certificate_is_not_known_by_its_bytes() -> None:
    unsigned = read_signed_send_header(header_of(Request(310, SEND)))
    assert unsigned is not None
    gate = Gate(CLOSED, rules(entry("Topic:t", "Pub")))
    assert reason(gate, unsigned, "10.0.0.1", "alice") is Reason.POLICY
    assert gate.check_again(unsigned, "10.0.0.1") is None
    trusted = User("alice", Password(SECRET), trusted_sources=parse_sources(["10.0.0.1"]))
    gate.use(Rules({"alice": trusted}))
    wrong = direct(SEND)
    wrong.body = b"another"
    assert gate.check(wrong, "10.0.0.1").reason is Reason.TRUSTED_SOURCE
    assert gate.check_again(wrong, "10.0.0.1") is None
    assert reason(gate, wrong, "10.0.0.2") is Reason.BAD_SIGNATURE


def frame_of(fields: dict[str, str], *, before: str = "", after: str = "") -> bytes:
    """Return a header whose fields are in this order, with other members around them."""
    return f'{{"code":310,{before}"extFields":{msgspec.json.encode(fields).decode()}{after}}}'.encode()


def decided(gate: Gate, header: bytes, body: bytes = b"body", source: str = "10.0.0.1") -> list[Reason]:
    """Return the decisions about a header that is decoded directly, if it can be, and in the ordinary way."""
    found = []
    for request in (read_signed_send_header(header), decode_request_header(0, header)):
        if request is not None:
            request.body = body
            found.append(reason(gate, request, source))
    return found


def knowing() -> tuple[Gate, dict[str, str]]:
    """Return a gate that knows a send of alice to topic t, and the signed fields of the send."""
    gate = Gate(CLOSED, rules(entry("Topic:t", "Pub")))
    fields = signed(310, SEND, b"body").fields
    assert decided(gate, frame_of(fields)) == [Reason.POLICY] * 2
    assert gate.check_again(direct(SEND), "10.0.0.1") is not None
    return gate, fields


@pytest.mark.parametrize("name", sorted(SEND))
def test_no_field_of_a_known_send_can_be_altered(name: str) -> None:
    gate, fields = knowing()
    others = {"k": "true", "m": "true"} | dict.fromkeys("degj", "7") | dict.fromkeys("fh", "1")
    altered = fields | {name: others.get(name, f"{fields[name]}x")}
    assert set(decided(gate, frame_of(altered))) <= {Reason.BAD_SIGNATURE}
    assert decided(gate, frame_of(altered)), "decided at least once"


def test_a_field_cannot_be_added_to_a_known_send() -> None:
    gate, fields = knowing()
    for name, value in (("l", "16"), ("SecurityToken", "token"), ("other", "field")):
        assert set(decided(gate, frame_of(fields | {name: value}))) == {Reason.BAD_SIGNATURE}


def test_the_body_and_the_signature_of_a_known_send_cannot_be_altered() -> None:
    gate, fields = knowing()
    for body in (b"", b"Body", b"body ", b"another"):
        assert decided(gate, frame_of(fields), body) == [Reason.BAD_SIGNATURE] * 2
    right = fields["Signature"]
    for wrong in ("", right[:-1], f"{right}=", f"{right}\n", right.swapcase(), "\u00e9" * 28, "x" * 28):
        assert decided(gate, frame_of(fields | {"Signature": wrong})) == [Reason.BAD_SIGNATURE] * 2
    del fields["Signature"]
    assert decided(gate, frame_of(fields)) == [Reason.BAD_SIGNATURE] * 2


def test_fields_of_a_known_send_may_come_in_any_order() -> None:
    gate, fields = knowing()
    assert decided(gate, frame_of(dict(reversed(fields.items())))) == [Reason.POLICY] * 2


@pytest.mark.parametrize(("name", "value"), [("b", "other"), ("i", "forged"), ("AccessKey", "bob"), ("Signature", "x")])
def test_of_two_fields_of_one_name_the_one_that_is_used_must_be_signed(name: str, value: str) -> None:
    gate, fields = knowing()
    text = msgspec.json.encode(fields).decode()
    used_last = f'{{"{name}":"{value}",{text[1:]}'
    forged_last = f'{text[:-1]},"{name}":"{value}"}}'
    for members, is_right in ((used_last, True), (forged_last, False)):
        header = f'{{"code":310,"extFields":{members}}}'.encode()
        request = read_signed_send_header(header)
        assert request is not None
        expected = fields if is_right else fields | {name: value}
        assert (request.fields.topic, request.fields.properties) == (expected["b"], expected["i"])
        assert all((found is Reason.POLICY) is is_right for found in decided(gate, header))


def test_members_of_the_header_do_not_stand_in_for_what_was_signed() -> None:
    gate, fields = knowing()
    request = direct(SEND)
    forged = fields | {"i": "forged"}
    text, raw = msgspec.json.encode(request.signed_text).decode(), f'"{b64encode(request.header).decode()}"'
    members = f'"signed_text":{text},"header":{raw},"body":"","form":0'
    for header in (frame_of(forged, before=f"{members},"), frame_of(forged, after=f",{members}")):
        assert decided(gate, header) == [Reason.BAD_SIGNATURE] * 2


def test_a_known_send_of_another_code_is_decided_by_its_own_row() -> None:
    gate, fields = knowing()
    request = read_signed_send_header(frame_of(fields, after=',"code":25'))
    assert request is not None
    request.body = b"body"
    assert reason(gate, request) is Reason.NO_POLICY


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"is_enabled": False}, Reason.DISABLED_USER),
        ({"password": Password("another one")}, Reason.BAD_SIGNATURE),
        ({"name": "bob"}, Reason.UNKNOWN_USER),
    ],
)
def test_a_changed_user_counts_for_the_next_of_its_known_sends(change: dict[str, Any], expected: Reason) -> None:
    gate, fields = knowing()
    user = replace(gate.rules.users["alice"], **change)
    gate.use(Rules({user.name: user}, gate.rules.acls))
    assert decided(gate, frame_of(fields)) == [expected] * 2


def test_known_sends_are_counted_also_after_they_are_forgotten() -> None:
    gate, fields = knowing()
    before = gate.counts[Reason.POLICY]
    for _ in range(3):
        assert gate.check_again(direct(SEND), "10.0.0.1") is not None
    assert gate.counts[Reason.POLICY] == before + 3
    shorter = {name: value for name, value in SEND.items() if name != "k"}
    assert gate.check_again(direct(shorter), "10.0.0.1") is None, "its signature covers no value of k"
    assert gate.check(direct(shorter), "10.0.0.1").reason is Reason.POLICY
    assert gate.counts[Reason.POLICY] == before + 4
    gate.use(gate.rules)
    assert gate.counts[Reason.POLICY] == before + 4
    assert decided(gate, frame_of(fields)) == [Reason.POLICY] * 2
    assert gate.check_again(direct(SEND), "10.0.0.1") is not None
    for number in range(DECISIONS_MAX):
        assert reason(gate, direct(SEND), f"10.1.{number // 256}.{number % 256}") is Reason.POLICY
    assert len(gate._sends) <= DECISIONS_MAX
    assert gate.counts == {Reason.POLICY: before + 7 + DECISIONS_MAX}


def test_what_cannot_be_read_is_refused() -> None:
    gate = Gate(CLOSED, rules(entry("*", "All")))
    for request in (signed(34, body=b"{"), signed(310), signed(17), signed(18, body=b"{}"), signed(11, {"topic": "t"})):
        assert reason(gate, request) is Reason.MALFORMED


def test_long_names_are_neither_repeated_nor_remembered() -> None:
    gate = Gate(CLOSED, rules(entry("*", "All")))
    long = "x" * 1_000_000
    for request in (
        signed(310, {"b": long}),
        signed(11, {"topic": "t", "consumerGroup": long}),
        signed(103, {"clusterName": long}),
        signed(18, body=b'{"topicConfigList":[{"topicName":"%b"}]}' % long.encode()),
        Request(310, {"b": "t", "AccessKey": long}),
    ):
        verdict = gate.check(request, "10.0.0.1")
        assert not verdict.is_allowed
        assert len(verdict.text) < 1_000
        record = gate.audit(verdict, request, server="b", source="10.0.0.1", time_ms=7)
        assert record is not None
        assert len(record.line()) < 2_000
    assert all(len(need.resource.name) < 10 for _, need, _ in gate._decisions)


def test_exempt_codes_are_not_checked() -> None:
    gate = Gate(GateSettings("c1", authorization=True, exempt_codes=frozenset({26})), rules())
    assert reason(gate, Request(26)) is Reason.EXEMPT
    assert reason(gate, Request(25)) is Reason.NO_USER


def test_remembered_decisions_have_a_bound() -> None:
    gate = Gate(CLOSED, rules(entry("Topic:*", "Pub")))
    request = signed(310, {"b": "orders"})
    for number in range(DECISIONS_MAX + 10):
        assert gate.check(request, f"10.0.{number // 256}.{number % 256}").is_allowed
    assert len(gate._decisions) <= DECISIONS_MAX


@pytest.mark.parametrize(
    ("audited", "expected"),
    [
        (Audited.REFUSED, [False, False, True]),
        (Audited.CHANGES, [False, True, True]),
        (Audited.ALL, [True, True, True]),
    ],
)
def test_the_audit_gets_what_it_asks_for(audited: Audited, expected: list[bool]) -> None:
    gate = Gate(GateSettings("c1", audited=audited), rules())
    requests = [signed(310, {"b": "orders"}), signed(25, body=b"listenPort=1"), Request(25)]
    records = [
        gate.audit(gate.check(one, "10.0.0.1"), one, server="broker-a", source="10.0.0.1", time_ms=7)
        for one in requests
    ]
    assert [record is not None for record in records] == expected
    assert records[2] is not None
    assert records[2].line() == (
        b'{"time_ms":7,"server":"broker-a","source":"10.0.0.1","code":25,"request":"UPDATE_BROKER_CONFIG",'
        b'"door":"operator","is_allowed":false,"reason":"no_user"}\n'
    )
    assert decode_record(records[2].line()) == records[2]


def test_a_record_has_the_need_that_is_missing() -> None:
    gate = Gate(CLOSED, rules(entry("Topic:orders", "Sub")))
    request = signed(RequestCode.PULL_MESSAGE, {"topic": "orders", "consumerGroup": "g"})
    record = gate.audit(gate.check(request, "10.0.0.1"), request, server="b", source="10.0.0.1", time_ms=7)
    assert record is not None
    assert (record.user, record.needs, record.reason) == ("alice", ("Group:g Sub",), "no_policy")
    assert SECRET.encode() not in record.line()


def test_a_password_is_in_no_text_of_the_rules() -> None:
    everything = rules(entry("*", "All"))
    assert SECRET not in repr(everything)
    assert SECRET not in repr(Gate(CLOSED, everything).check(signed(310, {"b": "t"}), "10.0.0.1"))
    with pytest.raises(RulesError) as caught:
        everything.create_user(User("alice", Password(SECRET)))
    assert SECRET not in str(caught.value)
