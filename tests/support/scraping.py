"""Asks for the pages of a server as Prometheus and kubelet do, over a socket, and reads what comes back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.support.connections import WAIT_S
from tests.support.raw import split_address
from tests.support.shown import ROOT


async def exchange(address: str, request: bytes) -> bytes:
    """All that a server answers before it closes the connection."""
    async with asyncio.timeout(WAIT_S):
        reader, writer = await asyncio.open_connection(*split_address(address))
        try:
            writer.write(request)
            return await reader.read()
        finally:
            writer.close()


async def page(address: str, path: str, method: str = "GET") -> tuple[int, str]:
    """The status and the body of a page."""
    head, _, body = (await exchange(address, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())).partition(
        b"\r\n\r\n"
    )
    return int(head.split()[1]), body.decode()


@dataclass(frozen=True)
class Scrape:
    """A page of metrics."""

    families: Mapping[str, Metric]
    """By name; that of a counter is without `_total`."""

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of all samples that have these labels, among others."""
        found = [
            sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        assert found, (name, labels)
        return sum(found)

    def has(self, name: str, **labels: str) -> bool:
        samples = (sample for family in self.families.values() for sample in family.samples)
        return any(sample.name == name and labels.items() <= sample.labels.items() for sample in samples)


async def scrape(address: str) -> Scrape:
    status, text = await page(address, "/metrics")
    assert status == 200
    return parse(text)


def parse(text: str) -> Scrape:
    return Scrape({family.name: family for family in text_string_to_metric_families(text)})


def listed(title: str) -> dict[str, tuple[str, set[str]]]:
    """What docs/metrics.md says below a heading: name to type and labels."""
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]
    rows = re.findall(r"(?m)^\| `(\w+)` \| (\w+) \|([^|]*)\|", text)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def told(seen: Scrape, without: frozenset[str] = frozenset()) -> dict[str, tuple[str, set[str]]]:
    """The same of a page; a family without samples tells no labels."""
    found = {}
    for family in seen.families.values():
        labels = {label for sample in family.samples for label in sample.labels} - {"le"} - without
        found[family.name + ("_total" if family.type == "counter" else "")] = (family.type, labels)
    return found
