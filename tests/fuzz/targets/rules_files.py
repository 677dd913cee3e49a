"""Files of users and policies, ours and that of ACL 1.0: refused without a secret in the text, or read.

Input: a byte that chooses the format, then the content.
"""

import re
from typing import Final

from skyroute.access.errors import RulesError
from skyroute.access.plain_acl import parse_plain_acl
from skyroute.access.rules_file import decode_rules, encode_rules

SECRET: Final = "secret-of-the-corpus"
"""Password of the users in the corpus."""
PASSWORDS: Final = tuple(
    re.compile(before + rb"[\"']?" + SECRET.encode()) for before in (rb"\"password\":\s*", rb"secretKey:\s+")
)
"""Where it is a password in each format."""


def check(data: bytes) -> None:
    is_plain, content = (data[0] % 2 == 1, data[1:]) if data else (False, b"")
    rules, refusal = None, ""
    try:
        rules = parse_plain_acl(content) if is_plain else decode_rules(content, "rules.json")
    except RulesError as error:
        refusal = str(error)
    if SECRET.encode() not in PASSWORDS[is_plain].sub(b"", content):  # else it is a name as well
        assert SECRET not in refusal + repr(rules)
    if rules is not None and not is_plain:
        assert decode_rules(encode_rules(rules), "rules.json") == rules
