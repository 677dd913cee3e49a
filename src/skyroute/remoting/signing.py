"""Signs the requests that a server sends to other servers."""

from dataclasses import dataclass, field

from skyroute.wire.command import Request
from skyroute.wire.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, signature_of, signed_content


@dataclass(frozen=True, slots=True)
class Signer:
    """An access key with its secret key, which is never shown."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def sign(self, request: Request) -> None:
        """Add the access key and the signature to a request. Signing twice is harmless."""
        fields = request.fields
        fields[ACCESS_KEY] = self.access_key
        if self.security_token:
            fields[SECURITY_TOKEN] = self.security_token
        fields[SIGNATURE] = signature_of(self.secret_key, signed_content(fields, request.body))
