import json
from pathlib import Path
from typing import Any

import pytest

from skyroute.broker.config import BrokerConfig
from skyroute.broker.store.errors import StoreDamagedError
from skyroute.broker.store.files.json_file import JsonFile
from skyroute.broker.tables.topics import TOPICS_MAX, Topics
from skyroute.message.reserved_topics import DEFAULT_TOPIC, retry_topic
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.topics import TopicConfig
from tests.support.clock import ManualClock
from tests.unit.broker.state import settings
from tests.unit.wire.golden import golden_line


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "topics.json"


def loaded(path: Path, config: BrokerConfig | None = None) -> Topics:
    topics = Topics(JsonFile(path), config or settings(), lambda: int(ManualClock().wall() * 1000))
    topics.load()
    return topics


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def queues(topics: Topics, name: str) -> tuple[int, int, int]:
    topic = topics.get(name)
    assert topic is not None
    return topic.read_queues, topic.write_queues, topic.permission


# -------------------------------------------------------------------------------------------------------- at the start


def test_every_broker_has_the_boot_topics(path: Path) -> None:
    topics = loaded(path)
    assert {name: queues(topics, name) for name in topics.all()} == {
        "SELF_TEST_TOPIC": (1, 1, 6),
        "TBW102": (8, 8, 7),
        "BenchmarkTest": (1024, 1024, 6),
        "DefaultCluster": (16, 16, 7),
        "broker-a": (1, 1, 7),
        "OFFSET_MOVED_EVENT": (1, 1, 6),
        "SCHEDULE_TOPIC_XXXX": (18, 18, 6),
        "DefaultCluster_REPLY_TOPIC": (1, 1, 6),
        "rmq_sys_REVIVE_LOG_DefaultCluster": (8, 8, 6),
        "rmq_sys_SYNC_BROKER_MEMBER_broker-a": (1, 1, 1),
        "RMQ_SYS_TRANS_HALF_TOPIC": (1, 1, 6),
        "RMQ_SYS_TRANS_OP_HALF_TOPIC": (1, 1, 6),
        "rmq_sys_wheel_timer": (1, 1, 6),
    }


def test_settings_turn_boot_topics_off(path: Path) -> None:
    config = settings(
        auto_create_topics=False,
        cluster_topic_enabled=False,
        broker_topic_enabled=False,
        trace_topic_enabled=True,
        timers_enabled=False,
    )
    topics = loaded(path, config)
    assert topics.get(DEFAULT_TOPIC) is None
    assert topics.get("rmq_sys_wheel_timer") is None
    assert queues(topics, "DefaultCluster") == (16, 16, 1)
    assert queues(topics, "broker-a") == (1, 1, 1)
    assert queues(topics, "RMQ_SYS_TRACE_TOPIC") == (1, 1, 6)


@pytest.mark.parametrize("name", ["broker-a", "DefaultCluster", "DefaultCluster_REPLY_TOPIC", "TBW102", "rmq_sys_x"])
def test_topics_named_as_the_broker_and_its_cluster_are_system_topics(path: Path, name: str) -> None:
    topics = loaded(path)
    assert topics.is_system(name)
    assert not topics.is_system("Orders")
    assert {"broker-a", "CHECKPOINT_TOPIC"} <= set(topics.system_topics())


# ------------------------------------------------------------------------------------------------------------ creation


def test_a_topic_is_created_after_the_default_topic_at_its_first_message(path: Path) -> None:
    topics = loaded(path)
    made = topics.create_for_send("Orders", DEFAULT_TOPIC, 4, sys_flag=1)
    assert made == TopicConfig("Orders", 4, 4, 6, sys_flag=1)
    assert topics.get("Orders") is made
    assert topics.version.counter == 1
    assert topics.create_for_send("Orders", DEFAULT_TOPIC, 2) is made
    assert topics.version.counter == 1


@pytest.mark.parametrize(("asked", "given"), [(4, 4), (100, 8), (0, 1), (-3, 1)])
def test_a_created_topic_has_from_one_queue_to_those_of_the_default_topic(path: Path, asked: int, given: int) -> None:
    made = loaded(path).create_for_send("Orders", DEFAULT_TOPIC, asked)
    assert made is not None
    assert (made.read_queues, made.write_queues) == (given, given)


def test_without_an_inheritable_default_topic_no_topic_is_created(path: Path) -> None:
    topics = loaded(path)
    assert topics.create_for_send("Orders", "BenchmarkTest", 4) is None
    assert topics.create_for_send("Orders", "NoSuchTopic", 4) is None
    assert topics.version.counter == 0


def test_without_auto_creation_retry_topics_are_still_created(path: Path) -> None:
    topics = loaded(path, settings(auto_create_topics=False))
    assert topics.create_for_send("Orders", DEFAULT_TOPIC, 4) is None
    assert topics.create_for_send(retry_topic("g"), DEFAULT_TOPIC, 4) == TopicConfig("%RETRY%g", 1, 1, 6)


