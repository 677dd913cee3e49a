"""Sends that wait for slaves."""

import asyncio

from skyroute.broker.delivery.flush_wait import Flushed
from skyroute.broker.delivery.replica_wait import ReplicaWait


async def test_waits_complete_in_the_order_of_the_log_once_enough_slaves_have_it() -> None:
    wait = ReplicaWait(lambda: 60.0)
    done: dict[int, list[Flushed]] = {100: [], 200: [], 300: []}
    for log_end, slaves in ((100, 1), (200, 2), (300, 1)):
        wait.wait_for(log_end, slaves, done[log_end].append)
    wait.advance({1: 350, 2: 150}.__getitem__)
    assert done == {100: [Flushed.DONE], 200: [], 300: []}
    wait.advance({1: 350, 2: 200}.__getitem__)
    assert all(outcomes == [Flushed.DONE] for outcomes in done.values())
    assert not wait.waiting_count


async def test_one_acknowledgement_counts_the_slaves_once_for_all_waits() -> None:
    wait = ReplicaWait(lambda: 60.0)
    done: list[Flushed] = []
    for log_end in range(100, 164):
        wait.wait_for(log_end, 1, done.append)
    asked: list[int] = []

    def reached(slaves: int) -> int:
        asked.append(slaves)
        return 150

    wait.advance(reached)
    assert (len(done), asked) == (51, [1])
    wait.stop()


async def test_a_wait_ends_late_at_its_timeout_and_at_the_stop() -> None:
    wait = ReplicaWait(lambda: 0.01)
    late: asyncio.Future[Flushed] = asyncio.get_running_loop().create_future()
    wait.wait_for(100, 1, late.set_result)
    assert await late is Flushed.NOT_REPLICATED
    stopped: list[Flushed] = []
    wait.wait_for(200, 1, stopped.append)
    wait.stop()
    assert stopped == [Flushed.NOT_REPLICATED]
