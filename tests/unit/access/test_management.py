import json
from pathlib import Path

import pytest

from skyroute.access.errors import RulesError
from skyroute.access.management import HANDLERS, manage
from skyroute.access.rules import Rules
from skyroute.access.rules_file import OwnerOnlyDisk
from skyroute.access.rules_store import RulesStore
from skyroute.access.users import Password, User
from skyroute.files.errors import FileWriteError
from skyroute.wire.calls.access import (
    AclBody,
    AclDeletion,
    EntryBody,
    PolicyBody,
    UserBody,
    decode_acls,
    decode_users,
    encode_acl_list_query,
    encode_acl_query,
    encode_create_acl,
    encode_create_user,
    encode_delete_acl,
    encode_delete_user,
    encode_update_acl,
    encode_update_user,
    encode_user_list_query,
    encode_user_query,
)
from skyroute.wire.command import Request

SECRET = "alice-secret"
ROOT = User("root", Password("root-secret"), is_super=True)
ALICE = User("alice", Password(SECRET))
RULES = Rules({"root": ROOT, "alice": ALICE})
ORDERS = AclBody("User:alice", (PolicyBody(None, (EntryBody("Topic:orders", ("pub",), ("10.0.0.0/8",), "allow"),)),))


def answer(rules: Rules, request: Request, sender: User | None = ROOT) -> tuple[int, str | None, Rules]:
    managed = manage(rules, request, sender)
    return managed.response.code, managed.response.remark, managed.rules


def test_all_ten_calls_have_a_handler() -> None:
    assert sorted(HANDLERS) == list(range(3001, 3011))


def test_passwords_are_never_given_back() -> None:
    for request in (encode_user_query("alice"), encode_user_list_query()):
        body = manage(RULES, request, ROOT).response.body
        assert b"password" not in body
        assert SECRET.encode() not in body
    assert manage(RULES, encode_user_query("alice"), ROOT).response.body == (
        b'{"userStatus":"enable","userType":"Normal","username":"alice"}'
    )


def test_refusals_have_apaches_codes_and_texts() -> None:
    only_super = "The super user can only be {} by super user"
    for request, sender, code, text in (
        (encode_create_user(UserBody("", "p")), ROOT, 29, "The username is blank"),
        (encode_update_user(UserBody("", "p")), ROOT, 29, "The username is blank"),
        (encode_user_query(""), ROOT, 29, "The username is blank"),
        (encode_create_user(UserBody("alice", "p")), ROOT, 16, "The user is existed"),
        (encode_create_user(UserBody("bob", "")), ROOT, 16, "password can not be blank"),
        (encode_update_user(UserBody("bob", "p")), ROOT, 16, "The user is not exist"),
        (encode_create_user(UserBody("bob", "p", "Super")), ALICE, 1, only_super.format("create")),
        (encode_update_user(UserBody("alice", None, "super")), ALICE, 1, only_super.format("update")),
        (encode_update_user(UserBody("root", "p")), ALICE, 16, only_super.format("update")),
        (encode_delete_user("root"), ALICE, 16, only_super.format("update")),
        (encode_create_acl(AclBody("User:bob", ORDERS.policies)), ROOT, 16, "The subject of User:bob is not exist."),
        (encode_create_acl(AclBody("User:alice", ())), ROOT, 16, "The policies is empty."),
        (encode_delete_acl(AclDeletion("User:bob")), ROOT, 16, "The subject is not exist."),
        (encode_delete_acl(AclDeletion("User:alice")), ROOT, 16, "The acl is not exist."),
        (encode_acl_query("User:bob"), ROOT, 16, "The subject is not exist."),
    ):
        assert answer(RULES, request, sender) == (code, text, RULES)


@pytest.mark.parametrize(
    "entry",
    [
        EntryBody("Topic:a*b", ("Pub",), None, "Allow"),
        EntryBody("Any:x", ("Pub",), None, "Allow"),
        EntryBody("Topic:", ("Pub",), None, "Allow"),
        EntryBody(None, ("Pub",), None, "Allow"),
        EntryBody("Topic:a", (), None, "Allow"),
        EntryBody("Topic:a", ("Any",), None, "Allow"),
        EntryBody("Topic:a", ("Pub", "Fly"), None, "Allow"),
        EntryBody("Topic:a", ("Pub",), ("host",), "Allow"),
        EntryBody("Topic:a", ("Pub",), None, None),
        EntryBody("Topic:a", ("Pub",), None, "Maybe"),
    ],
)
def test_an_invalid_entry_is_refused_and_leaves_no_trace(entry: EntryBody) -> None:
    good = EntryBody("Topic:good", ("Pub",), None, "Allow")
    request = encode_create_acl(AclBody("User:alice", (PolicyBody("Custom", (good, entry)),)))
    code, _, rules = answer(RULES, request)
    assert code == 16
    assert rules is RULES


