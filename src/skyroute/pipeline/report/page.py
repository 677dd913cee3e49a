"""The report: one self-contained HTML page with charts and tables about the journals."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as fn

from skyroute.message.reserved_topics import REPLY_SUFFIX, group_of, is_system_topic
from skyroute.nameserver.journal.schema import Kind
from skyroute.pipeline.jobs.availability import availability, outages
from skyroute.pipeline.jobs.churn import capacity, churn, permission_changes
from skyroute.pipeline.jobs.divergence import by_group, divergence
from skyroute.pipeline.jobs.incidents import incidents
from skyroute.pipeline.journal.epochs import epochs
from skyroute.pipeline.journal.reading import JournalFrames
from skyroute.pipeline.report.charts import BarPart, bars, lines, time_labels
from skyroute.pipeline.report.html import LEGEND, ROWS_MAX, folded, page, section, table

BARS_MAX: Final = 60
"""Bars shown of each chart."""
NAMES_MAX: Final = 5
"""Names shown in a cell, such as the topics of an incident."""


def report(journal: JournalFrames, until: datetime, window_s: float) -> str:
    """Return the page. `until` is the end of the observation of servers that still run."""
    events = _with_addresses(journal.events).persist()
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
        found_outages = outages(events, until).persist()
        rows = availability(events, None, until).orderBy("what", "broker", "name", "server").collect()
        found = incidents(found_outages).orderBy("since").collect()
        changes = churn(events, window_s).orderBy("window", "server").collect()
        differences = by_group(divergence(events, until=until)).orderBy("since", "broker").collect()
        rejected = journal.rejects.count()
        summary = {
            "Name servers": ", ".join(servers) or "none",
            "Records": f"{seen.events:,}, from {_time(begin)} to {_time(until)}",
            "Worst availability": _worst(rows),
            "Longest outage": _longest(found),
            "Divergences": f"{len(differences):,}" if differences else "none of more than a second",
            "Churn": _churn(changes),
            "Invalid lines": f"{rejected:,}",
        }
        sections = [
            _timeline(events, found_outages, begin, until),
            _incidents(found),
            _availability(rows, server_topics),
            _growth(changes),
            _divergence(differences),
            _capacity(events, until, server_topics),
            _permissions(events),
            _rejects(journal.rejects),
        ]
        found_outages.unpersist()
    finally:
        events.unpersist()
    return page(f"Cluster report up to {_time(until)} (UTC)", _headline(found), summary, sections)


def _with_addresses(events: DataFrame) -> DataFrame:
    """Return events in which name servers have their addresses, as operators know them, instead of their ids.

    Servers that started with the same address keep their ids beside it.
    """
    starts = events.filter(fn.col("kind") == Kind.SERVER_STARTED).groupBy("server")
    known = {row.server: row.address for row in starts.agg(fn.max_by("address", "seq").alias("address")).collect()}
    addresses = list(known.values())
    labels = {
        server: found if addresses.count(found) == 1 else f"{found} ({server})" for server, found in known.items()
    }
    if not labels:
        return events
    by_id = fn.create_map(*(fn.lit(text) for pair in labels.items() for text in pair))
    return events.withColumn("server", fn.coalesce(by_id[fn.col("server")], fn.col("server")))


# ------------------------------------------------------------------------------------------------------------- summary


def _headline(found: Sequence[Row]) -> str:
    unplanned = [row for row in found if not row.planned]
    if not unplanned:
        return "No unplanned outage."
    lasting = [row for row in unplanned if row.until is None]
    now = f", {_many(len(lasting), 'incident')} not over yet" if lasting else ""
    return f"{_many(len(unplanned), 'unplanned incident')}{now}. The last one began at {_time(unplanned[-1].since)}."


def _worst(rows: Sequence[Row]) -> str:
    known = [row for row in rows if row.what == "broker" and row.availability is not None]
    if not known:
        return "no broker known"
    worst = min(known, key=lambda row: row.availability)
    return f"{_percent(worst.availability)} of broker {worst.name} ({worst.broker}), as {worst.server} recorded it"


def _longest(found: Sequence[Row]) -> str:
    unplanned = [row for row in found if not row.planned]
    if not unplanned:
        return "none"
    longest = max(unplanned, key=lambda row: row.seconds)
    so_far = " so far" if longest.until is None else ""
    return f"{_duration(longest.seconds)}{so_far} from {_time(longest.since)}: {_what(longest)}"


def _churn(changes: Sequence[Row]) -> str:
    counts = {"brokers joined": "brokers_joined", "left": "brokers_left", "topics added": "topics_added"}
    counts |= {"removed": "topics_removed"}
    return ", ".join(f"{sum(row[column] for row in changes):,} {what}" for what, column in counts.items())


# ------------------------------------------------------------------------------------------------------------ sections


def _timeline(events: DataFrame, found: DataFrame, begin: datetime, until: datetime) -> str:
    """When name servers ran, and when brokers were not up."""
    length_s = max((until - begin).total_seconds(), 1.0)

    def share(moment: datetime) -> float:
        return min(max((_aware(moment) - begin).total_seconds() / length_s, 0.0), 1.0)

    parts = {f"name server {server}": each for server, each in _runs(events, until, share).items()}
    rows = found.filter("what = 'broker'").orderBy("broker", "name", "server", "since").collect()
    for row in rows:
        end = 1.0 if row.until is None else share(row.until)
        text = f"{row.cause}, {_duration(row.seconds)} from {_time(row.since)}"
        each = parts.setdefault(f"{row.name} ({row.broker}) at {row.server}", [])
        each.append(BarPart(share(row.since), end, "away" if row.planned else "down", text))
    chart = bars(
        "Name servers and brokers over time",
        f"When name servers ran, and {_many(len(rows), 'outage')} of brokers as each name server recorded them.",
        dict(list(parts.items())[:BARS_MAX]),
        time_labels(begin, until),
    )
    return section("Timeline", chart + LEGEND if parts else "<p>None.</p>")


def _runs(events: DataFrame, until: datetime, share: Callable[[datetime], float]) -> dict[str, list[BarPart]]:
    """Return each name server's runs, and the time between them: away after a stop, down after a crash."""
    parts: dict[str, list[BarPart]] = defaultdict(list)
    ended: dict[str, tuple[datetime, bool]] = {}
    for row in epochs(events).orderBy("server", "began_ms").collect():
        began, end = _at(row.began_ms), until if row.ended_ms is None else _at(row.ended_ms)
        if row.server in ended:
            before, was_stopped = ended[row.server]
            text = f"{'stopped' if was_stopped else 'crashed'}, last seen at {_time(before)}"
            parts[row.server].append(BarPart(share(before), share(began), "away" if was_stopped else "down", text))
        text = f"ran from {_time(began)} to {'now' if row.ended_ms is None else _time(end)}"
        parts[row.server].append(BarPart(share(began), share(end), "up", text))
        ended[row.server] = end, bool(row.stopped)
    return parts


