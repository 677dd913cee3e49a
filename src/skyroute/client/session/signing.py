"""Signs requests, so that a broker with access control knows who asks."""

import base64
import hmac
from dataclasses import dataclass, field
from typing import Final

from skyroute.client.errors import ArgumentError
from skyroute.wire.command import Request

SIGNATURE: Final = "Signature"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who we are, as the broker's administrator wrote it down.

    Examples:
        >>> Credentials("rocketmq2", "12345678")
        Credentials(access_key='rocketmq2')

    Raises:
        ArgumentError: one of them is no text, or empty.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        # None of the texts may tell a secret, not even a wrong one.
        for name in ("access_key", "secret_key", "security_token"):
            text = getattr(self, name)
            if not (isinstance(text, str) and text) and not (name == "security_token" and text in (None, "")):
                what = "empty" if isinstance(text, str) else f"of the type {type(text).__name__}"
                raise ArgumentError(f"{name} is text that is not empty: it is {what}")

    def sign(self, request: Request) -> None:
        """Put our name and the signature over all fields and the body into a request. Signing again is harmless."""
        fields = request.fields
        fields["AccessKey"] = self.access_key
        if self.security_token:
            fields["SecurityToken"] = self.security_token
        text = "".join([fields[name] for name in sorted(fields) if name != SIGNATURE])
        digest = hmac.digest(self.secret_key.encode(), text.encode() + request.body, "sha1")
        fields[SIGNATURE] = base64.b64encode(digest).decode()
