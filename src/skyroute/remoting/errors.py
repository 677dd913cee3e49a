"""Errors of connections."""

import os
import socket
import ssl
from collections.abc import Mapping
from typing import Final

from skyroute.errors import SkyrouteError


class RemotingError(SkyrouteError):
    """The connection failed."""

    retryable = True


class BindError(RemotingError):
    """The configured listen address cannot be bound."""

    retryable = False


class TlsError(RemotingError):
    """A key, certificate or trust file cannot be used, or a TLS handshake failed."""

    retryable = False


class ConnectError(RemotingError):
    """The address cannot be reached."""


class ConnectionLostError(RemotingError):
    """The connection ended before the response; the request may or may not have been processed."""


class CallTimeoutError(RemotingError):
    """There was no response in time; the request may or may not have been processed."""


class RefusedError(SkyrouteError):
    """A request is refused with a response code, a reason and, if there are any, response fields."""

    def __init__(self, code: int, reason: str, fields: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.code: Final = code
        self.fields: Final = fields


def reason_of(error: Exception) -> str:
    """Return why the system could not connect or listen, in the same words with every event loop."""
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror | ssl.SSLError):
        return os.strerror(error.errno)
    return getattr(error, "strerror", None) or str(error)
