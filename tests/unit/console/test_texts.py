"""The catalogues of the console's texts: complete, compiled, and with the same values in every language."""

import ast
import gettext
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from babel.messages.catalog import Catalog
from babel.messages.extract import DEFAULT_KEYWORDS, extract_from_dir
from babel.messages.pofile import read_po
from jinja2 import Environment, nodes

from skyroute import console
from skyroute.console.pages import history
from skyroute.console.texts import CATALOGUES, LANGUAGES, preferred_language, translator
from skyroute.controller.events import Cause as ControllerCause
from skyroute.nameserver.journal.schema import Kind
from skyroute.routing.events import Cause

CONSOLE = Path(console.__file__).parent
TRANSLATED = [language for language in LANGUAGES if language != "en"]
KEYWORDS = {**DEFAULT_KEYWORDS, "translatable": None, "translate": None, "done": None}
METHODS = [("**.py", "python"), ("**.html", "jinja2")]
IN_BRACES = re.compile(r"\{\w+\}")


@pytest.fixture(scope="module")
def texts() -> set[str]:
    """All texts of templates and code."""
    found = {str(each[2]) for each in extract_from_dir(str(CONSOLE), METHODS, keywords=KEYWORDS)}
    assert len(found) > 400
    return found


def source_path(language: str) -> Path:
    return CATALOGUES / language / "LC_MESSAGES" / "console.po"


def catalogue(language: str) -> Catalog:
    with source_path(language).open("rb") as file:
        return read_po(file, locale=language, abort_invalid=True)


@pytest.mark.parametrize("language", TRANSLATED)
def test_a_catalogue_has_every_text_and_no_other(texts: set[str], language: str) -> None:
    found = catalogue(language)
    assert {str(message.id) for message in found if message.id} == texts, "run `make texts`"
    assert [message.id for message in found if message.id and (message.fuzzy or not message.string)] == []
    assert not found.obsolete


@pytest.mark.parametrize("language", TRANSLATED)
def test_a_translation_has_the_values_of_its_text(language: str) -> None:
    def values(text: object) -> list[str]:
        return sorted(IN_BRACES.findall(str(text)))

    wrong = [message.id for message in catalogue(language) if values(message.id) != values(message.string)]
    assert wrong == []


@pytest.mark.parametrize("language", TRANSLATED)
def test_the_compiled_catalogue_has_the_translations_of_its_source(language: str) -> None:
    compiled = gettext.translation("console", CATALOGUES, [language])
    stale = [m.id for m in catalogue(language) if m.id and compiled.gettext(str(m.id)) != m.string]
    assert stale == [], "run `make texts`"


def untranslated(path: Path) -> Iterator[str]:
    """Yield the calls of `_` in a template whose text is no literal, for which no text is collected."""
    for call in Environment().parse(path.read_text()).find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name == "_" and isinstance(call.args[0], nodes.CondExpr):
            yield f"{path.name}:{call.lineno}"


def test_templates_translate_literals_one_by_one() -> None:
    assert [place for path in sorted((CONSOLE / "templates").glob("*.html")) for place in untranslated(path)] == []


def test_questions_and_warnings_are_collected() -> None:
    """The arguments of `action` are translated later: each must be marked."""
    for path in sorted(CONSOLE.rglob("*.py")):
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            for argument in call.keywords:
                if argument.arg in ("question", "warning") and isinstance(argument.value, ast.Constant):
                    assert argument.value.value is None, f"{path.name}:{call.lineno} without translatable()"


def test_every_kind_and_cause_of_a_change_has_a_text(texts: set[str]) -> None:
    assert set(history.KINDS) == set(Kind)
    assert set(history.CAUSES) == {*Cause, *ControllerCause}
    assert {*history.KINDS.values(), *history.CAUSES.values()} <= texts


def test_a_text_is_translated_and_filled_in() -> None:
    assert translator("en")("Topic {topic} created", topic="T") == "Topic T created"
    assert translator("zh")("Topic {topic} created", topic="T") == "主题 T 已创建"
    assert translator("zh")("a broker's own error") == "a broker's own error"
    assert translator("zh")("") == ""


@pytest.mark.parametrize(
    ("accepted", "language"),
    [("", "en"), ("zh-CN,zh;q=0.9", "zh"), ("fr, zh-TW;q=0.8, en;q=0.5", "zh"), ("de-DE,de", "en")],
)
def test_the_first_known_language_of_a_browser_is_used(accepted: str, language: str) -> None:
    assert preferred_language(accepted) == language
