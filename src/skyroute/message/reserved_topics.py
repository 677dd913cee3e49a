"""Reserved topics and groups, and derived names: retry, dead-letter and reply topics, namespaces.

A namespace is a prefix that keeps apart the topics and groups of several tenants; brokers do not know of it.
"""

from typing import Final

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LIGHT_QUEUE_PREFIX: Final = "%LMQ%"
REPLY_SUFFIX: Final = "_REPLY_TOPIC"
SYSTEM_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
LOGICAL_BROKER_PREFIX: Final = "__syslo__"
"""Prefix of the broker names of a static topic's logical queues."""

DEFAULT_TOPIC: Final = "TBW102"
"""A topic that does not exist yet is created with its route and settings."""
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
HALF_DONE_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ROCKSDB_HALF_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
ROCKSDB_HALF_DONE_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
HALF_GIVEN_UP_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
CHECKPOINT_TOPIC: Final = "CHECKPOINT_TOPIC"

SYSTEM_TOPICS: Final = frozenset(
    {
        DEFAULT_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        HALF_DONE_TOPIC,
        ROCKSDB_HALF_TOPIC,
        ROCKSDB_HALF_DONE_TOPIC,
        HALF_GIVEN_UP_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        CHECKPOINT_TOPIC,
    }
)

CLOSED_TO_SENDERS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        HALF_DONE_TOPIC,
        ROCKSDB_HALF_TOPIC,
        ROCKSDB_HALF_DONE_TOPIC,
        HALF_GIVEN_UP_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
"""Topics that only brokers write."""

_WITH_OTHERS_MESSAGES: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        HALF_TOPIC,
        HALF_DONE_TOPIC,
        ROCKSDB_HALF_TOPIC,
        ROCKSDB_HALF_DONE_TOPIC,
        HALF_GIVEN_UP_TOPIC,
    }
)
_REVIVE_PREFIX: Final = f"{SYSTEM_PREFIX}REVIVE_LOG_"


def has_messages_of_others(topic: str) -> bool:
    """Return whether a topic holds messages of other topics, or orders to move them: delays, half messages, revival."""
    return topic in _WITH_OTHERS_MESSAGES or topic.startswith(_REVIVE_PREFIX)


PREDEFINED_GROUPS: Final = frozenset(
    {
        "TOOLS_CONSUMER",
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PULL",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_RMQ_SYS_TRANS",
    }
)
"""Consumer groups that exist on every broker."""

CLIENT_INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
TRACE_GROUP: Final = "_INNER_TRACE_PRODUCER"
"""The producer group of trace messages, as in Apache's clients."""


def is_system_topic(topic: str) -> bool:
    """Return whether a topic is reserved. A broker adds topics named after itself and its cluster."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def is_system_group(group: str) -> bool:
    """Return whether a group is reserved."""
    return group.startswith(SYSTEM_GROUP_PREFIX)


def retry_topic(group: str) -> str:
    """Return the retry topic of a consumer group."""
    return f"{RETRY_PREFIX}{group}"


def dead_letter_topic(group: str) -> str:
    """Return the dead-letter topic of a consumer group."""
    return f"{DLQ_PREFIX}{group}"


def pop_retry_topic(group: str, topic: str, *, version: int = 1) -> str:
    """Return the retry topic of a consumer group for POP.

    Version 2 separates group and topic by a character that neither can have; brokers use it only if configured.
    """
    return f"{RETRY_PREFIX}{group}{'+' if version == 2 else '_'}{topic}"


def is_pop_retry_topic(topic: str, group: str) -> bool:
    """Return whether a topic is a POP retry topic of a group."""
    return bool(group) and topic.startswith((f"{RETRY_PREFIX}{group}_", f"{RETRY_PREFIX}{group}+"))


def reply_topic(cluster: str) -> str:
    """Return the reply topic of a cluster."""
    return f"{cluster}{REPLY_SUFFIX}"


def is_retry_topic(topic: str) -> bool:
    """Return whether a topic is a retry topic."""
    return topic.startswith(RETRY_PREFIX)


def is_dead_letter_topic(topic: str) -> bool:
    """Return whether a topic is a dead-letter topic."""
    return topic.startswith(DLQ_PREFIX)


def group_of(topic: str) -> str | None:
    """Return the group of a retry or dead-letter topic; None for other topics.

    For a POP retry topic of version 1 it is group and topic together: they cannot be separated.
    """
    prefix, name = _cut_prefix(topic)
    if not prefix:
        return None
    return name.partition("+")[0] if prefix == RETRY_PREFIX else name


def with_namespace(namespace: str | None, name: str) -> str:
    """Return the name of a topic or group with its namespace. Reserved names have no namespace."""
    if not namespace or not name or _is_system(name):
        return name
    prefix, plain = _cut_prefix(name)
    return name if plain.startswith(f"{namespace}%") else f"{prefix}{namespace}%{plain}"


def without_namespace(namespace: str | None, name: str) -> str:
    """Return the name without this namespace; a name of another namespace is unchanged."""
    prefix, plain = _cut_prefix(name)
    if not namespace or not plain.startswith(f"{namespace}%") or _is_system(name):
        return name
    return f"{prefix}{plain.removeprefix(f'{namespace}%')}"


def namespace_of(name: str) -> str | None:
    """Return the namespace of a topic or group, or None."""
    if _is_system(name):
        return None
    namespace, bar, _ = _cut_prefix(name)[1].partition("%")
    return namespace if namespace and bar else None


def _is_system(name: str) -> bool:
    return is_system_topic(name) or is_system_group(name)


def _cut_prefix(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name.removeprefix(prefix)
    return "", name
