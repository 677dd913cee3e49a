"""Names, codes, defaults and links in the documents are correct."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

import skyroute
from skyroute.broker.broker import Broker
from skyroute.broker.config import BrokerConfig
from skyroute.broker.request_handlers import request_handlers
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
def test_links_in_documents_have_targets(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        there = document if not name else (document.parent / name)
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


@pytest.mark.parametrize(("document", "line"), COMMANDS)
def test_a_documented_command_has_only_existing_options(
    document: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert arguments_of(line), document
    check_arguments(arguments_of(line), tmp_path)


def test_commands_are_found_in_documents() -> None:
    assert {"README.md", "from-apache.md", "operating.md", "cli.md", "spark.md", "metrics.md"} <= {
        document for document, _ in COMMANDS
    }


def test_the_reference_has_every_public_name() -> None:
    listed = re.findall(r"(?m)^::: skyroute\.(\w+)$", text_of("docs/api/skyroute.md") + text_of("docs/api/admin.md"))
    assert sorted(listed) == sorted(set(skyroute.__all__) - {"__version__"})


async def test_the_supported_requests_of_the_broker_are_those_listed(tmp_path: Path) -> None:
    listed: set[int] = set()
    for codes, _, answer in rows(section(text_of("docs/compatibility.md"), "## The broker")):
        if answer.startswith("supported"):
            listed |= {int(code) for code in codes.split(", ")}
    config = BrokerConfig(bind_address="127.0.0.1", listen_port=0, store_path=str(tmp_path))
    broker = Broker(config)
    await broker.start()
    try:
        assert listed == set(request_handlers(broker.components))
    finally:
        await broker.stop()


def test_documented_bounds_are_in_the_documented_modules() -> None:
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
    single_numbers = {"NUMBER_MAX", "TIME_MS_MAX"}  # larger ones in a file are damage
    for path in sorted((ROOT / "src" / "skyroute" / "broker").rglob("*.py")):
        for name in re.findall(r"(?m)^([A-Z][A-Z_]+_MAX): Final", path.read_text(encoding="utf-8")):
            assert name in own_pace | single_numbers or f"`{name}`" in listed, (path.name, name)


def test_documented_defaults_of_the_broker_are_its_defaults() -> None:
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


SOURCE = ROOT / "src" / "skyroute"
MODULES = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")}
PACKAGES = {path.name for path in SOURCE.iterdir() if path.is_dir()}


def missing_paths(text: str) -> list[str]:
    """Return the paths in backticks that are not in the tree: modules, and folders of a package.

    `handlers/send.py` may be short for `broker/handlers/send.py`.
    """
    missing = []
    for path in re.findall(r"`([\w/]+\.py|\w+(?:/\w+)+/?)`", text):
        is_module = path.endswith(".py")
        if any((folder / path).exists() for folder in (SOURCE, ROOT, ROOT / "examples")):
            continue
        if is_module and any(module.endswith(f"/{path}") for module in MODULES):
            continue
        if is_module or path.split("/")[0] in PACKAGES:
            missing.append(path)
    return missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_in_documents_exist(document: Path) -> None:
    assert missing_paths(document.read_text(encoding="utf-8")) == []


def test_a_path_that_does_not_exist_is_found() -> None:
    text = "`broker/appender.py`, `handlers/send.py`, `broker/aside.py`, `aside.py`, `broker/aside`, `commitlog/`"
    assert missing_paths(text) == ["broker/aside.py", "aside.py", "broker/aside"]


def test_contributing_lists_every_package_and_test_folder() -> None:
    listed = text_of("CONTRIBUTING.md")
    packages = [path.parent.name for path in SOURCE.glob("*/**/__init__.py")]
    folders = [
        f"tests/{path.name}" for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name[0] not in "_."
    ]
    assert [name for name in [*packages, *folders] if f"`{name}`" not in listed] == []


@pytest.mark.parametrize("title", ["## Log of the name server", "### Log of the broker"])
def test_log_phrases_of_the_operating_page_are_in_the_source(title: str) -> None:
    source = "".join((SOURCE / module).read_text(encoding="utf-8") for module in MODULES)
    phrases = [
        phrase.split(" …")[0]
        for listed, _ in rows(section(text_of("docs/operating.md"), title))
        for phrase in re.findall(r"`([^`]+)`", listed)
    ]
    assert len(phrases) > 10
    assert [phrase for phrase in phrases if phrase not in source] == []
