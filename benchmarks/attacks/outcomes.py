"""What an attack did, what was hoped for, and the attacks by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from benchmarks.attacks.servers import Lab
from benchmarks.figures import show

SILENCE_MS_MAX: Final = 100.0
KEPT_MB_MAX: Final = 20.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One figure of one attack."""

    attack: str
    server: str
    what: str
    value: float | str
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    wanted: str | None = None
    """The text that the value is to be."""
    computed_ms: float | None = None
    """How much of a silence the server computed: what is left of it on a machine without others."""
    note: str = ""

    @property
    def is_met(self) -> bool | None:
        """Whether what was hoped for came true; None where nothing was."""
        if self.wanted is not None:
            return self.value == self.wanted
        if isinstance(self.value, str):
            return None if self.at_most is None and self.at_least is None else False
        if self.at_most is not None:
            return self.value <= self.at_most
        return None if self.at_least is None else self.value >= self.at_least

    @property
    def target(self) -> str:
        if self.wanted is not None:
            return self.wanted
        if self.at_most is not None:
            return f"≤ {_with_unit(self.at_most, self.unit)}"
        return "" if self.at_least is None else f"≥ {_with_unit(self.at_least, self.unit)}"

    @property
    def figure(self) -> str:
        """The value with its unit, as people read it."""
        text = self.value if isinstance(self.value, str) else _with_unit(self.value, self.unit)
        computed = "" if self.computed_ms is None else f", {_with_unit(self.computed_ms, 'ms')} of it computing"
        return text + computed

    def __str__(self) -> str:
        met = {True: "met", False: "NOT MET", None: ""}[self.is_met]
        target = f" (target {self.target})" if self.target else ""
        return "  ".join(
            filter(None, (self.attack, self.server, f"{self.what}: {self.figure}{target}", met, self.note))
        )

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "figure": self.figure, "target": self.target, "met": self.is_met}


def _with_unit(value: float, unit: str) -> str:
    if value >= 1_000 and unit in ("ms", "MB"):
        value, unit = value / 1_000, {"ms": "s", "MB": "GB"}[unit]
    text = f"{value:,.0f}" if value == int(value) else show(value)
    return f"{text} {unit}".rstrip()


def markdown(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> str:
    """Return figures of two runs, each as `as_json` has them, as the table of `docs/reliability.md`."""
    figures: dict[tuple[str, str, str], list[str]] = {}
    targets: dict[tuple[str, str, str], str] = {}
    for at, run in enumerate((before, after)):
        for each in run:
            key = each["attack"], each["server"], each["what"]
            figures.setdefault(key, ["", ""])[at] = each["figure"]
            targets[key] = each["target"]
    lines = ["| Attack (`--only`) | Server | Figure | Before | After | Target |", "|---|---|---|---|---|---|"]
    for key, (first, second) in figures.items():
        name, server, what = key
        lines.append(f"| `{name}` | {server} | {what} | {first} | {second} | {targets[key]} |")
    return "\n".join(lines)


Attack = Callable[[Lab], Iterator[Outcome]]

ATTACKS: Final[dict[str, Attack]] = {}


def attack(name: str) -> Callable[[Attack], Attack]:
    """Add an attack under a name."""

    def add(made: Attack) -> Attack:
        ATTACKS[name] = made
        return made

    return add
