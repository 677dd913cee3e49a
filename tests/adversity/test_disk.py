"""Kills during a write, and disks that fail."""

import random
import resource
import shutil
import ssl
import time
from contextlib import suppress
from pathlib import Path

import pytest
import trustme

from tests.adversity.conftest import Start
from tests.adversity.faults import TIMEOUT_S, assert_log_intact, assert_serves, check_survives, connect, random_pause
from tests.support.booted import NotBootedError
from tests.support.codes import (
    DELETE_KV,
    GET_CONFIG,
    GET_KV,
    LIST_KV,
    NOT_FOUND,
    PUT_KV,
    SUCCESS,
    SYSTEM_ERROR,
    UPDATE_CONFIG,
)
from tests.support.process import ServerProcess, server_process
from tests.support.raw import ClosedError, RawConnection, loads
from tests.support.waiting import wait_until

BALLAST = "x" * 20_000
"""Makes every write take long enough to be hit."""

DEATHS = 6


def test_a_kill_at_any_moment_keeps_the_last_acknowledged_value(tmp_path: Path, chance: random.Random) -> None:
    kept = 0
    for _ in range(DEATHS):
        with server_process(tmp_path) as server:
            acknowledged = put_and_kill(server, kept, chance)
        kept = value_on_disk(tmp_path)
        assert kept in (acknowledged, acknowledged + 1)
    with server_process(tmp_path) as server:
        put_and_kill(server, kept, chance)
    with server_process(tmp_path) as server, RawConnection(server.address) as line:
        assert line.call(PUT_KV, {"namespace": "n", "key": "k", "value": "0"}).code == SUCCESS
        files = sorted(path.name for path in tmp_path.iterdir() if "kvConfig" in path.name)
        assert files == ["kvConfig.json", "kvConfig.json.bak"], "no temporary file is left"
        assert server.stop() == 0
        assert_log_intact(server.log)


def put_and_kill(server: ServerProcess, kept: int, chance: random.Random) -> int:
    """Put rising values after the one that was kept, and kill the server while it puts one more.

    Returns the last value that was acknowledged.
    """
    with RawConnection(server.address, timeout_s=TIMEOUT_S) as line:
        if kept:
            assert line.call(GET_KV, {"namespace": "n", "key": "k"}).fields == {"value": str(kept)}
            assert line.call(GET_KV, {"namespace": "ballast", "key": "k"}).fields == {"value": BALLAST}
        else:
            assert line.call(PUT_KV, {"namespace": "ballast", "key": "k", "value": BALLAST}).code == SUCCESS
        last = kept + chance.randrange(1, 10)
        started = time.monotonic()
        for value in range(kept + 1, last + 1):
            assert line.call(PUT_KV, {"namespace": "n", "key": "k", "value": str(value)}).code == SUCCESS
        usual_s = (time.monotonic() - started) / (last - kept)
        line.send(PUT_KV, {"namespace": "n", "key": "k", "value": str(last + 1)})
        random_pause(chance, 0, 1.2 * usual_s)  # some moment of the write, or just after it
        server.kill()
        with suppress(ClosedError):
            assert line.receive().code == SUCCESS
            return last + 1
    return last


def value_on_disk(folder: Path) -> int:
    return int(loads((folder / "kvConfig.json").read_text())["configTable"]["n"]["k"])


def test_a_write_error_is_reported_and_changes_nothing(start: Start) -> None:
    server = start()
    with check_survives(server, lines_max=10), RawConnection(server.address) as line:
        assert line.call(PUT_KV, {"namespace": "n", "key": "k", "value": "old"}).code == SUCCESS
        before = (server.folder / "kvConfig.json").read_bytes()
        server.limit(resource.RLIMIT_FSIZE, 64 * 1024)
        answer = line.call(PUT_KV, {"namespace": "n", "key": "k", "value": "x" * 100_000})
        assert answer.code == SYSTEM_ERROR
        assert "cannot write" in (answer.remark or "")
        answer = line.call(PUT_KV, {"namespace": "new", "key": "k", "value": "x" * 100_000})
        assert answer.code == SYSTEM_ERROR
        assert line.call(GET_KV, {"namespace": "n", "key": "k"}).fields == {"value": "old"}
        assert line.call(LIST_KV, {"namespace": "new"}).code == NOT_FOUND
        assert (server.folder / "kvConfig.json").read_bytes() == before
        assert list(server.folder.glob("*.tmp")) == []
        server.unlimit(resource.RLIMIT_FSIZE)
        assert line.call(PUT_KV, {"namespace": "n", "key": "k", "value": "x" * 100_000}).code == SUCCESS
        assert line.call(DELETE_KV, {"namespace": "n", "key": "k"}).code == SUCCESS


