"""An event loop in a thread runs coroutines for other threads."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from skyroute.remoting.loops import LoopThread


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    started = LoopThread("test loop")
    yield started
    started.close()


async def name_of_thread() -> str:
    return threading.current_thread().name


def test_call_runs_a_coroutine_in_the_thread_and_returns_its_result(thread: LoopThread) -> None:
    assert thread.call(name_of_thread()) == "test loop"
    assert not thread.is_current


def test_an_exit_is_raised_in_the_calling_thread_and_the_loop_goes_on(thread: LoopThread) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        thread.call(leave())
    assert thread.call(name_of_thread()) == "test loop"


def test_a_call_that_takes_too_long_is_cancelled(thread: LoopThread) -> None:
    cancelled = threading.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(TimeoutError, match=r"test loop did not finish within 0\.01 s"):
        thread.call(wait(), timeout_s=0.01)
    assert cancelled.wait(10.0)


def test_a_paused_loop_runs_nothing_until_it_is_resumed(thread: LoopThread) -> None:
    thread.pause()
    with pytest.raises(TimeoutError):
        thread.call(asyncio.Event().wait(), timeout_s=0.01)
    thread.resume()
    assert thread.call(name_of_thread()) == "test loop"


def test_close_cancels_what_still_runs() -> None:
    thread, cancelled = LoopThread("test loop"), threading.Event()

    async def begin() -> None:
        async def wait() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        tasks.append(asyncio.create_task(wait()))
        await asyncio.sleep(0)

    tasks: list[asyncio.Task[None]] = []
    thread.call(begin())
    thread.close()
    assert cancelled.is_set()