def _incidents(found: Sequence[Row]) -> str:
    shown = [
        (
            *(_time(row.since), "ongoing" if row.until is None else _time(row.until), _duration(row.seconds)),
            *(_what(row), _taken_along(row), ", ".join(row.causes), _yes(row.planned), _few(row.servers)),
        )
        for row in reversed(found)
    ]
    heads = ["Since", "Until", "Lasted", "What failed", "Took along", "Causes", "Planned", "Recorded by"]
    return section("Incidents", table("Incidents, the last one first", heads, shown))


def _what(incident: Row) -> str:
    """Return what an incident began with: its brokers, or else its groups or topics."""
    for one, names in (("broker", incident.brokers), ("group", incident.groups), ("topic", incident.topics)):
        if names:
            return f"{one if len(names) == 1 else f'{len(names)} {one}s:'} {_few(names)}"
    return ""


def _taken_along(incident: Row) -> str:
    parts = []
    if incident.brokers and incident.groups:
        parts.append(f"the whole of {_few(incident.groups)}")
    if (incident.brokers or incident.groups) and incident.topics:
        parts.append(f"{_many(len(incident.topics), 'topic')}: {_few(incident.topics)}")
    return "; ".join(parts)


def _availability(rows: Sequence[Row], server_topics: set[str]) -> str:
    brokers = {f"{row.name} ({row.broker}) at {row.server}": _shares(row) for row in rows if row.what == "broker"}
    chart = bars(
        "Uptime of each broker",
        f"One bar for each of {len(brokers)} brokers and name servers: time up, down, and away (planned).",
        dict(list(brokers.items())[:BARS_MAX]),
    )
    heads = ["What", "Name", "Name server", "Available", "Down", "Away", "Outages", "Mean time to recover", "Notes"]

    def shown(each: Row) -> tuple[Any, ...]:
        name = f"{each.name} ({each.broker})" if each.what == "broker" else each.name or each.broker
        notes = ["flapping"] * each.flapping + ["not certain"] * (not each.certain) + list(each.causes)
        times = (_duration(each.down_s), _duration(each.away_s), each.outages, _duration(each.mttr_s))
        return (each.what, name, each.server, _percent(each.availability), *times, ", ".join(notes))

    def is_internal(row: Row) -> bool:
        return row.what == "topic" and _is_internal(row.name, server_topics)

    users = [shown(row) for row in rows if not is_internal(row)]
    internal = [shown(row) for row in rows if is_internal(row)]
    tables = table("Availability", heads, users)
    if internal:
        tables += folded(_many(len(internal), "system topic"), table("Availability of system topics", heads, internal))
    return section("Availability", (chart + LEGEND if brokers else "") + tables)


