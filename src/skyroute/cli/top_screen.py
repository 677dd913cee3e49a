"""What `skyroute top` looks like. The only file that imports Rich, which is an extra."""

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

from skyroute.cli.top import Survey, Turns
from skyroute.errors import SkyrouteError

HEADS: Final = 2
"""Lines of a table that are no rows."""
BROKERS_SHARE: Final = 0.4
"""How much of the rows brokers may have."""
PRINTED_LINES: Final = 50
"""Of a screen that is printed, and scrolls."""
WIDE: Final = 110
"""Columns from which on topics and groups stand side by side."""


def print_screen(survey: Survey) -> None:
    """Print what is known."""
    console = Console()
    console.print(draw(survey, console.width, PRINTED_LINES))


async def watch(survey: Survey, name_servers: str, interval_s: float) -> None:
    """Show what is known, and more of it after every round, until somebody presses q."""
    logging.getLogger("skyroute").addHandler(logging.NullHandler())  # lines of log would stand across the screen
    by_name, failure = False, ""
    ended = asyncio.Event()
    with Live(screen=True, auto_refresh=False) as live:

        def show() -> None:
            size = live.console.size
            lines = size.height - 1 - bool(failure)
            parts: list[RenderableType] = [draw(survey, size.width, lines, by_name=by_name)]
            if failure:
                parts.insert(0, Text(failure, "bold red", no_wrap=True, overflow="ellipsis"))
            keys = (
                f"{escape(name_servers)} · every {interval_s:g} s · q ends · s sorts by {'load' if by_name else 'name'}"
            )
            live.update(Group(*parts, Text.from_markup(keys, style="dim")), refresh=True)

        def press(key: str) -> None:
            nonlocal by_name
            if key in "qQ":
                ended.set()
            elif key in "sS":
                by_name = not by_name
                show()

        async def go_on() -> None:
            nonlocal failure
            while True:
                try:
                    await survey.take()
                    failure = ""
                except SkyrouteError as error:
                    failure = str(error)
                show()
                await asyncio.sleep(interval_s)

        with _keys(press):
            show()
            going, ending = asyncio.create_task(go_on()), asyncio.create_task(ended.wait())
            await asyncio.wait([going, ending], return_when=asyncio.FIRST_COMPLETED)
            ending.cancel()
            if going.done():
                going.result()  # it only ends by a bug
            going.cancel()


@contextmanager
def _keys(press: Callable[[str], None]) -> Iterator[None]:
    """Call `press` with every key, at once and without an echo, if there is a keyboard."""
    if not sys.stdin.isatty():
        yield
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    loop = asyncio.get_running_loop()
    tty.setcbreak(keyboard)

    def read() -> None:
        for key in os.read(keyboard, 32).decode("ascii", "replace") or "q":  # nothing: the terminal is gone
            press(key)

    loop.add_reader(keyboard, read)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def draw(survey: Survey, width: int, lines: int, *, by_name: bool = False) -> RenderableType:
    """Return the three tables, with so many lines in all."""
    side_by_side = width >= WIDE
    for_brokers = min(len(survey.brokers), max(3, int(lines * BROKERS_SHARE) - HEADS))
    left = max(4, lines - for_brokers - (2 if side_by_side else 3) * HEADS)
    for_groups = left if side_by_side else min(len(survey.groups.found), left // 2)
    for_topics = left if side_by_side else left - for_groups
    topics, groups = _topics(survey, for_topics, by_name=by_name), _groups(survey, for_groups, by_name=by_name)
    brokers = _brokers(survey, for_brokers, by_name=by_name)
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


def _brokers(survey: Survey, rows: int, *, by_name: bool) -> Table:
    loads = survey.brokers
    silent = sum(load.broker.failure is not None for load in loads)
    into, out = (sum(getattr(load, which) or 0 for load in loads) for which in ("into", "out"))
    title = f"Brokers: {len(loads)}, {silent} silent · in {into:,.1f}/s · out {out:,.1f}/s"
    table = _table(
        title + _cut(rows, len(loads)),
        ("Broker", "Address"),
        ("Version", "In/s", "Out/s", "In today", "Out today", "Disk"),
    )
    if not by_name:
        loads = sorted(loads, key=lambda load: -((load.into or 0) + (load.out or 0)))
        loads = sorted(loads, key=lambda load: load.broker.failure is None)  # trouble first
    for load in loads[:rows]:
        broker = load.broker
        name = f"{broker.name}/{broker.broker_id}"
        if broker.failure:
            table.add_row(Text(name), Text(broker.address), Text("does not answer", "bold red"))
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


def _topics(survey: Survey, rows: int, *, by_name: bool) -> Table:
    table = _table(_title("Topics", survey.topics, rows), ("Topic",), ("In/s", "In a day"))
    for row in survey.topics.rows(by_name=by_name)[:rows]:
        table.add_row(Text(row.name), _rate(row.in_tps), _count(row.in_day))
    return table


def _groups(survey: Survey, rows: int, *, by_name: bool) -> Table:
    table = _table(_title("Groups", survey.groups, rows), ("Group", "Most in"), ("Waiting", "Out/s"))
    for row in survey.groups.rows(by_name=by_name)[:rows]:
        waiting = Text(_count(row.lag), "yellow" if row.lag else "")
        table.add_row(Text(row.name), Text(row.worst_topic or ""), waiting, _rate(row.out_tps))
    return table


def _title(what: str, turns: Turns[Any], rows: int) -> str:
    asked = "" if turns.is_complete else f", {len(turns.found):,} of them asked so far"
    return f"{what}: {len(turns.names):,}{asked}{_cut(rows, len(turns.found))}"


def _cut(shown: int, known: int) -> str:
    return f" · {shown} shown" if shown < known else ""


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


def _count(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
