import asyncio
import logging
from pathlib import Path

import msgspec
import pytest

from skyroute.files.errors import FileWriteError
from skyroute.nameserver.errors import KvConfigRefusedError
from skyroute.nameserver.housekeeping import KV_LOGGED_A_STEP, log_kv
from skyroute.nameserver.kv_config import KvConfig
from skyroute.remoting.stepwise import run_through
from skyroute.settings.errors import ConfigError

JAVA_FILE = b'{"configTable":{"ORDER_TOPIC_CONFIG":{"TopicA":"broker-a:4;broker-b:4"}}}'

DAMAGED = [
    b"[]",
    b"null",
    b"\0" * 64,
    b'{"other":{}}',
    b'{"configTable":{"a":1}}',
    b'{"configTable":{"a":{"b":"\xff"}}}',
    b"{}{}",
    b'{"configTable":' * 100_000,
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "namesrv" / "kvConfig.json"


def loaded(path: Path, bytes_max: int = 1024 * 1024) -> KvConfig:
    kv = KvConfig(path, bytes_max)
    kv.load()
    return kv


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def put(kv: KvConfig, namespace: str, key: str, value: str) -> str | None:
    return asyncio.run(kv.put(namespace, key, value))


def delete(kv: KvConfig, namespace: str, key: str) -> str | None:
    return asyncio.run(kv.delete(namespace, key))


def test_a_missing_file_is_an_empty_table(path: Path) -> None:
    assert loaded(path).tables() == {}
    assert not path.parent.exists()


def test_javas_file_is_read(path: Path) -> None:
    write(path, JAVA_FILE)
    assert loaded(path).get("ORDER_TOPIC_CONFIG", "TopicA") == "broker-a:4;broker-b:4"


def test_the_file_has_javas_form(path: Path) -> None:
    put(loaded(path), "ORDER_TOPIC_CONFIG", "TopicA", "broker-a:4;broker-b:4")
    assert path.read_bytes() == JAVA_FILE


@pytest.mark.parametrize("content", [b"{}", b'{"configTable":null}', b'{"configTable":{}}', b"  {}\n"])
def test_a_file_without_entries_is_an_empty_table(path: Path, content: bytes) -> None:
    write(path, content)
    assert loaded(path).tables() == {}


def test_values_that_java_stored_as_null_are_absent(path: Path) -> None:
    write(path, b'{"configTable":{"a":{"x":null,"y":"1"}}}')
    assert loaded(path).tables() == {"a": {"y": "1"}}


def test_changes_survive_a_restart(path: Path) -> None:
    kv = loaded(path)
    put(kv, "a", "x", "1")
    put(kv, "a", "y", "größe 中 😀\n")
    put(kv, "b", "x", "")
    put(kv, "a", "x", "2")
    assert delete(kv, "b", "x") == ""
    assert loaded(path).tables() == kv.tables() == {"a": {"x": "2", "y": "größe 中 😀\n"}, "b": {}}


def test_what_was_never_put_is_not_found(path: Path) -> None:
    kv = loaded(path)
    put(kv, "a", "x", "1")
    assert kv.get("a", "y") is None
    assert kv.get("b", "x") is None
    assert run_through(kv.write_namespace("b")) is None


def test_a_namespace_outlives_its_last_key(path: Path) -> None:
    kv = loaded(path)
    put(kv, "a", "x", "1")
    delete(kv, "a", "x")
    assert run_through(kv.write_namespace("a")) == b'{"table":{}}'


def test_deleting_what_is_not_there_writes_nothing(path: Path) -> None:
    kv = loaded(path)
    assert delete(kv, "a", "x") is None
    assert not path.exists()


def test_what_is_handed_out_is_a_copy(path: Path) -> None:
    kv = loaded(path)
    put(kv, "a", "x", "1")
    kv.tables()["a"]["z"] = "3"
    assert kv.tables() == {"a": {"x": "1"}}


def test_a_namespace_is_written_once_per_change(path: Path) -> None:
    kv = loaded(path)
    put(kv, "a", "x", "1")
    body = run_through(kv.write_namespace("a"))
    assert body == b'{"table":{"x":"1"}}'
    assert run_through(kv.write_namespace("a")) is body
    put(kv, "a", "x", "2")
    assert run_through(kv.write_namespace("a")) == b'{"table":{"x":"2"}}'
    delete(kv, "a", "x")
    assert run_through(kv.write_namespace("a")) == b'{"table":{}}'


def test_the_repr_has_the_number_of_entries(path: Path) -> None:
    kv = loaded(path)
    put(kv, "a", "x", "1")
    assert repr(kv) == f"<KvConfig {path} namespaces=1 entries=1>"


def test_a_file_torn_at_any_length_gives_way_to_its_backup(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kv = loaded(path)
    put(kv, "a", "x", "old")
    put(kv, "a", "x", "new")
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        caplog.clear()
        assert loaded(path).get("a", "x") == "old"
        assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("content", DAMAGED)
def test_any_other_damage_gives_way_to_the_backup_too(path: Path, content: bytes) -> None:
    write(path, content)
    path.with_name("kvConfig.json.bak").write_bytes(JAVA_FILE)
    assert loaded(path).get("ORDER_TOPIC_CONFIG", "TopicA") == "broker-a:4;broker-b:4"


def test_the_backup_that_was_used_is_not_overwritten_by_the_damage(path: Path) -> None:
    write(path, b"torn")
    backup = path.with_name("kvConfig.json.bak")
    backup.write_bytes(JAVA_FILE)
    kv = loaded(path)
    put(kv, "a", "x", "1")
    assert backup.read_bytes() == JAVA_FILE
    put(kv, "a", "x", "2")
    assert msgspec.json.decode(backup.read_bytes())["configTable"]["a"] == {"x": "1"}


@pytest.mark.parametrize("backup", [None, b"", b"torn too", b"[]"])
def test_without_a_sound_file_the_error_is_one_line(path: Path, backup: bytes | None) -> None:
    write(path, b'{"configTable":{"a"')
    if backup is not None:
        path.with_name("kvConfig.json.bak").write_bytes(backup)
    with pytest.raises(ConfigError, match=r"kvConfig\.json is not a key-value table in JSON") as caught:
        loaded(path)
    assert "\n" not in str(caught.value)
    assert "kvConfig.json.bak" in str(caught.value)


@pytest.mark.parametrize("content", [b"", bytes(64)])
def test_an_empty_file_without_a_backup_is_refused(path: Path, content: bytes) -> None:
    write(path, content)
    with pytest.raises(ConfigError, match=r"no backup kvConfig\.json\.bak exists: restore it from a copy, or move"):
        loaded(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("content", [b"", bytes(64), b'{"configTable":{"a"'])
def test_a_damaged_file_is_kept(path: Path, content: bytes) -> None:
    write(path, content)
    path.with_name("kvConfig.json.bak").write_bytes(JAVA_FILE)
    kv = loaded(path)
    assert kv.get("ORDER_TOPIC_CONFIG", "TopicA") == "broker-a:4;broker-b:4"
    (kept,) = path.parent.glob("kvConfig.json.damaged-*")
    assert kept.read_bytes() == content
    put(kv, "a", "x", "1")
    assert kept.read_bytes() == content
    assert path.with_name("kvConfig.json.bak").read_bytes() == JAVA_FILE


def test_a_missing_file_gives_way_to_its_backup(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(path.with_name("kvConfig.json.bak"), JAVA_FILE)
    assert loaded(path).get("ORDER_TOPIC_CONFIG", "TopicA") == "broker-a:4;broker-b:4"
    assert "kv config file missing, its backup is used" in caplog.text


def test_a_damaged_backup_of_a_missing_file_is_refused(path: Path) -> None:
    write(path.with_name("kvConfig.json.bak"), b"")
    with pytest.raises(ConfigError, match=r"kvConfig\.json\.bak is not a key-value table"):
        loaded(path)


def test_a_file_that_is_a_directory_is_refused(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(ConfigError, match="Is a directory"):
        loaded(path)


def test_a_file_beyond_the_bound_is_refused(path: Path) -> None:
    write(path, JAVA_FILE)
    with pytest.raises(ConfigError, match="larger than kvConfigMaxBytes=10"):
        loaded(path, bytes_max=10)


def test_the_table_fills_to_its_bound_and_no_further(path: Path) -> None:
    kv = loaded(path, bytes_max=len(JAVA_FILE))
    put(kv, "ORDER_TOPIC_CONFIG", "TopicA", "broker-a:4;broker-b:4")
    with pytest.raises(KvConfigRefusedError, match="kvConfigMaxBytes"):
        put(kv, "ORDER_TOPIC_CONFIG", "TopicA", "broker-a:4;broker-b:10")
    assert path.read_bytes() == JAVA_FILE
    assert loaded(path, bytes_max=len(JAVA_FILE)).tables() == kv.tables()


def test_half_a_surrogate_pair_is_refused(path: Path) -> None:
    kv = loaded(path)
    with pytest.raises(KvConfigRefusedError, match="not valid text"):
        put(kv, "a", "x", "\ud83d")
    assert kv.tables() == {}


@pytest.mark.parametrize("failing", range(6))
def test_whichever_write_fails_table_and_file_are_as_before_it(path: Path, failing: int) -> None:
    kv = loaded(path)
    changes = [("a", "x", "1"), ("a", "y", "2"), ("b", "x", "3"), ("a", "x", None), ("b", "x", None), ("c", "x", "4")]

    def change(namespace: str, key: str, value: str | None) -> None:
        if value is None:
            delete(kv, namespace, key)
        else:
            put(kv, namespace, key, value)

    for each in changes[:failing]:
        change(*each)
    before = kv.tables()
    path.parent.mkdir(exist_ok=True)
    obstacle = path.with_name("kvConfig.json.tmp")
    obstacle.mkdir()

    with pytest.raises(FileWriteError, match="cannot write"):
        change(*changes[failing])
    assert kv.tables() == loaded(path).tables() == before

    obstacle.rmdir()
    for each in changes[failing:]:
        change(*each)
    assert kv.tables() == loaded(path).tables() == {"a": {"y": "2"}, "b": {}, "c": {"x": "4"}}


def test_a_damaged_backup_does_not_matter_while_the_file_is_sound(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(path, JAVA_FILE)
    path.with_name("kvConfig.json.bak").write_bytes(b"torn")
    with caplog.at_level(logging.INFO):
        kv = loaded(path)
    assert kv.get("ORDER_TOPIC_CONFIG", "TopicA") == "broker-a:4;broker-b:4"
    assert caplog.records == []


@pytest.mark.parametrize(("count", "chars"), [(300, 1), (8, KV_LOGGED_A_STEP)])
def test_the_table_is_logged_in_steps(path: Path, caplog: pytest.LogCaptureFixture, count: int, chars: int) -> None:
    kv = loaded(path, 8 * 1024 * 1024)
    for number in range(count):
        put(kv, "N", f"k{number}", "v" * chars)
    with caplog.at_level(logging.INFO):
        steps = sum(1 for _ in log_kv(kv))
    assert steps >= 4
    assert len([line for line in caplog.messages if line.startswith("kv config namespace=")]) == count
