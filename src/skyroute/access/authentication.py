"""Finds out which user sent a request: by signature, by client certificate, or by a trusted source address."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from skyroute.access.rules import Rules
from skyroute.access.users import User
from skyroute.wire.calls.send import SignedSendRequest
from skyroute.wire.command import Request
from skyroute.wire.fields import NAME_CHARS_MAX
from skyroute.wire.signature import ACCESS_KEY, SIGNATURE, received_text


class Failure(StrEnum):
    """Why it is not known who sent a request; the names of counters."""

    NO_USER = "no_user"
    UNKNOWN_USER = "unknown_user"
    DISABLED_USER = "disabled_user"
    BAD_SIGNATURE = "bad_signature"


class Unauthenticated(msgspec.Struct, frozen=True, gc=False):
    """A request whose sender is not known."""

    failure: Failure
    name: str
    """The user that the request names; empty if none."""
    text: str
    """The reason, in Apache's words."""


class Authenticated(msgspec.Struct, frozen=True, gc=False):
    """A request whose sender is known."""

    user: User
    is_signed: bool = True
    is_trusted: bool = False
    """Whether the user trusts the source address: no policy applies."""


def authenticate(
    rules: Rules, request: Request, source: str, certificate_names: Sequence[str] = ()
) -> Authenticated | Unauthenticated:
    """Find the user that sent a request.

    A request that names a user must be signed by it, also on a connection with a client certificate.

    Args:
        rules: All users.
        request: The request, with all its fields.
        source: The IP address that it came from.
        certificate_names: Subject and alternative names of the checked client certificate, if there is one.
    """
    name = access_key_of(request)
    if not name:
        name = next((one for one in certificate_names if one in rules.users), "")
        if not name:
            return Unauthenticated(Failure.NO_USER, "", "username cannot be null.")
        return _if_enabled(Authenticated(rules.users[name], is_signed=False))
    user = rules.users.get(name)
    if user is None:
        name = name[:NAME_CHARS_MAX]  # it may be as long as a frame
        return Unauthenticated(Failure.UNKNOWN_USER, name, f"User:{name} is not found.")
    if user.trusted_sources.contains(source):
        return _if_enabled(Authenticated(user, is_signed=False, is_trusted=True))
    if not _has_signed(user, request):
        return Unauthenticated(Failure.BAD_SIGNATURE, name, "check signature failed.")
    return _if_enabled(Authenticated(user))


def access_key_of(request: Request) -> str:
    """Return the name of the user that a request names; empty if none."""
    if isinstance(request, SignedSendRequest):
        return request.fields.access_key
    fields: Any = request.fields
    # Other headers that were decoded directly have lost the fields that prove who sent them.
    return fields.get(ACCESS_KEY, "") if isinstance(fields, dict) else ""


def _has_signed(user: User, request: Request) -> bool:
    if isinstance(request, SignedSendRequest):
        if user.password.has_signed(request.fields.signature, request.signed_text, request.body):
            return True
        request = request.decode_again()  # a client may write numbers in another way, or leave fields out
    return user.password.has_signed(request.fields.get(SIGNATURE, ""), received_text(request), request.body)


def _if_enabled(found: Authenticated) -> Authenticated | Unauthenticated:
    # Apache's broker looks at this before the signature; here, only the user learns it.
    name = found.user.name
    return found if found.user.is_enabled else Unauthenticated(Failure.DISABLED_USER, name, f"User:{name} is disabled.")
