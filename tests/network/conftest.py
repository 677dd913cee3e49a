"""Every asynchronous test of this folder runs on both event loops, and none may leave an error in the log."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.connections import AsyncConnection, connection_to
from tests.support.servers import LOOPS, Running, running


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return LOOPS


@pytest.fixture(autouse=True)
def no_errors(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """ERROR means that we did wrong, tracebacks of forgotten tasks included; a test that wants one says so."""
    caplog.set_level(logging.INFO, "skyroute")
    yield
    if "expects_errors" not in request.fixturenames:
        records = [*caplog.get_records("setup"), *caplog.get_records("call"), *caplog.records]
        assert [record.getMessage() for record in records if record.levelno >= logging.ERROR] == []


@pytest.fixture
def expects_errors() -> None:
    """Asked for by tests in which our own trouble must be logged as an error."""


@pytest.fixture
async def nameserver(tmp_path: Path) -> AsyncIterator[Running]:
    """A name server with default settings."""
    async with running(tmp_path) as here:
        yield here


@pytest.fixture
async def line(nameserver: Running) -> AsyncIterator[AsyncConnection]:
    """A connection to that name server."""
    async with connection_to(nameserver.address) as opened:
        yield opened