def _shares(row: Row) -> list[BarPart]:
    total = row.up_s + row.down_s + row.away_s
    pieces, at = [], 0.0
    for state, seconds in (("up", row.up_s), ("down", row.down_s), ("away", row.away_s)):
        if seconds > 0:
            pieces.append(BarPart(at, at := at + seconds / total, state, f"{state} {_duration(seconds)}"))
    return pieces


def _growth(rows: Sequence[Row]) -> str:
    levels: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
    for row in rows:
        for level in ("brokers", "topics", "queues"):
            levels[f"{level} at {row.server}"].append((_aware(row.window), row[level]))
    chart = lines(
        "Brokers, topics and queues over time", "Brokers, topics by group and write queues of each name server.", levels
    )
    shown = [
        (
            *(_time(row.window), row.server, row.brokers_joined, row.brokers_left),
            *(row.topics_added, row.topics_changed, row.topics_removed, row.brokers, row.topics, row.queues),
        )
        for row in rows
    ]
    heads = ["Window", "Name server", "Brokers joined", "Left", "Topics added", "Changed", "Removed"]
    heads += ["Brokers", "Topics", "Queues"]
    return section("Growth and churn", chart + table("Changes over time", heads, shown))


def _divergence(rows: Sequence[Row]) -> str:
    shown = [
        (
            *(_time(row.since), "ongoing" if row.until is None else _time(row.until), _duration(row.seconds)),
            *(row.broker, ", ".join(row.what), _few(row.names)),
            "; ".join(f"{server}: {value}" for server, value in row.views.items()),
        )
        for row in rows
    ]
    heads = ["Since", "Until", "Lasted", "Group", "What", "Addresses and topics", "First values by name server"]
    return section("Divergence of name servers", table("Divergences of more than a second", heads, shown))


def _capacity(events: DataFrame, until: datetime, server_topics: set[str]) -> str:
    worst = fn.desc("single_broker"), fn.desc("skew"), "topic"
    rows = capacity(events, until).orderBy(*worst, "server").collect()
    heads = ["Topic", "Name server", "Groups", "Read queues", "Write queues", "Skew", "Notes", "On"]

    def shown(each: Row) -> tuple[Any, ...]:
        notes = ["one group only"] * each.single_broker + ["read-only"] * each.read_only
        queues = (each.groups, each.read_queues, each.write_queues, each.skew and f"{each.skew:.2f}")
        return (each.topic, each.server, *queues, ", ".join(notes), _few(each.brokers))

    caption = "Topics and their queues at the end of the report"
    content = table(caption, heads, [shown(row) for row in rows if not _is_internal(row.topic, server_topics)])
    internal = [shown(row) for row in rows if _is_internal(row.topic, server_topics)]
    if internal:
        content += folded(_many(len(internal), "system topic"), table("System topics", heads, internal))
    return section("Capacity", content)


def _permissions(events: DataFrame) -> str:
    rows = permission_changes(events).orderBy("at", "server", "broker", "topic").collect()
    shown = [(_time(row.at), *tuple(row)[1:]) for row in rows]
    heads = ["At", "Name server", "Group", "Topic", "Before", "After", "Cause"]
    return section("Permission changes", table("Permission changes", heads, shown))


def _rejects(rejects: DataFrame) -> str:
    rows = rejects.orderBy("file", "line").limit(ROWS_MAX + 1).collect()
    shown = [(row.file, row.problem, row.line[:200]) for row in rows]
    return section("Invalid lines", table("Rejected lines", ["File", "Problem", "Line"], shown))


def _is_internal(topic: str, server_topics: set[str]) -> bool:
    """Return whether a topic is internal; `server_topics` are the topics named after clusters and brokers."""
    is_server_topic = is_system_topic(topic) or topic in server_topics or topic.endswith(REPLY_SUFFIX)
    return is_server_topic or group_of(topic) is not None


# --------------------------------------------------------------------------------------------------------------- texts


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES_MAX:,} more" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


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


def _at(time_ms: int) -> datetime:
    return datetime.fromtimestamp(time_ms / 1000, UTC)


def _aware(moment: datetime) -> datetime:
    return moment.astimezone(UTC)


def _time(moment: datetime) -> str:
    return _aware(moment).strftime("%Y-%m-%d %H:%M:%S")
