"""Visitors and their sessions, and the limit for wrong passwords."""

import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from skyroute.clock import Clock
from skyroute.console.access.users import Role, User

SESSIONS_MAX: Final = 1_000
SESSION_S: Final = 12 * 3600.0
SECRET_BYTES: Final = 32
SECRET_CHARS: Final = len(secrets.token_urlsafe(SECRET_BYTES))
ADDRESSES_MAX: Final = 10_000
ATTEMPTS_MAX: Final = 5
"""Wrong passwords from one address before it must wait after each further one."""
WAIT_S: Final = 30.0
FORGET_S: Final = 3600.0
"""Time without a wrong password after which the earlier ones of an address no longer count."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """The sender of a request."""

    name: str
    role: Role | None
    """None: not signed in, although sign-in is required."""
    token: str
    """The forms of this visitor's pages carry it; a form without it is refused."""
    language: str
    theme: str

    @property
    def may_change(self) -> bool:
        return self.role is Role.OPERATOR


def new_secret() -> str:
    """Return a random cookie value."""
    return secrets.token_urlsafe(SECRET_BYTES)


class Sessions:
    """Signed-in users by the secret in their cookie; above `SESSIONS_MAX`, the least recently used one is evicted."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(SECRET_BYTES)
        self._users: OrderedDict[str, tuple[User, float]] = OrderedDict()
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def open(self, user: User) -> str:
        """Start a session, and return its secret."""
        secret = new_secret()
        self._users[secret] = (user, self._clock.monotonic() + SESSION_S)
        while len(self._users) > SESSIONS_MAX:
            self._users.popitem(last=False)
        return secret

    def find(self, secret: str) -> User | None:
        """Return the user of a session, or None if it has ended."""
        user, ends = self._users.get(secret, (None, 0.0))
        if user is None or ends < self._clock.monotonic():
            self._users.pop(secret, None)
            return None
        self._users.move_to_end(secret)
        return user

    def close(self, secret: str) -> None:
        self._users.pop(secret, None)

    def token(self, kind: str, secret: str) -> str:
        """Return the token for the forms of a session. Only this process can compute it from a cookie.

        Args:
            kind: `session` of a signed-in user, or `visitor`.
            secret: The value of the cookie.
        """
        return hmac.digest(self._key, f"{kind}:{secret}".encode(), "sha256").hex()

    def must_wait(self, address: str) -> bool:
        """Return whether an address sent too many wrong passwords."""
        attempts, last = self._wrong.get(address, (0, 0.0))
        return attempts >= ATTEMPTS_MAX and self._clock.monotonic() < last + WAIT_S

    def record_attempt(self, address: str, *, right: bool) -> None:
        """Count a wrong password. A right one clears nothing: with it, one user could guess that of another."""
        if right:
            return
        now = self._clock.monotonic()
        attempts, last = self._wrong.pop(address, (0, now))
        self._wrong[address] = (attempts + 1 if now < last + FORGET_S else 1, now)
        while len(self._wrong) > ADDRESSES_MAX:
            self._wrong.popitem(last=False)