def test_policies_are_merged_listed_and_deleted() -> None:
    _, _, rules = answer(RULES, encode_create_acl(ORDERS))
    more = AclBody("User:alice", (PolicyBody("Custom", (EntryBody("Group:g", ("Sub",), None, "Allow"),)),))
    _, _, rules = answer(rules, encode_update_acl(more))
    listed = decode_acls(manage(rules, encode_acl_list_query("alice"), ROOT).response.body)
    assert [entry.resource for entry in (listed[0].policies or ())[0].entries or ()] == ["Topic:orders", "Group:g"]
    only = decode_acls(manage(rules, encode_acl_list_query("", "Group:"), ROOT).response.body)
    assert [entry.resource for entry in (only[0].policies or ())[0].entries or ()] == ["Group:g"]
    assert manage(rules, encode_acl_list_query("bob"), ROOT).response.body == b""
    _, _, rules = answer(rules, encode_delete_acl(AclDeletion("User:alice", None, "Topic:orders")))
    assert [str(entry.resource) for entry in rules.acls["alice"].custom] == ["Group:g"]
    _, _, rules = answer(rules, encode_delete_acl(AclDeletion("User:alice")))
    assert "alice" not in rules.acls
    assert manage(rules, encode_acl_query("User:alice"), ROOT).response.body == b""


def test_a_deleted_user_takes_its_policies_along() -> None:
    _, _, rules = answer(RULES, encode_create_acl(ORDERS))
    _, _, rules = answer(rules, encode_delete_user("alice"))
    assert (sorted(rules.users), dict(rules.acls)) == (["root"], {})
    assert answer(rules, encode_delete_user("alice")) == (0, None, rules)


def test_malformed_bodies_are_refused_without_their_content() -> None:
    for request in (
        Request(3001, {"username": "bob"}, body=b'{"password":"topsecret"'),
        Request(3006, {"subject": "User:alice"}, body=b"[]"),
        Request(3009),
    ):
        code, text, rules = answer(RULES, request)
        assert code == 29
        assert "topsecret" not in (text or "")
        assert rules is RULES


# On disk


def test_a_change_is_on_disk_before_the_response(tmp_path: Path) -> None:
    store = RulesStore(tmp_path / "access.json")
    store.load()
    assert store.manage(encode_create_user(UserBody("alice", SECRET)), None).code == 0
    assert store.rules == RulesStore(tmp_path / "access.json").load()
    assert json.loads((tmp_path / "access.json").read_bytes())["users"][0]["username"] == "alice"


def test_a_change_builds_on_what_others_wrote(tmp_path: Path) -> None:
    one, other = (RulesStore(tmp_path / "access.json") for _ in range(2))
    one.manage(encode_create_user(UserBody("alice", SECRET)), None)
    assert other.has_changed()
    other.manage(encode_create_user(UserBody("bob", SECRET)), None)
    assert one.has_changed()
    assert sorted(one.load().users) == ["alice", "bob"]
    assert not one.has_changed()


def test_accounts_of_acl_1_are_users_that_are_only_read(tmp_path: Path) -> None:
    plain = tmp_path / "plain_acl.yml"
    plain.write_text("accounts:\n- accessKey: old\n  secretKey: 12345678\n- accessKey: alice\n  secretKey: 12345678\n")
    store = RulesStore(tmp_path / "access.json", [plain])
    store.load()
    assert store.manage(encode_create_user(UserBody("alice", SECRET)), None).code == 0
    assert [user.username for user in decode_users(store.manage(encode_user_list_query(), None).body)] == [
        "alice",
        "old",
    ]
    assert store.rules.users["alice"] == ALICE
    assert store.manage(encode_update_user(UserBody("old", "other")), None).remark == "The user is not exist"
    assert b"old" not in (tmp_path / "access.json").read_bytes()
    plain.write_text("accounts:\n- accessKey: new\n  secretKey: 12345678\n")
    assert store.has_changed()
    assert sorted(store.load().users) == ["alice", "new"]


def test_a_super_user_of_acl_1_is_replaced_by_super_users_only(tmp_path: Path) -> None:
    plain = tmp_path / "plain_acl.yml"
    plain.write_text("accounts:\n- accessKey: chief\n  secretKey: 12345678\n  admin: true\n")
    store = RulesStore(tmp_path / "access.json", [plain])
    chief = store.load().users["chief"]
    create = encode_create_user(UserBody("chief", SECRET))
    refused = store.manage(create, ALICE)
    assert (refused.code, refused.remark) == (1, "The super user can only be update by super user")
    assert store.rules.users["chief"] is chief
    assert store.manage(create, ROOT).code == 0


def test_an_invalid_file_leaves_the_rules_in_force_and_is_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "access.json"
    store = RulesStore(path)
    store.manage(encode_create_user(UserBody("alice", SECRET)), None)
    path.write_bytes(b"{")
    with pytest.raises(RulesError):
        store.load()
    assert sorted(store.rules.users) == ["alice"]
    assert not store.has_changed()


class FullDisk(OwnerOnlyDisk):
    def write(self, descriptor: int, data: bytes | bytearray, at: int) -> None:
        raise FileWriteError("no space")


def test_a_change_that_cannot_be_saved_is_not_made(tmp_path: Path) -> None:
    store = RulesStore(tmp_path / "access.json", disk=FullDisk())
    with pytest.raises(FileWriteError):
        store.manage(encode_create_user(UserBody("alice", SECRET)), None)
    assert store.rules == Rules()
