"""From families of samples to the text that Prometheus reads. Needs the extra `metrics`."""

import asyncio
import platform
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from skyroute.observing.requests import Times

_BUILD_LABELS: Final = ("role", "version", "python")


class Exposition:
    """Makes the page of metrics: reads the state on the loop, and writes it in a thread."""

    def __init__(self, role: str, collect: Callable[[], AsyncIterable[Metric]]) -> None:
        self._collect = collect
        self._build = GaugeMetricFamily("skyroute_build_info", "What runs here; always 1", labels=_BUILD_LABELS)
        self._build.add_metric((role, version("skyroute"), platform.python_version()), 1)
        self._turn = asyncio.Lock()

    async def render(self) -> bytes:
        """Return the page as it is now."""
        async with self._turn:  # two at once would cost the server twice as much
            families = [family async for family in self._collect()]
            return await asyncio.to_thread(_write, [*families, self._build])


class _Given(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _write(families: Iterable[Metric]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Given(families))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


def add_times(
    family: HistogramMetricFamily, labels: Sequence[str], bounds_s: Sequence[float], times: Times, unit_s: float = 1.0
) -> None:
    """Add one histogram to a family that counts in so many seconds."""
    family.add_metric(labels, list(_buckets(bounds_s, times.counts, unit_s)), times.total_s / unit_s)


def _buckets(bounds_s: Sequence[float], counts: Sequence[int], unit_s: float) -> Iterator[tuple[str, float]]:
    below = 0
    for bound_s, count in zip(bounds_s, counts, strict=False):
        below += count
        yield f"{round(bound_s / unit_s, 9):g}", below
    yield "+Inf", below + counts[-1]
