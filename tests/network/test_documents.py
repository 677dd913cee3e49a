"""What documents say about names, codes, defaults and each other is so."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import skyroute
from skyroute.broker.broker import Broker
from skyroute.broker.config import BrokerConfig
from skyroute.settings.properties import parse_properties
from tests.support.shown import ROOT, arguments_of, check_arguments, command_lines

DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
COMMANDS = [(document.name, line) for document in DOCUMENTS for line in command_lines(document)]


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    """What stands below a heading, up to the next."""
    return re.split(r"(?m)^#+ ", text.split(f"\n{title}\n", 1)[1])[0]


def rows(text: str) -> list[list[str]]:
    """The rows of a table, below its head."""
    lines = re.findall(r"(?m)^\|(.*)\|$", text)
    return [[cell.strip() for cell in line.split("|")] for line in lines[2:]]


def anchors(document: Path) -> set[str]:
    titles = re.findall(r"(?m)^#+ (.*)$", document.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        there = document if not name else (document.parent / name)
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


@pytest.mark.parametrize(("document", "line"), COMMANDS)
def test_a_command_has_only_options_that_there_are(
    document: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever document shows it."""
    monkeypatch.chdir(tmp_path)
    check_arguments(arguments_of(line), tmp_path)


def test_commands_are_found_in_documents() -> None:
    assert {"README.md", "from-apache.md", "operating.md", "cli.md", "spark.md", "metrics.md"} <= {
        document for document, _ in COMMANDS
    }


def test_the_reference_has_every_public_name() -> None:
    listed = re.findall(r"(?m)^::: skyroute\.(\w+)$", text_of("docs/api/skyroute.md") + text_of("docs/api/admin.md"))
    assert sorted(listed) == sorted(set(skyroute.__all__) - {"__version__"})


async def test_the_requests_that_the_broker_answers_are_those_that_are_listed(tmp_path: Path) -> None:
    listed: set[int] = set()
    for codes, _, answer in rows(section(text_of("docs/compatibility.md"), "## The broker")):
        if answer.startswith("supported"):
            listed |= {int(code) for code in codes.split(", ")}
    config = BrokerConfig(bind_address="127.0.0.1", listen_port=0, store_path=str(tmp_path))
    broker = Broker(config)
    await broker.start()
    try:
        assert listed == set(broker.components.handlers())
    finally:
        await broker.stop()


def test_bounds_are_where_they_are_said_to_be() -> None:
    """Names in capitals are constants; others are settings, which the tests of settings know."""
    table = rows(section(text_of("docs/architecture.md"), "## Bounds"))
    assert len(table) > 30
    for what, bounds, places in table:
        sources = ""
        for place in re.findall(r"`([a-z_/]+(?:\.py)?)`", places):
            path = ROOT / "src" / "skyroute" / place
            files = [path] if path.is_file() else sorted(path.rglob("*.py"))
            assert files, (what, place)
            sources += "".join(file.read_text(encoding="utf-8") for file in files)
        for name in re.findall(r"`([A-Z][A-Z_]+)`", bounds):
            assert re.search(rf"(?m)^{name}\b", sources), (what, name)


def test_every_bound_of_the_broker_is_listed() -> None:
    listed = section(text_of("docs/architecture.md"), "## Bounds")
    own_pace = {"BATCH_MAX", "BACKLOG_MAX", "GAP_MAX", "READ_MAX", "READ_BYTES_MAX", "DELIVER_MAX"}
    for path in sorted((ROOT / "src" / "skyroute" / "broker").rglob("*.py")):
        for name in re.findall(r"(?m)^([A-Z][A-Z_]+_MAX): Final", path.read_text(encoding="utf-8")):
            assert name in own_pace or f"`{name}`" in listed, (path.name, name)


def test_defaults_of_the_broker_are_those_that_are_listed() -> None:
    keys = {each.metadata["setting"].key for each in fields(BrokerConfig) if "setting" in each.metadata}
    values = parse_properties(BrokerConfig().render_all())
    checked = 0
    for listed, defaults, _ in rows(section(text_of("docs/broker.md"), "## Settings that matter")):
        names, told = re.findall(r"`(\w+)`", listed), [word.strip(" `") for word in defaults.split(",")]
        for name, default in zip(names, told * len(names), strict=False):
            assert name in keys, name
            if re.fullmatch(r"\d+|true|false|ASYNC_FLUSH|DefaultCluster", default):
                assert values[name].lower() == default.lower(), name
                checked += 1
    assert checked >= 14
