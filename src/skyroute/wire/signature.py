"""The signature of a request (ACL 1.0 and 2.0): one rule for the client that signs and the server that checks."""

import base64
import hmac
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
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
FORMS_MAX: Final = 1_000
"""Maximum number of sets of field names whose order is remembered; then all are forgotten."""
NAMES_CHARS_MAX: Final = 1_000
"""Maximum length of the names of such a set."""

_Values = Callable[[Mapping[str, str]], Iterable[str]]
_VALUES: Final[dict[tuple[str, ...], _Values]] = {}
_V4_9_4_SNAPSHOT: Final = V4_9_4 - 1


def signed_content(fields: Mapping[str, str], body: bytes) -> bytes:
    """Return the signed bytes: the values of all fields but the signature, in order of their names, and the body."""
    names = tuple(fields)
    values = _VALUES.get(names)
    if values is None:
        values = _values_in_order(names)
    return "".join(values(fields)).encode() + body


def _values_in_order(names: tuple[str, ...]) -> _Values:
    """Return what picks the signed values of fields with these names, and remember it: most requests look alike."""
    signed = sorted(name for name in names if name != SIGNATURE)
    values: _Values = itemgetter(*signed) if len(signed) > 1 else lambda fields: [fields[name] for name in signed]
    if sum(map(len, names)) <= NAMES_CHARS_MAX:
        if len(_VALUES) >= FORMS_MAX:
            _VALUES.clear()
        _VALUES[names] = values
    return values


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
