import json

import pytest

from skyroute.wire.calls.access import (
    BODY_BYTES_MAX,
    AclBody,
    AclDeletion,
    EntryBody,
    PolicyBody,
    UserBody,
    decode_acl,
    decode_acl_change,
    decode_acl_deletion,
    decode_acl_filter,
    decode_acls,
    decode_subject,
    decode_user,
    decode_user_change,
    decode_user_filter,
    decode_username,
    decode_users,
    encode_acl,
    encode_acl_list_query,
    encode_acl_query,
    encode_acls,
    encode_create_acl,
    encode_create_user,
    encode_delete_acl,
    encode_delete_user,
    encode_update_acl,
    encode_update_user,
    encode_user,
    encode_user_list_query,
    encode_user_query,
    encode_users,
    group_and_topic,
    group_in_config,
    groups_and_topics_in_acks,
    groups_in_list,
    topics_in_list,
)
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Request
from skyroute.wire.errors import BodyError, FieldError
from tests.unit.wire.golden import golden_line

HEADERS = json.loads(golden_line("access/headers.json"))

ALICE = UserBody("alice", "12345678", "Normal", "enable")
BOB = UserBody("bob", user_type="Super")
POLICIES = AclBody(
    "User:alice",
    (
        PolicyBody(
            "Custom",
            (
                EntryBody("Topic:orders*", ("Pub", "Sub"), ("10.0.0.0/8", "192.168.1.7"), "Allow"),
                EntryBody("Group:g1", ("All",), None, "Deny"),
            ),
        ),
        PolicyBody("Default", (EntryBody("*", ("Get",), (), "Allow"),)),
    ),
)


@pytest.mark.parametrize(
    ("name", "request_"),
    [
        ("create-user", encode_create_user(ALICE)),
        ("update-user", encode_update_user(ALICE)),
        ("delete-user", encode_delete_user("alice")),
        ("get-user", encode_user_query("alice")),
        ("list-users", encode_user_list_query("al")),
        ("create-acl", encode_create_acl(POLICIES)),
        ("update-acl", encode_update_acl(POLICIES)),
        ("delete-acl", encode_delete_acl(AclDeletion("User:alice", "Custom", "Topic:orders*"))),
        ("get-acl", encode_acl_query("User:alice")),
        ("list-acls", encode_acl_list_query("alice", "Topic:")),
    ],
)
def test_requests_have_the_fields_and_bodies_of_apaches(name: str, request_: Request) -> None:
    assert request_.fields == HEADERS[name]
    assert request_.code == 3001 + list(HEADERS).index(name)
    kind = name.partition("-")[2] if name.startswith(("create", "update")) else ""
    assert request_.body == (golden_line(f"access/{kind}.txt") if kind else b"")


def test_requests_are_read_back() -> None:
    assert decode_user_change(encode_create_user(ALICE)) == ALICE
    assert decode_username(encode_delete_user("alice")) == "alice"
    assert decode_user_filter(encode_user_list_query("al")) == "al"
    assert decode_user_filter(encode_user_list_query()) == ""
    assert decode_acl_change(encode_update_acl(POLICIES)) == POLICIES
    assert decode_acl_deletion(encode_delete_acl(AclDeletion("User:alice"))) == AclDeletion("User:alice")
    assert decode_subject(encode_acl_query("User:alice")) == "User:alice"
    assert decode_acl_filter(encode_acl_list_query("alice", "Topic:")) == ("alice", "Topic:")


def test_responses_are_those_of_apaches_broker() -> None:
    assert encode_user(ALICE).body == golden_line("access/user.txt")
    assert encode_users([ALICE, BOB]).body == golden_line("access/users.txt")
    assert encode_acl(POLICIES).body == golden_line("access/acl.txt")
    assert encode_acls([POLICIES]).body == golden_line("access/acls.txt")
    assert decode_user(golden_line("access/user.txt")) == ALICE
    assert decode_users(golden_line("access/users.txt")) == [ALICE, BOB]
    assert decode_acl(golden_line("access/acl.txt")) == POLICIES
    assert decode_acls(golden_line("access/acls.txt")) == [POLICIES]


def test_nothing_found_has_no_body() -> None:
    assert encode_user(None).body == encode_users([]).body == encode_acl(None).body == encode_acls([]).body == b""
    assert (decode_user(b""), decode_users(b""), decode_acl(b""), decode_acls(b"")) == (None, [], None, [])


def test_the_name_in_the_header_counts() -> None:
    request = Request(RequestCode.AUTH_CREATE_USER, {"username": "bob"}, body=b'{"username":"alice","password":"x"}')
    assert decode_user_change(request) == UserBody("bob", "x")


def test_the_subject_may_be_in_the_header_only() -> None:
    body = b'{"policies":[]}'
    assert decode_acl_change(Request(3006, {"subject": "User:bob"}, body=body)).subject == "User:bob"
    with pytest.raises(FieldError):
        decode_acl_change(Request(3006, body=body))


def test_no_text_has_a_password() -> None:
    assert "12345678" not in repr(ALICE)
    for body in (
        b'{"password":"12345678",}}',
        b'{"password":["12345678"]}',
        b'{"password":"12345678"' + b" " * BODY_BYTES_MAX,
    ):
        with pytest.raises(BodyError) as caught:
            decode_user_change(Request(3001, {"username": "a"}, body=body))
        assert "12345678" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_names_in_bodies() -> None:
    assert topics_in_list(b'{"topicConfigList":[{"topicName":"a","perm":6},{"topicName":"b"}]}') == {"a", "b"}
    assert group_in_config(b'{"groupName":"g","consumeEnable":true}') == "g"
    assert groups_in_list(b'{"groupConfigList":[{"groupName":"g"},{"groupName":"h"}]}') == {"g", "h"}
    assert group_and_topic(b'{"topic":"t","consumerGroup":"g","clientId":"c"}') == ("g", "t")
    assert groups_and_topics_in_acks(b'{"brokerName":"b","acks":[{"c":"g","t":"t","so":1}]}') == {("g", "t")}
    for read in (topics_in_list, group_in_config, groups_in_list, group_and_topic):
        with pytest.raises(BodyError):
            read(b"{}")
