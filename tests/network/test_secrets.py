"""Every secret of every server has a marker in it, and the marker is shown nowhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from tests.support.apache import free_port
from tests.support.raw import RawConnection, Request
from tests.support.signing import Key

MARKER = "mArKeR0f4Secret"
ROOT = Key("root", f"{MARKER}-root")
WITH_SECRETS = frozenset({"access.json", "settings.properties", "credentials.yml", "server.key"})
"""Files that hold secrets by design: those that an operator writes, and the rules file."""
BOOT_S = 60
BOOT_LINE = re.compile(r"127\.0\.0\.1:\d+")
PAGES = (
    "/",
    "/cluster",
    "/cluster/name-servers",
    "/topics",
    "/groups",
    "/audit",
    "/cluster/controllers",
    "/history",
    "/nowhere",
)


@dataclass(frozen=True)
class Started:
    process: subprocess.Popen[bytes]
    address: str
    folder: Path


@contextmanager
def started(role: str, folder: Path, *arguments: str) -> Iterator[Started]:
    command = [sys.executable, "-m", "skyroute", role, *arguments, "--log-level", "debug"]
    with (
        (folder / f"{role}.log").open("wb") as log,
        subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=log) as process,
    ):
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, b"")  # some servers first say which settings they have read
            found = next((match for line in lines if (match := BOOT_LINE.search(line.decode()))), None)
            assert found is not None, (folder / f"{role}.log").read_text()
            yield Started(process, found[0], folder)
        finally:
            process.terminate()
            process.wait(BOOT_S)


def write_settings(folder: Path, more: Mapping[str, object]) -> tuple[str, str]:
    """Write a file with a marker in every setting that can hold a secret; return the arguments that use it."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    (folder / "server.pem").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    closed = BestAvailableEncryption(f"{MARKER}-tls".encode())
    (folder / "server.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, closed))
    settings = {
        **{"bindAddress": "127.0.0.1", "authenticationEnabled": True, "authorizationEnabled": True},
        **{"auditedDecisions": "all", "initAuthenticationUser": ROOT.json},
        "innerClientAuthenticationCredentials": ROOT.credentials_json,
        **{
            "tls.server.mode": "permissive",
            "tls.test.mode.enable": False,
            "tls.server.certPath": folder / "server.pem",
        },
        **{"tls.server.keyPath": folder / "server.key", "tls.server.keyPassword": f"{MARKER}-tls"},
        **{"tls.client.keyPassword": f"{MARKER}-client"},
        # Settings of Apache's servers that ours keep and do not use, and one that nobody knows.
        **{"metricsGrpcExporterHeader": f"Authorization:{MARKER}", "socksProxyConfig": f'{{"x":"{MARKER}"}}'},
        **{"somebodysPassword": f"{MARKER}-unknown"},
        **more,
    }
    path = folder / "settings.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return "-c", str(path)


def ask(address: str, code: int) -> str:
    """Send requests that could show a secret; return all responses."""
    user = {"username": "alice", "password": f"{MARKER}-alice", "userType": "Normal"}
    change = f"initAuthenticationUser={MARKER}\nsomebodysPassword={MARKER}\nlistenPort={MARKER}\n".encode()
    requests = [
        ROOT.call(code),
        ROOT.call(code - 1, change),
        ROOT.call(3001, json.dumps(user).encode(), username="alice"),
        ROOT.call(3001, json.dumps(user | {"userType": MARKER[:3]}).encode(), username="bob"),
        ROOT.call(3001, f'{{"username":"carol","password":"{MARKER}"'.encode(), username="carol"),
        ROOT.call(3002, json.dumps(user | {"password": f"{MARKER}-new"}).encode(), username="alice"),
        ROOT.call(3004, username="alice"),
        ROOT.call(3005),
        Key("root", f"{MARKER}-wrong").call(code),
        Request(code),
    ]
    with RawConnection(address) as line:
        answers = [line.call(request) for request in requests]
    assert [answers[number].code for number in (0, 2, 6, 7)] == [0] * 4, [answer.remark for answer in answers]
    return repr(answers)


def fetch(address: str, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=BOOT_S) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()


def shown_in(folder: Path) -> list[str]:
    """The files below a folder that have a marker in them and should not."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in WITH_SECRETS]
    return [str(path) for path in files if MARKER.encode() in path.read_bytes()]


def test_no_secret_is_shown_anywhere(tmp_path: Path) -> None:
    folders = {role: tmp_path / role for role in ("nameserver", "broker", "controller", "console")}
    for folder in folders.values():
        folder.mkdir()
    pages = {role: free_port() for role in folders if role != "console"}
    own = {
        "nameserver": {"listenPort": 0, "kvConfigPath": folders["nameserver"] / "kvConfig.json"},
        "broker": {"listenPort": free_port(), "brokerName": "b", "storePathRootDir": folders["broker"] / "store"},
        "controller": {"listenPort": 0, "controllerStorePath": folders["controller"] / "data", "etcdPassword": MARKER},
    }
    own["controller"]["controllerDLegerPeers"] = f"n0-127.0.0.1:{free_port()}"
    own["nameserver"]["memoryPath"] = folders["nameserver"] / "memory"
    texts: dict[str, str] = {}
    with ExitStack() as stack:
        servers: dict[str, Started] = {}
        for role, code in (("nameserver", 319), ("controller", 1010), ("broker", 26)):
            if role == "broker":
                own[role] |= {"namesrvAddr": servers["nameserver"].address, "brokerIP1": "127.0.0.1"}
            arguments = write_settings(folders[role], own[role] | {"metricsPort": pages[role]})
            servers[role] = stack.enter_context(started(role, folders[role], *arguments))
            texts[f"{role}, responses"] = ask(servers[role].address, code)
            texts[f"{role}, metrics"] = fetch(f"127.0.0.1:{pages[role]}", "/metrics")
            printed = [sys.executable, "-m", "skyroute", role, *arguments, "-p"]
            texts[f"{role}, printed settings"] = subprocess.run(
                printed, capture_output=True, text=True, check=True, cwd=tmp_path
            ).stdout
        credentials = folders["console"] / "credentials.yml"
        credentials.write_text(f"accessKey: {ROOT.name}\nsecretKey: {ROOT.secret}\n")
        servers["console"] = stack.enter_context(
            started(
                *("console", folders["console"], "-n", servers["nameserver"].address, "--port", "0", "--no-sign-in"),
                *("--data", str(folders["console"] / "data"), "--credentials-file", str(credentials)),
                *("--controller", servers["controller"].address),
                *("--access-log", str(folders["broker"] / "store" / "config" / "audit.log")),
                *("--journal", str(folders["nameserver"] / "memory")),
            )
        )
        settings = [f"/cluster/b/0?tab=settings&q={word}" for word in ("auth", "credential", "passw", "prox", "header")]
        of_names = f"/cluster/name-servers?tab=settings&address={servers['nameserver'].address}"
        for page in (*PAGES, *settings, of_names):
            texts[f"page {page}"] = fetch(servers["console"].address, page)
        for role, server in servers.items():
            texts[f"{role}, command line"] = Path(f"/proc/{server.process.pid}/cmdline").read_text()
    assert "authenticationEnabled" in texts["broker, responses"]
    on_pages = "".join(text for where, text in texts.items() if where.startswith("page "))
    for name in ("initAuthenticationUser", "innerClientAuthenticationCredentials"):
        assert name in texts["broker, responses"]
        assert name in on_pages
    assert "access_decisions" in texts["nameserver, metrics"]
    assert (folders["broker"] / "store" / "config" / "audit.log").stat().st_size > 0
    assert [where for where, text in texts.items() if MARKER in text] == []
    assert shown_in(tmp_path) == []


@pytest.mark.parametrize("name", ["nameserver", "broker", "controller"])
def test_no_secret_is_in_the_text_of_a_configuration(name: str) -> None:
    from skyroute.broker.config import BrokerConfig  # noqa: PLC0415 - one of three
    from skyroute.controller.config import ControllerConfig  # noqa: PLC0415 - one of three
    from skyroute.nameserver.config import NameServerConfig  # noqa: PLC0415 - one of three

    kind = {"nameserver": NameServerConfig, "broker": BrokerConfig, "controller": ControllerConfig}[name]
    config = kind(init_user=ROOT.json, own_credentials=ROOT.credentials_json)
    if isinstance(config, ControllerConfig):
        config.etcd_password = MARKER
    assert MARKER not in f"{config!r} {config} {config.signer()!r}"
