"""Decisions, rules and signatures against slow and obvious models, and against decisions of Apache's handler."""

import ipaddress
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from skyroute.access.bodies import acl_body, parse_acl
from skyroute.access.errors import RulesError
from skyroute.access.gate import Gate, GateSettings, Reason
from skyroute.access.management import manage
from skyroute.access.policies import Acl, Decision, Entry, Need, PolicyKind
from skyroute.access.resources import Action, parse_action, parse_resource
from skyroute.access.rules import Rules
from skyroute.access.rules_file import decode_rules, encode_rules
from skyroute.access.sources import parse_sources
from skyroute.access.users import Password, User
from skyroute.client.session.signing import Credentials
from skyroute.wire.calls.access import (
    AclBody,
    AclDeletion,
    EntryBody,
    PolicyBody,
    UserBody,
    encode_create_acl,
    encode_create_user,
    encode_delete_acl,
    encode_delete_user,
    encode_update_user,
)
from skyroute.wire.command import Request
from tests.unit.wire.golden import golden_line

ADDRESSES = ["10.0.0.1", "10.1.2.3", "192.168.1.7", "fd00::1", "::ffff:10.0.0.1"]
NETWORKS = ["10.0.0.0/8", "10.1.0.0/16", "192.168.1.7", "fd00::/8", "0.0.0.0/0"]
NAMES = ["a", "ab", "abc", "b", "%RETRY%a"]
RESOURCES = ["*", *(f"{kind}:{name}" for kind in ("Topic", "Group") for name in ("*", "a", "a*", "ab*", "abc*", "b"))]
NEEDED = [f"{kind}:{name}" for kind in ("Topic", "Group", "Cluster") for name in ("a", "ab", "abc", "b")]

# Few kinds of each, so that several entries cover the same request.
actions = st.sampled_from([{Action.ALL}, {Action.PUB}, {Action.PUB, Action.SUB}, {Action.GET, Action.LIST}]).map(
    frozenset
)
asked = st.sampled_from([{Action.PUB}, {Action.SUB, Action.GET}, {Action.DELETE}]).map(frozenset)
entries = st.builds(
    Entry,
    st.one_of(st.sampled_from(["Topic:a*", "Topic:ab*", "Topic:abc*", "Topic:abc"]), st.sampled_from(RESOURCES)).map(
        parse_resource
    ),
    actions,
    st.sampled_from(list(Decision)),
    st.one_of(st.just([]), st.just([]), st.lists(st.sampled_from(NETWORKS), max_size=2)).map(parse_sources),
)
policies = st.lists(entries, max_size=6)
needed = st.one_of(st.just("Topic:abc"), st.sampled_from(NEEDED)).map(parse_resource)
needs = st.builds(Need, needed, asked)


def naive_match(entry: Entry, need: Need, address: str) -> bool:
    pattern, name = str(entry.resource), str(need.resource)
    fits = pattern in ("*", name) or (pattern.endswith("*") and name.startswith(pattern[:-1]))
    ip: Any = ipaddress.ip_address(address)
    ip = getattr(ip, "ipv4_mapped", None) or ip
    from_here = not entry.sources.texts or any(ip in ipaddress.ip_network(text) for text in entry.sources.texts)
    wanted = Action.ALL in entry.actions or any(action in entry.actions for action in need.actions)
    return fits and wanted and from_here


def naive_decision(custom: Sequence[Entry], default: Sequence[Entry], need: Need, address: str) -> Decision | None:
    """Compare every matching entry with every other: the one that loses against none decides."""
    for policy in (custom, default):
        found = [entry for entry in policy if naive_match(entry, need, address)]
        if found:
            best = [entry for entry in found if not any(naive_before(other, entry) for other in found)]
            assert len({entry.decision for entry in best}) == 1
            return best[0].decision
    return None


def naive_before(one: Entry, other: Entry) -> bool:
    a, b = str(one.resource), str(other.resource)
    if a == b:
        return one.decision is Decision.DENY and other.decision is Decision.ALLOW
    if "*" in (a, b):
        return b == "*"
    if a.endswith("*") != b.endswith("*"):
        return b.endswith("*")
    return len(a) > len(b)


