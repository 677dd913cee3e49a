"""`skyroute top`: brokers, the busiest topics and the groups that are furthest behind, on one screen."""

import asyncio
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from heapq import nlargest
from importlib.util import find_spec
from typing import Final, Generic, NamedTuple, TypeVar

import click

from skyroute.cli.admin.output import print_json
from skyroute.cli.flags import CONTEXT, name_servers_option
from skyroute.cli.help import examples
from skyroute.client.admin import Admin
from skyroute.client.admin.base import CONCURRENT_CALLS_MAX, call_each
from skyroute.client.admin.broker_load import BrokerLoad, read_load
from skyroute.client.errors import ServerFailedError
from skyroute.client.session.session import ClientArguments
from skyroute.client.session.signing import Credentials
from skyroute.errors import SkyrouteError
from skyroute.message.reserved_topics import (
    group_of,
    is_dead_letter_topic,
    is_retry_topic,
    is_system_topic,
    retry_topic,
)
from skyroute.wire.calls.groups import ConsumeStats, decode_consume_stats, encode_consume_stats_query
from skyroute.wire.calls.settings import BrokerStats, decode_broker_stats, encode_broker_stats_query

ASKED_A_ROUND: Final = 40
"""About how many topics, and how many groups, brokers are asked in one round. A cluster may have ten thousand."""
ROUND_S: Final = 5.0
"""A broker that stands still must not stop the screen: whoever has not answered by then is asked in another round."""
NAMES_S: Final = 30.0
"""How often to ask which topics there are."""
ONCE_S: Final = 5.0
"""With --once, rounds go on until everybody was asked about, or for so long."""


class Topic(NamedTuple):
    """What comes into a topic, over the last minute and the last day."""

    name: str
    in_tps: float
    in_day: int

    @property
    def size(self) -> float:
        return self.in_tps


class Group(NamedTuple):
    """How far behind a consumer group is."""

    name: str
    lag: int
    out_tps: float
    worst_topic: str | None
    """With which topic it is furthest behind."""

    @property
    def size(self) -> float:
        return self.lag


Row = TypeVar("Row", Topic, Group)
Answer = TypeVar("Answer")


class Turns(Generic[Row]):
    """Asks about some of many in every round: half are the largest so far, the others come in turn."""

    def __init__(self, ask: Callable[[str], Awaitable[Row]], count: int) -> None:
        self._ask: Callable[[str], Awaitable[Row]] = ask
        self._count = count
        self._last = ""
        self.names: Sequence[str] = ()
        self.found: dict[str, Row | None] = {}
        """None: it could not be told."""

    def rows(self, *, by_name: bool = False) -> list[Row]:
        """Return what is known, the largest first."""
        rows = [row for row in self.found.values() if row is not None]
        return sorted(rows, key=lambda row: row.name if by_name else (-row.size, row.name))

    @property
    def is_complete(self) -> bool:
        return len(self.found) >= len(self.names)

    def meet(self, names: Sequence[str]) -> None:
        """Learn, in order, which there are now."""
        present = set(names)
        self.names = names
        self.found = {name: row for name, row in self.found.items() if name in present}

    def choose(self) -> list[str]:
        """Return about whom to ask next."""
        sizes = {name: row.size for name, row in self.found.items() if row is not None and row.size > 0}
        chosen = nlargest(self._count // 2, sizes, key=lambda name: sizes[name])
        others = sorted(set(self.names).difference(chosen))
        start = bisect_right(others, self._last)
        in_turn = (others[start:] + others[:start])[: self._count - len(chosen)]
        self._last = in_turn[-1] if in_turn else ""
        return chosen + in_turn

    async def round(self) -> None:
        """Ask about some. What has been answered counts, even if this is cut short."""
        slots = asyncio.Semaphore(CONCURRENT_CALLS_MAX)

        async def ask(name: str) -> None:
            async with slots:
                try:
                    self.found[name] = await self._ask(name)
                except SkyrouteError:
                    self.found.setdefault(name, None)  # what was known before is better than nothing

        await asyncio.gather(*map(ask, self.choose()))


class Survey:
    """What is known of a cluster, and a little more after every round."""

    def __init__(self, admin: Admin, count: int) -> None:
        self._admin = admin
        self._clock = admin.session.clock
        self._names_until = 0.0
        self.brokers: list[BrokerLoad] = []
        self.topics = Turns(self._ask_topic, count)
        self.groups = Turns(self._ask_group, count)

    async def take(self) -> None:
        """Ask every broker how it is, and about some topics and groups.

        Raises:
            NoNameServerError: none answers.
        """
        if self._clock.monotonic() >= self._names_until:
            topics = sorted(await self._admin.topics())
            self._names_until = self._clock.monotonic() + NAMES_S
            self.topics.meet([name for name in topics if not _is_of_the_system(name)])
            self.groups.meet(sorted({group_of(name) or "" for name in topics if is_retry_topic(name)}))
        with suppress(TimeoutError):
            async with asyncio.timeout(ROUND_S):
                self.brokers = [read_load(broker) for broker in await self._admin.brokers()]
                await asyncio.gather(self.topics.round(), self.groups.round())

    async def take_all(self) -> None:
        """Go on until everybody was asked about, or for `ONCE_S`."""
        until = self._clock.monotonic() + ONCE_S
        await self.take()
        while self._clock.monotonic() < until and not (self.topics.is_complete and self.groups.is_complete):
            await self.take()

    async def _ask_topic(self, topic: str) -> Topic:
        async def ask(address: str) -> BrokerStats:
            request = encode_broker_stats_query("TOPIC_PUT_NUMS", topic)
            try:
                return decode_broker_stats((await self._admin.session.ask(address, request)).body)
            except ServerFailedError:
                return BrokerStats()  # so brokers say that they have stored nothing of it

        answers = (await self._ask_brokers(topic, ask)).values()
        return Topic(topic, sum(stats.minute.tps for stats in answers), sum(stats.sum_of_day for stats in answers))

    async def _ask_group(self, group: str) -> Group:
        async def ask(address: str) -> ConsumeStats:
            return decode_consume_stats(
                (await self._admin.session.ask(address, encode_consume_stats_query(group))).body
            )  # fmt: skip

        answers = (await self._ask_brokers(retry_topic(group), ask)).values()
        lags: Counter[str] = Counter()
        for stats in answers:
            for queue, progress in stats.queues.items():
                lags[queue.topic] += max(0, progress.lag)
        worst, most = max(lags.items(), key=lambda each: each[1], default=("", 0))
        return Group(group, lags.total(), sum(stats.tps for stats in answers), worst if most else None)

    async def _ask_brokers(self, topic: str, ask: Callable[[str], Awaitable[Answer]]) -> dict[str, Answer]:
        """Ask those brokers of a topic that answer: a part of the truth comes sooner than all of it."""
        silent = {load.broker.address for load in self.brokers if load.broker.failure}
        answers, _ = await call_each((each for each in await self._admin.serving(topic) if each not in silent), ask)
        return answers


def _is_of_the_system(topic: str) -> bool:
    return is_system_topic(topic) or is_retry_topic(topic) or is_dead_letter_topic(topic)


def _as_values(survey: Survey) -> dict[str, object]:
    """Return all that is known, for programs."""
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
            for load in survey.brokers
        ],
        "topics": [row._asdict() for row in survey.topics.rows()],
        "topics_asked": len(survey.topics.found),
        "topics_total": len(survey.topics.names),
        "groups": [row._asdict() for row in survey.groups.rows()],
        "groups_asked": len(survey.groups.found),
        "groups_total": len(survey.groups.names),
    }


