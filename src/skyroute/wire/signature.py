"""The signature of a request (ACL 1.0 and 2.0): one rule for the client that signs and the server that checks."""

import hmac
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha1
from hmac import compare_digest
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
    return signed_text(fields).encode() + body


def signed_text(fields: Mapping[str, str]) -> str:
    """Return the signed values of fields: all but the signature, in order of their names."""
    names = tuple(fields)
    values = _VALUES.get(names)
    if values is None:
        values = _values_in_order(names)
    return "".join(values(fields))


def _values_in_order(names: tuple[str, ...]) -> _Values:
    """Return what picks the signed values of fields with these names, and remember it: most requests look alike."""
    signed = sorted(name for name in names if name != SIGNATURE)
    values: _Values = itemgetter(*signed) if len(signed) > 1 else lambda fields: [fields[name] for name in signed]
    if sum(map(len, names)) <= NAMES_CHARS_MAX:
        if len(_VALUES) >= FORMS_MAX:
            _VALUES.clear()
        _VALUES[names] = values
    return values


def received_text(request: Request) -> str:
    """Return the text that the sender of a request signed, before the body."""
    fields = request.fields
    if request.version < _V4_9_4_SNAPSHOT and _UNSIGNED_BEFORE_4_9_4 in fields:
        fields = {name: value for name, value in fields.items() if name != _UNSIGNED_BEFORE_4_9_4}
    return signed_text(fields)


def signature_of(secret_key: str, content: bytes) -> str:
    """Return the signature: HMAC-SHA1 with the secret key, in Base64."""
    return b2a_base64(hmac.digest(secret_key.encode(), content, "sha1"), newline=False).decode()


_BLOCK_BYTES: Final = 64
_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))


class SigningKey:
    """A secret key that checks many signatures.

    The part of HMAC-SHA1 that depends on the key alone is done once: a check of 1 KiB takes 1.5 us in place of 2.6.

    Raises:
        UnicodeEncodeError: the key is not valid text.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret_key: str) -> None:
        key = secret_key.encode()
        if len(key) > _BLOCK_BYTES:
            key = sha1(key).digest()
        key = key.ljust(_BLOCK_BYTES, b"\0")
        self._inner, self._outer = (sha1(key.translate(pad)) for pad in (_INNER, _OUTER))

    def has_signed(self, signature: str, text: str, body: bytes) -> bool:
        """Return whether a signature of a text and a body is right.

        The time it takes does not depend on where the two differ.
        """
        inner, outer = self._inner.copy(), self._outer.copy()
        try:
            inner.update(text.encode())
            given = signature.encode()
        except UnicodeEncodeError:
            return False
        inner.update(body)
        outer.update(inner.digest())
        return compare_digest(given, b2a_base64(outer.digest(), newline=False))