@given(policies, policies, needs, st.sampled_from(ADDRESSES))
@settings(max_examples=500, deadline=None)
def test_a_decision_is_that_of_the_naive_evaluator(
    custom: list[Entry], default: list[Entry], need: Need, address: str
) -> None:
    acl = Acl(tuple(custom), tuple(default))
    assert acl.decide(need, address) == naive_decision(custom, default, need, address)


@given(policies, policies)
@settings(max_examples=100, deadline=None)
def test_policies_survive_being_sent_and_kept(custom: list[Entry], default: list[Entry]) -> None:
    acl = Acl().merge(PolicyKind.CUSTOM, custom).merge(PolicyKind.DEFAULT, default)
    rules = Rules({"u": User("u", Password("secret"))}, {"u": acl} if acl else {})
    assert decode_rules(encode_rules(rules), "test") == rules
    if acl:
        assert rules.delete_acl("u").merge_acl(*parse_acl(acl_body("u", acl))) == rules


def test_decisions_are_those_of_apaches_handler() -> None:
    """`AclAuthorizationHandler` of 5.5.0 decided these 400 random cases."""

    def read(lines: list[Any]) -> tuple[Entry, ...]:
        return tuple(
            Entry(parse_resource(name), frozenset(map(parse_action, words)), Decision(decision), parse_sources(sources))
            for name, words, sources, decision in lines
        )

    cases = json.loads(golden_line("access/decisions.json"))
    assert {case[5] for case in cases} == {"Allow", "Deny", "none"}
    for custom, default, resource, words, address, expected in cases:
        need = Need(parse_resource(resource), frozenset(map(parse_action, words)))
        decision = Acl(read(custom), read(default)).decide(need, address)
        assert (decision or "none") == expected, (custom, default, resource, words, address)


# Requests through the gate

SECRETS = {"super": "super-secret", "alice": "alice-secret", "off": "off-secret"}


@given(
    st.sampled_from([*SECRETS, "nobody", ""]),
    st.sampled_from([*SECRETS.values(), "wrong"]),
    st.sampled_from(NAMES),
    policies,
    st.sampled_from(ADDRESSES),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=500, deadline=None)
def test_a_send_is_allowed_only_with_the_right_key_and_the_right_policy(
    name: str, secret: str, topic: str, entries: list[Entry], address: str, authorization: bool, is_changed: bool
) -> None:
    users = {one: User(one, Password(key), one == "super", one != "off") for one, key in SECRETS.items()}
    acl = Acl().merge(PolicyKind.CUSTOM, entries)
    rules = Rules(users, {"alice": acl})
    request = Request(310, {"a": "pg", "b": topic}, body=b"body")
    if name:
        Credentials(name, secret).sign(request)
    if is_changed:
        request.body = b"another body"
    gate = Gate(GateSettings("c", authorization=authorization), rules)
    verdicts = [gate.check(request, address) for _ in range(2)]  # the second is remembered
    assert verdicts[0] == verdicts[1]
    is_signed = SECRETS.get(name) == secret and not is_changed and name != "off"
    if not is_signed:
        expected = False
    elif name == "super" or not authorization:
        expected = True
    else:
        is_retry = topic.startswith("%RETRY%")
        resource = f"Group:{topic.removeprefix('%RETRY%')}" if is_retry else f"Topic:{topic}"
        need = Need(parse_resource(resource), frozenset({Action.SUB if is_retry else Action.PUB}))
        expected = naive_decision(acl.custom, (), need, address) is Decision.ALLOW
    assert verdicts[0].is_allowed == expected
    assert sum(gate.counts.values()) == 2
    assert not verdicts[0].is_reusable or verdicts[0].is_allowed
    if verdicts[0].is_reusable:
        assert all(Gate(gate.settings, rules).check(request, other).is_allowed for other in ADDRESSES)
    if not verdicts[0].is_allowed:
        assert verdicts[0].response().code == 16
        assert not any(key in (verdicts[0].response().remark or "") for key in SECRETS.values())


@given(st.integers(-(2**31), 2**31 - 1))
@settings(max_examples=300, deadline=None)
def test_a_code_outside_the_table_is_refused_to_an_ordinary_user(code: int) -> None:
    users = {name: User(name, Password("secret"), name == "super") for name in ("super", "alice")}
    everything = Entry(parse_resource("*"), frozenset({Action.ALL}), Decision.ALLOW)
    gate = Gate(
        GateSettings("c", authorization=True, open_doors=frozenset()),
        Rules(users, {"alice": Acl((everything,))}),
        table={},
    )
    for name, reason in (("alice", Reason.NOT_IN_TABLE), ("super", Reason.SUPER_USER)):
        request = Request(code)
        Credentials(name, "secret").sign(request)
        assert gate.check(request, "10.0.0.1").reason is reason


