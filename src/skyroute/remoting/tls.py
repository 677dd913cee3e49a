"""TLS contexts, which are rebuilt when their files change, and the encrypted stream of an accepted connection."""

import asyncio
import contextlib
import hashlib
import logging
import shutil
import ssl
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any, Final

from skyroute.remoting.errors import TlsError
from skyroute.remoting.tls_settings import ClientAuth, TlsClientSettings, TlsMode, TlsSettings

log = logging.getLogger(__name__)

_TRY_AGAIN_S: Final = 60.0
_READ_BYTES: Final = 256 * 1024


CERTIFICATE_NAMES_MAX: Final = 32
"""Names of a client certificate that are looked at."""

CHECK_S: Final = 0.5
"""Interval of the checks for changed files."""


class ServerTls:
    """The TLS mode of a server and its current context."""

    def __init__(self, settings: TlsSettings) -> None:
        """Build the context. In test mode, it is built when the first peer uses TLS.

        Raises:
            TlsError: the files named in the settings cannot be used.
        """
        self.mode = settings.mode
        self._settings = settings
        self._context: ssl.SSLContext | None = None
        self._making: asyncio.Future[ssl.SSLContext] | None = None
        self._made_at = 0.0
        self._digests: dict[str, bytes] = {}
        """Digests of the files in use."""
        self._refused: dict[str, bytes] = {}
        """Digests of the files that could not be used last time."""
        if self.mode is not TlsMode.DISABLED and not settings.test_mode:
            self._context = server_context(settings)
            self._digests = self._digest_files()

    @property
    def context(self) -> ssl.SSLContext | None:
        """The context for a new connection; None until `prepare` has made one."""
        return self._context

    async def prepare(self) -> None:
        """Make the certificate of test mode, once for all callers, in a thread.

        Raises:
            TlsError: it cannot be made. A call after `_TRY_AGAIN_S` tries again.
        """
        loop = asyncio.get_running_loop()
        if self._making is None or (self._making.done() and loop.time() > self._made_at + _TRY_AGAIN_S):
            self._making = asyncio.ensure_future(asyncio.to_thread(_self_signed_context))
            self._made_at = loop.time()
        self._context = await asyncio.shield(self._making)

    async def watch(self) -> None:
        """Reload the files whenever they change."""
        while True:
            await asyncio.sleep(CHECK_S)
            self.reload_if_changed()

    def reload_if_changed(self) -> bool:
        """Reload changed files; return whether they are in use now.

        Key and certificate must both have changed: a change of one alone is incomplete. If a new file cannot be used,
        that is logged and the old context stays.
        """
        digests = self._digest_files()
        changed = {path for path in self._digests if path in digests and digests[path] != self._digests[path]}
        pair = {path for path in (self._settings.key_path, self._settings.cert_path) if path in self._digests}
        if not (self._settings.trust_cert_path in changed or (pair and pair <= changed)):
            return False
        if digests == self._refused:
            return False
        try:
            self._context = server_context(self._settings)
        except TlsError as error:
            # The rotation may be incomplete: try again when a file changes.
            self._refused = digests
            log.error("tls reload failed, the old certificate stays in use: %s", error)  # noqa: TRY400 - expected
            return False
        self._digests |= digests
        log.info("tls reloaded files=%s", sorted(changed))
        return True

    def _digest_files(self) -> dict[str, bytes]:
        paths = (self._settings.key_path, self._settings.cert_path, self._settings.trust_cert_path)
        digests = {}
        for path in paths:
            try:
                if path is not None:
                    digests[path] = hashlib.sha256(Path(path).read_bytes()).digest()
            except OSError:
                continue  # it is being replaced
        return digests


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Build the context that serves the configured certificate.

    Raises:
        TlsError: the files cannot be used, or the settings contradict each other.
    """
    if settings.cert_path is None or settings.key_path is None:
        raise TlsError("TLS without test mode needs tls.server.certPath and tls.server.keyPath")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _load(context, settings.cert_path, settings.key_path, settings.key_password)
    if settings.need_client_auth is ClientAuth.NONE:
        return context
    if not settings.auth_client:
        if settings.need_client_auth is ClientAuth.OPTIONAL:
            return context  # a certificate that is not verified need not be requested
        raise TlsError(
            "tls.server.need.client.auth=require needs tls.server.authClient=true and tls.server.trustCertPath:"
            " a certificate that is not verified proves nothing"
        )
    if settings.trust_cert_path is None:
        raise TlsError("tls.server.authClient=true needs tls.server.trustCertPath")
    _trust(context, settings.trust_cert_path)
    optional = settings.need_client_auth is ClientAuth.OPTIONAL
    context.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED
    return context


def client_context(settings: TlsClientSettings, *, test_mode: bool) -> ssl.SSLContext:
    """Build the context of connections that we open. Peers are reached by address, so host names are not verified.

    Raises:
        TlsError: the files cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if test_mode:
        return context
    if settings.auth_server:
        if settings.trust_cert_path is None:
            raise TlsError("tls.client.authServer=true needs tls.client.trustCertPath")
        _trust(context, settings.trust_cert_path)
        context.verify_mode = ssl.CERT_REQUIRED
    if settings.cert_path is not None and settings.key_path is not None:
        _load(context, settings.cert_path, settings.key_path, settings.key_password)
    return context


