"""The state of groups in a real file."""

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import pytest

from skyroute.controller.errors import DamagedStateError, RequestRefusedError, StoreConflictError
from skyroute.controller.events import Cause, GroupEvent, IdGranted
from skyroute.controller.file_store import FileStore
from skyroute.controller.groups import Groups
from skyroute.controller.rules import elect, grant_id
from skyroute.controller.state import GroupState, LiveReplicas, Replica
from skyroute.files.disk import Disk
from skyroute.files.errors import FileWriteError
from skyroute.files.replace import backup_path

GROUP = GroupState("C", "a", 2, {1: Replica("h:1", "h:1;5")}, 1, 4, frozenset({1}), 6, True)


async def opened(path: Path, disk: Disk | None = None) -> FileStore:
    store = FileStore(path, disk)
    await store.open()
    return store


async def reopened(store: FileStore) -> FileStore:
    await store.close()
    return await opened(store._path)


async def test_a_change_is_read_back_by_the_next_start(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.json"
    store = await opened(path)
    await store.replace(GROUP, 0)
    await store.replace(GroupState("C", "b"), 0)
    again = await reopened(store)
    found = again.find("a")
    assert found is not None
    assert (found.state, found.revision) == (GROUP, 1)
    assert set(again.groups()) == {"a", "b"}


async def test_a_change_of_an_old_revision_is_a_conflict(tmp_path: Path) -> None:
    store = await opened(tmp_path / "state.json")
    await store.replace(GROUP, 0)
    for revision in (0, 2):
        with pytest.raises(StoreConflictError):
            await store.replace(GroupState("C", "a"), revision)
    results = await asyncio.gather(store.replace(GROUP, 1), store.replace(GROUP, 1), return_exceptions=True)
    assert [type(result) for result in results] == [type(None), StoreConflictError]
    found = store.find("a")
    assert found is not None
    assert found.revision == 2


class CountingDisk(Disk):
    def __init__(self) -> None:
        self.syncs = 0
        self.fails = False

    def sync(self, descriptor: int) -> None:
        self.syncs += 1
        if self.fails:
            raise FileWriteError("cannot write: No space left on device")
        super().sync(descriptor)


async def test_changes_at_the_same_time_share_a_write(tmp_path: Path) -> None:
    disk = CountingDisk()
    store = await opened(tmp_path / "state.json", disk)
    await store.replace(GROUP, 0)
    disk.syncs = 0
    await asyncio.gather(*(store.replace(GroupState("C", f"g{number}"), 0) for number in range(100)))
    assert disk.syncs <= 2
    assert len((await reopened(store)).groups()) == 101


async def test_a_failed_write_changes_nothing(tmp_path: Path) -> None:
    disk = CountingDisk()
    store = await opened(tmp_path / "state.json", disk)
    await store.replace(GROUP, 0)
    disk.fails = True
    with pytest.raises(FileWriteError, match="No space left"):
        await store.replace(GroupState("C", "a", 9), 1)
    disk.fails = False
    found = store.find("a")
    assert found is not None
    assert (found.state, found.revision) == (GROUP, 1)
    await store.replace(GroupState("C", "a", 9), 1)
    assert (await reopened(store)).groups()["a"].state.next_id == 9


async def test_all_groups_together_have_a_maximum_size(tmp_path: Path) -> None:
    disk = CountingDisk()
    store = await opened(tmp_path / "state.json", disk)
    await store.replace(GROUP, 0)
    room = len(msgspec.json.encode(store.groups()["a"])) + 10
    store._sizes.bytes_max = 2 * room
    disk.fails = True
    with pytest.raises(FileWriteError):
        await store.replace(replace(GROUP, broker_name="b"), 0)  # takes no room: it is not stored
    disk.fails = False
    outcomes = await asyncio.gather(
        *(store.replace(replace(GROUP, broker_name=name), 0) for name in "bcd"), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), RequestRefusedError, RequestRefusedError]
    long_address = {1: Replica("h" * 100, "h:1;5")}
    with pytest.raises(RequestRefusedError, match="at most"):
        await store.replace(replace(GROUP, replicas=long_address), 1)
    elected = replace(GROUP, master_epoch=2**31 - 1, sync_set_epoch=2**31 - 1, sync_set=frozenset(range(99)))
    await store.replace(elected, 1)
    store = await reopened(store)
    store._sizes.bytes_max = room
    with pytest.raises(RequestRefusedError, match="at most"):
        await store.replace(replace(GROUP, broker_name="c"), 0)
    await store.replace(replace(elected, replicas={}), 2)
    await store.replace(replace(GROUP, broker_name="b", replicas={}), 1)
    assert {name: stored.state.replicas for name, stored in store.groups().items()} == {"a": {}, "b": {}}
    await store.close()


