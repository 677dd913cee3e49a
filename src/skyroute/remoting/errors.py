"""What can go wrong with the line between two peers."""

from collections.abc import Mapping
from typing import Final

from skyroute.errors import SkyrouteError


class RemotingError(SkyrouteError):
    """The line failed, not the one at its other end."""

    retryable = True


class BindError(RemotingError):
    """The address we were told to serve cannot be had."""

    retryable = False


class TlsError(RemotingError):
    """Key, certificate or trust material cannot be used."""

    retryable = False


class ConnectError(RemotingError):
    """Nobody answers at the address."""


class ConnectionLostError(RemotingError):
    """The connection ended before the answer came; whether the request was carried out is unknown."""


class CallTimeoutError(RemotingError):
    """No answer came in time; whether the request was carried out is unknown."""


class RefusedError(SkyrouteError):
    """A request is refused with a response code, a reason and, if there are any, response fields."""

    def __init__(self, code: int, reason: str, fields: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.code: Final = code
        self.fields: Final = fields
