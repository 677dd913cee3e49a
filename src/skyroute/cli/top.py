"""`skyroute top`: brokers, the busiest topics and the groups with the most lag, on one screen."""

import asyncio
import sys
from importlib.util import find_spec

import click

from skyroute.cli.admin.output import print_json
from skyroute.cli.cluster_sample import SAMPLED_PER_ROUND, ClusterSample
from skyroute.cli.options import CONTEXT, client_options, examples, name_servers_option
from skyroute.client.admin import Admin
from skyroute.client.session.session import ClientArguments
from skyroute.errors import SkyrouteError


def _as_values(sample: ClusterSample) -> dict[str, object]:
    """Return the sample as JSON values."""
    return {
        "brokers": [
            {
                "cluster": load.broker.cluster,
                "broker": load.broker.name,
                "broker_id": load.broker.broker_id,
                "address": load.broker.address,
                "version": load.version,
                "in_tps": load.into,
                "out_tps": load.out,
                "in_today": load.into_today,
                "out_today": load.out_today,
                "disk_ratio": load.disk,
                "failure": str(load.broker.failure) if load.broker.failure else None,
            }
            for load in sample.brokers
        ],
        "topics": [row._asdict() for row in sample.topics.rows()],
        "topics_read": len(sample.topics.found),
        "topics_total": len(sample.topics.names),
        "groups": [row._asdict() for row in sample.groups.rows()],
        "groups_read": len(sample.groups.found),
        "groups_total": len(sample.groups.names),
    }


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "skyroute top -n 127.0.0.1:9876",
        "skyroute top -n 127.0.0.1:9876 --once --json        # for scripts",
    ),
)
@name_servers_option
@click.option(
    "-i",
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.5),
    metavar="SECONDS",
    default=3.0,
    show_default=True,
    help="Time between two updates.",
)
@click.option(
    "--sample",
    "count",
    type=click.IntRange(2, 1_000),
    default=SAMPLED_PER_ROUND,
    show_default=True,
    help="Topics, and groups, to read per update: the largest, and others in rotation.",
)
@click.option("--once", is_flag=True, help="Print one screen and exit.")
@click.option("--json", "as_json", is_flag=True, help="With --once: print JSON.")
@client_options
def top(
    name_servers: str,
    interval_s: float,
    count: int,
    client: ClientArguments,
    *,
    once: bool,
    as_json: bool,
) -> None:
    """Show live rates and lag of a cluster on the terminal.

    Shows all brokers, the busiest topics and the groups with the most lag. Keys: q quits, s sorts by name or by load.
    Broker rates cover the last ten seconds, topic rates the last minute.
    """
    if as_json and not once:
        raise click.UsageError("--json needs --once.")
    if not once and not sys.stdout.isatty():
        raise click.UsageError("Standard output is not a terminal: add --once to print one screen.")
    if not as_json and find_spec("rich") is None:
        raise click.ClickException("top needs a package that is not installed: pip install 'skyroute[top]'")

    async def work() -> None:
        async with Admin(name_servers, **client) as admin:
            sample = ClusterSample(admin, count)
            if once:
                await sample.update_all()
                if as_json:
                    print_json(_as_values(sample))
                    return
            from skyroute.cli.top_screen import print_screen, show_live

            if once:
                print_screen(sample)
            else:
                await show_live(sample, name_servers, interval_s)

    try:
        asyncio.run(work())
    except SkyrouteError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        pass  # same as q
