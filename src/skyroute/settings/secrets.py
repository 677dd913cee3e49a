"""Which settings may hold a secret, and what is told in the place of one."""

import re
from typing import Final

HIDDEN: Final = "******"
"""Told in the place of a secret. Sent back in an update, it leaves the secret as it is."""

_MAY_BE_SECRET: Final = re.compile(
    "passw|pwd|passphrase|secret|credential|token|access_?key|api_?key|private_?key|authenticationuser"
    "|socksproxyconfig|exporterheader",  # a proxy's password and a collector's authorization are part of these
    re.IGNORECASE,
)


def may_be_secret(key: str) -> bool:
    """Return whether a setting of this name may hold a secret."""
    return _MAY_BE_SECRET.search(key) is not None


def shown(key: str, text: str) -> str:
    """Return what may be told of a setting's value; that there is none is no secret."""
    return HIDDEN if may_be_secret(key) and text not in ("", "{}") else text