def test_settings_that_cannot_be_written_do_not_change(start: Start) -> None:
    server = start()
    with check_survives(server, lines_max=10), RawConnection(server.address) as line:
        server.limit(resource.RLIMIT_FSIZE, 16 * 1024)
        update = b"enableTopicList=false\nproductEnvName=" + b"x" * 20_000
        answer = line.call(UPDATE_CONFIG, body=update)
        assert answer.code == SYSTEM_ERROR
        assert "cannot write" in (answer.remark or "")
        assert {"enableTopicList=true", "productEnvName=center"} <= set(line.call(GET_CONFIG).text.splitlines())
        server.unlimit(resource.RLIMIT_FSIZE)
        assert line.call(UPDATE_CONFIG, body=b"enableTopicList=false").code == SUCCESS


def test_a_missing_folder_is_reported_and_created_again(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    server = start(kvConfigPath=folder / "kvConfig.json")
    with check_survives(server, lines_max=10), RawConnection(server.address) as line:
        assert line.call(PUT_KV, {"namespace": "n", "key": "k", "value": "1"}).code == SUCCESS
        shutil.rmtree(folder)
        folder.write_text("in the way")  # a file where the folder was, which even the superuser cannot write into
        for code in (PUT_KV, DELETE_KV):
            answer = line.call(code, {"namespace": "n", "key": "k", "value": "2"})
            assert answer.code == SYSTEM_ERROR
            assert f"cannot write {folder}/kvConfig.json" in (answer.remark or "")
        assert line.call(GET_KV, {"namespace": "n", "key": "k"}).fields == {"value": "1"}
        folder.unlink()
        assert line.call(PUT_KV, {"namespace": "n", "key": "j", "value": "3"}).code == SUCCESS
        assert loads((folder / "kvConfig.json").read_text()) == {"configTable": {"n": {"k": "1", "j": "3"}}}


def test_a_path_that_cannot_be_written_is_reported_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with (
        pytest.raises(NotBootedError, match=r"cannot write .*/file/kvConfig\.json"),
        server_process(tmp_path, settings={"kvConfigPath": tmp_path / "file" / "kvConfig.json"}),
    ):
        pass


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.99])
def test_a_torn_file_is_replaced_by_its_backup(tmp_path: Path, keep: float) -> None:
    with server_process(tmp_path) as server:
        with RawConnection(server.address) as line:
            for value in ("1", "2"):
                assert line.call(PUT_KV, {"namespace": "n", "key": "k", "value": value}).code == SUCCESS
        server.kill()
    file = tmp_path / "kvConfig.json"
    content = file.read_bytes()
    file.write_bytes(content[: int(keep * len(content))])
    with server_process(tmp_path) as server, RawConnection(server.address) as line:
        assert line.call(GET_KV, {"namespace": "n", "key": "k"}).fields == {"value": "1"}
        assert line.call(PUT_KV, {"namespace": "n", "key": "k", "value": "3"}).code == SUCCESS
        assert_serves(server.address)
        assert loads(file.read_text()) == {"configTable": {"n": {"k": "3"}}}
        assert loads((tmp_path / "kvConfig.json.bak").read_text()) == {"configTable": {"n": {"k": "1"}}}


def served_certificate(server: ServerProcess) -> bytes:
    """Return the certificate that a TLS client gets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with connect(server.address) as line, context.wrap_socket(line) as speaker:
        shown = speaker.getpeercert(binary_form=True)
    assert shown is not None
    return shown


def test_a_half_replaced_certificate_is_loaded_once_it_is_complete(start: Start, tmp_path: Path) -> None:
    authority = trustme.CA()
    old, new = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    key.write_bytes(old.private_key_pem.bytes())
    certificate.write_bytes(old.cert_chain_pems[0].bytes())
    server = start(
        {"tls.test.mode.enable": "false", "tls.server.keyPath": key, "tls.server.certPath": certificate},
    )
    before = served_certificate(server)
    certificate.write_bytes(new.cert_chain_pems[0].bytes())
    key.write_bytes(new.private_key_pem.bytes()[:100])
    wait_until(lambda: "tls reload failed" in server.log, "the incomplete key is read")
    assert served_certificate(server) == before
    key.write_bytes(new.private_key_pem.bytes())
    wait_until(lambda: served_certificate(server) != before, "the new certificate is loaded")
    assert_serves(server.address)
    assert server.stop() == 0
    assert_log_intact(server.log)
    assert len(server.log_since_start.splitlines()) < 10
