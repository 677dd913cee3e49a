"""The values that decide how TLS is spoken, for both directions; building a context from them is `tls.py`'s work."""

from dataclasses import dataclass, field
from enum import StrEnum


class TlsMode(StrEnum):
    """Whether an accepted connection may, may not or must speak TLS."""

    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(StrEnum):
    """Whether an accepting side asks its peer for a certificate, and whether it insists."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True)
class TlsClientSettings:
    """The connecting side: what we present, and whether we check whom we reached."""

    enabled: bool = False
    key_path: str | None = None
    key_password: str | None = field(default=None, repr=False)
    cert_path: str | None = None
    auth_server: bool = False
    trust_cert_path: str | None = None


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The accepting side, and in `client` the connecting one.

    `test_mode` covers both: a throw-away certificate is served and no peer is checked, which is what Java peers do
    unless told otherwise.
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
