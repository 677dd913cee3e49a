"""The command that finds out whether all name servers say the same."""

from collections.abc import Iterator
from typing import Any

import click

from skyroute.cli.admin.command import Answer, admin_command
from skyroute.cli.admin.output import local_time, table
from skyroute.client.admin import Admin
from skyroute.client.admin.name_server_comparison import SETTLE_S, Comparison, compare_name_servers
from skyroute.client.admin.route_comparison import Difference

SAME, DIFFERENT, NOT_ASKED = 0, 1, 2


@admin_command("diffRoutes", "-n '10.0.0.1:9876;10.0.0.2:9876' --json", failed=NOT_ASKED)
@click.option(
    "--settle",
    "settle_s",
    type=click.FloatRange(min=0),
    default=SETTLE_S,
    show_default=True,
    metavar="SECONDS",
    help="Look again so much later, and name only what still differs; 0: look once.",
)
@click.option(
    "--brokers/--no-brokers", "ask_brokers", default=True, help="Ask brokers who is right where name servers differ."
)
async def diff_routes(admin: Admin, settle_s: float, *, ask_brokers: bool) -> Answer:
    """Name all in which the name servers do not say the same.

    Every name server of -n is asked for its brokers, clusters, topics and routes. It works with Apache's and with ours,
    and changes nothing. Topics of a broker that a name server does not know at all are counted, and not named one by
    one.

    BEHIND is who says otherwise than the broker itself, as far as it can be reached from here: routes carry no version
    by which one could be called older. A ban on writes is an operator's word, and nobody is behind for it. SINCE is
    when the topic last changed at one of the name servers, if one of ours still remembers; Apache's do not tell.

    Exit code 0: they say the same. 1: they differ. 2: not all could be asked.
    """
    found = await compare_name_servers(admin, settle_s=settle_s, ask_brokers=ask_brokers)
    return _text(found), _value(found), found.failures, DIFFERENT if found.differences else SAME


def _text(found: Comparison) -> str:
    count = len(found.differences)
    differences = "no difference" if not count else "1 difference" if count == 1 else f"{count} differences"
    summary = f"{len(found.name_servers)} name servers, {found.topics} topics: {differences}"
    if not count:
        return summary
    columns = ("Topic", "Broker", "What", "Name Server", "Says", "Behind", "Since")
    rows = (row for difference in found.differences for row in _rows(difference))
    return f"{table(columns, rows)}\n{summary}"


def _rows(difference: Difference) -> Iterator[list[str]]:
    for server, said in difference.said.items():
        says = "-" if said is None else said
        if said is not None and difference.topics is not None:
            says += f" ({difference.topics} topics)"
        yield [
            difference.topic or "-",
            difference.broker or "-",
            difference.what,
            server,
            says,
            "?" if difference.behind is None else "yes" if server in difference.behind else "no",
            local_time(difference.since_ms),
        ]


def _value(found: Comparison) -> dict[str, Any]:
    return {
        "name_servers": found.name_servers,
        "topics": found.topics,
        "differences": [
            {
                "topic": each.topic,
                "broker": each.broker,
                "what": each.what,
                "said": each.said,
                "topics": each.topics,
                "behind": each.behind,
                "since_ms": each.since_ms,
            }
            for each in found.differences
        ],
        "failures": {server: str(error) for server, error in found.failures.items()},
    }
