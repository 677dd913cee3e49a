"""Figures of two servers side by side, what was hoped of them, and a table that says whether it came true."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Literal

Kind = Literal["ratio at least", "ratio at most", "ours at least", "ours at most"]


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on our figure, or on its ratio to Apache's."""

    kind: Kind
    bound: float

    def __str__(self) -> str:
        match self.kind:
            case "ratio at least":
                return f"≥ {self.bound:g} x"
            case "ratio at most":
                return f"≤ {self.bound:g} x"
            case "ours at least":
                return f"≥ {self.bound:g}"
            case "ours at most":
                return f"≤ {self.bound:g}"

    def is_met(self, ratio: float | None, ours: float) -> bool:
        if self.kind == "ours at most":
            return ours <= self.bound
        if self.kind == "ours at least":
            return ours >= self.bound
        if ratio is None:
            return False
        return ratio >= self.bound if self.kind == "ratio at least" else ratio <= self.bound


@dataclass(frozen=True, slots=True)
class Figure:
    """One quantity, measured in rounds; the n-th value of either side is from the n-th round."""

    row: str
    what: str
    unit: str
    apache: tuple[float, ...]
    ours: tuple[float, ...]
    targets: tuple[Target, ...] = ()

    @property
    def ratios(self) -> tuple[float, ...]:
        """Ours to Apache's, round by round: what slows a whole round slows both sides of it."""
        return tuple(mine / theirs for mine, theirs in zip(self.ours, self.apache, strict=False) if theirs)

    @property
    def ratio(self) -> float | None:
        return median(self.ratios) if self.ratios else None

    @property
    def is_met(self) -> bool | None:
        """Whether all targets are met; `None` if there are none."""
        if not self.targets:
            return None
        return all(target.is_met(self.ratio, median(self.ours)) for target in self.targets)

    def as_json(self) -> dict[str, object]:
        return {
            **asdict(self),
            "apache_median": median(self.apache) if self.apache else None,
            "ours_median": median(self.ours),
            "ratios": self.ratios,
            "ratio": self.ratio,
            "met": self.is_met,
        }


def show(value: float) -> str:
    """A number with three or so digits that matter."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(figures: Iterable[Figure], sides: tuple[str, str] = ("Apache", "ours")) -> str:
    """All figures, one a line; medians, and the ratio's smallest and largest round in brackets."""
    lines = [("row", "figure", *sides, "ratio (rounds)", "target", "")]
    for figure in figures:
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
        if len(figure.ratios) > 1:
            ratio += f" ({min(figure.ratios):.2f} to {max(figure.ratios):.2f})"
        met = {True: "met", False: "NOT MET", None: ""}[figure.is_met]
        lines.append(
            (
                figure.row,
                f"{figure.what}, {figure.unit}" if figure.unit else figure.what,
                show(median(figure.apache)) if figure.apache else "",
                show(median(figure.ours)),
                ratio,
                " and ".join(map(str, figure.targets)),
                met,
            )
        )
    return _in_columns(lines)


def _in_columns(lines: Sequence[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rule = tuple("-" * width for width in widths)
    numeric = {2, 3}
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at in numeric else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (lines[0], rule, *lines[1:])
    )
