"""The screen of `skyroute top`. Only this file imports Rich, an optional package."""

import asyncio
import logging
import os
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from skyroute.cli.cluster_sample import ClusterSample, Sampler
from skyroute.errors import SkyrouteError

HEADS: Final = 2
"""Lines of a table besides its rows: title and header."""
BROKERS_SHARE: Final = 0.4
"""Share of the screen for brokers."""
PRINTED_LINES: Final = 50
"""Lines that --once prints."""
WIDE: Final = 110
"""Terminal width from which topics and groups are side by side."""


def print_screen(sample: ClusterSample) -> None:
    """Print one screen."""
    console = Console()
    console.print(draw(sample, console.width, PRINTED_LINES))


async def show_live(sample: ClusterSample, name_servers: str, interval_s: float) -> None:
    """Update the screen every `interval_s` until q is pressed."""
    logging.getLogger("skyroute").addHandler(logging.NullHandler())  # log lines would overwrite the screen
    by_name, failure = False, ""
    ended = asyncio.Event()
    with Live(screen=True, auto_refresh=False) as live:

        def show() -> None:
            size = live.console.size
            lines = size.height - 1 - bool(failure)
            parts: list[RenderableType] = [draw(sample, size.width, lines, by_name=by_name)]
            if failure:
                parts.insert(0, Text(failure, "bold red", no_wrap=True, overflow="ellipsis"))
            other = "load" if by_name else "name"
            keys = f"{escape(name_servers)} · every {interval_s:g} s · q quits · s sorts by {other}"
            live.update(Group(*parts, Text.from_markup(keys, style="dim")), refresh=True)

        def press(key: str) -> None:
            nonlocal by_name
            if key in "qQ":
                ended.set()
            elif key in "sS":
                by_name = not by_name
                show()

        async def update() -> None:
            nonlocal failure
            while True:
                try:
                    await sample.update()
                    failure = ""
                except SkyrouteError as error:
                    failure = str(error)
                show()
                await asyncio.sleep(interval_s)

        with _keys(press):
            show()
            updating, ending = asyncio.create_task(update()), asyncio.create_task(ended.wait())
            await asyncio.wait([updating, ending], return_when=asyncio.FIRST_COMPLETED)
            ending.cancel()
            if updating.done():
                updating.result()  # raises: the loop has no other end
            updating.cancel()


@contextmanager
def _keys(press: Callable[[str], None]) -> Iterator[None]:
    """Call `press` with every key, without echo, if standard input is a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    loop = asyncio.get_running_loop()
    tty.setcbreak(keyboard)

    def read() -> None:
        for key in os.read(keyboard, 32).decode("ascii", "replace") or "q":  # no bytes: the terminal is closed
            press(key)

    loop.add_reader(keyboard, read)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def draw(sample: ClusterSample, width: int, lines: int, *, by_name: bool = False) -> RenderableType:
    """Return the three tables, `lines` high in total."""
    side_by_side = width >= WIDE
    for_brokers = min(len(sample.brokers), max(3, int(lines * BROKERS_SHARE) - HEADS))
    left = max(4, lines - for_brokers - (2 if side_by_side else 3) * HEADS)
    for_groups = left if side_by_side else min(len(sample.groups.found), left // 2)
    for_topics = left if side_by_side else left - for_groups
    topics, groups = _topics(sample, for_topics, by_name=by_name), _groups(sample, for_groups, by_name=by_name)
    brokers = _brokers(sample, for_brokers, by_name=by_name)
    if not side_by_side:
        return Group(brokers, topics, groups)
    pair = Table.grid(expand=True, padding=(0, 1))
    pair.add_column(ratio=1)
    pair.add_column(ratio=1)
    pair.add_row(topics, groups)
    return Group(brokers, pair)


def _table(title: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", expand=True, box=None, header_style="dim")
    for number, name in enumerate(names):
        table.add_column(name, ratio=None if number else 1, no_wrap=True, overflow="ellipsis")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _brokers(sample: ClusterSample, rows: int, *, by_name: bool) -> Table:
    loads = sample.brokers
    failed = sum(load.broker.failure is not None for load in loads)
    into, out = (sum(getattr(load, which) or 0 for load in loads) for which in ("into", "out"))
    title = f"Brokers: {len(loads)}, {failed} not responding · in {into:,.1f}/s · out {out:,.1f}/s"
    table = _table(
        title + _cut(rows, len(loads)),
        ("Broker", "Address"),
        ("Version", "In/s", "Out/s", "In today", "Out today", "Disk"),
    )
    if not by_name:
        loads = sorted(loads, key=lambda load: -((load.into or 0) + (load.out or 0)))
        loads = sorted(loads, key=lambda load: load.broker.failure is None)  # failed ones first
    for load in loads[:rows]:
        broker = load.broker
        name = f"{broker.name}/{broker.broker_id}"
        if broker.failure:
            table.add_row(Text(name), Text(broker.address), Text("no response", "bold red"))
            continue
        disk = "" if load.disk is None else f"{load.disk:.0%}"
        table.add_row(
            Text(name),
            Text(broker.address),
            Text(load.version or ""),
            _rate(load.into),
            _rate(load.out),
            _count(load.into_today),
            _count(load.out_today),
            Text(disk, "bold red" if load.disk_nearly_full else ""),
        )
    return table


def _topics(sample: ClusterSample, rows: int, *, by_name: bool) -> Table:
    table = _table(_title("Topics", sample.topics, rows), ("Topic",), ("In/s", "In 24 h"))
    for row in sample.topics.rows(by_name=by_name)[:rows]:
        table.add_row(Text(row.name), _rate(row.in_tps), _count(row.in_day))
    return table


def _groups(sample: ClusterSample, rows: int, *, by_name: bool) -> Table:
    table = _table(_title("Groups", sample.groups, rows), ("Group", "Most lag in"), ("Lag", "Out/s"))
    for row in sample.groups.rows(by_name=by_name)[:rows]:
        lag = Text(_count(row.lag), "yellow" if row.lag else "")
        table.add_row(Text(row.name), Text(row.worst_topic or ""), lag, _rate(row.out_tps))
    return table


def _title(what: str, sampler: Sampler[Any], rows: int) -> str:
    read = "" if sampler.is_complete else f", {len(sampler.found):,} read so far"
    return f"{what}: {len(sampler.names):,}{read}{_cut(rows, len(sampler.found))}"


def _cut(shown: int, known: int) -> str:
    return f" · {shown} shown" if shown < known else ""


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
