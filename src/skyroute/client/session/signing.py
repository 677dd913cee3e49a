"""Signs requests for brokers with access control (ACL)."""

from dataclasses import dataclass, field

from skyroute.client.errors import ArgumentError
from skyroute.wire.command import Request
from skyroute.wire.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, signature_of, signed_content


@dataclass(frozen=True, slots=True)
class Credentials:
    """The access key and secret key of an account at the broker.

    Examples:
        >>> Credentials("rocketmq2", "12345678")
        Credentials(access_key='rocketmq2')

    Raises:
        ArgumentError: one of them is not text, or empty.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        # No error text may contain a secret, not even an invalid one.
        for name in ("access_key", "secret_key", "security_token"):
            text = getattr(self, name)
            if not (isinstance(text, str) and text) and not (name == "security_token" and text in (None, "")):
                what = "empty" if isinstance(text, str) else f"of type {type(text).__name__}"
                raise ArgumentError(f"{name} is {what}: expected text that is not empty")

    def sign(self, request: Request) -> None:
        """Add the access key, and the signature of all fields and the body, to a request. Signing twice is harmless."""
        fields = request.fields
        fields[ACCESS_KEY] = self.access_key
        if self.security_token:
            fields[SECURITY_TOKEN] = self.security_token
        fields[SIGNATURE] = signature_of(self.secret_key, signed_content(fields, request.body))
