"""Users, and their passwords, which sign requests."""

from dataclasses import dataclass
from typing import Final

from skyroute.access.errors import RulesError
from skyroute.access.sources import NO_SOURCES, Sources
from skyroute.settings.secrets import HIDDEN
from skyroute.wire.fields import is_name
from skyroute.wire.signature import SigningKey

PASSWORD_CHARS_MAX: Final = 1_024


class Password:
    """A password. It is never shown: `str`, `repr` and formatting give asterisks.

    It is kept as it is, not as a hash, because it is the key of the signatures.

    Raises:
        RulesError: it is empty, too long, or not valid text.
    """

    __slots__ = ("_text", "has_signed")

    def __init__(self, text: str) -> None:
        if not text.strip() or len(text) > PASSWORD_CHARS_MAX:
            raise RulesError("password can not be blank" if not text.strip() else "password is too long")
        self._text = text
        try:
            self.has_signed = SigningKey(text).has_signed
            """Returns whether this password made a signature of a text and a body."""
        except UnicodeEncodeError:
            raise RulesError("password is not valid text") from None

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Password) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> str:
        raise TypeError("a password is not pickled or copied")

    def reveal(self) -> str:
        """Return the password, for the rules file and nothing else."""
        return self._text


@dataclass(frozen=True, slots=True)
class User:
    """A user.

    Raises:
        RulesError: the name is invalid.
    """

    name: str
    password: Password
    is_super: bool = False
    """Whether every request is allowed, whatever the policies say."""
    is_enabled: bool = True
    trusted_sources: Sources = NO_SOURCES
    """Addresses from which requests in this user's name need no signature and no policy (ACL 1.0 only)."""

    def __post_init__(self) -> None:
        if not is_name(self.name) or not self.name.strip():
            raise RulesError(f"invalid user name {self.name[:80]!r}")
