"""TLS settings of both directions. `tls.py` builds contexts from them."""

from dataclasses import dataclass, field
from enum import StrEnum


class TlsMode(StrEnum):
    """Whether TLS is disabled, allowed or required on accepted connections."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(StrEnum):
    """Whether a server requests a client certificate, and whether it requires one."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True)
class TlsClientSettings:
    """Settings of connections that we open."""

    enabled: bool = False
    key_path: str | None = None
    key_password: str | None = field(default=None, repr=False)
    cert_path: str | None = None
    auth_server: bool = False
    trust_cert_path: str | None = None


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Settings of accepted connections, and in `client` of those that we open.

    `test_mode` is for both: the server makes a certificate of its own and no peer is verified. It is the default of
    Apache's programs.
    """

    mode: TlsMode = TlsMode.PERMISSIVE
    test_mode: bool = True
    need_client_auth: ClientAuth = ClientAuth.NONE
    key_path: str | None = None
    key_password: str | None = field(default=None, repr=False)
    cert_path: str | None = None
    auth_client: bool = False
    trust_cert_path: str | None = None
    client: TlsClientSettings = TlsClientSettings()
