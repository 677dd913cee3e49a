"""How templates write numbers, sizes, times and charts."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from markupsafe import Markup

_BOX: Final = Markup(
    '<rect x="{x}" y="{y}" width="200" height="36" rx="4"/><text x="{x}" y="{y}" dx="100" dy="22">{text}</text>'
)
_LINE: Final = Markup('<polyline class="{cls}" points="200,{y} 240,{y} 270,{end} 430,{end}"/>')


def number(value: float | None) -> str:
    """Return a number with separators: 12,345 or 0.25."""
    if value is None:
        return "—"
    return f"{value:,.2f}" if abs(value) < 100 and value != int(value) else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Return a size in bytes: 1.5 GiB."""
    if value is None:
        return "—"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def share(value: float | None) -> str:
    """Return a fraction as a percentage: 42.5 %."""
    return "—" if value is None or value < 0 else f"{value * 100:.1f} %"


def span(seconds: float | None) -> str:
    """Return a duration: 3 d 4 h."""
    if seconds is None:
        return "—"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    left, parts = int(seconds), []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def moment(time_ms: float | None) -> Markup:
    """Return a time in UTC, which the page's script converts to the browser's time zone."""
    if not time_ms or time_ms < 0:
        return Markup("—")
    try:
        when = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return Markup("—")
    return Markup('<time datetime="{}">{} UTC</time>').format(
        when.isoformat(timespec="milliseconds"), f"{when:%Y-%m-%d %H:%M:%S}"
    )


def group_picture(label: str, master: str, slaves: Sequence[tuple[str, str, bool]]) -> Markup:
    """Return a picture of a broker group: the master on the left, and a line to each slave.

    A slave has a name, a text on its line, and whether it follows; the line of one that does not is dashed.
    """
    height = max(len(slaves), 1) * 56
    middle = height / 2
    parts = [_BOX.format(x=0, y=middle - 18, text=master)]
    for number, (name, text, follows) in enumerate(slaves):
        y = number * 56 + 28
        parts.append(_LINE.format(y=middle, end=y, cls="follows" if follows else "lost"))
        parts.append(Markup('<text x="330" y="{y}">{text}</text>').format(y=y - 6, text=text))
        parts.append(_BOX.format(x=430, y=y - 18, text=name))
    return Markup(
        '<svg class="group" viewBox="0 0 630 {h}" width="630" height="{h}" role="img" aria-label="{label}">'
        "<title>{label}</title>{parts}</svg>"
    ).format(h=height, label=label, parts=Markup().join(parts))


def spark(values: list[float], label: str, width: int = 160, height: int = 32) -> Markup:
    """Return a small line chart of numbers, oldest first, with a label for screen readers."""
    top = max(values, default=0.0) or 1.0
    step = width / max(1, len(values) - 1)
    points = " ".join(f"{n * step:.1f},{height - 2 - (height - 4) * v / top:.1f}" for n, v in enumerate(values))
    return Markup(
        '<svg class="spark" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="img" aria-label="{label}">'
        '<title>{label}</title><polyline points="{points}"/></svg>'
    ).format(w=width, h=height, label=label, points=points)
