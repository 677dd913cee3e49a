"""Servers for tests of faults. Asynchronous tests of this folder run on both event loops."""

import asyncio
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.process import Loop, ServerProcess, server_process
from tests.support.servers import LOOPS


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return LOOPS


@pytest.fixture
def chance() -> random.Random:
    """A generator with a random seed, which a failing test prints; SKYROUTE_SEED=... repeats it."""
    seed = int(os.environ.get("SKYROUTE_SEED") or random.SystemRandom().getrandbits(32))
    sys.stdout.write(f"SKYROUTE_SEED={seed}\n")
    return random.Random(seed)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for all tests of a file: each test finds it as the test before left it."""
    with server_process(tmp_path_factory.mktemp("server")) as shared:
        yield shared


class Start(Protocol):
    """Starts a server for one test, with settings by Java's names."""

    def __call__(
        self,
        dotted: Mapping[str, object] | None = None,
        /,
        *,
        loop: Loop = "uvloop",
        arguments: Sequence[str] = (),
        **settings: object,
    ) -> ServerProcess: ...


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start servers; all servers of one test share a folder, as after a restart."""
    with ExitStack() as stack:

        def begin(
            dotted: Mapping[str, object] | None = None,
            /,
            *,
            loop: Loop = "uvloop",
            arguments: Sequence[str] = (),
            **settings: object,
        ) -> ServerProcess:
            folder, settings = tmp_path / "server", {**(dotted or {}), **settings}
            return stack.enter_context(server_process(folder, settings=settings, loop=loop, arguments=arguments))

        yield begin
