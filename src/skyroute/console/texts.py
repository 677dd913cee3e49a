"""The texts of pages in English and Chinese, from the gettext catalogues in `locale`. The English text is the key."""

import gettext
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

LANGUAGES: Final = {"en": "English", "zh": "中文"}
CATALOGUES: Final = Path(__file__).parent / "locale"

Translate = Callable[..., str]
"""Takes an English text with names in braces, and the values for them; returns the text to show."""


class _Missing(gettext.NullTranslations):
    """Returns texts that a catalogue lacks as they are."""

    def gettext(self, message: str) -> str:
        log.debug("text has no translation text=%r", message)
        return message


def translatable(text: str) -> str:
    """Mark a text for the catalogues that is translated later; `make texts` collects the arguments."""
    return text


@cache
def translator(language: str) -> Translate:
    """Return the function that translates texts into a language. A text without a translation stays English."""
    catalogue = gettext.NullTranslations()
    if language != "en":
        catalogue = gettext.translation("console", CATALOGUES, [language])
        catalogue.add_fallback(_Missing())
    look_up = catalogue.gettext

    def translate(text: str, /, **values: object) -> str:
        found = look_up(text) if text else text
        return found.format(**values) if values else found

    return translate


def preferred_language(accepted: str) -> str:
    """Return the first language of an Accept-Language header that pages have; English if it has none of them."""
    for part in accepted.split(","):
        language = part.split(";")[0].strip().lower()[:2]
        if language in LANGUAGES:
            return language
    return "en"
