"""Signs requests for brokers with access control (ACL)."""

import os
from dataclasses import dataclass, field
from typing import Final, Self

from skyroute.client.errors import ArgumentError
from skyroute.settings.credentials import read_credentials_file
from skyroute.wire.command import Request
from skyroute.wire.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, signature_of, signed_content

FILE_VARIABLE: Final = "SKYROUTE_CREDENTIALS_FILE"
"""Environment variable with the path of a file with credentials."""


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

    @classmethod
    def from_file(cls, path: str) -> Self:
        """Read a file with `accessKey` and `secretKey`: JSON, or lines `accessKey: name` as in mqadmin's `tools.yml`.

        Raises:
            ConfigError: the file cannot be read, or a key is missing.
        """
        found = read_credentials_file(path)
        return cls(found.access_key, found.secret_key, found.security_token)

    @classmethod
    def from_environment(cls) -> Self | None:
        """Return what the environment names; None if it names nothing.

        That is the file in `SKYROUTE_CREDENTIALS_FILE`, or `ROCKETMQ_ACCESS_KEY` with `ROCKETMQ_SECRET_KEY`.

        Raises:
            ConfigError: the file cannot be read, or a key is missing.
            ArgumentError: the secret key is missing.
        """
        if path := os.environ.get(FILE_VARIABLE):
            return cls.from_file(path)
        access_key = os.environ.get("ROCKETMQ_ACCESS_KEY")
        return cls(access_key, os.environ.get("ROCKETMQ_SECRET_KEY", "")) if access_key else None

    def sign(self, request: Request) -> None:
        """Add the access key, and the signature of all fields and the body, to a request. Signing twice is harmless."""
        fields = request.fields
        fields[ACCESS_KEY] = self.access_key
        if self.security_token:
            fields[SECURITY_TOKEN] = self.security_token
        fields[SIGNATURE] = signature_of(self.secret_key, signed_content(fields, request.body))
