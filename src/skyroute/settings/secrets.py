"""Settings that may hold a secret, and the text shown instead of it."""

import re
from typing import Final

HIDDEN: Final = "******"
"""Shown instead of a secret. An update with this value does not change the secret."""

_MAY_BE_SECRET: Final = re.compile(
    "passw|pwd|passphrase|secret|credential|token|access_?key|api_?key|private_?key|authenticationuser"
    "|socksproxyconfig|exporterheader",  # a proxy's password and a collector's authorization are part of these
    re.IGNORECASE,
)


def may_be_secret(key: str) -> bool:
    """Return whether a setting of this name may hold a secret."""
    return _MAY_BE_SECRET.search(key) is not None


def shown(key: str, text: str) -> str:
    """Return a setting's value, hidden if it may be a secret and is not empty."""
    return HIDDEN if may_be_secret(key) and text not in ("", "{}") else text
