"""What tests of the console share: starting one, and an eye for those who cannot see."""

import re
from collections.abc import Callable
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page
from starlette.applications import Starlette

from skyroute.console.server import Console

Serve = Callable[..., Console]
"""Starts a console for name servers, with settings of `ConsoleConfig` by name."""


def app_of(console: Console) -> Starlette:
    """Return what a console serves."""
    assert console._web is not None, "it was not started"
    app = console._web.config.app
    assert isinstance(app, Starlette)
    return app


def port_of(console: Console) -> int:
    """Return where a console listens."""
    port = urlsplit(console.url).port
    assert port is not None, "it was not started"
    return port


def token_in(page: str) -> str:
    """Return the token that the forms of a page carry."""
    found = re.search(r'name="token" value="([^"]+)"', page)
    assert found is not None, page
    return found[1]


def check_accessible(page: Page) -> None:
    """Have axe look at a page, in light colours: test_words goes through all pages in dark ones."""
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
