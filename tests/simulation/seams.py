"""Replaces what would make two runs of one seed differ: clocks, random numbers, process ids, threads."""

from __future__ import annotations

import gc
import os
import random
import secrets
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from unittest import mock

from skyroute.broker import stats
from skyroute.broker.delivery import long_polling
from skyroute.broker.delivery.long_polling import SuspendedPull
from skyroute.broker.replication import master, slave_line
from skyroute.client.consuming.push import consumer_run
from skyroute.nameserver import server as name_server
from skyroute.nameserver import watch as name_server_watch
from skyroute.nameserver.journal import recorder
from skyroute.remoting import busy_polling, tls
from skyroute.remoting import client as remoting_client
from skyroute.remoting import server as remoting_server
from tests.simulation.loop import SimLoop
from tests.simulation.threads import SimThreading

PROCESS_ID = 4242


def _hash_by_number(numbers: Iterator[int]) -> Callable[[object], int]:
    """Return a hash that does not depend on addresses, so that sets iterate in the same order in each run."""

    def number_of(value: object) -> int:
        number: int | None = value.__dict__.get("_simulated_number")
        if number is None:
            number = value.__dict__["_simulated_number"] = next(numbers)
        return number

    return number_of


@contextmanager
def simulated(loop: SimLoop, threads: SimThreading, seed: int) -> Iterator[None]:
    """Bind the seams of the product to one simulation.

    `POLLS` only saves the time to wake a processor, of which a simulation has none. Tasks that look for timeouts do so
    less often: they were a third of all timers. So do those that sample statistics, which no invariant is about, and
    those that look after slaves, of which there are none.
    """
    rng = random.Random(f"ids {seed}")
    state = random.getstate()
    random.seed(f"product {seed}")
    was_enabled = gc.isenabled()
    gc.disable()  # a collection runs finalizers, at a time that no seed decides
    with ExitStack() as seams:
        for target, name, value in (
            (remoting_client, "monotonic", loop.time),
            (remoting_client.Channel, "__hash__", _hash_by_number(count(1))),
            (SuspendedPull, "__hash__", _hash_by_number(count(1))),
            (remoting_server, "_numbers", count(1)),
            (busy_polling, "POLLS", 1),
            (long_polling, "TICKS_A_SECOND", 1),
            (name_server_watch, "TICKS_A_SECOND", 1),
            (remoting_server, "SWEEP_S", 5.0),
            (tls, "CHECK_S", 600.0),
            (stats, "TICK_S", 10.0),
            (consumer_run, "SAMPLE_S", 60.0),
            (master, "SCAN_S", 10.0),
            (slave_line, "socket_of", lambda _: None),  # a simulated transport has no descriptor to write to
            (recorder, "threading", threads),
            (name_server, "uuid4", lambda: uuid.UUID(int=rng.getrandbits(128))),
            (uuid, "uuid4", lambda: uuid.UUID(int=rng.getrandbits(128))),
            (secrets, "token_hex", lambda size=16: rng.randbytes(size).hex()),
            (os, "getpid", lambda: PROCESS_ID),
        ):
            seams.enter_context(mock.patch.object(target, name, value))
        try:
            yield
        finally:
            random.setstate(state)
            if was_enabled:
                gc.enable()
