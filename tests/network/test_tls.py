"""TLS on the port that also serves plain text: modes, certificates of either side, and their renewal."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from skyroute.remoting.errors import TlsError
from skyroute.remoting.tls_settings import ClientAuth, TlsClientSettings, TlsMode, TlsSettings
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.network.certificates import Files, client_of, client_that_trusts_anyone
from tests.network.cluster import CLUSTER, MASTER, addresses, register, topics
from tests.support.connections import connection_to, listening_broker
from tests.support.raw import ClosedError, Form, Registration, Topic, encode, split_address
from tests.support.servers import Running, running
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def stranger() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(tmp_path: Path, authority: trustme.CA) -> Files:
    return Files(tmp_path / "tls", authority)


async def is_served(address: str, tls: ssl.SSLContext | None) -> bool:
    """Whether a peer that speaks so gets an answer."""
    try:
        async with connection_to(address, tls=tls) as line:
            return (await line.call(206)).code == ResponseCode.SUCCESS
    except (ClosedError, ConnectionError, ssl.SSLError):
        return False


# Modes


@pytest.mark.parametrize(
    ("mode", "plain", "encrypted"),
    [(TlsMode.PERMISSIVE, True, True), (TlsMode.ENFORCING, False, True), (TlsMode.DISABLED, True, False)],
)
async def test_the_tls_mode_decides_which_peers_are_served(
    tmp_path: Path, authority: trustme.CA, files: Files, mode: TlsMode, plain: bool, encrypted: bool
) -> None:
    async with running(tmp_path, tls=files.settings(mode=mode)) as here:
        assert await is_served(here.address, None) is plain
        assert await is_served(here.address, client_of(authority)) is encrypted


@pytest.mark.parametrize(
    ("mode", "first_bytes", "said"),
    [
        (TlsMode.ENFORCING, encode(MASTER.request, 1), "tls.server.mode=enforcing"),
        (TlsMode.DISABLED, b"\x16\x03\x01" + bytes(20), "tls.server.mode=disabled"),
        (TlsMode.PERMISSIVE, b"\x16\x03\x01\x00\x10" + bytes(20), "tls failed"),
    ],
)
async def test_the_log_says_why_a_peer_is_refused(
    tmp_path: Path, files: Files, caplog: pytest.LogCaptureFixture, mode: TlsMode, first_bytes: bytes, said: str
) -> None:
    async with running(tmp_path, tls=files.settings(mode=mode)) as here, connection_to(here.address) as line:
        await line.write(first_bytes)
        with pytest.raises((ClosedError, ValueError)):  # an alert of TLS is no frame
            await line.receive()
        await line.close()
        await eventually(lambda: here.connections == 0)
        assert f"connection closed peer={line.local_address} reason=" in caplog.text
        assert said in caplog.text


async def test_test_mode_makes_a_self_signed_certificate(nameserver: Running, caplog: pytest.LogCaptureFixture) -> None:
    async with connection_to(nameserver.address, tls=client_that_trusts_anyone()) as line:
        await register(line, MASTER)
        assert await addresses(line) == {"broker-a": {"0": "10.0.0.1:10911"}}
        assert "tls serves a self-signed certificate" in caplog.text
        caplog.clear()
    assert await is_served(nameserver.address, client_that_trusts_anyone())
    assert "throw-away" not in caplog.text  # the second peer is served the same
    assert not await is_served(nameserver.address, client_of(trustme.CA()))


async def test_a_missing_certificate_is_reported_with_its_settings(tmp_path: Path) -> None:
    with pytest.raises(TlsError, match=r"tls\.server\.certPath"):
        async with running(tmp_path, tls=TlsSettings(test_mode=False)):
            pass  # pragma: no cover


# The encrypted line is a line like any other


@pytest.mark.parametrize("form", ["json", "binary"])
async def test_brokers_and_clients_work_over_tls_as_over_plain_text(
    tmp_path: Path, authority: trustme.CA, files: Files, form: Form
) -> None:
    async with running(tmp_path, tls=files.settings()) as here:
        async with connection_to(here.address, tls=client_of(authority), form=form) as line:
            many = MASTER.but(topics=[Topic(f"topic-{number:05}") for number in range(5_000)])
            await register(line, many)
            assert len(await topics(line)) == 5_000
            asked = [await line.send(206) for _ in range(50)]  # more than either side buffers
            assert len({(await line.answer(opaque)).body for opaque in asked}) == 1
            await line.send_oneway(9999)
            assert (await line.call(9999)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        await eventually(lambda: here.connections == 0)
        async with connection_to(here.address) as plain:
            assert await topics(plain) == []


async def test_a_broker_is_removed_when_its_tls_stream_is_cut(
    tmp_path: Path, authority: trustme.CA, files: Files
) -> None:
    async with running(tmp_path, tls=files.settings()) as here, connection_to(here.address) as plain:
        async with connection_to(here.address, tls=client_of(authority)) as broker:
            await register(broker, MASTER)
            broker.abort()
        await eventually(lambda: here.connections == 1)
        assert await topics(plain) == []


async def test_an_incomplete_handshake_is_closed_after_the_opening_limit(tmp_path: Path, files: Files) -> None:
    async with running(tmp_path, tls=files.settings()) as here, connection_to(here.address) as line:
        await line.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(20))
        await eventually(lambda: any(each.writer.tls is not None for each in here.remoting._connections.values()))
        here.pass_time(10)
        assert here.connections == 1
        here.pass_time(1)
        await line.until_closed()


async def test_a_tls_connection_has_the_same_idle_limit(tmp_path: Path, authority: trustme.CA, files: Files) -> None:
    serving, context = running(tmp_path, tls=files.settings()), client_of(authority)
    async with serving as here, connection_to(here.address, tls=context) as line:
        await topics(line)
        here.pass_time(120)
        await topics(line)
        here.pass_time(121)
        await line.until_closed()


async def test_a_tls_peer_can_tell_the_end_of_a_stream_from_a_cut(
    tmp_path: Path, authority: trustme.CA, files: Files
) -> None:
    def listen_to_the_end(address: str) -> bytes:
        # asyncio takes a cut for an end; the blocking socket can be told not to.
        with (
            socket.create_connection(split_address(address), timeout=10) as plain,
            client_of(authority).wrap_socket(
                plain, server_hostname="localhost", suppress_ragged_eofs=False
            ) as encrypted,
        ):
            return encrypted.recv(1)

    async with running(tmp_path, tls=files.settings()) as here:
        listening = asyncio.create_task(asyncio.to_thread(listen_to_the_end, here.address))
        await eventually(
            lambda: any(
                each.writer.tls is not None and each.opening_since is None
                for each in here.remoting._connections.values()
            )
        )
        await here.server.stop()
        assert await listening == b""


# Certificates of peers


@pytest.mark.parametrize(
    ("auth", "without", "with_right", "with_wrong"),
    [
        (ClientAuth.NONE, True, True, True),
        (ClientAuth.OPTIONAL, True, True, False),
        (ClientAuth.REQUIRE, False, True, False),
    ],
)
async def test_client_certificates_are_required_by_the_settings(
    tmp_path: Path,
    authority: trustme.CA,
    stranger: trustme.CA,
    files: Files,
    auth: ClientAuth,
    without: bool,
    with_right: bool,
    with_wrong: bool,
) -> None:
    async with running(tmp_path, tls=files.settings(need_client_auth=auth)) as here:
        assert await is_served(here.address, client_of(authority)) is without
        assert await is_served(here.address, client_of(authority, presenting=authority)) is with_right
        assert await is_served(here.address, client_of(authority, presenting=stranger)) is with_wrong


async def test_requiring_a_certificate_without_verifying_it_is_refused(tmp_path: Path, files: Files) -> None:
    unchecked = TlsSettings(
        test_mode=False,
        need_client_auth=ClientAuth.REQUIRE,
        key_path=str(files.key),
        cert_path=str(files.certificate),
    )
    with pytest.raises(TlsError, match=r"tls\.server\.authClient"):
        async with running(tmp_path, tls=unchecked):
            pass  # pragma: no cover


# Renewal


def reload(here: Running) -> bool:
    """Look at the files now, as the server does every half second."""
    return here.remoting._context.tls.reload_if_changed()


async def serves(here: Running, authority: trustme.CA) -> bool:
    """Whether a new connection is shown a certificate of this authority."""
    return await is_served(here.address, client_of(authority))


async def test_a_new_key_pair_is_loaded_and_old_connections_stay_open(
    tmp_path: Path, authority: trustme.CA, stranger: trustme.CA, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, tls=files.settings()) as here:
        async with connection_to(here.address, tls=client_of(authority)) as old:
            await register(old, MASTER)
            files.renew(stranger)
            assert reload(here)
            assert "tls reloaded" in caplog.text
            assert [await serves(here, stranger), await serves(here, authority)] == [True, False]
            assert await addresses(old) == {"broker-a": {"0": "10.0.0.1:10911"}}
        assert not reload(here)


async def test_the_server_reloads_changed_files(
    tmp_path: Path, authority: trustme.CA, stranger: trustme.CA, files: Files
) -> None:
    async with running(tmp_path, tls=files.settings()) as here:
        assert await serves(here, authority)
        files.renew(stranger)
        await eventually(lambda: serves(here, stranger))


@pytest.mark.parametrize("first", ["key", "certificate"])
async def test_an_incomplete_rotation_is_not_loaded(
    tmp_path: Path, authority: trustme.CA, stranger: trustme.CA, files: Files, first: str
) -> None:
    async with running(tmp_path, tls=files.settings()) as here:
        issued = stranger.issue_cert("localhost")
        new = {files.key: issued.private_key_pem.bytes(), files.certificate: issued.cert_chain_pems[0].bytes()}
        order = [files.key, files.certificate] if first == "key" else [files.certificate, files.key]
        order[0].write_bytes(new[order[0]])
        assert not reload(here)
        assert await serves(here, authority)
        order[1].write_bytes(new[order[1]])
        assert reload(here)
        assert await serves(here, stranger)


@pytest.mark.usefixtures("expects_errors")
async def test_invalid_files_keep_the_old_certificate_until_they_are_valid(
    tmp_path: Path, authority: trustme.CA, stranger: trustme.CA, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, tls=files.settings()) as here:
        for path in (files.key, files.certificate):
            path.write_text("not a certificate")
        assert not reload(here)
        assert "tls reload failed, the old certificate stays in use" in caplog.text
        assert await serves(here, authority)
        files.renew(stranger)
        assert reload(here)
        assert await serves(here, stranger)


@pytest.mark.usefixtures("expects_errors")
async def test_a_rotation_is_loaded_once_it_is_complete(
    tmp_path: Path, authority: trustme.CA, stranger: trustme.CA, files: Files
) -> None:
    """Both files have changed, but the certificate is not yet the one for the key: only one more file will change."""
    async with running(tmp_path, tls=files.settings()) as here:
        issued = files.renew(stranger, certificate=False)
        whole = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        files.certificate.write_bytes(whole[: len(whole) // 2])
        assert not reload(here)
        assert await serves(here, authority)
        files.certificate.write_bytes(whole)
        assert reload(here)
        assert await serves(here, stranger)


async def test_a_file_that_is_missing_for_a_moment_is_no_change(
    tmp_path: Path, authority: trustme.CA, files: Files
) -> None:
    async with running(tmp_path, tls=files.settings()) as here:
        kept = files.key.read_bytes()
        files.key.unlink()
        assert not reload(here)
        assert await serves(here, authority)
        files.key.write_bytes(kept)
        assert not reload(here)


async def test_the_trust_file_can_change_alone(
    tmp_path: Path, authority: trustme.CA, stranger: trustme.CA, files: Files
) -> None:
    async with running(tmp_path, tls=files.settings(need_client_auth=ClientAuth.REQUIRE)) as here:
        contexts = [client_of(authority, presenting=each) for each in (authority, stranger)]
        assert [await is_served(here.address, each) for each in contexts] == [True, False]
        files.trust_only(stranger)
        assert reload(here)
        assert [await is_served(here.address, each) for each in contexts] == [False, True]


# Connections that we open


def broker_at(address: str, broker_id: int) -> Registration:
    return Registration(CLUSTER, "broker-a", address, MASTER.topics, broker_id=broker_id, acting=True)


async def tell_of_a_change(here: Running, listener: str) -> None:
    async with connection_to(here.address) as line:
        await register(line, broker_at(listener, 1), broker_at("127.0.0.1:1", 0))


@asynccontextmanager
async def calling(folder: Path, settings: TlsSettings) -> AsyncIterator[Running]:
    async with running(folder, tls=settings, notify_min_broker_id=True) as here:
        yield here


def broker_side(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return context


@pytest.mark.parametrize("checked", [False, True])
async def test_brokers_are_called_over_tls_if_it_is_enabled(
    tmp_path: Path, authority: trustme.CA, files: Files, checked: bool
) -> None:
    client = TlsClientSettings(enabled=True, auth_server=checked, trust_cert_path=str(files.trust) if checked else None)
    settings = TlsSettings(mode=TlsMode.DISABLED, test_mode=not checked, client=client)
    async with listening_broker(tls=broker_side(authority)) as broker, calling(tmp_path, settings) as here:
        await tell_of_a_change(here, broker.address)
        assert (await broker.receive()).code == RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE


async def test_nothing_is_sent_to_a_broker_with_an_untrusted_certificate(
    tmp_path: Path, stranger: trustme.CA, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    client = TlsClientSettings(enabled=True, auth_server=True, trust_cert_path=str(files.trust))
    settings = TlsSettings(mode=TlsMode.DISABLED, test_mode=False, client=client)
    async with listening_broker(tls=broker_side(stranger)) as broker, calling(tmp_path, settings) as here:
        await tell_of_a_change(here, broker.address)
        await eventually(lambda: f"notice lost broker={broker.address}" in caplog.text)
        assert broker.is_drained
