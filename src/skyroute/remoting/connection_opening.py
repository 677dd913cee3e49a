"""The first bytes of an accepted connection: an optional PROXY header, then TLS or plain frames."""

from typing import Final

from skyroute.remoting.errors import TlsError
from skyroute.remoting.tls import ServerTls, TlsStream
from skyroute.remoting.tls_settings import TlsMode
from skyroute.wire.errors import FrameError
from skyroute.wire.proxy_protocol import PROXY_STARTS, read_proxy_header

TLS_HANDSHAKE_BYTES: Final = 64 * 1024
"""Memory that is counted for an unfinished handshake: OpenSSL does not report it."""

_TLS_HANDSHAKE: Final = 0x16
_DECIDING_BYTES: Final = 12
"""Enough bytes to decide: hardly a frame is shorter, and no handshake."""


class UntrustedProxyError(FrameError):
    """A PROXY header came from an address that `trustedProxies` does not list."""


class OpeningStream:
    """Turns received bytes into plain bytes: removes a PROXY header and decrypts TLS.

    A connection with TLS keeps it. A plain connection drops it once `is_open`.
    """

    __slots__ = (
        "_first_bytes",
        "_is_trusted_proxy",
        "_server_tls",
        "first_byte_at",
        "has_turn",
        "is_open",
        "needs_context",
        "proxied_address",
        "tls",
        "waiting",
    )

    def __init__(self, server_tls: ServerTls, *, is_trusted_proxy: bool) -> None:
        self._server_tls = server_tls
        self._is_trusted_proxy = is_trusted_proxy
        self._first_bytes = b""
        self.first_byte_at: float | None = None
        self.proxied_address: str | None = None
        """The client's address in the PROXY header."""
        self.needs_context = False
        """Whether the peer wants TLS and there is no certificate yet: call `feed` again once there is."""
        self.tls: TlsStream | None = None
        self.is_open = False
        """Whether frames may follow: the start is plain, or the TLS handshake is complete."""
        self.waiting: bytes | None = None
        """Bytes received while other connections are served first; None if it need not wait."""
        self.has_turn = False
        """Whether the connection takes its turn."""

    @property
    def held_bytes(self) -> int:
        waiting_bytes = len(self.waiting or b"")
        if self.tls is None:
            return len(self._first_bytes) + waiting_bytes
        return self.tls.buffered if self.tls.established else TLS_HANDSHAKE_BYTES + waiting_bytes

    def feed(self, data: bytes, now: float) -> bytes:
        """Take received bytes and return the plain ones. Send what `pending` returns afterwards, even after an error.

        Raises:
            FrameError: a PROXY header is malformed or not trusted.
            TlsError: the handshake failed, or TLS is required or disabled by the settings.
        """
        if self.tls is not None:
            return self._decrypt(self.tls, data)
        if self.first_byte_at is None:
            self.first_byte_at = now
        self.needs_context = False
        data = self._first_bytes + data
        if data.startswith(PROXY_STARTS) and not self._is_trusted_proxy:
            raise UntrustedProxyError("a PROXY header from an address that trustedProxies does not name")
        proxied = read_proxy_header(data)
        if proxied is None or _is_undecided(data[proxied.header_bytes :]):
            self._first_bytes = data
            return b""
        rest, mode = data[proxied.header_bytes :], self._server_tls.mode
        self.proxied_address = proxied.address
        if rest[0] == _TLS_HANDSHAKE:
            if mode is TlsMode.DISABLED:
                raise TlsError("the peer speaks TLS, which tls.server.mode=disabled forbids")
            context = self._server_tls.context
            if context is None:
                self._first_bytes = data
                self.needs_context = True
                return b""
            self._first_bytes = b""
            self.tls = TlsStream(context)
            return self._decrypt(self.tls, rest)
        if mode is TlsMode.ENFORCING:
            raise TlsError("the peer does not speak TLS, which tls.server.mode=enforcing demands")
        self._first_bytes = b""
        self.is_open = True
        return rest

    def _decrypt(self, tls: TlsStream, data: bytes) -> bytes:
        plain = tls.decrypt(data)
        self.is_open = tls.established
        return plain

    def pending(self) -> bytes:
        """Return the TLS bytes to send."""
        return b"" if self.tls is None else self.tls.pending()

    def clear(self) -> None:
        """Drop the bytes received so far."""
        self._first_bytes, self.waiting = b"", None


def _is_undecided(data: bytes) -> bool:
    """Return whether the data is too short to decide: neither a whole short frame nor `_DECIDING_BYTES`."""
    return len(data) < _DECIDING_BYTES and (len(data) < 4 or int.from_bytes(data[:4]) > len(data) - 4)
