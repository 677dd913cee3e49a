from pathlib import Path

import pytest

from skyroute.access.access_control import AccessControl
from skyroute.access.audit_log import AuditLog
from skyroute.access.errors import RulesError
from skyroute.access.gate import GateSettings
from skyroute.access.rules import Rules
from skyroute.access.rules_file import RulesFile
from skyroute.access.rules_store import RulesStore
from skyroute.access.users import Password, User
from skyroute.client.session.signing import Credentials
from skyroute.wire.calls.access import UserBody, encode_create_user, encode_delete_user
from skyroute.wire.command import Request

SECRET = "root-secret"
ROOT = User("root", Password(SECRET), is_super=True)


def signed(request: Request, name: str = "root", secret: str = SECRET) -> Request:
    Credentials(name, secret).sign(request)
    return request


class Server:
    """What a server does with access control."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "access.json"
        RulesFile(self.path).save(Rules({"root": ROOT}))
        self.audit_log = AuditLog(folder / "audit.log")
        self.control = AccessControl(
            GateSettings("c1", authorization=True),
            RulesStore(self.path),
            audit_log=self.audit_log,
            server="broker-a",
        )

    def is_allowed(self, request: Request) -> bool:
        verdict = self.control.check(request, "10.0.0.1", (), lambda: 7)
        assert verdict is not None
        return verdict.is_allowed


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def test_a_new_user_counts_once_the_rules_are_adopted(server: Server) -> None:
    send = signed(Request(310, {"b": "orders"}), "bob", "bob-secret")
    assert not server.is_allowed(send)
    bob = UserBody("bob", "bob-secret", "Super")
    assert server.control.manage(encode_create_user(bob), "10.0.0.1", ROOT).code == 0
    assert server.control.adopt()
    assert server.is_allowed(send)
    assert server.control.manage(encode_delete_user("bob"), "10.0.0.1", ROOT).code == 0
    assert server.control.adopt()
    assert not server.is_allowed(send)
    assert not server.control.adopt()


def test_decisions_are_recorded(server: Server) -> None:
    server.is_allowed(Request(25))
    server.is_allowed(signed(Request(25)))
    server.is_allowed(signed(Request(310, {"b": "orders"})))
    assert [(one.code, one.user, one.is_allowed) for one in server.audit_log.take()] == [
        (25, "", False),
        (25, "root", True),
    ]


def test_a_changed_file_is_read_and_an_invalid_one_is_not(server: Server) -> None:
    server.control.load_if_changed()
    assert not server.control.adopt()
    RulesFile(server.path).save(Rules())
    server.control.load_if_changed()
    assert server.control.adopt()
    assert not server.is_allowed(signed(Request(25)))
    RulesFile(server.path).save(Rules({"root": ROOT}))
    server.control.load_if_changed()
    assert server.control.adopt()
    server.path.write_bytes(b"{")
    with pytest.raises(RulesError):
        server.control.load_if_changed()
    server.control.load_if_changed()
    assert not server.control.adopt()
    assert server.is_allowed(signed(Request(25)))


def test_without_authentication_users_are_managed_from_this_machine_only(tmp_path: Path) -> None:
    control = AccessControl(None, RulesStore(tmp_path / "access.json"))
    assert control.check(Request(25), "10.0.0.1", (), lambda: 7) is None
    create = encode_create_user(UserBody("bob", "bob-secret", "Super"))
    for source in ("10.0.0.1", "?", "fd00::1"):
        assert control.manage(create, source, None).code == 16
    assert control.manage(create, "::ffff:127.0.0.1", None).code == 0
    assert control.manage(encode_delete_user("bob"), "::1", None).code == 0


def test_a_server_with_an_invalid_file_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "access.json").write_bytes(b"{")
    with pytest.raises(RulesError):
        AccessControl(GateSettings("c1"), RulesStore(tmp_path / "access.json"))
