"""Findings of a check of a store."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

FINDINGS_MAX: Final = 10_000
"""Number of findings that a report lists; further ones are only counted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of damage at one place."""

    area: str
    """`log`, `queue`, `index`, `checkpoint`, `table`, `timer`."""
    file: str
    """Relative to the store's folder."""
    offset: int | None
    """Offset in the file; None if it concerns the whole file."""
    what: str
    cost: str
    advice: str


@dataclass(slots=True)
class Report:
    """All findings, and the numbers of checked things."""

    findings: list[Finding] = field(default_factory=list)
    by_area: Counter[str] = field(default_factory=Counter)
    """Number of findings, listed or not."""
    notes: list[str] = field(default_factory=list)
    """Remarks that are not damage."""
    checked: Counter[str] = field(default_factory=Counter)
    """Numbers of checked records, units and so on, by name."""

    @property
    def count(self) -> int:
        """Number of findings, listed or not."""
        return self.by_area.total()

    def add(self, area: str, file: str, offset: int | None, what: str, cost: str, advice: str) -> None:
        """Add a finding."""
        self.by_area[area] += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(area, file, offset, what, cost, advice))
