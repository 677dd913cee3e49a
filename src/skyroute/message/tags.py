"""Tags and tag expressions of subscriptions.

A broker keeps only a tag's hash beside a queue and selects by it; the client, who sees the tag itself, selects again.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from skyroute.message.errors import TagExpressionError

EVERY_TAG: Final = "*"
_JAVA_BLANKS: Final = "".join(map(chr, range(0x21)))


REMEMBERED_CHARS_MAX: Final = 256
"""Maximum length of a tag or tag expression in the caches."""


def java_hash(text: str) -> int:
    """Return Java's `String.hashCode`: a signed 32-bit number over UTF-16 code units."""
    return _remembered_hash(text) if len(text) <= REMEMBERED_CHARS_MAX else _java_hash(text)


def _java_hash(text: str) -> int:
    units = memoryview(text.encode("utf-16-le", "surrogatepass"))
    total = 0
    for low, high in zip(units[::2], units[1::2], strict=True):
        total = (31 * total + (high << 8 | low)) & 0xFFFFFFFF
    return total - (1 << 32) if total & 0x80000000 else total


_remembered_hash = lru_cache(maxsize=4096)(_java_hash)


def tag_code(tag: str | None) -> int:
    """Return the code of a tag in a consume queue; 0 for no tag."""
    return java_hash(tag) if tag else 0


@dataclass(frozen=True, slots=True)
class TagExpression:
    """The tags of a subscription. Created by `parse_tag_expression`."""

    text: str
    tags: AbstractSet[str]
    codes: AbstractSet[int]

    @property
    def wants_everything(self) -> bool:
        return self.text == EVERY_TAG

    def may_want(self, code: int) -> bool:
        """Return whether a message with this tag code may match. Tags may share a code."""
        # A consume queue stores the code as 64 bits; subscriptions have the lower 32.
        code &= 0xFFFFFFFF
        return self.wants_everything or (code - (1 << 32) if code & 0x80000000 else code) in self.codes

    def wants(self, tag: str | None) -> bool:
        """Return whether a message with this tag matches."""
        return not self.tags or tag in self.tags


def parse_tag_expression(text: str | None) -> TagExpression:
    """Parse `*`, an empty text (which means `*`), or tags separated by `||`.

    Raises:
        TagExpressionError: it has no tags.
    """
    return _parse(text) if len(text or "") > REMEMBERED_CHARS_MAX else _remembered_expression(text)


def _parse(text: str | None) -> TagExpression:
    if not text or text == EVERY_TAG:
        return TagExpression(EVERY_TAG, frozenset(), frozenset())
    if not text.replace("||", ""):
        raise TagExpressionError(f"a tag expression without tags: {text[:80]!r} (expected * or a || b)")
    tags = frozenset(tag for piece in text.split("||") if (tag := piece.strip(_JAVA_BLANKS)))
    return TagExpression(text, tags, frozenset(map(java_hash, tags)))


_remembered_expression = lru_cache(maxsize=4096)(_parse)
