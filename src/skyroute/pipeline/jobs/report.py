"""All that the history says, as one page of HTML that needs nothing else: charts, and a table beside each."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as fn

from skyroute.message.reserved_topics import REPLY_SUFFIX, group_of, is_system_topic
from skyroute.pipeline.jobs.availability import availability, outages
from skyroute.pipeline.jobs.charts import Piece, bars, lines, moments
from skyroute.pipeline.jobs.churn import capacity, churn, permission_changes
from skyroute.pipeline.jobs.divergence import divergence
from skyroute.pipeline.journal.reading import Journal

ROWS_MAX: Final = 200
"""How many rows of a table are shown; the jobs themselves give all."""
BARS_MAX: Final = 60


def report(journal: Journal, until: datetime, window_s: float) -> str:
    """Return the page. `until` is up to when servers that still run saw what they last recorded."""
    events = journal.events.persist()
    try:
        seen = events.agg(
            fn.count("*").alias("events"), fn.min("wall_ms").alias("begin_ms"), fn.max("wall_ms").alias("end_ms")
        ).first()
        assert seen is not None
        servers = [row.server for row in events.select("server").distinct().orderBy("server").collect()]
        servers_own = {
            name for row in events.select("cluster", "broker").distinct().collect() for name in row if name is not None
        }
        begin = until if seen.begin_ms is None else datetime.fromtimestamp(seen.begin_ms / 1000, UTC)
        facts = {
            "Name servers": ", ".join(servers) or "none",
            "Records": f"{seen.events:,}, from {_moment(begin)} to {_moment(until)}",
            "Lines that are no records": f"{journal.rejects.count():,}",
        }
        sections = [
            _availability(events, until, servers_own),
            _outages(events, begin, until),
            _growth(events, window_s),
            _divergence(events, until),
            _capacity(events, until, servers_own),
            _permissions(events),
            _rejects(journal.rejects),
        ]
    finally:
        events.unpersist()
    head = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items())
    return _PAGE.format(style=_STYLE, head=head, until=_moment(until), sections="".join(sections))


def _availability(events: DataFrame, until: datetime, servers_own: set[str]) -> str:
    rows = availability(events, None, until).orderBy("what", "broker", "name", "server").collect()
    rows.sort(key=lambda row: (row.what, row.what == "topic" and _is_internal(row.name, servers_own)))
    brokers = {f"{row.broker} {row.name} at {row.server}": _shares(row) for row in rows if row.what == "broker"}
    chart = bars(
        "How long each broker was there",
        f"One bar for each of {len(brokers)} brokers and name servers: up, then down, then away after a goodbye.",
        dict(list(brokers.items())[:BARS_MAX]),
    )
    shown = [
        (
            *(row.what, row.broker, row.name, row.server, _percent(row.availability), _span(row.up_s)),
            *(_span(row.down_s), _span(row.away_s), row.outages, _span(row.mttr_s), _yes(row.flapping)),
            *(", ".join(row.causes), _yes(row.certain)),
        )
        for row in rows
    ]
    heads = (
        "What|Group|Address or topic|Name server|Available|Up|Down|Away|Outages|Mean time to recover|"
        "Flapping|Causes|Certain"
    )
    return _section("Availability", chart + _KEY_TO_COLOURS + _table("Availability", heads.split("|"), shown))


def _shares(row: Row) -> list[Piece]:
    total = row.up_s + row.down_s + row.away_s
    pieces, at = [], 0.0
    for look, seconds in (("up", row.up_s), ("down", row.down_s), ("away", row.away_s)):
        if seconds > 0:
            pieces.append(Piece(at, at := at + seconds / total, look, f"{look} {_span(seconds)}"))
    return pieces


def _outages(events: DataFrame, begin: datetime, until: datetime) -> str:
    rows = outages(events, until).orderBy("since", "what", "broker", "name", "server").collect()
    length_s = max((until - begin).total_seconds(), 1.0)

    def share(moment: datetime) -> float:
        return min(max((_aware(moment) - begin).total_seconds() / length_s, 0.0), 1.0)

    pieces: dict[str, list[Piece]] = defaultdict(list)
    for row in rows:
        if row.what == "broker":
            end = 1.0 if row.until is None else share(row.until)
            text = f"{row.cause}, {_span(row.seconds)} from {_moment(row.since)}"
            label = f"{row.broker} {row.name} at {row.server}"
            pieces[label].append(Piece(share(row.since), end, "away" if row.planned else "down", text))
    chart = bars(
        "When brokers were not there",
        f"{len(rows)} outages of brokers, groups and topics; those of {len(pieces)} brokers along the time.",
        dict(list(pieces.items())[:BARS_MAX]),
        moments(begin, until),
    )
    shown = [
        (
            *(_moment(row.since), "not yet" if row.until is None else _moment(row.until), _span(row.seconds)),
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
        "How much there was", "Brokers, topics by group and write queues of each name server over time.", levels
    )
    heads = list(rows[0].__fields__) if rows else []
    shown = [tuple(_moment(value) if isinstance(value, datetime) else value for value in row) for row in rows]
    return _section("Growth and churn", chart + _table("Changes over time", [_words(name) for name in heads], shown))


def _divergence(events: DataFrame, until: datetime) -> str:
    rows = divergence(events, until=until).orderBy("since", "what", "broker", "name").collect()
    shown = [
        (
            *(_moment(row.since), "not yet" if row.until is None else _moment(row.until), _span(row.seconds)),
            *(row.what, row.broker, row.name, "; ".join(f"{server}: {word}" for server, word in row.views.items())),
        )
        for row in rows
    ]
    heads = ["Since", "Until", "Lasted", "What", "Group", "Address or topic", "Who said what"]
    return _section(
        "Disagreements of name servers", _table("Disagreements that lasted more than a second", heads, shown)
    )


def _capacity(events: DataFrame, until: datetime, servers_own: set[str]) -> str:
    worst = fn.desc("single_broker"), fn.desc("skew"), "topic"
    rows = capacity(events, until).orderBy(*worst, "server").collect()
    rows.sort(key=lambda row: _is_internal(row.topic, servers_own))
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
    return _section("Capacity", _table("Topics and their queues at the end", heads, shown))


def _permissions(events: DataFrame) -> str:
    rows = permission_changes(events).orderBy("at", "server", "broker", "topic").collect()
    shown = [(_moment(row.at), *tuple(row)[1:]) for row in rows]
    heads = ["At", "Name server", "Group", "Topic", "Before", "After", "Cause"]
    return _section("Changes of permission", _table("Changes of permission", heads, shown))


def _rejects(rejects: DataFrame) -> str:
    rows = rejects.orderBy("file", "line").limit(ROWS_MAX + 1).collect()
    shown = [(row.file, row.problem, row.line[:200]) for row in rows]
    return _section("Lines that are no records", _table("Lines set aside", ["File", "Problem", "Line"], shown))


def _section(title: str, content: str) -> str:
    anchor = title.lower().replace(" ", "-")
    return f'<section aria-labelledby="{anchor}"><h2 id="{anchor}">{escape(title)}</h2>{content}</section>'


def _table(caption: str, heads: Sequence[str], rows: Sequence[Iterable[Any]]) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows[:ROWS_MAX])
    more = f"<p>… and {len(rows) - ROWS_MAX:,} more: the jobs show all.</p>" if len(rows) > ROWS_MAX else ""
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}"
    )


def _cell(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"<td{' class=number' if is_number else ''}>{'' if value is None else escape(str(value))}</td>"


def _is_internal(topic: str, servers_own: set[str]) -> bool:
    """Return whether a topic is not an application's: `servers_own` are the topics named like clusters and brokers."""
    is_own = is_system_topic(topic) or topic in servers_own or topic.endswith(REPLY_SUFFIX)
    return is_own or group_of(topic) is not None


def _words(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _yes(value: bool) -> str:  # noqa: FBT001 - there is nothing else to say
    return "yes" if value else "no"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.3%}"


def _span(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f}\N{NO-BREAK SPACE}{unit}"
    return f"{seconds:.1f}\N{NO-BREAK SPACE}s"


def _aware(moment: datetime) -> datetime:
    return moment.astimezone(UTC)


def _moment(moment: datetime) -> str:
    return _aware(moment).strftime("%Y-%m-%d %H:%M:%S")


_KEY_TO_COLOURS: Final = "".join(
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
<title>The cluster's history up to {until}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>The cluster's history up to {until} (UTC)</h1>
<dl>{head}</dl>
{sections}
</main>
</body>
</html>
"""
