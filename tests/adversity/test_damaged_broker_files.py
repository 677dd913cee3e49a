"""Any single damage to a table or timer file of a broker costs no message; SKYROUTE_SEED=... repeats a run."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from skyroute.broker.broker import Broker
from skyroute.broker.config import BrokerConfig
from skyroute.broker.store.errors import StoreDamagedError
from skyroute.broker.store.message_store import MessageStore
from skyroute.wire.calls.groups import GroupConfig
from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import ResponseCode
from tests.network.broker.calls import send
from tests.support.clock import ManualClock
from tests.support.connections import connection_to
from tests.support.disks import NoSyncDisk
from tests.support.single_damage import Base, Damage, Files, choose, read_folder, read_store, write_files

CASES = int(os.environ.get("SKYROUTE_DAMAGE_CASES") or 400) // 2
MESSAGES = 12
STORE_FILES = ("commitlog", "consumequeue", "batchconsumequeue", "index", "checkpoint", "abort", "lock", "queues")


def broker_at(folder: Path) -> Broker:
    config = BrokerConfig(
        advertised_host="127.0.0.1",
        bind_address="127.0.0.1",
        listen_port=0,
        store_path=str(folder),
        settings_file=str(folder / "config" / "broker.properties"),
        commit_log_file_bytes=1 << 16,
        consume_queue_file_bytes=20 * 100,
        index_slots=64,
        index_entries=256,
    )
    return Broker(config, clock=ManualClock(), disk=NoSyncDisk())


async def fill(broker: Broker, first: int) -> None:
    """Messages of every kind, and something new in every table."""
    components = broker.components
    components.topics.put(TopicConfig(f"T{first}", 2, 2))
    components.groups.put(GroupConfig(f"g{first}"))
    await components.topics.table_file.save()
    await components.groups.table_file.save()
    async with connection_to(broker.address) as line:
        for number in range(MESSAGES):
            delayed = {0: {"DELAY": "3"}, 1: {"TIMER_DELAY_SEC": "600"}}.get(number % 5, {})
            request = send(f"T{first}", b"%d" % number, queue_id=number % 2, properties=delayed)
            assert (await line.call(request)).code == ResponseCode.SUCCESS
    components.offsets.commit(f"g{first}", f"T{first}", 0, 3)
    await components.offsets.table_file.save()


async def files_of(folder: Path, *, is_killed: bool) -> Files:
    """A broker's folder after two runs, so that tables have backups."""
    for first in (1, 2):
        broker = broker_at(folder)
        await broker.start()
        await fill(broker, first)
        await (broker.kill() if is_killed and first == 2 else broker.stop())
    return read_folder(folder)


@pytest.mark.parametrize("is_killed", [False, True], ids=["stopped", "killed"])
async def test_damage_to_a_table_loses_no_message(tmp_path: Path, chance: random.Random, is_killed: bool) -> None:
    files = await files_of(tmp_path / "truth", is_killed=is_killed)
    tables = {name: content for name, content in files.items() if name.split("/")[0] not in STORE_FILES}
    assert {"config/topics.json", "config/topics.json.bak", "config/consumerOffset.json"} <= set(tables)
    broker = broker_at(tmp_path / "truth")
    await broker.start()
    truth = {(each.topic, each.queue_id, each.offset) for each in read_store(broker.components.store)}
    await broker.kill()
    assert len(truth) >= 2 * MESSAGES
    folder = tmp_path / "damaged"
    for _ in range(CASES):
        damage = choose(Base("tables", tables, _not_opened), chance)
        shutil.rmtree(folder, ignore_errors=True)
        write_files(files, folder)
        damage.apply(folder)
        await check_losses(folder, damage, files, truth)


def _not_opened(_: Path) -> MessageStore:
    raise AssertionError


async def check_losses(folder: Path, damage: Damage, files: Files, truth: set[tuple[str, int, int]]) -> None:
    broker, refusal = broker_at(folder), ""
    try:
        await broker.start()
    except StoreDamagedError as error:
        refusal = str(error)
    if refusal:
        assert f"{damage.file}.bak" not in files, f"{damage}: {refusal}"
        assert Path(damage.file).name in refusal, f"{damage}: {refusal}"
        return
    try:
        found = {(each.topic, each.queue_id, each.offset) for each in read_store(broker.components.store)}
        assert truth <= found, f"{damage} lost {sorted(truth - found)[:3]}"
        for topic, queue_id, _ in truth:
            assert broker.components.topics.get(topic) is not None or damage.kind == "bit", (damage, topic, queue_id)
    finally:
        await broker.kill()