async def test_a_cancelled_change_is_still_written(tmp_path: Path) -> None:
    store = await opened(tmp_path / "state.json")
    change = asyncio.create_task(store.replace(GROUP, 0))
    await asyncio.sleep(0)
    change.cancel()
    assert "a" in (await reopened(store)).groups()


@pytest.mark.parametrize("content", [b"", b"{", b'{"format":1,"groups":[{"revision":1}]}', b'{"format":3,"groups":[]}'])
async def test_a_controller_does_not_start_without_its_state(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content)
    with pytest.raises(DamagedStateError, match=r"state\.json"):
        await opened(path)


async def test_a_lost_file_beside_its_backup_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    store = await opened(path)
    await store.replace(GROUP, 0)
    store = await reopened(store)
    await store.replace(GROUP, 1)
    await store.close()
    path.unlink()
    with pytest.raises(DamagedStateError, match="backup"):
        await opened(path)
    backup_path(path).unlink()
    with pytest.raises(DamagedStateError, match="has changes"):
        await opened(path)


async def test_rules_decide_again_after_a_conflict(tmp_path: Path) -> None:
    events: list[GroupEvent] = []
    groups = Groups(await opened(tmp_path / "state.json"), lambda new, _: events.extend(new))
    codes = [f"10.0.0.{number}:10911;1" for number in range(4)]

    async def join(code: str) -> int:
        while True:
            found = groups.find("a")
            wanted = 1 if found is None else found.next_id
            rule = partial(grant_id, cluster="C", broker_name="a", broker_id=wanted, check_code=code)
            try:
                await groups.change("a", rule)
            except RequestRefusedError:
                continue
            return wanted

    assert sorted(await asyncio.gather(*map(join, codes))) == [1, 2, 3, 4]
    assert [event.broker_id for event in events if isinstance(event, IdGranted)] == [1, 2, 3, 4]
    answer = await groups.change("a", lambda group: elect(group, "a", 2, LiveReplicas({})))
    again = await groups.change("a", lambda group: elect(group, "a", 2, LiveReplicas({}, is_settled=False)))
    assert answer.is_new
    assert not again.is_new
    assert [event.cause for event in events[4:]] == [Cause.BROKER]


async def test_two_controllers_cannot_share_a_file(tmp_path: Path) -> None:
    store = await opened(tmp_path / "state.json")
    with pytest.raises(FileWriteError, match="another controller"):
        await opened(tmp_path / "state.json")
    await store.close()
    await (await opened(tmp_path / "state.json")).close()


async def test_a_change_whose_request_is_cancelled_during_the_write_is_published(tmp_path: Path) -> None:
    published: list[GroupEvent] = []
    store = await opened(tmp_path / "state.json")
    groups = Groups(store, lambda events, group: published.extend(events))
    change = asyncio.create_task(groups.change("a", lambda group: grant_id(group, "C", "a", 1, "h:1;5")))
    await asyncio.sleep(0)
    change.cancel()
    await asyncio.gather(change, return_exceptions=True)
    assert list(groups.unsure) == ["a"]
    await groups.settle("a")
    assert published == [IdGranted("C", "a", Cause.BROKER, 1, "h:1")]
    assert list(groups.unsure) == []
    await groups.settle("a")
    assert len(published) == 1
