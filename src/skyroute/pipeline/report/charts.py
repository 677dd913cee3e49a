"""SVG charts for the report: no script, the page's colours, a title and a description for screen readers."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from html import escape
from itertools import count
from typing import Final, NamedTuple

WIDTH: Final = 900
ROW: Final = 26
LABEL_CHARS_MAX: Final = 48
CHAR_WIDTH: Final = 7.5
"""Width of one character of a label: an upper bound for mixed text in the page's 13 px font."""
PLOT_HEIGHT: Final = 220
TICKS: Final = 5

_numbers = count(1)


class BarPart(NamedTuple):
    """A part of a bar: begin and end as fractions of its length, CSS class and tooltip."""

    begin: float
    end: float
    css_class: str
    tooltip: str


def bars(title: str, description: str, rows: Mapping[str, Sequence[BarPart]], marks: Sequence[str] = ()) -> str:
    """Return a chart with a bar for each row; `marks` are evenly spaced labels below."""
    left_edge = 8 + CHAR_WIDTH * max((len(_short(label)) for label in rows), default=0)
    bar, parts = WIDTH - left_edge, list[str]()
    for at, (label, pieces) in enumerate(rows.items()):
        top = at * ROW
        parts.append(f'<text x="{left_edge - 8:.1f}" y="{top + 17}" text-anchor="end">{escape(_short(label))}</text>')
        parts.append(f'<rect x="{left_edge:.1f}" y="{top + 3}" width="{bar:.1f}" height="{ROW - 6}" class="none"/>')
        for piece in pieces:
            # Show even the shortest part.
            left, width = left_edge + piece.begin * bar, max((piece.end - piece.begin) * bar, 1.5)
            parts.append(
                f'<rect x="{left:.2f}" y="{top + 3}" width="{width:.2f}" height="{ROW - 6}" class="{piece.css_class}">'
                f"<title>{escape(piece.tooltip)}</title></rect>"
            )
    height = len(rows) * ROW
    if marks:
        parts += _marks(marks, height + 16, left_edge)
        height += 24
    return _svg(title, description, height, parts)


def lines(title: str, description: str, series: Mapping[str, Sequence[tuple[datetime, float]]]) -> str:
    """Return a step chart: each value holds until the next point."""
    points = [point for each in series.values() for point in each]
    if not points:
        return ""
    begin, end = min(at for at, _ in points), max(at for at, _ in points)
    length_s = max((end - begin).total_seconds(), 1.0)
    highest = max(1.0, *(value for _, value in points))
    plot, left = WIDTH - 60, 50

    def place(at: datetime, value: float) -> tuple[float, float]:
        x = left + (at - begin).total_seconds() / length_s * plot
        return x, 10 + (1 - value / highest) * PLOT_HEIGHT

    parts = []
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
        top = PLOT_HEIGHT + 52 + number // 3 * 18
        x = left + number % 3 * plot / 3
        parts.append(f'<path d="M{x:.0f},{top - 4}h22" class="line line-{number % 6}"/>')
        parts.append(f'<text x="{x + 28:.0f}" y="{top}">{escape(_short(name))}</text>')
    parts += _marks(time_labels(begin, end), PLOT_HEIGHT + 28, left)
    return _svg(title, description, PLOT_HEIGHT + 60 + (len(series) - 1) // 3 * 18, parts)


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


def _svg(title: str, description: str, height: float, parts: Iterable[str]) -> str:
    number = next(_numbers)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-labelledby="chart-{number} about-{number}">'
        f'<title id="chart-{number}">{escape(title)}</title><desc id="about-{number}">{escape(description)}</desc>'
        f"{''.join(parts)}</svg>"
    )


def _short(label: str) -> str:
    return label if len(label) <= LABEL_CHARS_MAX else f"{label[: LABEL_CHARS_MAX - 1]}…"
