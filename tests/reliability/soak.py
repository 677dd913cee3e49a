"""Everything at once for a long time: load, faults of the network, restarts. What processes hold stays flat."""

from __future__ import annotations

import asyncio
import gc
import random
import re
import threading
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Final

from skyroute import Admin, SkyrouteError
from tests.reliability.fault_proxy import FAULTS, NO_FAULT, FaultProxy, fault_proxy
from tests.reliability.outcome import Outcome, Usage, mean
from tests.reliability.workload import Workload
from tests.support.apache import SkyrouteNameServer
from tests.support.our_broker import SkyrouteBroker

SAMPLE_S: Final = 2.0
BOUNDED: Final = ("Workload._send", "FaultProxy.", "skyroute-transaction")
"""Starts of names of tasks and threads that have a bound of their own: while the network hangs, sends wait."""
FAULT_S: Final = 4.0


async def soak(folder: Path, seconds: float) -> list[Outcome]:
    """Run two name servers and two brokers behind fault proxies, under load.

    The first of each kind lives for the whole time and is measured; the second ones are killed and started again.
    """
    async with AsyncExitStack() as stack:
        name_servers = [SkyrouteNameServer(f"nameserver-{n}", folder / f"nameserver-{n}") for n in (1, 2)]
        for server in name_servers:
            stack.enter_context(server)
        proxies = [await stack.enter_async_context(fault_proxy(each.address)) for each in name_servers]
        brokers = []
        for number in (1, 2):
            broker = SkyrouteBroker(
                f"broker-{number}",
                folder / f"broker-{number}",
                [each.address for each in proxies],
                config={"flushDiskType": "SYNC_FLUSH"},
            )
            await asyncio.to_thread(broker.start)
            stack.callback(broker.kill)
            brokers.append(broker)
        workload = Workload(";".join(each.address for each in proxies), rate_per_s=60, transactions=True, delays=True)
        await workload.create_topics()
        faults = list[str]()
        samples: dict[str, list[tuple[float, Usage]]] = {"nameserver-1": [], "broker-1": []}
        own: list[tuple[float, Counter[str], Counter[str]]] = []
        async with workload.running():
            began = time.monotonic()
            breaking = [
                asyncio.create_task(_break_network(proxies, faults)),
                asyncio.create_task(_restart(name_servers[1], brokers[1], faults)),
                asyncio.create_task(_administrate(workload.name_servers)),
            ]
            while (at := time.monotonic() - began) < seconds:
                samples["nameserver-1"].append((at, Usage.of(name_servers[0].pid)))
                samples["broker-1"].append((at, Usage.of(brokers[0].pid)))
                own.append((at, _tasks(), _threads()))
                await asyncio.sleep(SAMPLE_S)
                for task in breaking:
                    if task.done():
                        task.result()  # raises
            for task in breaking:
                task.cancel()
            await asyncio.gather(*breaking, return_exceptions=True)
            for proxy in proxies:
                proxy.fault = NO_FAULT
            for each in (name_servers[1], brokers[1]):
                if not each.is_running:
                    await asyncio.to_thread(each.start)
        gc.collect()
    found = workload.violations()
    outcomes = [
        Outcome("messages acknowledged", workload.acknowledged),
        Outcome("sends with an error", len(workload.failed)),
        Outcome("faults", len(faults)),
        Outcome("violations of any invariant", sum(map(len, found.values())), at_most=0),
        *(Outcome("violation", text) for texts in found.values() for text in texts[:3]),
    ]
    for name, series in samples.items():
        early, late = _phases(series, seconds)
        outcomes += [
            Outcome(f"{name}: memory of the last fifth", mean([each.rss_mb for each in late]), unit="MB"),
            Outcome(
                f"{name}: relative to the second fifth",
                mean([each.rss_mb for each in late]) / mean([each.rss_mb for each in early]),
                at_most=1.10,
            ),
            Outcome(
                f"{name}: more open files than in the second fifth",
                max(each.files for each in late) - max(each.files for each in early),
                at_most=12,
            ),
            Outcome(f"{name}: more threads", max(e.threads for e in late) - max(e.threads for e in early), at_most=2),
        ]
    early_own, late_own = (
        [each for each in own if seconds * a <= each[0] < seconds * b] for a, b in ((0.2, 0.4), (0.8, 1.0))
    )
    for what, early_counts, late_counts, at_most in (
        ("tasks", [each[1] for each in early_own], [each[1] for each in late_own], 60),
        ("threads", [each[2] for each in early_own], [each[2] for each in late_own], 4),
    ):
        early_most, late_most = max(early_counts, key=Counter.total), max(late_counts, key=Counter.total)
        more = ", ".join(f"{name} {count:+}" for name, count in (late_most - early_most).most_common(5))
        unbounded = sum(count for name, count in (late_most - early_most).items() if not name.startswith(BOUNDED))
        outcomes += [
            Outcome(f"clients: more {what}", late_most.total() - early_most.total()),
            Outcome(f"clients: {what} of which there are more", more or "none"),
            Outcome(f"clients: more {what} without those that have a bound", unbounded, at_most=at_most),
        ]
    return outcomes


def _tasks() -> Counter[str]:
    """Return the number of running tasks by the name of their function."""
    coroutines = [task.get_coro() for task in asyncio.all_tasks()]
    return Counter(getattr(each, "__qualname__", "") or repr(each) for each in coroutines)


def _threads() -> Counter[str]:
    """Return the number of threads by name, without its number."""
    return Counter(re.sub(r"[-_\d]*( \(.*)?$", "", thread.name) for thread in threading.enumerate())


def _phases(series: list[tuple[float, Usage]], seconds: float) -> tuple[list[Usage], list[Usage]]:
    early = [each for at, each in series if 0.2 * seconds <= at < 0.4 * seconds]
    return early, [each for at, each in series if at >= 0.8 * seconds]


async def _break_network(proxies: list[FaultProxy], faults: list[str]) -> None:
    rng = random.Random(5)
    while True:
        await asyncio.sleep(FAULT_S)
        proxy, name = rng.choice(proxies), rng.choice([*FAULTS, "reset"])
        faults.append(name)
        if name == "reset":
            proxy.reset()
            continue
        proxy.fault = FAULTS[name]
        await asyncio.sleep(FAULT_S)
        proxy.fault = NO_FAULT


async def _restart(name_server: SkyrouteNameServer, broker: SkyrouteBroker, faults: list[str]) -> None:
    while True:
        for each in (broker, name_server):
            await asyncio.sleep(15.0)
            faults.append(f"kill {each.name}")
            each.kill()
            await asyncio.sleep(1.0)
            each.spawn()
            await asyncio.to_thread(each.until_ready)


async def _administrate(name_servers: str) -> None:
    """Create and delete topics, and read lists, as operators do."""
    number = 0
    while True:
        number += 1
        with suppress(SkyrouteError):
            async with Admin(name_servers) as admin:
                await admin.create_topic(f"soak-{number % 50}", read_queues=2, write_queues=2)
                await admin.delete_topic(f"soak-{(number + 25) % 50}", "PeerCluster")
        await asyncio.sleep(2.0)
