"""What a controller records and shows of its elections: journal and metrics."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from skyroute.cli.controller_journal import ControllerJournal, journal_change, record_in
from skyroute.controller import events
from skyroute.controller.events import Cause, GroupEvent
from skyroute.nameserver.journal.lines import show_record
from skyroute.nameserver.journal.reader import read_records
from skyroute.nameserver.journal.replay import Replay
from skyroute.nameserver.journal.schema import CONTROLLER_KINDS, Kind, Record
from tests.support.apache import free_port
from tests.support.controllers import pair_in_sync, running
from tests.support.scraping import listed, page, scrape, told
from tests.support.servers import running as running_name_server
from tests.support.waiting import eventually

EVENTS: tuple[GroupEvent, ...] = (
    events.IdGranted("C", "a", Cause.BROKER, 1, "h:1"),
    events.MasterElected("C", "a", Cause.BROKER, 1, "h:1", 1, 1, None, False),
    events.SyncSetChanged("C", "a", Cause.BROKER, frozenset({1}), frozenset({1, 2}), 2),
    events.MasterElected("C", "a", Cause.MASTER_DISCONNECTED, 2, "h:2", 2, 3, 1, True),
    events.AddressChanged("C", "a", Cause.BROKER, 1, "h:1", "h:9"),
    events.MasterLost("C", "a", Cause.MASTER_SILENT, 2, 3),
    events.ReplicasRemoved("C", "a", Cause.OPERATOR, frozenset({2, 1}), True),
)


def of_controller(folder: Path) -> list[Record]:
    return [record for record in read_records(folder / "journal") if record.kind in CONTROLLER_KINDS]


async def test_a_controller_alone_has_a_journal_of_its_own(tmp_path: Path) -> None:
    journal = ControllerJournal(tmp_path, "h:9878")
    await journal.start()
    journal.record(EVENTS)
    await journal.stop()
    records = list(read_records(tmp_path / "journal"))
    assert [record.kind for record in records] == [
        Kind.SERVER_STARTED,
        *(Kind.REPLICA_ADDED, Kind.MASTER_ELECTED, Kind.SYNC_SET_CHANGED, Kind.MASTER_ELECTED),
        *(Kind.REPLICA_MOVED, Kind.MASTER_LOST, Kind.REPLICAS_REMOVED),
        Kind.SERVER_STOPPED,
    ]
    elected = records[4]
    assert (elected.broker_id, elected.address, elected.master_epoch, elected.unclean) == (2, "h:2", 2, True)
    assert elected.before is not None
    assert elected.before.broker_id == 1
    shown = show_record(elected)
    for part in ("a[2]", "master_disconnected", "master_epoch=2", "unclean=True", "broker_id=1->2"):
        assert part in shown
    assert "broker_ids=1->1,2" in show_record(records[3])


async def test_a_folder_that_cannot_be_written_leaves_the_controller_without_a_journal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    journal = ControllerJournal(tmp_path / "file", "h:9878")
    await journal.start()
    journal.record(EVENTS)
    await journal.stop()
    assert "no journal reason=" in caplog.text


async def test_a_name_server_records_the_elections_of_its_controller(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "memory_path": str(tmp_path / "memory"),
        "journal_enabled": True,
        "warm_restart_enabled": False,
    }
    async with running_name_server(tmp_path / "ns", **settings) as name_server:

        def record(changes: Collection[GroupEvent]) -> None:
            record_in(name_server.server, changes)

        async with running(tmp_path / "controller", record=record) as controller, pair_in_sync(controller) as pair:
            await pair[0].line.close()
            await eventually(lambda: controller.master() == 2)
    records = of_controller(tmp_path / "memory")
    told_by = [(record.kind, record.cause, record.broker_id) for record in records]
    assert told_by == [
        ("replica_added", "broker_request", 1),
        ("replica_added", "broker_request", 2),
        ("master_elected", "broker_request", 1),
        ("sync_set_changed", "broker_request", None),
        ("master_elected", "master_disconnected", 2),
    ]
    replay = Replay()
    for each in read_records(tmp_path / "memory" / "journal"):
        replay.apply(each)
    assert replay.groups == {}  # no route has changed


def test_every_event_of_a_controller_has_a_record() -> None:
    kinds = {journal_change(event).kind for event in EVENTS}
    assert kinds == CONTROLLER_KINDS
    assert {type(event).__name__ for event in EVENTS} == {each.__name__ for each in GroupEvent.__subclasses__()}


async def test_metrics_count_brokers_groups_and_elections(tmp_path: Path) -> None:
    port = free_port()
    async with running(tmp_path, metrics_port=port) as controller:
        address = f"127.0.0.1:{port}"
        assert await page(address, "/readyz") == (200, "ready\n")
        async with pair_in_sync(controller) as (first, _):
            seen = await scrape(address)
            assert seen("rocketmq_controller_active_brokers") == 2
            assert seen("rocketmq_controller_broker_groups") == seen("rocketmq_controller_leader") == 1
            assert seen("rocketmq_controller_broker_groups_with_one_in_sync") == 0
            assert seen("rocketmq_controller_requests_total", request_code="CONTROLLER_ELECT_MASTER") == 1
            await first.line.close()
            await eventually(lambda: controller.master() == 2)
            seen = await scrape(address)
            labels = {"event": "master_elected", "cause": "master_disconnected"}
            assert seen("rocketmq_controller_group_events_total", **labels) == 1
            assert seen("rocketmq_controller_broker_groups_with_one_in_sync") == 1
            described = listed("Controller metrics")
            assert described == {name: found for name, found in told(seen).items() if name.startswith("rocketmq_")}
