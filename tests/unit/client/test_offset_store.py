"""Offsets in a file that Java's client shares, and at brokers."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skyroute.client.consuming.offset_store import BrokerOffsets, FileOffsets, OffsetFileError, _from_file, _to_text
from skyroute.client.errors import ServerFailedError
from skyroute.client.session.session import Session
from skyroute.message.errors import InvalidNameError
from skyroute.message.queue_ref import QueueRef
from skyroute.wire.codes import RequestCode, ResponseCode
from tests.support.fake_broker import FakeCluster, fake_cluster

Q0 = QueueRef("T", "b", 0)
Q1 = QueueRef("T", "b", 1)

WRITTEN_BY_5_5_0 = (
    '{\n\t"offsetTable":{\n\t\t{\n\t\t\t"brokerName":"b",\n\t\t\t"queueId":0,\n\t\t\t"topic":"T"\n\t\t}:12,'
    '\n\t\t{\n\t\t\t"brokerName":"b",\n\t\t\t"queueId":1,\n\t\t\t"topic":"T\\"é"\n\t\t}:13\n\t}\n}'
)
WRITTEN_BY_4_9_7 = (
    '{\n\t"offsetTable":{{\n\t\t\t"brokerName":"b",\n\t\t\t"queueId":0,\n\t\t\t"topic":"T"\n\t\t}:12,'
    '{\n\t\t\t"brokerName":"b",\n\t\t\t"queueId":1,\n\t\t\t"topic":"T\\"é"\n\t\t}:13\n\t}\n}'
)
WRITTEN = {Q0: 12, QueueRef('T"é', "b", 1): 13}


@pytest.fixture
def store(tmp_path: Path) -> FileOffsets:
    return FileOffsets("10.0.0.1@DEFAULT", "g", directory=tmp_path)


def write(store: FileOffsets, text: str) -> None:
    store.path.parent.mkdir(parents=True)
    store.path.write_text(text, "utf-8")


async def persisted(store: FileOffsets, **offsets: int) -> None:
    for name, offset in offsets.items():
        store.update({"q0": Q0, "q1": Q1}[name], offset, only_forward=False)
    await store.persist([Q0, Q1])


# ---------------------------------------------------------------------------------------------------------- the file


def test_the_file_is_where_java_looks_for_it() -> None:
    path = FileOffsets("10.0.0.1@DEFAULT", "g").path
    assert path == Path.home() / ".rocketmq_offsets" / "10.0.0.1@DEFAULT" / "g" / "offsets.json"


@pytest.mark.parametrize("text", [WRITTEN_BY_5_5_0, WRITTEN_BY_4_9_7])
async def test_offset_files_of_java_are_read(store: FileOffsets, text: str) -> None:
    write(store, text)
    await store.load()
    assert {queue: store.cached(queue) for queue in WRITTEN} == WRITTEN
    assert await store.read(Q0) == 12
    assert await store.read(Q1) is None


async def test_a_read_replaces_the_offset_in_memory_also_by_a_smaller_one(store: FileOffsets) -> None:
    await persisted(store, q0=5)
    store.update(Q0, 9)
    assert await store.read(Q0) == store.cached(Q0) == 5
    store.update(Q1, 9)
    assert await store.read(Q1) is None
    assert store.cached(Q1) == 9


async def test_offset_files_have_javas_format(store: FileOffsets) -> None:
    for queue, offset in WRITTEN.items():
        store.update(queue, offset)
    await store.persist(WRITTEN)
    assert store.path.read_text("utf-8") == WRITTEN_BY_5_5_0


NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1)


@settings(deadline=None)
@given(st.dictionaries(st.builds(QueueRef, NAMES, NAMES, st.integers(0, 9)), st.integers(0, (1 << 63) - 1)))
def test_whatever_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, offsets: dict[QueueRef, int]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(_to_text(offsets), "utf-8")
    assert _from_file(path) == offsets


async def test_without_a_file_nothing_was_consumed(store: FileOffsets) -> None:
    await store.load()
    assert await store.read(Q0) is None
    assert store.cached(Q0) is None
    assert not store.path.exists()


async def test_queues_of_others_stay_in_the_file(store: FileOffsets) -> None:
    write(store, WRITTEN_BY_5_5_0)
    await store.load()
    await persisted(store, q1=5)
    assert _from_file(store.path) == {**WRITTEN, Q1: 5}


async def test_a_queue_that_nothing_is_noted_about_is_not_written(store: FileOffsets) -> None:
    await store.persist([Q0])
    assert not store.path.exists()
    store.update(Q0, 1)
    store.forget(Q0)
    await store.persist([Q0])
    assert not store.path.exists()


async def test_unchanged_offsets_are_not_written(store: FileOffsets) -> None:
    await persisted(store, q0=1)
    before = store.path.stat()
    await store.persist([Q0])
    assert store.path.stat() == before


async def test_the_file_before_the_last_is_the_backup(store: FileOffsets) -> None:
    await persisted(store, q0=1)
    await persisted(store, q0=2)
    assert _from_file(store.path) == {Q0: 2}
    assert _from_file(store.path.with_name("offsets.json.bak")) == {Q0: 1}
    assert sorted(path.name for path in store.path.parent.iterdir()) == ["offsets.json", "offsets.json.bak"]


@pytest.mark.parametrize("damage", ["", "{", '{"offsetTable":{{"topic":"T"}:1}}', '{"offsetTable":7}', "\udcff"])
async def test_the_backup_replaces_a_damaged_file(
    store: FileOffsets, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    await persisted(store, q0=1)
    await persisted(store, q0=2)
    store.path.write_text(damage, "utf-8", errors="surrogateescape")
    fresh = FileOffsets("10.0.0.1@DEFAULT", "g", directory=store.path.parents[2])
    await fresh.load()
    assert fresh.cached(Q0) == 1
    assert ("offsets read from the backup" in caplog.text) == bool(damage)
    await persisted(fresh, q1=7)
    assert _from_file(store.path) == {Q0: 1, Q1: 7}
    assert _from_file(store.path.with_name("offsets.json.bak")) == {Q0: 1}


async def test_a_damaged_file_without_a_backup_raises(store: FileOffsets) -> None:
    write(store, "{")
    with pytest.raises(OffsetFileError, match=r"offsets\.json is damaged .* repair or remove it"):
        await store.load()
    with pytest.raises(OffsetFileError):
        await store.read(Q0)


async def test_a_damaged_backup_behind_a_damaged_file_is_an_error_too(store: FileOffsets) -> None:
    write(store, "{")
    store.path.with_name("offsets.json.bak").write_text("{")
    with pytest.raises(OffsetFileError, match="damaged"):
        await store.load()


async def test_a_file_that_cannot_be_read_is_named_with_the_reason(store: FileOffsets) -> None:
    store.path.mkdir(parents=True)
    with pytest.raises(OffsetFileError, match=f"^offset file {store.path} cannot be read: Is a directory$"):
        await store.load()


async def test_a_write_leaves_the_temporary_file_of_another_process_alone(store: FileOffsets) -> None:
    other = store.path.with_name("offsets.json.tmp")
    other.parent.mkdir(parents=True)
    other.write_text("half")
    await persisted(store, q0=1)
    assert _from_file(store.path) == {Q0: 1}
    assert other.read_text() == "half"


async def test_a_file_that_cannot_be_written_is_logged_and_not_lost(
    store: FileOffsets, caplog: pytest.LogCaptureFixture
) -> None:
    store.path.parent.parent.write_text("a file where a directory should be")
    await persisted(store, q0=1)
    (line,) = caplog.messages
    assert line.startswith(f"offsets not written path={store.path} reason=offset file {store.path}")
    store.path.parent.parent.unlink()
    await store.persist([Q0])
    assert _from_file(store.path) == {Q0: 1}


async def test_a_folder_that_cannot_be_made_is_logged_with_the_reason(
    store: FileOffsets, caplog: pytest.LogCaptureFixture
) -> None:
    store.path.parent.mkdir(parents=True)
    store.path.symlink_to("/proc/nowhere/offsets.json")
    await persisted(store, q0=1)
    (line,) = caplog.messages
    assert line.startswith(f"offsets not written path={store.path} reason=cannot write {store.path}: ")


async def test_concurrent_writers_keep_the_file_intact(store: FileOffsets) -> None:
    other = FileOffsets("10.0.0.1@DEFAULT", "g", directory=store.path.parents[2])
    for number in range(20):
        store.update(Q0, number)
        other.update(Q0, number)
        await asyncio.gather(store.persist([Q0]), other.persist([Q0]))
    assert _from_file(store.path) == {Q0: 19}
    assert [path.name for path in store.path.parent.iterdir() if path.suffix == ".tmp"] == []


def test_offsets_move_forward_unless_only_forward_is_false(store: FileOffsets) -> None:
    store.update(Q0, 5)
    store.update(Q0, 3)
    assert store.cached(Q0) == 5
    store.update(Q0, 3, only_forward=False)
    assert store.cached(Q0) == 3


def test_a_queue_may_be_forgotten_before_anything_is_known_of_it(store: FileOffsets) -> None:
    store.forget(Q0)
    store.update(Q0, 5)
    store.forget(Q0)
    store.forget(Q0)
    assert store.cached(Q0) is None


# ------------------------------------------------------------------------------------------------------- the brokers


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(topics={"T": 2}) as cluster:
        yield cluster


@pytest.fixture
async def session(cluster: FakeCluster) -> AsyncIterator[Session]:
    async with Session(cluster.address) as session:
        await session.routes.find("T")
        yield session


async def test_offsets_are_read_from_and_committed_to_brokers(cluster: FakeCluster, session: Session) -> None:
    first, second = cluster.queue("T", 0), cluster.queue("T", 1)
    cluster.offsets["g", first] = 4
    offsets = BrokerOffsets(session, "g")
    await offsets.load()
    assert await offsets.read(first) == offsets.cached(first) == 4
    assert await offsets.read(second) is None
    offsets.update(first, 6)
    offsets.update(second, 1)
    await offsets.persist([first])
    await cluster.until_seen(RequestCode.UPDATE_CONSUMER_OFFSET)
    assert cluster.seen(RequestCode.UPDATE_CONSUMER_OFFSET)[0].is_one_way
    await offsets.persist([second], wait=True)
    assert cluster.offsets == {("g", first): 6, ("g", second): 1}


async def test_an_offset_that_was_set_back_at_the_broker_is_used(cluster: FakeCluster, session: Session) -> None:
    offsets = BrokerOffsets(session, "g")
    queue = cluster.queue("T", 0)
    offsets.update(queue, 6)
    cluster.offsets["g", queue] = 4
    assert await offsets.read(queue) == offsets.cached(queue) == 4


async def test_a_broker_that_refuses_raises_instead_of_no_offset(cluster: FakeCluster, session: Session) -> None:
    cluster.refuse(RequestCode.QUERY_CONSUMER_OFFSET, ResponseCode.SYSTEM_ERROR, "cannot say")
    with pytest.raises(ServerFailedError):
        await BrokerOffsets(session, "g").read(cluster.queue("T", 0))


async def test_an_offset_that_could_not_be_committed_is_logged_and_the_others_are_kept(
    cluster: FakeCluster, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    offsets = BrokerOffsets(session, "g")
    nowhere = QueueRef("T", "broker-z", 0)
    offsets.update(nowhere, 1)
    offsets.update(cluster.queue("T", 0), 2)
    await offsets.persist([nowhere, cluster.queue("T", 0)], wait=True)
    (line,) = caplog.messages
    assert line.startswith(f"offset not committed group=g queue={nowhere} reason=")
    assert cluster.offsets == {("g", cluster.queue("T", 0)): 2}


async def test_failed_commits_of_a_queue_are_logged_once_until_one_succeeds_or_the_queue_is_forgotten(
    cluster: FakeCluster, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = BrokerOffsets(session, "g")
    first, second = cluster.queue("T", 0), cluster.queue("T", 1)

    async def logged(*queues: QueueRef) -> int:
        caplog.clear()
        for queue in queues:
            offsets.update(queue, 1)
        await offsets.persist(queues, wait=True)
        return len(caplog.messages)

    code = RequestCode.UPDATE_CONSUMER_OFFSET
    cluster.refuse(code, ResponseCode.SYSTEM_ERROR, "not now", times=6)
    assert [await logged(first), await logged(first), await logged(first, second)] == [1, 0, 1]
    offsets.forget(first)
    assert offsets.cached(first) is None
    assert await logged(first, second) == 1
    assert await logged(first) == 0, "it is accepted"
    cluster.refuse(code, ResponseCode.SYSTEM_ERROR, "not now", times=2)
    assert await logged(first, second) == 1


@pytest.mark.parametrize(("client_id", "group"), [("../../x", "g"), ("10.0.0.1@a/b", "g"), ("c", ".."), ("c", "g\0")])
def test_offsets_are_not_kept_in_a_folder_elsewhere(tmp_path: Path, client_id: str, group: str) -> None:
    with pytest.raises(InvalidNameError):
        FileOffsets(client_id, group, directory=tmp_path)
