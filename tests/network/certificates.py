"""Authorities, certificates and contexts for tests of TLS."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme

from skyroute.remoting.tls_settings import ClientAuth, TlsMode, TlsSettings


class Files:
    """The files of one server: key, certificate and whom it trusts."""

    def __init__(self, folder: Path, authority: trustme.CA, *, trusted: trustme.CA | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.key = folder / "server.key"
        self.certificate = folder / "server.pem"
        self.trust = folder / "trust.pem"
        self.renew(authority)
        self.trust_only(trusted or authority)

    def renew(self, authority: trustme.CA, *, key: bool = True, certificate: bool = True) -> trustme.LeafCert:
        """Write a new certificate and its key, or one half of that."""
        issued = authority.issue_cert("localhost", "127.0.0.1")
        if key:
            issued.private_key_pem.write_to_path(self.key)
        if certificate:
            write_chain(issued, self.certificate)
        return issued

    def trust_only(self, authority: trustme.CA) -> None:
        authority.cert_pem.write_to_path(self.trust)

    def settings(
        self, *, mode: TlsMode = TlsMode.PERMISSIVE, need_client_auth: ClientAuth = ClientAuth.NONE
    ) -> TlsSettings:
        return TlsSettings(
            mode=mode,
            test_mode=False,
            need_client_auth=need_client_auth,
            key_path=str(self.key),
            cert_path=str(self.certificate),
            auth_client=need_client_auth is not ClientAuth.NONE,
            trust_cert_path=str(self.trust),
        )


def write_chain(issued: trustme.LeafCert, path: Path) -> None:
    path.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))


def client_of(authority: trustme.CA, *, presenting: trustme.CA | None = None) -> ssl.SSLContext:
    """Trusts one authority alone, and shows a certificate of another if told to."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    if presenting is not None:
        presenting.issue_cert("client@example.org").configure_cert(context)
    return context


def client_that_trusts_anyone() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
