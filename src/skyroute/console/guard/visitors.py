"""Who is looking: signed in or not, with which role, in which language, in which colours."""

import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from skyroute.clock import Clock
from skyroute.console.guard.users import Role, User

SESSIONS_MAX: Final = 1_000
SESSION_S: Final = 12 * 3600.0
SECRET_BYTES: Final = 32
SECRET_CHARS: Final = len(secrets.token_urlsafe(SECRET_BYTES))
ADDRESSES_MAX: Final = 10_000
TRIES_MAX: Final = 5
"""Wrong passwords in a row from one address, before it has to wait."""
WAIT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who asks for a page."""

    name: str
    role: Role | None
    """None: not signed in, where one has to be."""
    token: str
    """What a form of this visitor carries, to prove that it came from one of our pages."""
    language: str
    theme: str

    @property
    def may_change(self) -> bool:
        return self.role is Role.OPERATOR


def new_secret() -> str:
    """Return an unguessable cookie value."""
    return secrets.token_urlsafe(SECRET_BYTES)


class Sessions:
    """Those who have signed in, by the secret in their cookie. The longest unseen make room for others."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(SECRET_BYTES)
        self._users: OrderedDict[str, tuple[User, float]] = OrderedDict()
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def open(self, user: User) -> str:
        """Begin a session, and return its secret."""
        secret = new_secret()
        self._users[secret] = (user, self._clock.monotonic() + SESSION_S)
        while len(self._users) > SESSIONS_MAX:
            self._users.popitem(last=False)
        return secret

    def find(self, secret: str) -> User | None:
        """Return whose session this is, if it has not ended."""
        user, ends = self._users.get(secret, (None, 0.0))
        if user is None or ends < self._clock.monotonic():
            self._users.pop(secret, None)
            return None
        self._users.move_to_end(secret)
        return user

    def close(self, secret: str) -> None:
        self._users.pop(secret, None)

    def token(self, kind: str, secret: str) -> str:
        """Return what the forms of a session carry. Only this process can make it, so a planted cookie is no use.

        Args:
            kind: `session` of somebody who signed in, or `visitor`.
            secret: The value of that one's cookie.
        """
        return hmac.digest(self._key, f"{kind}:{secret}".encode(), "sha256").hex()

    def must_wait(self, address: str) -> bool:
        """Whether an address has guessed too often of late."""
        tries, last = self._wrong.get(address, (0, 0.0))
        return tries >= TRIES_MAX and self._clock.monotonic() < last + WAIT_S

    def note_try(self, address: str, *, right: bool) -> None:
        """Remember how a try ended."""
        tries, _ = self._wrong.pop(address, (0, 0.0))
        if not right:
            self._wrong[address] = (tries + 1, self._clock.monotonic())
            while len(self._wrong) > ADDRESSES_MAX:
                self._wrong.popitem(last=False)
