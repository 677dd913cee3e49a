"""Certificates and keys are replaced while clients work, and no request fails; commands of the documentation work."""

from __future__ import annotations

import asyncio
import re
import shlex
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from skyroute.remoting.tls_settings import ClientAuth, TlsMode, TlsSettings
from tests.network.certificates import Files, client_of
from tests.network.cluster import CLUSTER
from tests.support.connections import connection_to
from tests.support.raw import Request
from tests.support.servers import Running, running
from tests.support.signing import ALICE, BOB, ROOT, Key, allow, create_user
from tests.support.waiting import eventually

SECURITY = Path(__file__).parents[2] / "docs" / "security.md"
GUARDED: dict[str, Any] = {"authentication_enabled": True, "authorization_enabled": True, "init_user": ROOT.json}


class Load:
    """A client that connects anew for every request."""

    def __init__(self, here: Running, tls: ssl.SSLContext, key: Key) -> None:
        self._here = here
        self._tls = tls
        self.key = key
        self.codes: list[int] = []
        self.is_over = False
        """Ends the load after its request: a cancelled TLS handshake leaves an open transport behind."""

    async def run(self) -> None:
        while not self.is_over:
            key = self.key
            async with connection_to(self._here.address, tls=self._tls) as line:
                self.codes.append((await line.call(key.call(319))).code)

    async def until_more(self, count: int = 5) -> None:
        wanted = len(self.codes) + count
        await eventually(lambda: len(self.codes) >= wanted)


@asynccontextmanager
async def under_load(here: Running, tls: ssl.SSLContext, key: Key) -> AsyncIterator[Load]:
    load = Load(here, tls, key)
    task = asyncio.create_task(load.run())
    try:
        yield load
        assert not task.done(), task.exception()
        assert set(load.codes) == {0}
    finally:
        load.is_over = True
        await asyncio.gather(task, return_exceptions=True)


async def test_the_certificate_of_a_server_is_replaced_under_load(tmp_path: Path) -> None:
    authority = trustme.CA()
    files = Files(tmp_path / "tls", authority)
    async with running(tmp_path, **GUARDED, tls=files.settings(mode=TlsMode.ENFORCING)) as here:
        first = await certificate_of(here)
        async with under_load(here, client_of(authority), ROOT) as load:
            await load.until_more()
            files.renew(authority)
            await eventually_async(here, first)
            await load.until_more()


async def certificate_of(here: Running) -> str:
    host, _, port = here.address.rpartition(":")
    return await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))


async def eventually_async(here: Running, old: str) -> None:
    async def is_new() -> bool:
        return await certificate_of(here) != old

    await eventually(is_new)


async def test_the_key_of_an_application_is_replaced_under_load(tmp_path: Path) -> None:
    authority = trustme.CA()
    files = Files(tmp_path / "tls", authority)
    tls = client_of(authority)
    async with (
        running(tmp_path, **GUARDED, tls=files.settings(mode=TlsMode.ENFORCING)) as here,
        connection_to(here.address, tls=tls) as operator,
    ):
        for request in (create_user(ALICE), allow(ALICE, f"Cluster:{CLUSTER}", "Get")):
            assert (await operator.call(request)).code == 0
        async with under_load(here, tls, ALICE) as load:
            await load.until_more()
            for request in (create_user(BOB), allow(BOB, f"Cluster:{CLUSTER}", "Get")):
                assert (await operator.call(request)).code == 0
            load.key = BOB
            await load.until_more(2)
            assert (await operator.call(ROOT.call(3003, username=ALICE.name))).code == 0
            await load.until_more()
        assert (await operator.call(ALICE.call(319))).code == 16


async def test_the_commands_of_the_documentation_make_working_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = SECURITY.read_text().partition("## TLS with your own certificates")[2].partition("\n## ")[0]
    commands = [line for line in section.splitlines() if line.startswith("openssl ")]
    assert len(commands) == 5
    for command in commands:
        await asyncio.to_thread(
            subprocess.run, shlex.split(command), cwd=tmp_path, check=True, capture_output=True, timeout=30
        )
    settings = dict(re.findall(r"(?m)^(tls\.[\w.]+)=(.+)$", section))
    assert settings["tls.server.need.client.auth"] == "optional"
    monkeypatch.chdir(tmp_path)
    tls = TlsSettings(
        mode=TlsMode(settings["tls.server.mode"]),
        test_mode=False,
        need_client_auth=ClientAuth.OPTIONAL,
        key_path=settings["tls.server.keyPath"],
        cert_path=settings["tls.server.certPath"],
        auth_client=True,
        trust_cert_path=settings["tls.server.trustCertPath"],
    )
    shop = Key("shop", "secret-of-shop")
    context = ssl.create_default_context(cafile="ca.pem")
    context.load_cert_chain("shop.pem", "shop.key")
    async with running(tmp_path, **GUARDED, tls=tls) as here, connection_to(here.address, tls=context) as line:
        assert (await line.call(create_user(shop))).code == 0
        assert (await line.call(allow(shop, f"Cluster:{CLUSTER}", "Get"))).code == 0
        assert (await line.call(Request(319))).code == 0
