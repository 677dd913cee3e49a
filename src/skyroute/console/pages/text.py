"""What the pages say, in English and in Chinese. The English text is the key; `chinese` has one module a page."""

import logging
from collections.abc import Callable
from typing import Final

from skyroute.console.chinese import WORDS

log = logging.getLogger(__name__)

LANGUAGES: Final = {"en": "English", "zh": "中文"}

Translate = Callable[..., str]
"""Takes an English text, with names in braces for what is put in; returns what to show."""


def translator(language: str) -> Translate:
    """Return what turns our texts into a language. A text without a translation is shown as it is."""
    words = WORDS if language == "zh" else {}

    def translate(text: str, /, **values: object) -> str:
        found = words.get(text, text)
        if words and text not in words:
            log.debug("no Chinese for text=%r", text)
        return found.format(**values) if values else found

    return translate


def preferred_language(accepted: str) -> str:
    """Return the language of ours that a browser likes best, from its Accept-Language."""
    for part in accepted.split(","):
        language = part.split(";")[0].strip().lower()[:2]
        if language in LANGUAGES:
            return language
    return "en"
