"""Source addresses of requests: single addresses, CIDR networks, and the patterns of ACL 1.0."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from skyroute.access.errors import RulesError
from skyroute.settings.networks import parse_network, parse_source

PATTERNS_MAX: Final = 1_000
"""Maximum number of addresses, networks or patterns in one list."""
PATTERN_CHARS_MAX: Final = 1_000

_Range = tuple[int, int, int]
"""IP version, first address and last address."""
_EVERYWHERE: Final = {4: (1 << 32) - 1, 6: (1 << 128) - 1}
_ALL_PATTERNS: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})


@dataclass(frozen=True, slots=True)
class Sources:
    """A list of source addresses, with the texts that it was made of."""

    texts: tuple[str, ...] = ()
    ranges: tuple[_Range, ...] = field(default=(), repr=False, compare=False)
    """The addresses as numbers."""

    def contains(self, address: str) -> bool:
        """Return whether an IP address, without a port, is in the list; False for anything else."""
        found = parse_source(address) if self.ranges else None
        if found is None:
            return False
        version, number = found.version, int(found)
        return any(version == of and first <= number <= last for of, first, last in self.ranges)


NO_SOURCES: Final = Sources()


def parse_sources(texts: Iterable[str]) -> Sources:
    """Parse IP addresses and CIDR networks, as ACL 2.0 has them.

    Raises:
        RulesError: one of them is neither, or there are too many.
    """
    kept = _bounded(texts)
    return Sources(kept, tuple(_network(text) for text in kept))


def parse_patterns(texts: Iterable[str]) -> Sources:
    """Parse the white addresses of ACL 1.0.

    These are addresses, lists with commas, `*` for a part and all behind it, `10.0.0.1-20` and `10.0.0.{1,2}`.

    Raises:
        RulesError: one of them is invalid, or there are too many.
    """
    kept = _bounded(texts)
    return Sources(kept, tuple(found for text in kept for found in _pattern(text)))


def join_sources(one: Sources, other: Sources) -> Sources:
    """Return the addresses of both lists."""
    return Sources(one.texts + other.texts, one.ranges + other.ranges)


def _bounded(texts: Iterable[str]) -> tuple[str, ...]:
    kept = tuple(text.strip() for text in texts)
    if len(kept) > PATTERNS_MAX:
        raise RulesError(f"{len(kept)} source addresses (expected at most {PATTERNS_MAX})")
    return kept


def _network(text: str) -> _Range:
    try:
        # The bits behind the prefix do not matter to Java.
        network = parse_network(text, strict=False)
    except ValueError:
        raise _invalid(text) from None
    return network.version, int(network.network_address), int(network.broadcast_address)


def _pattern(text: str) -> Iterator[_Range]:
    if len(text) > PATTERN_CHARS_MAX:
        raise _invalid(text)
    if text in _ALL_PATTERNS:
        yield from ((version, 0, last) for version, last in _EVERYWHERE.items())
    elif text.endswith("}"):
        head, opening, last_parts = text[:-1].partition("{")
        if not opening or not head.endswith((".", ":")):
            raise _invalid(text)
        yield from (_network(head + part.strip()) for part in last_parts.split(","))
    elif "," in text:
        yield from (found for part in text.split(",") for found in _pattern(part.strip()))
    elif "*" in text or "-" in text:
        yield _range(text)
    else:
        yield _network(text)


def _range(text: str) -> _Range:
    """Parse `10.0.*`, `10.0.0.1-20` or `10.0.1-20.*`: a range in one part, and everything in the parts behind it."""
    separator = ":" if ":" in text else "."
    base, bits, count = (16, 16, 8) if separator == ":" else (10, 8, 4)
    largest = (1 << bits) - 1
    parts = [part.strip() for part in text.split(separator)]
    first = last = 0
    has_range = False
    for part in parts:
        low, dash, high = part.partition("-")
        if part == "*":
            bounds = 0, largest
        elif has_range:
            raise _invalid(text)
        else:
            bounds = _number(low, base, text), _number(high if dash else low, base, text)
        has_range |= part == "*" or bool(dash)
        if not bounds[0] <= bounds[1] <= largest:
            raise _invalid(text)
        first, last = first << bits | bounds[0], last << bits | bounds[1]
    missing = count - len(parts)
    if missing < 0 or (missing and parts[-1] != "*"):
        raise _invalid(text)
    shift = missing * bits
    return 6 if separator == ":" else 4, first << shift, last << shift | (1 << shift) - 1


def _number(text: str, base: int, whole: str) -> int:
    if not re.fullmatch("[0-9]{1,3}" if base == 10 else "[0-9a-fA-F]{1,4}", text, re.ASCII):
        raise _invalid(whole)
    return int(text, base)


def _invalid(text: str) -> RulesError:
    return RulesError(f"invalid source address {text[:80]!r} (expected an IP address or network, such as 10.0.0.0/8)")