def test_without_auto_creation_a_stored_default_topic_is_dropped(path: Path) -> None:
    topics = loaded(path)
    topics.table_file.touch()
    topics.table_file.save_now()
    assert loaded(path).get(DEFAULT_TOPIC) is not None
    assert loaded(path, settings(auto_create_topics=False)).get(DEFAULT_TOPIC) is None


def test_an_existing_topic_is_not_created_again(path: Path) -> None:
    topics = loaded(path)
    first = TopicConfig("%DLQ%g", 1, 1)
    assert topics.create(first) is first
    assert topics.create(TopicConfig("%DLQ%g", 2, 2)) is first


def test_only_a_change_gives_a_new_data_version(path: Path) -> None:
    topics = loaded(path)
    assert topics.put(TopicConfig("Orders", 4, 4))
    assert not topics.put(TopicConfig("Orders", 4, 4))
    assert topics.put(TopicConfig("Orders", 8, 8))
    assert topics.delete("Orders")
    assert not topics.delete("Orders")
    assert topics.version.counter == 3
    assert topics.version.timestamp_ms == int(ManualClock().wall() * 1000)


def test_the_number_of_topics_is_bounded(path: Path) -> None:
    topics = loaded(path)
    for number in range(TOPICS_MAX - len(topics.all())):
        topics.put(TopicConfig(f"T{number}"))
    with pytest.raises(RefusedError, match="takes no more"):
        topics.create_for_send("OneMore", DEFAULT_TOPIC, 4)
    assert topics.put(TopicConfig("T0", 1, 1))


def test_topics_reported_as_ordered_are_marked(path: Path) -> None:
    topics = loaded(path)
    topics.put(TopicConfig("Orders"))
    assert topics.mark_ordered(["Orders", "Unknown"]) == [TopicConfig("Orders", ordered=True)]
    assert topics.mark_ordered(["Orders"]) == []
    assert topics.version.counter == 2


# ---------------------------------------------------------------------------------------------------------- the file


def test_a_topic_file_of_apache_is_read_completely(path: Path) -> None:
    write(path, golden_line("client/topic-configs.txt"))
    topics = loaded(path)
    assert topics.get("Orders") == TopicConfig("Orders", 2, 2, attributes={"message.type": "FIFO"})
    assert topics.get("PeerCluster_REPLY_TOPIC") is not None
    assert topics.get("DefaultCluster") is not None
    assert (topics.version.counter, topics.version.timestamp_ms) == (6, 1794732974999)


def test_the_file_is_written_in_the_format_of_apache(path: Path) -> None:
    topics = loaded(path)
    topics.put(TopicConfig("Orders", 4, 8, attributes={"message.type": "FIFO"}))
    topics.table_file.save_now()
    stored = json.loads(path.read_bytes())
    assert stored["dataVersion"] == {"counter": 1, "stateVersion": 0, "timestamp": int(ManualClock().wall() * 1000)}
    assert stored["topicConfigTable"]["Orders"] == {
        "attributes": {"message.type": "FIFO"},
        "order": False,
        "perm": 6,
        "readQueueNums": 4,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "Orders",
        "topicSysFlag": 0,
        "writeQueueNums": 8,
    }
    assert set(stored["topicConfigTable"]) == set(topics.all())


def test_unknown_members_are_written_back(path: Path) -> None:
    topic = {"topicName": "Orders", "perm": 6, "tierOf": {"a": [1, "x"]}, "ratio": 0.5}
    write(path, json.dumps({"topicConfigTable": {"Orders": topic}, "newTable": {"a": 1}}).encode())
    topics = loaded(path)
    topics.put(TopicConfig("Other"))
    topics.table_file.save_now()
    stored = json.loads(path.read_bytes())
    assert stored["newTable"] == {"a": 1}
    assert stored["topicConfigTable"]["Orders"]["tierOf"] == {"a": [1, "x"]}


def test_topics_are_the_same_after_a_restart(path: Path) -> None:
    topics = loaded(path)
    topics.put(TopicConfig("Orders", 4, 8, sys_flag=2, ordered=True))
    topics.delete("BenchmarkTest")
    topics.table_file.save_now()
    again = loaded(path)
    assert again.version == topics.version
    assert again.get("Orders") == topics.get("Orders")


@pytest.mark.parametrize(
    "stored",
    [[], {"topicConfigTable": []}, {"topicConfigTable": {"T": {"perm": "x"}}}, {"dataVersion": {"counter": []}}],
)
def test_a_damaged_table_is_refused_and_not_read_as_empty(path: Path, stored: Any) -> None:
    write(path, json.dumps(stored).encode())
    with pytest.raises(StoreDamagedError):
        loaded(path)
