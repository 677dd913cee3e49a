"""Commands about users and policies, at a real broker with access control."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner, Result

from skyroute.broker.broker import Broker
from skyroute.broker.config import BrokerConfig
from skyroute.cli.admin.commands import admin
from tests.support.signing import ROOT
from tests.unit.cli.admin_cluster import invoke


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    broker = Broker(
        BrokerConfig(
            bind_address="127.0.0.1",
            listen_port=0,
            store_path=str(tmp_path / "store"),
            commit_log_file_bytes=1 << 20,
            index_slots=16,
            index_entries=64,
            authentication_enabled=True,
            authorization_enabled=True,
            init_user=ROOT.json,
        )
    )
    await broker.start()
    yield broker
    await broker.stop()


@pytest.fixture
def credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "tools.yml"
    path.write_text(f"accessKey: {ROOT.name}\nsecretKey: {ROOT.secret}\n")
    path.chmod(0o600)
    monkeypatch.setenv("SKYROUTE_CREDENTIALS_FILE", str(path))
    return path


async def run(broker: Broker, *arguments: str, text: str | None = None) -> Result:
    given = [*arguments, "-n", "127.0.0.1:1"]
    if "-f" not in arguments:
        given += ["-b", broker.address]
    return await asyncio.to_thread(CliRunner().invoke, admin, given, text)


async def run_json(broker: Broker, *arguments: str) -> Any:
    result = await run(broker, *arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


@pytest.mark.usefixtures("credentials")
async def test_users_and_policies_are_created_listed_changed_and_deleted(broker: Broker, tmp_path: Path) -> None:
    secret = tmp_path / "alice.password"
    secret.write_text("alice-secret\n")
    assert (await run(broker, "createUser", "-u", "alice", "--password-file", str(secret))).exit_code == 0
    assert (await run(broker, "createUser", "-u", "boss", "-t", "Super", text="p1\np1\n")).exit_code == 0
    assert await run_json(broker, "listUser") == [
        {"username": "alice", "user_type": "Normal", "user_status": "enable"},
        {"username": "boss", "user_type": "Super", "user_status": "enable"},
        {"username": "root", "user_type": "Super", "user_status": "enable"},
    ]
    assert (await run(broker, "updateUser", "-u", "alice", "-s", "disable")).exit_code == 0
    assert (await run_json(broker, "getUser", "-u", "alice"))[0]["user_status"] == "disable"
    options = ("-s", "User:alice", "-r", "Topic:orders,Group:g", "-a", "Pub,Sub", "-i", "10.0.0.0/8")
    assert (await run(broker, "createAcl", *options)).exit_code == 0
    update = ("-s", "User:alice", "-r", "Group:g", "-a", "Sub", "-d", "Deny")
    assert (await run(broker, "updateAcl", *update)).exit_code == 0
    entries = await run_json(broker, "getAcl", "-s", "User:alice")
    assert [(entry["resource"], entry["decision"], entry["source_ips"]) for entry in entries] == [
        ("Topic:orders", "Allow", "10.0.0.0/8"),
        ("Group:g", "Deny", ""),
    ]
    assert (await run(broker, "deleteAcl", "-s", "User:alice", "-r", "Group:g")).exit_code == 0
    assert [entry["resource"] for entry in await run_json(broker, "listAcl", "-s", "alice")] == ["Topic:orders"]
    copied = await run(broker, "copyAcl", "-f", broker.address, "-t", broker.address)
    assert copied.stdout == f"copy acl of User:alice to {broker.address} success.\n"
    assert (await run(broker, "deleteUser", "-u", "alice")).exit_code == 0
    assert await run_json(broker, "listAcl") == []


async def test_without_credentials_a_command_fails_in_one_line(broker: Broker) -> None:
    result = await run(broker, "listUser")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "username cannot be null." in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("getAcl", "-s", "alice"), "is not a subject"),
        (("createUser", "-u", "a", "-p", "b", "-t", "King"), "expected Super or Normal"),
        (("createUser", "-u", "a", "-p", "b", "--password-file", "x"), "either -p or --password-file"),
        (("createUser", "-u", "a", "--password-file", "/none"), "--password-file /none: No such file"),
    ],
)
def test_wrong_arguments_are_usage_errors(arguments: tuple[str, ...], complaint: str) -> None:
    result = invoke([*arguments, "-b", "127.0.0.1:1", "-n", "127.0.0.1:1"])
    assert result.exit_code == 2
    assert complaint in result.stderr


def test_a_wrong_credentials_file_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "tools.yml"
    path.write_text("accessKey: me\n")
    result = invoke(["listUser", "-b", "127.0.0.1:1", "--credentials-file", str(path)])
    assert result.exit_code == 2
    assert "has no secretKey" in result.stderr


async def test_the_address_of_a_broker_is_enough(
    broker: Broker, credentials: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with mqadmin: no name server is asked."""
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    result = await asyncio.to_thread(CliRunner().invoke, admin, ["listUser", "-b", broker.address, "--json"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert [user["username"] for user in json.loads(result.stdout)] == ["root"]


async def test_certificates_are_verified_with_the_authority_that_is_given(
    broker: Broker, credentials: Path, tmp_path: Path
) -> None:
    missing = await run(broker, "listUser", "--tls-ca", str(tmp_path / "ca.pem"))
    assert "trust file" in missing.stderr
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    other = await run(broker, "listUser", "--tls-ca", str(tmp_path / "ca.pem"))
    assert (other.exit_code, "certificate verify failed" in other.stderr) == (1, True)
