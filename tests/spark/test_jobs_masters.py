"""The job `masters`: who was master when, and why."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pyspark.sql import SparkSession

from skyroute.cli.controller_journal import ControllerJournal
from skyroute.controller.events import Cause, GroupEvent, MasterElected, MasterLost, SyncSetChanged
from skyroute.pipeline.jobs.masters import masters
from skyroute.pipeline.journal.reading import read_journal

EVENTS: tuple[GroupEvent, ...] = (
    MasterElected("C", "a", Cause.BROKER, 1, "h:1", 1, 1, None, False),
    MasterElected("C", "b", Cause.BROKER, 1, "g:1", 1, 1, None, False),
    SyncSetChanged("C", "a", Cause.BROKER, frozenset({1}), frozenset({1, 2}), 2),
    MasterElected("C", "a", Cause.MASTER_DISCONNECTED, 2, "h:2", 2, 3, 1, False),
    MasterLost("C", "a", Cause.MASTER_SILENT, 2, 3),
    MasterElected("C", "a", Cause.MASTER_DEAD, 1, "h:1", 4, 4, None, True),
)


async def record(folder: Path) -> None:
    journal = ControllerJournal(folder, "h:9878")
    await journal.start()
    for event in EVENTS:
        journal.record([event])
    await journal.stop()


def test_each_master_has_its_time_and_its_causes(spark: SparkSession, tmp_path: Path) -> None:
    asyncio.run(record(tmp_path))
    found = masters(read_journal(spark, [tmp_path]).events).orderBy("broker", "epoch").collect()
    assert [(row.broker, row.epoch, row.broker_id, row.cause, row.end_cause, row.unclean) for row in found] == [
        ("a", 1, 1, Cause.BROKER.value, Cause.MASTER_DISCONNECTED.value, False),
        ("a", 2, 2, Cause.MASTER_DISCONNECTED.value, Cause.MASTER_SILENT.value, False),
        ("a", 4, 1, Cause.MASTER_DEAD.value, None, True),
        ("b", 1, 1, Cause.BROKER.value, None, False),
    ]
    assert found[0].until == found[1].since
    assert found[1].until <= found[2].since
    assert (found[2].until, found[3].until) == (None, None)
    assert {row.address for row in found} == {"h:1", "h:2", "g:1"}
