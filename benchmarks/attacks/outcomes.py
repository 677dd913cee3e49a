"""What an attack did, what was hoped for, and the attacks by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Final

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
            return f"≤ {self.at_most:g}"
        return "" if self.at_least is None else f"≥ {self.at_least:g}"

    def __str__(self) -> str:
        value = self.value if isinstance(self.value, str) else show(self.value)
        met = {True: "met", False: "NOT MET", None: ""}[self.is_met]
        target = f" (target {self.target})" if self.target else ""
        figure = f"{self.what}: {value}{' ' if self.unit else ''}{self.unit}"
        return "  ".join(filter(None, (self.attack, self.server, figure + target, met, self.note)))

    def as_json(self) -> dict[str, object]:
        return {**asdict(self), "target": self.target, "met": self.is_met}


Attack = Callable[[Lab], Iterator[Outcome]]

ATTACKS: Final[dict[str, Attack]] = {}


def attack(name: str) -> Callable[[Attack], Attack]:
    """Add an attack under a name."""

    def add(made: Attack) -> Attack:
        ATTACKS[name] = made
        return made

    return add
