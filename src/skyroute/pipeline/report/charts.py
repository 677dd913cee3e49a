"""SVG charts for the report: no script, the page's colours, a title and a description for screen readers."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from html import escape
from itertools import count
from typing import Final, NamedTuple

WIDTH: Final = 900
ROW: Final = 26
LABEL_CHARS_MAX: Final = 40
"""Length of a label beside its bar; if one is longer, the labels stand above their bars."""
LEGEND_CHARS_MAX: Final = 32
"""Length of a legend's entry with others beside it; if one is longer, each has a line."""
CHAR_WIDTH: Final = 7.5
"""Width of one character of a label: an upper bound for mixed text in the page's 13 px font."""
PLOT_HEIGHT: Final = 220
TICKS: Final = 5

_numbers = count(1)


STYLE: Final = """
:root { --text: #1b1f24; --soft: #57606a; --rule: #d0d7de; --up: #2da44e; --down: #cf222e; --away: #8c959f;
  --l0: #0969da; --l1: #bc4c00; --l2: #1a7f37; --l3: #8250df; --l4: #bf3989; --l5: #57606a; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --soft: #9da7b1; --rule: #30363d; --up: #3fb950; --down: #f85149; --away: #6e7681;
    --l0: #58a6ff; --l1: #f0883e; --l2: #56d364; --l3: #bc8cff; --l4: #ff9bce; --l5: #8b949e; } }
svg { width: 100%; height: auto; font: 13px system-ui, sans-serif; }
svg text { fill: var(--text); } svg .mark { fill: var(--soft); }
.up { fill: var(--up); background: var(--up); } .down { fill: var(--down); background: var(--down); }
.away { fill: var(--away); background: var(--away); } .none { fill: var(--rule); opacity: .4; }
.grid { stroke: var(--rule); } .line { fill: none; stroke-width: 2; }
.line-0 { stroke: var(--l0); } .line-1 { stroke: var(--l1); stroke-dasharray: 7 3; }
.line-2 { stroke: var(--l2); stroke-dasharray: 2 3; } .line-3 { stroke: var(--l3); }
.line-4 { stroke: var(--l4); stroke-dasharray: 7 3; } .line-5 { stroke: var(--l5); stroke-dasharray: 2 3; }
"""
"""Of a page with charts, for light and dark."""


class Chart(str):
    """SVG text, which notebooks show as a picture."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<style>{STYLE}</style>{self}"


class BarPart(NamedTuple):
    """A part of a bar: begin and end as fractions of its length, CSS class and tooltip."""

    begin: float
    end: float
    css_class: str
    tooltip: str


def bars(title: str, description: str, rows: Mapping[str, Sequence[BarPart]], marks: Sequence[str] = ()) -> Chart:
    """Return a chart with a bar for each row; `marks` are evenly spaced labels below."""
    longest = max(map(len, rows), default=0)
    is_beside = longest <= LABEL_CHARS_MAX
    left = 8 + CHAR_WIDTH * longest if is_beside else 0.0
    above = 0 if is_beside else ROW - 6
    width, parts = WIDTH - left, list[str]()
    for at, (label, pieces) in enumerate(rows.items()):
        top = at * (ROW + above) + above
        if is_beside:
            parts.append(f'<text x="{left - 8:.1f}" y="{top + 17}" text-anchor="end">{escape(label)}</text>')
        else:
            parts.append(_fitted(0, top - 3, label, WIDTH))
        parts.append(f'<rect x="{left:.1f}" y="{top + 3}" width="{width:.1f}" height="{ROW - 6}" class="none"/>')
        for piece in pieces:
            # Show even the shortest part.
            begin, length = left + piece.begin * width, max((piece.end - piece.begin) * width, 1.5)
            parts.append(
                f'<rect x="{begin:.2f}" y="{top + 3}" width="{length:.2f}" height="{ROW - 6}" class="{piece.css_class}"'
                f"><title>{escape(piece.tooltip)}</title></rect>"
            )
    height = len(rows) * (ROW + above)
    if marks:
        parts += _marks(marks, height + 16, left)
        height += 24
    return _svg(title, description, height, parts)


def lines(title: str, description: str, series: Mapping[str, Sequence[tuple[datetime, float]]]) -> Chart:
    """Return a step chart: each value holds until the next point; nothing if there are no points."""
    points = [point for each in series.values() for point in each]
    if not points:
        return Chart()
    begin, end = min(at for at, _ in points), max(at for at, _ in points)
    length_s = max((end - begin).total_seconds(), 1.0)
    highest = max(1.0, *(value for _, value in points))
    plot, left = WIDTH - 60, 50

    def place(at: datetime, value: float) -> tuple[float, float]:
        x = left + (at - begin).total_seconds() / length_s * plot
        return x, 10 + (1 - value / highest) * PLOT_HEIGHT

    parts = list[str]()
    columns = 3 if max(map(len, series)) <= LEGEND_CHARS_MAX else 1
    for share in (0.0, 0.5, 1.0):
        y = 10 + (1 - share) * PLOT_HEIGHT
        parts.append(f'<line x1="{left}" x2="{left + plot}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{highest * share:g}</text>')
    for number, (name, each) in enumerate(series.items()):
        path, last_y = "", 0.0
        for at, value in each:
            x, y = place(at, value)
            path += f"L{x:.1f},{last_y:.1f}L{x:.1f},{y:.1f}" if path else f"M{x:.1f},{y:.1f}"
            last_y = y
        path += f"L{left + plot:.1f},{last_y:.1f}"
        parts.append(f'<path d="{path}" class="line line-{number % 6}"><title>{escape(name)}</title></path>')
        top = PLOT_HEIGHT + 52 + number // columns * 18
        x = left + number % columns * plot / columns
        parts.append(f'<path d="M{x:.0f},{top - 4}h22" class="line line-{number % 6}"/>')
        parts.append(_fitted(x + 28, top, name, plot / columns - 32))
    parts += _marks(time_labels(begin, end), PLOT_HEIGHT + 28, left)
    return _svg(title, description, PLOT_HEIGHT + 60 + (len(series) - 1) // columns * 18, parts)


def time_labels(begin: datetime, end: datetime) -> list[str]:
    """Return the labels of a time axis."""
    step = (end - begin) / (TICKS - 1)
    form = "%H:%M:%S" if end - begin < timedelta(hours=1) else "%d %b %H:%M"
    return [(begin + step * number).strftime(form) for number in range(TICKS)]


def _marks(texts: Sequence[str], y: float, left: float) -> Iterable[str]:
    step = (WIDTH - 10 - left) / (len(texts) - 1)
    for number, text in enumerate(texts):
        anchor = "start" if number == 0 else "end" if number == len(texts) - 1 else "middle"
        place = f'x="{left + number * step:.0f}" y="{y:.0f}" text-anchor="{anchor}"'
        yield f'<text {place} class="mark">{escape(text)}</text>'


def _svg(title: str, description: str, height: float, parts: Iterable[str]) -> Chart:
    number = next(_numbers)
    return Chart(
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-labelledby="chart-{number} about-{number}">'
        f'<title id="chart-{number}">{escape(title)}</title><desc id="about-{number}">{escape(description)}</desc>'
        f"{''.join(parts)}</svg>"
    )


def _fitted(x: float, y: float, label: str, width: float) -> str:
    """Return a label that is squeezed if it would be wider."""
    squeezed = f' textLength="{width:.0f}" lengthAdjust="spacingAndGlyphs"' if CHAR_WIDTH * len(label) > width else ""
    return f'<text x="{x:.0f}" y="{y:.0f}"{squeezed}>{escape(label)}</text>'
