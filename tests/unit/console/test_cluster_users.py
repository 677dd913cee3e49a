import json
from pathlib import Path
from typing import Any

import pytest

from skyroute.console.access.cluster_users import ConsoleUsers
from skyroute.console.access.users import Role, make_user, write_users
from skyroute.console.errors import UsersError

SECRET = "a secret of the cluster"


def user(name: str, **more: str) -> dict[str, str]:
    return {"username": name, "password": SECRET, **more}


def acl(name: str, resource: str, action: str, decision: str = "Allow", *sources: str) -> dict[str, Any]:
    entry = {"resource": resource, "actions": [action], "decision": decision, "sourceIps": list(sources)}
    return {"subject": f"User:{name}", "policies": [{"policyType": "Custom", "entries": [entry]}]}


RULES = {
    "format": 1,
    "users": [
        user("root", userType="Super"),
        user("changer"),
        user("looker"),
        user("sender"),
        user("remote"),
        user("denied"),
        user("off", userType="Super", userStatus="disable"),
    ],
    "acls": [
        acl("changer", "Cluster:DefaultCluster", "All"),
        acl("looker", "Cluster:*", "Get"),
        acl("sender", "Topic:*", "All"),
        acl("remote", "Cluster:DefaultCluster", "All", "Allow", "10.0.0.0/8"),
        acl("denied", "Cluster:DefaultCluster", "All", "Deny", "10.0.0.0/8"),
        acl("denied", "*", "All"),
    ],
}


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "access.json"
    path.write_text(json.dumps(RULES))
    return path


def test_roles_are_those_of_the_policies(tmp_path: Path, rules: Path) -> None:
    found = ConsoleUsers(tmp_path / "users", rules).read()
    assert {name: each.role for name, each in found.items()} == {
        "root": Role.OPERATOR,
        "changer": Role.OPERATOR,
        "looker": Role.VIEWER,
    }


def test_passwords_of_the_cluster_are_checked_and_never_shown(tmp_path: Path, rules: Path) -> None:
    root = ConsoleUsers(tmp_path / "users", rules).read()["root"]
    assert root.has_password(SECRET)
    assert not root.has_password(SECRET + "!")
    assert not root.has_password("")
    assert not root.has_password("\udcff")
    assert SECRET not in repr(root)


def test_a_change_of_password_or_role_makes_another_user(tmp_path: Path, rules: Path) -> None:
    """A session ends when its user is no longer equal."""
    users = ConsoleUsers(tmp_path / "users", rules)
    before = users.read()
    assert users.read()["looker"] == before["looker"]
    rules.write_text(json.dumps(RULES).replace(SECRET, "another secret").replace('"Get"', '"All"'))
    after = users.read()
    assert after["root"] != before["root"]
    assert after["looker"].role is Role.OPERATOR


def test_a_user_of_the_console_takes_precedence(tmp_path: Path, rules: Path) -> None:
    write_users(tmp_path / "users", {"root": make_user("root", Role.VIEWER, "its own password")})
    root = ConsoleUsers(tmp_path / "users", rules).read()["root"]
    assert (root.role, root.has_password("its own password"), root.has_password(SECRET)) == (Role.VIEWER, True, False)


def test_an_invalid_rules_file_lets_nobody_in(tmp_path: Path, rules: Path) -> None:
    users = ConsoleUsers(tmp_path / "users", rules)
    assert users.read()
    rules.write_text("{")
    for _ in range(2):
        with pytest.raises(UsersError, match="cannot use the users of the cluster"):
            users.read()
    rules.unlink()
    assert users.read() == {}
