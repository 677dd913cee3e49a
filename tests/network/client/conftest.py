"""Fixtures of the client tests."""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest


@pytest.fixture
async def nothing_lost() -> AsyncIterator[None]:
    """No exception may stay unretrieved in a task or a future."""
    lost: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(context))
    yield
    gc.collect(1)
    await asyncio.sleep(0)
    assert lost == []
