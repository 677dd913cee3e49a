"""`diffRoutes`: compares the routes of all name servers."""

from collections.abc import Iterator
from typing import Any

import click

from skyroute.cli.admin.decorator import Output, admin_command
from skyroute.cli.admin.output import local_time, table
from skyroute.client.admin import Admin
from skyroute.client.admin.name_server_comparison import RECHECK_S, Comparison, compare_name_servers
from skyroute.client.admin.route_comparison import Difference

SAME, DIFFERENT, INCOMPLETE = 0, 1, 2


@admin_command("diffRoutes", "-n '10.0.0.1:9876;10.0.0.2:9876' --json", failed=INCOMPLETE)
@click.option(
    "--recheck",
    "recheck_s",
    type=click.FloatRange(min=0),
    default=RECHECK_S,
    show_default=True,
    metavar="SECONDS",
    help="Compare again after this time, and print only what still differs; 0: compare once.",
)
@click.option("--brokers/--no-brokers", "ask_brokers", default=True, help="Ask brokers which name servers are behind.")
async def diff_routes(admin: Admin, recheck_s: float, *, ask_brokers: bool) -> Output:
    """Compare the routes of all name servers.

    Reads brokers, clusters, topics and routes from every name server of -n, Apache's or Skyroute's. Changes nothing.
    If a name server does not know a broker at all, the broker's topics are counted, not listed.

    BEHIND: the name server contradicts the broker itself, if the broker can be reached. Routes have no version that
    would say which one is older. A write permission that an operator has removed does not count as behind.
    SINCE: when the topic last changed, if a Skyroute name server still knows.

    Exit code 0: no difference. 1: differences. 2: a name server could not be read.
    """
    found = await compare_name_servers(admin, recheck_s=recheck_s, ask_brokers=ask_brokers)
    return _text(found), _value(found), found.failures, DIFFERENT if found.differences else SAME


def _text(found: Comparison) -> str:
    count = len(found.differences)
    differences = "no difference" if not count else "1 difference" if count == 1 else f"{count} differences"
    summary = f"{len(found.name_servers)} name servers, {found.topics} topics: {differences}"
    if not count:
        return summary
    columns = ("Topic", "Broker", "What", "Name Server", "Value", "Behind", "Since")
    rows = (row for difference in found.differences for row in _rows(difference))
    return f"{table(columns, rows)}\n{summary}"


def _rows(difference: Difference) -> Iterator[list[str]]:
    for server, value in difference.values.items():
        shown = "-" if value is None else value
        if value is not None and difference.topics is not None:
            shown += f" ({difference.topics} topics)"
        yield [
            difference.topic or "-",
            difference.broker or "-",
            difference.what,
            server,
            shown,
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
                "values": each.values,
                "topics": each.topics,
                "behind": each.behind,
                "since_ms": each.since_ms,
            }
            for each in found.differences
        ],
        "failures": {server: str(error) for server, error in found.failures.items()},
    }
