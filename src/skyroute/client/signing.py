"""Signs requests, so that a broker with access control knows who asks."""

import base64
import hmac
from dataclasses import dataclass, field
from typing import Final

from skyroute.wire.command import Request

SIGNATURE: Final = "Signature"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who we are, as the broker's administrator wrote it down.

    >>> Credentials("rocketmq2", "12345678")
    Credentials(access_key='rocketmq2')
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def sign(self, request: Request) -> None:
        """Put our name and the signature over all fields and the body into a request. Signing again is harmless."""
        fields = request.fields
        fields["AccessKey"] = self.access_key
        if self.security_token:
            fields["SecurityToken"] = self.security_token
        text = "".join([fields[name] for name in sorted(fields) if name != SIGNATURE])
        digest = hmac.digest(self.secret_key.encode(), text.encode() + request.body, "sha1")
        fields[SIGNATURE] = base64.b64encode(digest).decode()
