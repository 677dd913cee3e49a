"""Access control of a name server: its doors, its users, and cached routes."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from skyroute.access.errors import RulesError, SettingsError
from skyroute.remoting.tls_settings import ClientAuth
from tests.network.certificates import Files
from tests.network.cluster import CLUSTER, MASTER, route, topics
from tests.support.apache import free_port
from tests.support.connections import AsyncConnection, connection_to
from tests.support.raw import Request
from tests.support.scraping import page
from tests.support.servers import Running, running
from tests.support.signing import ALICE, BOB, ROOT, allow, create_user
from tests.support.waiting import eventually

NO_PERMISSION = 16
DOORS: dict[str, Any] = {"authentication_enabled": True, "authorization_enabled": True, "init_user": ROOT.json}


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, **DOORS) as here:
        yield here


@pytest.fixture
async def line(guarded: Running) -> AsyncIterator[AsyncConnection]:
    async with connection_to(guarded.address) as opened:
        yield opened


async def is_allowed(line: AsyncConnection, request: Request) -> bool:
    answer = await line.call(request)
    assert answer.code in (0, 17, NO_PERMISSION), answer.remark
    return answer.code != NO_PERMISSION


async def test_authorization_alone_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="needs authenticationEnabled"):
        async with running(tmp_path, authorization_enabled=True):
            pass


async def test_a_server_with_an_invalid_rules_file_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "access.json").write_bytes(b"{")
    with pytest.raises(RulesError):
        async with running(tmp_path, **DOORS):
            pass


async def test_readers_pass_and_everyone_else_needs_a_key(line: AsyncConnection) -> None:
    assert await topics(line) == []
    for code in (100, 102, 103, 104, 205, 216, 217, 318, 319, 322, 327, 904, 3001, 3005, 9999):
        answer = await line.call(code)
        assert (answer.code, answer.remark) == (NO_PERMISSION, "username cannot be null.")


async def test_a_wrong_key_and_an_unknown_user_are_told_so(line: AsyncConnection) -> None:
    wrong = await line.call(type(ROOT)("root", "other").call(319))
    assert (wrong.code, wrong.remark) == (NO_PERMISSION, "check signature failed.")
    unknown = await line.call(ALICE.call(319))
    assert (unknown.code, unknown.remark) == (NO_PERMISSION, "User:alice is not found.")


async def test_a_refused_broker_leaves_no_trace_and_a_signed_one_registers(line: AsyncConnection) -> None:
    assert not await is_allowed(line, MASTER.request)
    assert await topics(line) == []
    assert await is_allowed(line, ROOT.sign(MASTER.request))
    assert "TopicA" in await topics(line)


async def test_a_one_way_request_without_a_key_does_nothing(line: AsyncConnection) -> None:
    assert await is_allowed(line, ROOT.sign(MASTER.request))
    await line.send_oneway(104, {"brokerName": "broker-a", "brokerAddr": MASTER.address, "clusterName": CLUSTER})
    assert (await route(line)).code == 0


async def test_a_broker_without_a_key_is_let_in_by_its_address_through_its_own_door_only(tmp_path: Path) -> None:
    async with running(tmp_path, **DOORS, broker_sources="127.0.0.0/8") as here, connection_to(here.address) as line:
        assert await is_allowed(line, MASTER.request)
        assert not await is_allowed(line, Request(205, {"brokerName": "broker-a"}))
        assert not await is_allowed(line, Request(319))


async def test_users_and_policies_are_managed_over_the_wire_and_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, **DOORS) as here, connection_to(here.address) as line:
        assert await is_allowed(line, create_user(ALICE))
        assert not await is_allowed(line, ALICE.sign(MASTER.request))
        assert await is_allowed(line, allow(ALICE, f"Cluster:{CLUSTER}", "Update"))
        assert await is_allowed(line, ALICE.sign(MASTER.request))
        shown = (await line.call(ROOT.call(3005))).value
        assert {user["username"] for user in shown} == {"root", "alice"}
        assert not any(user.get("password") for user in shown)
    assert (tmp_path / "access.json").stat().st_mode & 0o777 == 0o600
    async with running(tmp_path, **DOORS) as here, connection_to(here.address) as line:
        assert await is_allowed(line, ALICE.sign(MASTER.request))


async def test_an_ordinary_user_is_refused_what_the_table_does_not_list(line: AsyncConnection) -> None:
    await line.call(create_user(ALICE))
    await line.call(allow(ALICE, "*", "All"))
    answer = await line.call(ALICE.call(9999))
    assert (answer.code, answer.remark) == (NO_PERMISSION, "User:alice has no permission for request code 9999.")
    assert (await line.call(ROOT.call(9999))).code == 3


async def test_a_closed_reader_door_lets_each_user_see_its_topics_only(tmp_path: Path) -> None:
    async with running(tmp_path, **DOORS, authenticate_readers=True) as here, connection_to(here.address) as line:
        for request in (ROOT.sign(MASTER.request), create_user(ALICE), allow(ALICE, "Topic:TopicA", "Sub")):
            assert await is_allowed(line, request)
        for _ in range(3):  # later ones may be found by their bytes
            assert await is_allowed(line, ALICE.call(105, topic="TopicA"))
            assert not await is_allowed(line, ALICE.call(105, topic="TopicB"))
            assert not await is_allowed(line, Request(105, {"topic": "TopicA"}))
        swapped = ALICE.call(105, topic="TopicA")
        assert not await is_allowed(line, Request(105, {**swapped.fields, "topic": "TopicB"}))
        assert not await is_allowed(line, Request(206))


async def test_a_cached_route_is_forgotten_when_its_reader_loses_the_right(tmp_path: Path) -> None:
    async with running(tmp_path, **DOORS, authenticate_readers=True) as here, connection_to(here.address) as line:
        for request in (ROOT.sign(MASTER.request), create_user(ALICE), allow(ALICE, "Topic:TopicA", "Sub")):
            assert await is_allowed(line, request)
        asked = ALICE.call(105, topic="TopicA")
        before = here.server._routes.fast_path.found
        assert await is_allowed(line, asked)
        assert await is_allowed(line, asked)
        assert here.server._routes.fast_path.found == before + 1
        assert await is_allowed(line, ROOT.call(3003, username="alice"))
        assert not await is_allowed(line, asked)


async def test_a_cached_route_of_one_source_does_not_open_the_door_for_another(tmp_path: Path) -> None:
    async with (
        running(tmp_path, **DOORS, authenticate_readers=True, trusted_proxies="127.0.0.1") as here,
        connection_to(here.address) as line,
        connection_to(here.address) as proxied,
    ):
        sources = ("127.0.0.1",)
        for request in (
            *(ROOT.sign(MASTER.request), create_user(ALICE)),
            allow(ALICE, "Topic:TopicA", "Sub", sources=sources),
        ):
            assert await is_allowed(line, request)
        asked = ALICE.call(105, topic="TopicA")
        assert await is_allowed(line, asked)
        await proxied.write(b"PROXY TCP4 10.9.9.9 10.0.0.1 4000 9876\r\n")
        assert not await is_allowed(proxied, asked)


async def test_a_changed_rules_file_is_used_and_an_invalid_one_is_not(
    tmp_path: Path, line: AsyncConnection, caplog: pytest.LogCaptureFixture, expects_errors: None
) -> None:
    path = tmp_path / "access.json"
    content = json.loads(path.read_text())
    content["users"].append({"username": "alice", "password": ALICE.secret, "userType": "Super"})
    path.write_text(json.dumps(content))
    await eventually_allowed(line, ALICE.call(319))
    path.write_text("{")
    await eventually(lambda: "rules not loaded" in caplog.text)
    assert await is_allowed(line, ALICE.call(319))


async def eventually_allowed(line: AsyncConnection, request: Request) -> None:
    await eventually(lambda: is_allowed(line, request))


async def test_accounts_of_acl_1_0_are_read_and_watched(tmp_path: Path) -> None:
    folder = tmp_path / "conf"
    folder.mkdir()
    text = "accounts:\n- accessKey: {0.name}\n  secretKey: {0.secret}\n  admin: true\n"
    (folder / "plain_acl.yml").write_text(text.format(ALICE))
    home = str(tmp_path)
    async with running(tmp_path, acl_enabled=True, rocketmq_home=home) as here, connection_to(here.address) as line:
        assert not await is_allowed(line, Request(319))
        assert await is_allowed(line, ALICE.call(319))
        (folder / "plain_acl.yml").write_text(text.format(BOB))
        await eventually_allowed(line, BOB.call(319))
        assert not await is_allowed(line, ALICE.call(319))


async def test_decisions_are_in_the_audit_log(tmp_path: Path) -> None:
    async with running(tmp_path, **DOORS) as here, connection_to(here.address) as line:
        await line.call(319)
        await line.call(create_user(ALICE))
    lines = [json.loads(one) for one in (tmp_path / "audit.log").read_text().splitlines()]
    assert [(one["code"], one.get("user", ""), one["is_allowed"], one["source"]) for one in lines] == [
        (319, "", False, "127.0.0.1"),
        (3001, "root", True, "127.0.0.1"),
    ]
    assert ALICE.secret not in (tmp_path / "audit.log").read_text()


async def test_without_authentication_users_are_managed_from_this_machine(tmp_path: Path) -> None:
    async with (
        running(tmp_path, trusted_proxies="127.0.0.1") as here,
        connection_to(here.address) as line,
        connection_to(here.address) as remote,
    ):
        assert await is_allowed(line, Request(319))
        await remote.write(b"PROXY TCP4 10.9.9.9 10.0.0.1 4000 9876\r\n")
        assert not await is_allowed(remote, create_user(ALICE, "Super"))
        assert await is_allowed(line, create_user(ALICE, "Super"))
    async with running(tmp_path, authentication_enabled=True) as here, connection_to(here.address) as line:
        assert await is_allowed(line, ALICE.call(319))


async def test_a_client_certificate_is_a_user(tmp_path: Path) -> None:
    authority = trustme.CA()
    files = Files(tmp_path / "tls", authority)
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(trusting)
    authority.issue_cert("alice.example.org", common_name="alice").configure_cert(trusting)
    tls = files.settings(need_client_auth=ClientAuth.OPTIONAL)
    without = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(without)
    async with (
        running(tmp_path, **DOORS, tls=tls) as here,
        connection_to(here.address, tls=trusting) as line,
        connection_to(here.address, tls=without) as stranger,
    ):
        assert not await is_allowed(line, Request(319))
        await line.call(create_user(ALICE))
        await line.call(allow(ALICE, f"Cluster:{CLUSTER}", "Get"))
        assert await is_allowed(line, Request(319))
        assert not await is_allowed(line, Request(205, {"brokerName": "b"}))
        assert not await is_allowed(stranger, Request(319))
        assert not await is_allowed(line, Request(319, {"AccessKey": "root"}))


async def test_settings_of_access_control_cannot_be_changed_remotely(line: AsyncConnection) -> None:
    for text in ("authenticationEnabled=false", "initAuthenticationUser={}", "accessRulesFile=/tmp/x"):
        answer = await line.call(ROOT.call(318, text.encode()))
        assert (answer.code, answer.remark) == (NO_PERMISSION, "Can not update config in black list.")
    shown = (await line.call(ROOT.call(319))).body.decode()
    assert ROOT.secret not in shown


async def test_a_hundred_refusals_do_not_fill_the_log(line: AsyncConnection, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(100):
        await line.call(319)
    assert sum("request refused" in message for message in caplog.messages) == 7


async def test_decisions_are_counted_by_reason(tmp_path: Path) -> None:
    pages = free_port()
    async with running(tmp_path, **DOORS, metrics_port=pages) as here, connection_to(here.address) as line:
        await line.call(319)
        await line.call(ROOT.call(319))
        _, text = await page(f"127.0.0.1:{pages}", "/metrics")
    assert 'rocketmq_namesrv_access_decisions_total{reason="no_user"} 1.0' in text
    assert 'rocketmq_namesrv_access_decisions_total{reason="super_user"} 1.0' in text


async def test_a_broker_group_of_another_cluster_cannot_be_joined(guarded: Running, line: AsyncConnection) -> None:
    """Routes name broker groups, so consumers would read from the other broker."""
    assert await is_allowed(line, ROOT.sign(MASTER.request))
    await line.call(create_user(BOB))
    await line.call(allow(BOB, "Cluster:mine", "Update"))
    address = {"clusterName": "mine", "brokerAddr": "10.6.6.6:10911", "haServerAddr": "10.6.6.6:10912"}
    address["brokerId"] = "5"
    taken = Request(103, dict(MASTER.request.fields) | address, MASTER.request.body)
    async with connection_to(guarded.address) as enemy:
        assert not await is_allowed(enemy, BOB.sign(taken))
        assert await is_allowed(enemy, BOB.sign(Request(103, dict(taken.fields) | {"brokerName": "mine"}, taken.body)))
    group = guarded.server.table.group(MASTER.request.fields["brokerName"])
    assert group is not None
    assert group.cluster == CLUSTER
    await line.call(allow(BOB, f"Cluster:{CLUSTER}", "Update"))
    async with connection_to(guarded.address) as mover:
        assert await is_allowed(mover, BOB.sign(taken))
