"""Reads `plain_acl.yml`, the file of ACL 1.0, as RocketMQ 4.x has it.

Only the known form is read: two levels of mappings, lists of texts, comments and quotes. Anchors, tags, flow mappings
and block texts are refused, so that a file is never understood in another way than it was meant.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from skyroute.access.errors import RulesError
from skyroute.access.policies import Acl, Decision, Entry, PolicyKind
from skyroute.access.resources import Action, Pattern, Resource, ResourceKind, group, topic
from skyroute.access.rules import Rules
from skyroute.access.sources import Sources, parse_patterns
from skyroute.access.users import Password, User

LINES_MAX: Final = 200_000

_ITEM: Final = re.compile(r"-(?:\s+|$)")
_KEY: Final = re.compile(r"([A-Za-z]+)\s*:(?:\s+(.*))?$")
_PLAIN_START: Final = frozenset("&*!|>%@`{}[],#?\"'")
"""Characters with which a text without quotes cannot begin; an asterisk alone is allowed, for addresses."""

_DENY: Final = frozenset({Action.ALL}), Decision.DENY
# In 4.x, a consumer may look up the offsets of a queue; in ACL 2.0 that is Get.
_SUB: Final = frozenset({Action.SUB, Action.GET}), Decision.ALLOW
_PUB_SUB: Final = frozenset({Action.PUB, Action.SUB, Action.GET}), Decision.ALLOW
_PERMISSIONS: Final = {
    "DENY": _DENY,
    "PUB": (frozenset({Action.PUB}), Decision.ALLOW),
    "SUB": _SUB,
    "PUB|SUB": _PUB_SUB,
    "SUB|PUB": _PUB_SUB,
}
_TEXTS: Final = frozenset(
    {"accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm"}
)
_LISTS: Final = frozenset({"topicPerms", "groupPerms"})
_WHITE: Final = "globalWhiteRemoteAddresses"
_ACCOUNTS: Final = "accounts"

_Account = dict[str, str | list[str]]


def parse_plain_acl(content: bytes, where: str = "plain_acl.yml") -> Rules:
    """Return the users, policies and trusted addresses of an ACL 1.0 file.

    An account is a user: `admin` a super user, `topicPerms` and `groupPerms` the custom policy, the default permissions
    the default policy. Requests from a white address pass, as in 4.x: from those of an account without a signature and
    without a policy, from the global ones without a user.

    Raises:
        RulesError: the file is invalid. The text has the line number, and no secret.
    """
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise RulesError(f"{where} is not UTF-8") from None
    try:
        white, accounts = _read(text)
        rules = Rules(trusted_sources=parse_patterns(white))
        users: dict[str, User] = {}
        acls: dict[str, Acl] = {}
        for account in accounts:
            user, acl = _user(account, users), _acl(account)
            users[user.name] = user
            if acl:
                acls[user.name] = acl
        return replace(rules, users=users, acls=acls)
    except RulesError as error:
        raise RulesError(f"{where}: {error}") from None


# Accounts to rules


def _user(account: _Account, others: Mapping[str, User]) -> User:
    name, secret = _text(account, "accessKey"), _text(account, "secretKey")
    if name in others:
        raise RulesError(f"account {name[:80]!r} is there twice")
    if not name or not secret:
        raise RulesError(f"account {name[:80]!r} has no accessKey or no secretKey")
    admin = _text(account, "admin").lower() or "false"
    if admin not in ("true", "false"):
        raise RulesError(f"account {name[:80]!r}: admin is neither true nor false")
    return User(name, Password(secret), admin == "true", trusted_sources=_white(account))


def _white(account: _Account) -> Sources:
    text = _text(account, "whiteRemoteAddress")
    return parse_patterns((text,) if text else ())


def _acl(account: _Account) -> Acl:
    custom = [*_entries(account, "topicPerms", topic), *_entries(account, "groupPerms", group)]
    default = [*_default(account, "defaultTopicPerm", ResourceKind.TOPIC)]
    default += _default(account, "defaultGroupPerm", ResourceKind.GROUP)
    return Acl().merge(PolicyKind.CUSTOM, _deny_first(custom)).merge(PolicyKind.DEFAULT, default)


def _deny_first(entries: Iterable[Entry]) -> list[Entry]:
    """Return one entry per resource; if there are several, Deny wins."""
    kept: dict[Resource, Entry] = {}
    for entry in entries:
        old = kept.get(entry.resource)
        if old is None or old.decision is not Decision.DENY:
            kept[entry.resource] = entry
    return list(kept.values())


def _entries(account: _Account, key: str, make: Callable[[str], Resource]) -> Iterator[Entry]:
    for text in account.get(key, ()):
        name, equals, permission = text.partition("=")
        if not equals or not name.strip():
            raise RulesError(f"{key}: invalid {text[:80]!r} (expected such as orders=PUB|SUB)")
        yield Entry(make(name.strip()), *_permission(permission, key))


def _default(account: _Account, key: str, kind: ResourceKind) -> Iterator[Entry]:
    text = _text(account, key)
    if text:
        yield Entry(Resource(kind, "", Pattern.ANY), *_permission(text, key))


def _permission(text: str, key: str) -> tuple[frozenset[Action], Decision]:
    found = _PERMISSIONS.get(re.sub(r"\s", "", text).upper())
    if found is None:
        raise RulesError(f"{key}: unknown permission {text[:80]!r} (expected DENY, PUB, SUB or PUB|SUB)")
    return found


def _text(account: Mapping[str, str | list[str]], key: str) -> str:
    value = account.get(key, "")
    return value if isinstance(value, str) else ""


# The file to accounts


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    indent: int
    text: str


def _lines(text: str) -> Iterator[_Line]:
    lines = text.splitlines()
    if len(lines) > LINES_MAX:
        raise RulesError(f"{len(lines)} lines (expected at most {LINES_MAX})")
    for number, line in enumerate(lines, 1):
        body = line.lstrip(" ")
        if not body.strip() or body.startswith("#") or body.rstrip() in ("---", "..."):
            continue
        if body.startswith("\t"):
            raise _invalid(number, "a tab at the start of a line")
        yield _Line(number, len(line) - len(body), body.rstrip())


def _read(text: str) -> tuple[list[str], list[_Account]]:
    white: list[str] = []
    accounts: list[_Account] = []
    lines = list(_lines(text))
    at = 0
    seen = set()
    while at < len(lines):
        line = lines[at]
        key, value = _key(line, line.text)
        if line.indent or key not in (_WHITE, _ACCOUNTS) or key in seen:
            raise _invalid(line.number, f"expected {_WHITE} or {_ACCOUNTS}, once each")
        seen.add(key)
        block = _block(lines, at + 1)
        at += 1 + len(block)
        if value not in ("", "[]"):
            raise _invalid(line.number, "expected a list in the next lines")
        if key == _WHITE:
            white = _list(block)
        else:
            accounts = _accounts(block)
    return white, accounts


def _block(lines: list[_Line], start: int) -> list[_Line]:
    """Return the lines that belong to a key without an indent: indented ones, and items of a list."""
    stop = start
    while stop < len(lines) and (lines[stop].indent or _ITEM.match(lines[stop].text)):
        stop += 1
    return lines[start:stop]


def _list(block: list[_Line]) -> list[str]:
    if len({line.indent for line in block}) > 1:
        raise _invalid(block[0].number, "items of a list with different indents")
    found = []
    for line in block:
        item = _ITEM.match(line.text)
        if item is None:
            raise _invalid(line.number, "expected an item of a list")
        found.append(_scalar(line, line.text[item.end() :]))
    return found


def _accounts(block: list[_Line]) -> list[_Account]:
    accounts: list[_Account] = []
    item_indent = block[0].indent if block else 0
    key_indent = -1
    at = 0
    while at < len(block):
        line = block[at]
        item = _ITEM.match(line.text)
        if item is not None and line.indent == item_indent:
            accounts.append({})
            key_indent = line.indent + item.end()
            text = line.text[item.end() :]
            if not text:
                raise _invalid(line.number, "expected a key behind the dash")
        elif line.indent == key_indent and item is None:
            text = line.text
        else:
            raise _invalid(line.number, "wrong indent")
        key, value = _key(line, text)
        account = accounts[-1]
        if key in account or key not in _TEXTS | _LISTS:
            raise _invalid(line.number, f"{key!r} is unknown, or there twice")
        at += 1
        if key in _LISTS:
            # Items may have the indent of their key.
            stop = at
            while stop < len(block) and _ITEM.match(block[stop].text) and block[stop].indent >= key_indent:
                stop += 1
            if value not in ("", "[]"):
                raise _invalid(line.number, "expected a list in the next lines")
            account[key] = _list(block[at:stop])
            at = stop
        else:
            account[key] = _scalar(line, value)
    return accounts


def _key(line: _Line, text: str) -> tuple[str, str]:
    found = _KEY.match(text)
    if found is None:
        raise _invalid(line.number, "expected a key and a colon")
    value = found[2] or ""
    return found[1], "" if value.startswith("#") else value.strip()


def _scalar(line: _Line, text: str) -> str:
    """Return a text with or without quotes, without a comment behind it."""
    text = text.strip()
    if text[:1] in ('"', "'"):
        quote = text[0]
        end = text.find(quote, 1)
        rest = text[end + 1 :].strip()
        if end < 0 or (rest and not rest.startswith("#")) or (quote == '"' and "\\" in text[:end]):
            raise _invalid(line.number, "a text in quotes with escapes, or without an end")
        return text[1:end]
    text = re.split(r"(?:^|\s)#", text, maxsplit=1)[0].strip()
    if (text[:1] in _PLAIN_START and not re.fullmatch(r"[*.:]+", text)) or re.search(r":(?:\s|$)", text):
        raise _invalid(line.number, "a form of YAML that is not supported here (write the text in quotes)")
    return "" if text in ("~", "null") else text


def _invalid(number: int, why: str) -> RulesError:
    return RulesError(f"line {number}: {why}")
