"""Helpers for tests of the console: its address and application, form tokens, and accessibility."""

import re
from collections.abc import Callable
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page
from starlette.applications import Starlette

from skyroute.console.server import Console

Serve = Callable[..., Console]
"""Starts a console for name servers, with fields of `ConsoleConfig` as keyword arguments."""


def app_of(console: Console) -> Starlette:
    """Return the application of a console."""
    assert console._web is not None, "the console was not started"
    app = console._web.config.app
    assert isinstance(app, Starlette)
    return app


def port_of(console: Console) -> int:
    """Return the port of a console."""
    port = urlsplit(console.url).port
    assert port is not None, "the console was not started"
    return port


def token_in(page: str) -> str:
    """Return the token in the forms of a page."""
    found = re.search(r'name="token" value="([^"]+)"', page)
    assert found is not None, page
    return found[1]


def check_accessible(page: Page) -> None:
    """Check a page with axe, in the light theme: test_translations checks all pages in the dark one."""
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
