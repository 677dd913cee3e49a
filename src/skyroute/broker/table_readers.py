"""Parsers for the table files of a broker, to verify a store without a running broker."""

from collections.abc import Collection, Mapping
from typing import Final

from skyroute.broker.pop.ordered_queues import read_ordered_queues
from skyroute.broker.scheduling.delay_levels import read_delay_offsets
from skyroute.broker.store.verification.verify_tables import ReadTable
from skyroute.broker.tables.consumer_groups import read_groups
from skyroute.broker.tables.consumer_offsets import read_offsets
from skyroute.broker.tables.request_modes import read_request_modes
from skyroute.broker.tables.topics import read_topics


def _topics(raw: object) -> Collection[str]:
    return read_topics(raw).configs


def _groups(raw: object) -> Collection[str]:
    return read_groups(raw).groups.configs


def _offsets(raw: object) -> Collection[str]:
    return [f"{topic}@{group}" for group, topic in read_offsets(raw).offsets]


def _request_modes(raw: object) -> Collection[str]:
    return [f"{topic}@{group}" for topic, group in read_request_modes(raw)]


def _delay_offsets(raw: object) -> Collection[str]:
    return [str(level) for level in read_delay_offsets(raw)[0]]


def _ordered_queues(raw: object) -> Collection[str]:
    return [f"{topic}@{group}" for topic, group in read_ordered_queues(raw)]


TABLES: Final[Mapping[str, ReadTable]] = {
    "topics.json": _topics,
    "subscriptionGroup.json": _groups,
    "consumerOffset.json": _offsets,
    "messageRequestMode.json": _request_modes,
    "delayOffset.json": _delay_offsets,
    "consumerOrderInfo.json": _ordered_queues,
}