# Management, step by step

USERNAMES = st.sampled_from(["alice", "bob", "carol"])


class Management(RuleBasedStateMachine):
    """Users and policies in plain dictionaries, changed by the same requests."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = Rules()
        self.users: dict[str, dict[str, str]] = {}
        self.acls: dict[str, dict[tuple[str, str], tuple[str, ...]]] = {}

    def manage(self, request: Request) -> int:
        managed = manage(self.kept, request, None)
        if managed.response.code:
            assert managed.rules is self.kept
        self.kept = managed.rules
        return managed.response.code

    @rule(name=USERNAMES, password=st.sampled_from(["", "p1", "p2"]), kind=st.sampled_from(["Super", "Normal"]))
    def create(self, name: str, password: str, kind: str) -> None:
        code = self.manage(encode_create_user(UserBody(name, password, kind)))
        if name in self.users or not password:
            assert code == 16
        else:
            assert code == 0
            self.users[name] = {"password": password, "type": kind, "status": "enable"}

    @rule(
        name=USERNAMES, password=st.sampled_from([None, "", "p3"]), status=st.sampled_from([None, "enable", "disable"])
    )
    def update(self, name: str, password: str | None, status: str | None) -> None:
        code = self.manage(encode_update_user(UserBody(name, password, None, status)))
        assert code == (0 if name in self.users else 16)
        if name in self.users:
            self.users[name].update(
                {"password": password} if password else {}, **({"status": status} if status else {})
            )

    @rule(name=USERNAMES)
    def delete(self, name: str) -> None:
        assert self.manage(encode_delete_user(name)) == 0
        self.users.pop(name, None)
        self.acls.pop(name, None)

    @rule(
        name=USERNAMES,
        kind=st.sampled_from(["Custom", "Default"]),
        names=st.lists(st.sampled_from(RESOURCES), min_size=1, max_size=3),
        words=st.sampled_from([("Pub",), ("Sub", "Get")]),
    )
    def add_policies(self, name: str, kind: str, names: list[str], words: tuple[str, ...]) -> None:
        bodies = tuple(EntryBody(one, words, None, "Allow") for one in names)
        code = self.manage(encode_create_acl(AclBody(f"User:{name}", (PolicyBody(kind, bodies),))))
        assert code == (0 if name in self.users else 16)
        if name in self.users:
            self.acls.setdefault(name, {}).update({(kind, one): words for one in names})

    @rule(name=USERNAMES, kind=st.sampled_from(["Custom", "Default"]), resource=st.sampled_from([None, *RESOURCES]))
    def delete_policies(self, name: str, kind: str, resource: str | None) -> None:
        code = self.manage(encode_delete_acl(AclDeletion(f"User:{name}", kind, resource)))
        assert code == (0 if name in self.acls else 16)
        if resource is None:
            self.acls.pop(name, None)
        elif name in self.acls:
            self.acls[name].pop((kind, resource), None)
            if not self.acls[name]:
                del self.acls[name]

    @invariant()
    def both_are_equal(self) -> None:
        assert {
            name: {
                "password": user.password.reveal(),
                "type": "Super" if user.is_super else "Normal",
                "status": "enable" if user.is_enabled else "disable",
            }
            for name, user in self.kept.users.items()
        } == self.users
        assert {
            name: {
                (kind.value, str(entry.resource)): entry.actions for kind in PolicyKind for entry in acl.entries(kind)
            }
            for name, acl in self.kept.acls.items()
        } == {
            name: {key: frozenset(map(Action, words)) for key, words in acl.items()} for name, acl in self.acls.items()
        }
        assert decode_rules(encode_rules(self.kept), "test") == self.kept


TestManagement = Management.TestCase
TestManagement.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


@given(st.text(max_size=40))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_resource_that_reads_back_or_an_error(text: str) -> None:
    try:
        resource = parse_resource(text)
    except RulesError:
        return
    assert str(resource).lower() == text.lower()
    assert parse_resource(str(resource)) == resource