@click.command(
    context_settings=CONTEXT,
    epilog=examples(
        "skyroute top -n 127.0.0.1:9876",
        "skyroute top -n 127.0.0.1:9876 --once --json        # for programs",
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
    help="How long to wait between two rounds.",
)
@click.option(
    "--asked",
    "count",
    type=click.IntRange(2, 1_000),
    default=ASKED_A_ROUND,
    show_default=True,
    help="About how many topics, and groups, to ask in a round: the largest, and others in turn.",
)
@click.option("--once", is_flag=True, help="Print one screen, and end.")
@click.option("--json", "as_json", is_flag=True, help="With --once: print JSON, for programs.")
@click.option("--access-key", metavar="KEY", envvar="ROCKETMQ_ACCESS_KEY", show_envvar=True, help="Who we are.")
@click.option("--secret-key", metavar="KEY", envvar="ROCKETMQ_SECRET_KEY", show_envvar=True, help="What proves it.")
@click.option("--tls", is_flag=True, help="Speak TLS, and check nobody's certificate.")
def top(
    name_servers: str,
    interval_s: float,
    count: int,
    access_key: str | None,
    secret_key: str | None,
    *,
    once: bool,
    as_json: bool,
    tls: bool,
) -> None:
    """Watch brokers, topics and groups on the terminal.

    The busiest topics are shown, and the groups that are furthest behind. q ends it; s sorts by name, and back. Rates
    of brokers are of the last ten seconds, those of topics of the last minute.
    """
    if as_json and not once:
        raise click.UsageError("--json is for one answer: give --once as well.")
    if not once and not sys.stdout.isatty():
        raise click.UsageError("This is no terminal: give --once to have one screen printed.")
    if not as_json and find_spec("rich") is None:
        raise click.ClickException("top needs a package that is not installed: pip install 'skyroute[top]'")
    client: ClientArguments = {"tls": tls}
    if access_key:
        client["credentials"] = Credentials(access_key, secret_key or "")

    async def work() -> None:
        async with Admin(name_servers, **client) as admin:
            survey = Survey(admin, count)
            if once:
                await survey.take_all()
                if as_json:
                    print_json(_as_values(survey))
                    return
            from skyroute.cli.top_screen import print_screen, watch  # noqa: PLC0415 - an extra

            if once:
                print_screen(survey)
            else:
                await watch(survey, name_servers, interval_s)

    try:
        asyncio.run(work())
    except SkyrouteError as error:
        raise click.ClickException(str(error)) from error
    except KeyboardInterrupt:
        pass  # as with q
