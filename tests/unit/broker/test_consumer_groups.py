import json
from pathlib import Path

import pytest

from skyroute.broker.config import BrokerConfig
from skyroute.broker.store.errors import StoreDamagedError
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.tables.consumer_groups import GROUPS_MAX, Groups
from skyroute.message.reserved_topics import PREDEFINED_GROUPS
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.groups import GroupConfig
from tests.unit.broker.state import settings
from tests.unit.wire.golden import golden_line


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "subscriptionGroup.json"


def loaded(path: Path, config: BrokerConfig | None = None) -> Groups:
    groups = Groups(JsonFile(path), config or settings(), lambda: 1_700_000_000_000)
    groups.load()
    return groups


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_predefined_groups_exist_from_the_start(path: Path) -> None:
    assert set(loaded(path).all()) == PREDEFINED_GROUPS


def test_a_group_is_created_at_its_first_use(path: Path) -> None:
    groups = loaded(path)
    assert groups.get("readers") is None
    assert groups.find("readers") == GroupConfig("readers")
    assert groups.find("readers") is groups.get("readers")
    assert groups.version.counter == 1


@pytest.mark.parametrize("name", ["", "a b", "x" * 121, "a.b"])
def test_a_group_with_an_invalid_name_is_not_created(path: Path, name: str) -> None:
    assert loaded(path).find(name) is None


def test_without_auto_creation_only_system_groups_are_created(path: Path) -> None:
    groups = loaded(path, settings(auto_create_groups=False))
    assert groups.find("readers") is None
    assert groups.find("CID_RMQ_SYS_inner") is not None
    strict = loaded(path, settings(auto_create_groups=False, auto_create_system_groups=False))
    assert strict.find("CID_RMQ_SYS_inner") is None
    assert strict.find("TOOLS_CONSUMER") is not None


def test_only_a_change_gives_a_new_data_version(path: Path) -> None:
    groups = loaded(path)
    assert groups.put(GroupConfig("readers", retry_times_max=3))
    assert not groups.put(GroupConfig("readers", retry_times_max=3))
    assert groups.delete("readers")
    assert not groups.delete("readers")
    assert groups.version.counter == 2


def test_the_number_of_groups_is_bounded(path: Path) -> None:
    groups = loaded(path)
    for number in range(GROUPS_MAX - len(groups.all())):
        groups.find(f"g{number}")
    assert groups.find("one-more") is None
    with pytest.raises(RefusedError, match="takes no more"):
        groups.put(GroupConfig("one-more"))


def test_a_group_may_be_forbidden_a_topic_and_allowed_it_again(path: Path) -> None:
    groups = loaded(path)
    assert groups.set_forbidden("g", "A", forbidden=True)
    assert groups.set_forbidden("g", "B", forbidden=True)
    assert not groups.set_forbidden("g", "B", forbidden=True)
    assert groups.set_forbidden("g", "A", forbidden=False)
    assert [groups.is_forbidden("g", topic) for topic in "AB"] == [False, True]
    groups.table_file.save_now()
    assert json.loads(path.read_bytes())["forbiddenTable"] == {"g": {"B": 4}}
    assert loaded(path).is_forbidden("g", "B")
    groups.delete("g")
    assert not groups.is_forbidden("g", "B")


def test_other_bits_of_apaches_forbidden_table_are_kept(path: Path) -> None:
    write(path, b'{"subscriptionGroupTable":{},"forbiddenTable":{"g":{"A":6}}}')
    groups = loaded(path)
    assert groups.is_forbidden("g", "A")
    groups.set_forbidden("g", "A", forbidden=False)
    assert groups.forbidden() == {"g": {"A": 2}}


def test_a_group_file_of_apache_is_read_and_written_back(path: Path) -> None:
    write(path, golden_line("client/group-configs.txt"))
    groups = loaded(path)
    assert groups.get("two-group") == GroupConfig("two-group", retry_times_max=3)
    assert groups.version.counter == 7
    groups.table_file.touch()
    groups.table_file.save_now()
    before, after = json.loads(golden_line("client/group-configs.txt")), json.loads(path.read_bytes())
    assert after == before


def test_unknown_members_of_a_group_are_written_back(path: Path) -> None:
    group = {"groupName": "g", "subscriptionDataSet": [{"topic": "A", "version": 1}], "liteBindTopic": "L"}
    write(path, json.dumps({"subscriptionGroupTable": {"g": group}}).encode())
    groups = loaded(path)
    groups.find("other")
    groups.table_file.save_now()
    stored = json.loads(path.read_bytes())["subscriptionGroupTable"]
    assert group.items() <= stored["g"].items()
    assert "subscriptionDataSet" not in stored["other"]


@pytest.mark.parametrize(
    "content", [b"[]", b'{"subscriptionGroupTable":{"g":1}}', b'{"forbiddenTable":{"g":{"t":"x"}}}']
)
def test_a_damaged_table_is_refused_and_not_read_as_empty(path: Path, content: bytes) -> None:
    write(path, content)
    with pytest.raises(StoreDamagedError):
        loaded(path)
