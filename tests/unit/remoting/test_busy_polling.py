"""A loop whose peers speak close together looks for more before it sleeps, and answers them together."""

import asyncio
import selectors
from functools import partial

import pytest

from skyroute.remoting.busy_polling import BATCH_MAX, NEAR_S, POLLS, BusyPolling, WriteBatch

LONG_S = 0.05
"""Any loop has looked so often within this time, and has gone to sleep."""


class CountingSelector(selectors.DefaultSelector):
    """Counts how often its loop looked for something without waiting for it."""

    looks = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.looks += timeout == 0
        return super().select(timeout)


def polls_of_loop(*words: list[float]) -> int:
    """Return how often a loop only looked that heard something at these moments, with a long rest after each list."""

    async def hear() -> None:
        polling = BusyPolling()
        for moments in words:
            for now in moments:
                polling.note_read(now)
            await asyncio.sleep(LONG_S)
        assert polling.reads == sum(map(len, words))

    selector = CountingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    try:
        loop.run_until_complete(hear())
    finally:
        loop.close()
    return selector.looks - looks_without_traffic(len(words))


def looks_without_traffic(rests: int) -> int:
    selector = CountingSelector()
    loop = asyncio.SelectorEventLoop(selector)

    async def rest() -> None:
        for _ in range(rests):
            await asyncio.sleep(LONG_S)

    try:
        loop.run_until_complete(rest())
    finally:
        loop.close()
    return selector.looks


def test_reads_far_apart_do_not_poll() -> None:
    assert polls_of_loop([5.0]) == 0
    assert polls_of_loop([5.0, 5.0 + 2 * NEAR_S, 6.0, 7.0]) == 0


@pytest.mark.parametrize("words", [2, 3, 50])
def test_reads_close_together_keep_the_loop_polling(words: int) -> None:
    assert polls_of_loop([5.0 + NEAR_S / 2 * word for word in range(words)]) == POLLS


def test_polling_starts_again_after_a_pause() -> None:
    assert polls_of_loop([5.0, 5.0], [9.0], [9.0]) == 2 * POLLS


def _nothing() -> None:
    pass


async def test_the_end_of_a_turn_with_writes_is_reported_once() -> None:
    ends: list[str] = []
    batch = WriteBatch(lambda: ends.append("end"))
    for _ in range(3):
        batch.add(_nothing)
    assert ends == []
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert ends == ["end"]


async def test_writes_wait_for_the_end_of_the_turn() -> None:
    written: list[int] = []
    end = WriteBatch(_nothing)
    for number in range(BATCH_MAX - 1):
        end.add(partial(written.append, number))
    assert written == []
    await asyncio.sleep(0)
    assert written == list(range(BATCH_MAX - 1))
    await asyncio.sleep(0)
    assert len(written) == BATCH_MAX - 1


async def test_a_full_batch_is_written_at_once() -> None:
    written: list[int] = []
    end = WriteBatch(_nothing)
    for number in range(BATCH_MAX + 3):
        end.add(partial(written.append, number))
    assert written == list(range(BATCH_MAX))
    await asyncio.sleep(0)
    assert written == list(range(BATCH_MAX + 3))


async def test_a_write_that_fails_does_not_stop_the_others() -> None:
    written: list[int] = []
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))
    failure = ValueError("no")

    def fail() -> None:
        raise failure

    end = WriteBatch(_nothing)
    for write in (partial(written.append, 1), fail, partial(written.append, 2), partial(written.append, 3)):
        end.add(write)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (written, failures) == ([1, 2, 3], [failure])


async def test_a_write_may_add_another_write() -> None:
    written: list[str] = []
    end = WriteBatch(_nothing)

    def write() -> None:
        written.append("first")
        end.add(lambda: written.append("second"))

    end.add(write)
    await asyncio.sleep(0)
    assert written == ["first"]
    await asyncio.sleep(0)
    assert written == ["first", "second"]