def _load(context: ssl.SSLContext, cert_path: str, key_path: str, password: str | None) -> None:
    try:
        # A function, so that a missing password fails instead of prompting on the terminal.
        context.load_cert_chain(cert_path, key_path, lambda: password or "")
    except ssl.SSLError as error:
        raise TlsError(
            f"certificate {cert_path} with key {key_path} cannot be used: one of them is not PEM, the key belongs to"
            f" another certificate, or its password is wrong ({_reason(error)})"
        ) from None
    except (OSError, ValueError) as error:
        missing = [path for path in (cert_path, key_path) if not Path(path).is_file()]
        what = f"{' and '.join(missing)} cannot be read" if missing else f"{cert_path}, {key_path} cannot be used"
        raise TlsError(f"{what}: {_reason(error)}") from None


def _trust(context: ssl.SSLContext, path: str) -> None:
    try:
        context.load_verify_locations(path)
    except (OSError, ValueError) as error:
        raise TlsError(f"trust file {path} cannot be used: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _self_signed_context() -> ssl.SSLContext:
    """Make a self-signed certificate: it encrypts the traffic, but does not prove who the server is."""
    openssl = shutil.which("openssl")
    if openssl is None:
        raise TlsError(
            "tls.test.mode.enable=true makes a certificate with the openssl command, which is not installed;"
            " install it, or set tls.test.mode.enable=false with tls.server.certPath and tls.server.keyPath"
        )
    command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj /CN=skyroute"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        with tempfile.TemporaryDirectory(prefix="skyroute-tls-") as folder:
            key, certificate = f"{folder}/key.pem", f"{folder}/cert.pem"
            command_line = [openssl, *command.split(), "-keyout", key, "-out", certificate]
            subprocess.run(command_line, check=True, capture_output=True, timeout=30)
            _load(context, certificate, key, None)
    except (OSError, subprocess.SubprocessError) as error:
        reason = error.stderr.decode(errors="replace").strip() if isinstance(error, CalledProcessError) else str(error)
        raise TlsError(
            f"openssl could not make a certificate in a temporary folder: {reason.splitlines()[-1:]};"
            " set tls.test.mode.enable=false with tls.server.certPath and tls.server.keyPath to use your own"
        ) from None
    log.warning("tls serves a self-signed certificate: tls.test.mode.enable=true")
    return context


def certificate_names(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the common names of a verified certificate's subject, then its alternative names.

    Args:
        certificate: What `SSLObject.getpeercert` returns: nothing in it if no certificate was verified.
    """
    if not certificate:
        return ()
    subject = (pair for part in certificate.get("subject", ()) for pair in part)
    names = [value for kind, value in subject if kind == "commonName"]
    names += [value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "URI", "email")]
    return tuple(dict.fromkeys(map(str, names[:CERTIFICATE_NAMES_MAX])))


class TlsStream:
    """The TLS stream of an accepted connection: decrypts what is received and encrypts what is sent.

    asyncio's own TLS cannot be started once bytes were read, and some must be read to recognise TLS.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.established = False
        self.certificate_names: tuple[str, ...] = ()
        """Names in the verified certificate of the client; empty without one."""
        self.ended = False
        """Whether the peer has ended its stream."""
        self.buffered = 0
        """Bytes received since plain text was last returned: an upper bound of what is held."""

    def decrypt(self, data: bytes) -> bytes:
        """Take received bytes and return the plain text they complete. Send what `pending` returns afterwards.

        Raises:
            TlsError: the handshake failed or the stream is broken.
        """
        self._incoming.write(data)
        self.buffered += len(data)
        pieces: list[bytes] = []
        try:
            with contextlib.suppress(ssl.SSLWantReadError):  # more bytes must be received first
                if not self.established:
                    self._object.do_handshake()
                    self.established = True
                    self.certificate_names = certificate_names(self._object.getpeercert())
                while piece := self._object.read(_READ_BYTES):
                    pieces.append(piece)
                self.ended = True  # only the end of the stream reads as nothing
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            raise TlsError(f"tls failed: {error.reason or error}") from None
        if pieces:
            self.buffered = 0
        return b"".join(pieces)

    def encrypt(self, data: bytes) -> None:
        """Encrypt plain text; `pending` returns the result."""
        view = memoryview(data)
        while view:
            view = view[self._object.write(view) :]

    def finish(self) -> None:
        """End our stream, so that the peer can tell this from a lost connection; `pending` returns the bytes."""
        with contextlib.suppress(ssl.SSLError):  # the peer's own end need not be waited for
            self._object.unwrap()

    def pending(self) -> bytes:
        """Return the bytes to send."""
        return self._outgoing.read()
