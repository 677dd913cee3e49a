"""The signature of a request (ACL 1.0 and 2.0): one rule for the client that signs and the server that checks."""

import base64
import hmac
from collections.abc import Mapping
from typing import Final

from skyroute.wire.codes import V4_9_4
from skyroute.wire.command import Request

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
ACCESS_FIELDS: Final = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE})
"""Fields that prove who sent a request. A server removes them before it forwards a request."""

_UNSIGNED_BEFORE_4_9_4: Final = "_UNIQUE_KEY_QUERY"
"""Clients up to 4.9.3 add this field after they have signed."""
_V4_9_4_SNAPSHOT: Final = V4_9_4 - 1


def signed_content(fields: Mapping[str, str], body: bytes) -> bytes:
    """Return the signed bytes: the values of all fields but the signature, in order of their names, and the body."""
    return "".join([fields[name] for name in sorted(fields) if name != SIGNATURE]).encode() + body


def received_content(request: Request) -> bytes:
    """Return the bytes that the sender of a request signed.

    Raises:
        UnicodeEncodeError: a field is not valid text.
    """
    fields = request.fields
    if request.version < _V4_9_4_SNAPSHOT and _UNSIGNED_BEFORE_4_9_4 in fields:
        fields = {name: value for name, value in fields.items() if name != _UNSIGNED_BEFORE_4_9_4}
    return signed_content(fields, request.body)


def signature_of(secret_key: str, content: bytes) -> str:
    """Return the signature: HMAC-SHA1 with the secret key, in Base64."""
    return base64.b64encode(hmac.digest(secret_key.encode(), content, "sha1")).decode()


def is_signature(given: str, secret_key: str, content: bytes) -> bool:
    """Return whether a signature is right. The time it takes does not depend on where the two differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), signature_of(secret_key, content).encode())
