"""Renders metrics as Prometheus text. Needs `skyroute[metrics]`."""

import asyncio
import platform
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from skyroute.observing.requests import Histogram

_BUILD_LABELS: Final = ("role", "version", "python")


class Exposition:
    """Renders the metrics page: collects on the event loop, renders in a thread."""

    def __init__(self, role: str, collect: Callable[[], AsyncIterable[Metric]]) -> None:
        self._collect = collect
        self._build = GaugeMetricFamily(
            "skyroute_build_info", "Role and versions of this process; always 1", labels=_BUILD_LABELS
        )
        self._build.add_metric((role, version("skyroute"), platform.python_version()), 1)

    async def render(self) -> bytes:
        """Return the current metrics."""
        families = [family async for family in self._collect()]
        return await asyncio.to_thread(_render, [*families, self._build])


class _Collected(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _render(families: Iterable[Metric]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Collected(families))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


def add_histogram(
    family: HistogramMetricFamily,
    labels: Sequence[str],
    bounds_s: Sequence[float],
    histogram: Histogram,
    unit_s: float = 1.0,
) -> None:
    """Add a histogram to a family whose unit is `unit_s` seconds."""
    family.add_metric(labels, list(_buckets(bounds_s, histogram.counts, unit_s)), histogram.total_s / unit_s)


def _buckets(bounds_s: Sequence[float], counts: Sequence[int], unit_s: float) -> Iterator[tuple[str, float]]:
    below = 0
    for bound_s, count in zip(bounds_s, counts, strict=False):
        below += count
        yield f"{round(bound_s / unit_s, 9):g}", below
    yield "+Inf", below + counts[-1]
