"""Daemon threads for plain functions."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from skyroute.client.threads import Threads


async def test_a_function_runs_in_a_thread_of_its_own() -> None:
    threads = Threads(2, "test")
    name = await threads.run(lambda: threading.current_thread().name)
    assert name == "test-1"
    threads.stop()


async def test_the_exception_of_the_function_is_raised() -> None:
    def fail() -> None:
        raise ValueError("no")

    threads = Threads(1, "test")
    with pytest.raises(ValueError, match="no"):
        await threads.run(fail)
    threads.stop()


@pytest.mark.parametrize(("error", "text"), [(StopIteration("x"), "StopIteration"), (SystemExit(3), "SystemExit")])
async def test_exceptions_that_a_future_cannot_hold_are_wrapped(error: BaseException, text: str) -> None:
    def fail() -> None:
        raise error

    threads = Threads(1, "test")
    with pytest.raises(RuntimeError, match=text) as caught:
        await threads.run(fail)
    assert caught.value.__cause__ is error  # which says where it was raised
    assert await threads.run(lambda: "still there") == "still there"
    threads.stop()


async def test_there_are_no_more_threads_than_allowed() -> None:
    threads = Threads(2, "test")
    started = threading.Semaphore(0)
    go_on = threading.Event()

    def wait() -> str:
        started.release()
        go_on.wait(10)
        return threading.current_thread().name

    jobs = [asyncio.create_task(threads.run(wait)) for _ in range(5)]
    await asyncio.to_thread(started.acquire)
    await asyncio.to_thread(started.acquire)
    assert not started.acquire(blocking=False)
    go_on.set()
    assert set(await asyncio.gather(*jobs)) == {"test-1", "test-2"}
    threads.stop()


async def test_a_cancelled_caller_leaves_the_thread_behind() -> None:
    threads = Threads(1, "test")
    started, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        go_on.wait(10)

    job = asyncio.create_task(threads.run(wait))
    await asyncio.to_thread(started.wait)
    job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job
    go_on.set()
    assert await threads.run(lambda: 1) == 1
    threads.stop()


def test_a_thread_that_never_ends_does_not_keep_the_process() -> None:
    program = (
        "import asyncio, threading\n"
        "from skyroute.client.threads import Threads\n"
        "async def main():\n"
        "    started = threading.Event()\n"
        "    def hang(): started.set(); threading.Event().wait()\n"
        "    threads = Threads(1, 'test')\n"
        "    task = asyncio.create_task(threads.run(hang))\n"
        "    await asyncio.to_thread(started.wait)\n"
        "    task.cancel()\n"
        "    threads.stop()\n"
        "asyncio.run(main())\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=20, check=False).returncode == 0
