"""The report: one self-contained HTML page with charts and tables about the journals."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as fn

from skyroute.message.reserved_topics import REPLY_SUFFIX, group_of, is_system_topic
from skyroute.pipeline.jobs.availability import availability, outages
from skyroute.pipeline.jobs.churn import capacity, churn, permission_changes
from skyroute.pipeline.jobs.divergence import divergence
from skyroute.pipeline.journal.reading import JournalFrames
from skyroute.pipeline.report.charts import BarPart, bars, lines, time_labels

ROWS_MAX: Final = 200
"""Rows shown of each table. The jobs return all rows."""
BARS_MAX: Final = 60
"""Bars shown of each chart."""


def report(journal: JournalFrames, until: datetime, window_s: float) -> str:
    """Return the page. `until` is the end of the observation of servers that still run."""
    events = journal.events.persist()
    try:
        seen = events.agg(
            fn.count("*").alias("events"), fn.min("wall_ms").alias("begin_ms"), fn.max("wall_ms").alias("end_ms")
        ).first()
        assert seen is not None
        servers = [row.server for row in events.select("server").distinct().orderBy("server").collect()]
        server_topics = {
            name for row in events.select("cluster", "broker").distinct().collect() for name in row if name is not None
        }
        begin = until if seen.begin_ms is None else datetime.fromtimestamp(seen.begin_ms / 1000, UTC)
        summary = {
            "Name servers": ", ".join(servers) or "none",
            "Records": f"{seen.events:,}, from {_time(begin)} to {_time(until)}",
            "Invalid lines": f"{journal.rejects.count():,}",
        }
        sections = [
            _availability(events, until, server_topics),
            _outages(events, begin, until),
            _growth(events, window_s),
            _divergence(events, until),
            _capacity(events, until, server_topics),
            _permissions(events),
            _rejects(journal.rejects),
        ]
    finally:
        events.unpersist()
    head = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in summary.items())
    return _PAGE.format(style=_STYLE, head=head, until=_time(until), sections="".join(sections))


def _availability(events: DataFrame, until: datetime, server_topics: set[str]) -> str:
    rows = availability(events, None, until).orderBy("what", "broker", "name", "server").collect()
    rows.sort(key=lambda row: (row.what, row.what == "topic" and _is_internal(row.name, server_topics)))
    brokers = {f"{row.broker} {row.name} at {row.server}": _shares(row) for row in rows if row.what == "broker"}
    chart = bars(
        "Uptime of each broker",
        f"One bar for each of {len(brokers)} brokers and name servers: time up, down, and away (planned).",
        dict(list(brokers.items())[:BARS_MAX]),
    )
    shown = [
        (
            *(row.what, row.broker, row.name, row.server, _percent(row.availability), _duration(row.up_s)),
            *(_duration(row.down_s), _duration(row.away_s), row.outages, _duration(row.mttr_s), _yes(row.flapping)),
            *(", ".join(row.causes), _yes(row.certain)),
        )
        for row in rows
    ]
    heads = (
        "What|Group|Address or topic|Name server|Available|Up|Down|Away|Outages|Mean time to recover|"
        "Flapping|Causes|Certain"
    )
    return _section("Availability", chart + _LEGEND + _table("Availability", heads.split("|"), shown))


def _shares(row: Row) -> list[BarPart]:
    total = row.up_s + row.down_s + row.away_s
    pieces, at = [], 0.0
    for state, seconds in (("up", row.up_s), ("down", row.down_s), ("away", row.away_s)):
        if seconds > 0:
            pieces.append(BarPart(at, at := at + seconds / total, state, f"{state} {_duration(seconds)}"))
    return pieces


def _outages(events: DataFrame, begin: datetime, until: datetime) -> str:
    rows = outages(events, until).orderBy("since", "what", "broker", "name", "server").collect()
    length_s = max((until - begin).total_seconds(), 1.0)

    def share(moment: datetime) -> float:
        return min(max((_aware(moment) - begin).total_seconds() / length_s, 0.0), 1.0)

    pieces: dict[str, list[BarPart]] = defaultdict(list)
    for row in rows:
        if row.what == "broker":
            end = 1.0 if row.until is None else share(row.until)
            text = f"{row.cause}, {_duration(row.seconds)} from {_time(row.since)}"
            label = f"{row.broker} {row.name} at {row.server}"
            pieces[label].append(BarPart(share(row.since), end, "away" if row.planned else "down", text))
    chart = bars(
        "Outages of brokers over time",
        f"Outages of {len(pieces)} brokers over time; the table lists all {len(rows)} outages.",
        dict(list(pieces.items())[:BARS_MAX]),
        time_labels(begin, until),
    )
    shown = [
        (
            *(_time(row.since), "ongoing" if row.until is None else _time(row.until), _duration(row.seconds)),
            *(row.what, row.broker, row.name, row.cause, _yes(row.planned), row.server),
        )
        for row in rows
    ]
    heads = ["Since", "Until", "Lasted", "What", "Group", "Address or topic", "Cause", "Planned", "Name server"]
    return _section("Outages", (chart if pieces else "") + _table("Outages", heads, shown))


def _growth(events: DataFrame, window_s: float) -> str:
    rows = churn(events, window_s).orderBy("window", "server").collect()
    levels: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
    for row in rows:
        for level in ("brokers", "topics", "queues"):
            levels[f"{level} at {row.server}"].append((_aware(row.window), row[level]))
    chart = lines(
        "Brokers, topics and queues over time", "Brokers, topics by group and write queues of each name server.", levels
    )
    heads = list(rows[0].__fields__) if rows else []
    shown = [tuple(_time(value) if isinstance(value, datetime) else value for value in row) for row in rows]
    return _section("Growth and churn", chart + _table("Changes over time", [_heading(name) for name in heads], shown))


def _divergence(events: DataFrame, until: datetime) -> str:
    rows = divergence(events, until=until).orderBy("since", "what", "broker", "name").collect()
    shown = [
        (
            *(_time(row.since), "ongoing" if row.until is None else _time(row.until), _duration(row.seconds)),
            *(row.what, row.broker, row.name, "; ".join(f"{server}: {value}" for server, value in row.views.items())),
        )
        for row in rows
    ]
    heads = ["Since", "Until", "Lasted", "What", "Group", "Address or topic", "Values by name server"]
    return _section("Divergence of name servers", _table("Divergences of more than a second", heads, shown))


def _capacity(events: DataFrame, until: datetime, server_topics: set[str]) -> str:
    worst = fn.desc("single_broker"), fn.desc("skew"), "topic"
    rows = capacity(events, until).orderBy(*worst, "server").collect()
    rows.sort(key=lambda row: _is_internal(row.topic, server_topics))
    shown = [
        (
            *(row.topic, row.server, row.groups, row.read_queues, row.write_queues, row.skew and f"{row.skew:.2f}"),
            *(_yes(row.single_broker), _yes(row.read_only), ", ".join(row.brokers)),
        )
        for row in rows
    ]
    heads = [
        "Topic",
        "Name server",
        "Groups",
        "Read queues",
        "Write queues",
        "Skew",
        "One group only",
        "Read-only",
        "On",
    ]
    return _section("Capacity", _table("Topics and their queues at the end of the report", heads, shown))


def _permissions(events: DataFrame) -> str:
    rows = permission_changes(events).orderBy("at", "server", "broker", "topic").collect()
    shown = [(_time(row.at), *tuple(row)[1:]) for row in rows]
    heads = ["At", "Name server", "Group", "Topic", "Before", "After", "Cause"]
    return _section("Permission changes", _table("Permission changes", heads, shown))


def _rejects(rejects: DataFrame) -> str:
    rows = rejects.orderBy("file", "line").limit(ROWS_MAX + 1).collect()
    shown = [(row.file, row.problem, row.line[:200]) for row in rows]
    return _section("Invalid lines", _table("Rejected lines", ["File", "Problem", "Line"], shown))


def _section(title: str, content: str) -> str:
    anchor = title.lower().replace(" ", "-")
    return f'<section aria-labelledby="{anchor}"><h2 id="{anchor}">{escape(title)}</h2>{content}</section>'


def _table(caption: str, heads: Sequence[str], rows: Sequence[Iterable[Any]]) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:ROWS_MAX])
    more = f"<p>… and {len(rows) - ROWS_MAX:,} more: `skyroute pipeline` shows all.</p>" if len(rows) > ROWS_MAX else ""
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}"
    )


def _cell(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"<td{' class=number' if is_number else ''}>{'' if value is None else escape(str(value))}</td>"


def _is_internal(topic: str, server_topics: set[str]) -> bool:
    """Return whether a topic is internal; `server_topics` are the topics named after clusters and brokers."""
    is_server_topic = is_system_topic(topic) or topic in server_topics or topic.endswith(REPLY_SUFFIX)
    return is_server_topic or group_of(topic) is not None


def _heading(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _yes(value: bool) -> str:  # noqa: FBT001 - one obvious argument
    return "yes" if value else "no"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.3%}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f}\N{NO-BREAK SPACE}{unit}"
    return f"{seconds:.1f}\N{NO-BREAK SPACE}s"


def _aware(moment: datetime) -> datetime:
    return moment.astimezone(UTC)


def _time(moment: datetime) -> str:
    return _aware(moment).strftime("%Y-%m-%d %H:%M:%S")


_LEGEND: Final = "".join(
    ('<p class="key">', *(f'<span class="{look}"></span> {look} ' for look in ("up", "down", "away")), "</p>")
)
_STYLE: Final = """
:root { color-scheme: light dark; --back: #fff; --text: #1b1f24; --soft: #57606a; --rule: #d0d7de;
  --up: #2da44e; --down: #cf222e; --away: #8c959f;
  --l0: #0969da; --l1: #bc4c00; --l2: #1a7f37; --l3: #8250df; --l4: #bf3989; --l5: #57606a; }
@media (prefers-color-scheme: dark) {
  :root { --back: #0d1117; --text: #e6edf3; --soft: #9da7b1; --rule: #30363d;
    --up: #3fb950; --down: #f85149; --away: #6e7681;
    --l0: #58a6ff; --l1: #f0883e; --l2: #56d364; --l3: #bc8cff; --l4: #ff9bce; --l5: #8b949e; } }
body { background: var(--back); color: var(--text); font: 16px/1.5 system-ui, sans-serif;
  margin: 2rem auto; max-width: 64rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.5rem; }
dt { color: var(--soft); } dd { margin: 0; }
svg { width: 100%; height: auto; font: 13px system-ui, sans-serif; }
svg text { fill: var(--text); } svg .mark { fill: var(--soft); }
.up { fill: var(--up); background: var(--up); } .down { fill: var(--down); background: var(--down); }
.away { fill: var(--away); background: var(--away); } .none { fill: var(--rule); opacity: .4; }
.grid { stroke: var(--rule); } .line { fill: none; stroke-width: 2; }
.line-0 { stroke: var(--l0); } .line-1 { stroke: var(--l1); stroke-dasharray: 7 3; }
.line-2 { stroke: var(--l2); stroke-dasharray: 2 3; } .line-3 { stroke: var(--l3); }
.line-4 { stroke: var(--l4); stroke-dasharray: 7 3; } .line-5 { stroke: var(--l5); stroke-dasharray: 2 3; }
.key span { display: inline-block; width: 1em; height: 1em; margin-left: 1em; vertical-align: -.15em; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; }
caption { text-align: left; color: var(--soft); }
th, td { border-bottom: 1px solid var(--rule); padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
"""
_PAGE: Final = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Cluster report up to {until}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>Cluster report up to {until} (UTC)</h1>
<dl>{head}</dl>
{sections}
</main>
</body>
</html>
"""
