"""The HTML of the report: sections, tables, and the page around them."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from skyroute.pipeline.report.charts import STYLE as CHART_STYLE

ROWS_MAX: Final = 200
"""Rows shown of each table. The jobs return all rows."""
WORD_CHARS_MAX: Final = 18
"""Length up to which a value, such as a duration or a cause, is never broken."""


def page(title: str, headline: str, summary: Mapping[str, str], sections: Iterable[str]) -> str:
    """Return the page: a headline, a summary, and sections."""
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in summary.items())
    return _PAGE.format(
        title=escape(title),
        style=CHART_STYLE + _STYLE,
        headline=escape(headline),
        summary=listed,
        sections="".join(sections),
    )


def section(title: str, content: str) -> str:
    """Return a section with a heading."""
    anchor = title.lower().replace(" ", "-")
    return f'<section aria-labelledby="{anchor}"><h2 id="{anchor}">{escape(title)}</h2>{content}</section>'


def table(caption: str, heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return a table. On a narrow screen, each row is a block of lines with their headings."""
    if not rows:
        return "<p>None.</p>"
    classes = [' class="number"' if _is_number(value) else "" for value in rows[0]]
    head = "".join(f'<th scope="col"{of}>{escape(name)}</th>' for name, of in zip(heads, classes, strict=True))
    body = "".join(f"<tr>{''.join(map(_cell, heads, row))}</tr>" for row in rows[:ROWS_MAX])
    more = f"<p>… and {len(rows) - ROWS_MAX:,} more: `skyroute pipeline` shows all.</p>" if len(rows) > ROWS_MAX else ""
    return (
        f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"
    )


def folded(title: str, content: str) -> str:
    """Return content that is shown on request."""
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(head: str, value: Any) -> str:
    text = "" if value is None else f"{value:,}" if _is_number(value) else str(value)
    css_class = "number" if _is_number(value) else "word" if len(text) <= WORD_CHARS_MAX else ""
    of = f' class="{css_class}"' if css_class else ""
    return f'<td data-head="{escape(head)}"{of}>{escape(text)}</td>'


LEGEND: Final = "".join(
    ('<p class="key">', *(f'<span class="{look}"></span> {look} ' for look in ("up", "down", "away")), "</p>")
)
"""The colours of bars."""

_STYLE: Final = """
:root { color-scheme: light dark; --back: #fff; }
@media (prefers-color-scheme: dark) { :root { --back: #0d1117; } }
body { background: var(--back); color: var(--text); font: 16px/1.5 system-ui, sans-serif;
  margin: 2rem auto; max-width: 64rem; padding: 0 1rem; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; }
.headline { font-size: 1.15rem; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: .2rem 1.5rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.key span { display: inline-block; width: 1em; height: 1em; margin-left: 1em; vertical-align: -.15em; }
summary { cursor: pointer; margin-top: .7rem; }
table { border-collapse: collapse; font-size: .9rem; width: 100%; }
caption { text-align: left; color: var(--soft); }
th, td { border-bottom: 1px solid var(--rule); padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top; }
td { overflow-wrap: anywhere; }
td.word { white-space: nowrap; }
th.number, td.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
@media (max-width: 56rem) {
  thead { display: none; }
  table, caption, tbody, tr, td { display: block; }
  tr { border-bottom: 1px solid var(--rule); padding: .4rem 0; }
  td, td.number, td.word { border: 0; padding: 0; text-align: left; white-space: normal; }
  td:empty { display: none; }
  td::before { content: attr(data-head) ": "; color: var(--soft); }
}
"""
_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
<p class="headline">{headline}</p>
<dl>{summary}</dl>
{sections}
</main>
</body>
</html>
"""
