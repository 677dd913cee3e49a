"""Progress of consumer groups, and resets of their offsets, on the broker's side."""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from skyroute.wire.calls.groups import PopProgress, QueueProgress
from skyroute.wire.calls.topics import write_struct
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Int64, Request
from skyroute.wire.errors import FieldError
from skyroute.wire.fields import INT64_MAX, optional_int, optional_name, required_int, required_name, truth
from skyroute.wire.queue_maps import QueueKeys, separated, write_legacy

TOPICS_ASKED_MAX: Final = 10_000
"""Maximum number of topics in one request."""


class ConsumeStatsQuery(msgspec.Struct, frozen=True):
    """A request for the progress of a group; without topics, in all topics with offsets."""

    group: str
    topics: tuple[str, ...]
    even_if_not_subscribed: bool
    """The topics are a list; the group need not subscribe to them."""


def decode_consume_stats_query(request: Request) -> ConsumeStatsQuery:
    """Decode a request for the progress of a group.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    group = required_name(fields, "consumerGroup")
    listed = tuple(filter(None, fields.get("topicList", "").split(";")))
    if len(listed) > TOPICS_ASKED_MAX:
        raise FieldError(f"topicList has more than {TOPICS_ASKED_MAX} topics")
    if listed:
        return ConsumeStatsQuery(group, listed, even_if_not_subscribed=True)
    topic = fields.get("topic", "").strip()
    return ConsumeStatsQuery(group, (topic,) if topic else (), even_if_not_subscribed=False)


class TopicProgress(NamedTuple):
    """Progress of a group in one topic on one broker."""

    topic: str
    broker_name: str
    queues: Iterable[tuple[int, QueueProgress]]
    tps: float


def consume_stats_parts(
    topics: Iterable[TopicProgress], pops: Iterable[tuple[str, PopProgress | None]] = ()
) -> Iterator[str]:
    """Encode a group's progress, one part per queue; Apache's tools ignore popped messages by topic.

    `pops` has None for a topic without popped messages.
    """
    tps = 0.0

    def entries() -> Iterator[str]:
        nonlocal tps
        for topic in topics:
            tps += topic.tps
            yield ""
            yield from _progress_entries(topic)

    yield '{"offsetTable":{'
    yield from separated(entries())
    yield f'}},"consumeTps":{tps!r}'
    separator = ',"popTable":{'
    for name, progress in pops:
        if progress is None:
            yield ""
            continue
        yield f"{separator}{write_legacy(name)}:{write_struct(progress)}"
        separator = ","
    yield "}}" if separator == "," else "}"


def _progress_entries(topic: TopicProgress) -> Iterator[str]:
    keys = QueueKeys(topic.topic, topic.broker_name)
    for queue_id, progress in topic.queues:
        yield f"{keys.write(queue_id)}:{write_struct(progress)}"


def decode_broker_progress_query(request: Request) -> bool:
    """Decode whether only ordered topics are requested."""
    return truth(request.fields, "isOrder")


def broker_progress_parts(address: str, groups: Iterable[tuple[str, Iterable[TopicProgress | None]]]) -> Iterator[str]:
    """Encode the progress of all groups of a broker, one part per queue; None for a topic that is left out."""
    lag = inflight = 0

    def counted(queues: Iterable[tuple[int, QueueProgress]]) -> Iterator[tuple[int, QueueProgress]]:
        nonlocal lag, inflight
        for queue_id, progress in queues:
            lag += progress.lag
            inflight += progress.inflight
            yield queue_id, progress

    yield f'{{"brokerAddr":{write_legacy(address)},"consumeStatsList":['
    for number, (group, topics) in enumerate(groups):
        yield f"{',' if number else ''}{{{write_legacy(group)}:["
        separator = ""
        for topic in topics:
            if topic is None:
                yield ""
                continue
            yield f'{separator}{{"consumeTps":{topic.tps!r},"offsetTable":{{'
            yield from separated(_progress_entries(topic._replace(queues=counted(topic.queues))))
            yield "}}"
            separator = ","
        yield "]}"
    yield f'],"totalDiff":{lag},"totalInflightDiff":{inflight}}}'


class QueueTimes(
    msgspec.Struct,
    frozen=True,
    rename={"oldest_ms": "minTimeStamp", "newest_ms": "maxTimeStamp"}
    | {"consumed_ms": "consumeTimeStamp", "behind_ms": "delayTime"},
):
    """Store times of messages of a queue that concern a group; -1 for none."""

    oldest_ms: Int64
    newest_ms: Int64
    consumed_ms: Int64
    """Of the last consumed message."""
    behind_ms: Int64 = 0
    """Age of the next message."""


class GroupOnTopic(msgspec.Struct, frozen=True):
    """The group and topic of a request."""

    group: str
    topic: str


def decode_time_span_query(request: Request) -> GroupOnTopic:
    """Decode a request for store times.

    Raises:
        FieldError: a field is missing or malformed.
    """
    return GroupOnTopic(required_name(request.fields, "group"), required_name(request.fields, "topic"))


def time_spans_parts(topic: str, broker_name: str, queues: Iterable[tuple[int, QueueTimes]]) -> Iterator[str]:
    """Encode the store times, one part per queue."""
    keys = QueueKeys(topic, broker_name)
    yield '{"consumeTimeSpanSet":['
    yield from separated(
        f'{{"messageQueue":{keys.write(queue_id)},{write_struct(times)[1:]}' for queue_id, times in queues
    )
    yield "]}"


# ---------------------------------------------------------------------------------------------------- moving groups


class ResetOrder(msgspec.Struct, frozen=True):
    """An offset reset of a group."""

    topic: str
    group: str
    timestamp_ms: int
    """To the first message from this time on; if negative, to the end."""
    force: bool
    """Also forwards; only the old kind of reset sets it."""
    queue_id: int | None
    offset: int | None
    """To this offset, in one queue."""


def decode_reset_order(request: Request) -> ResetOrder:
    """Decode an offset reset.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    queue_id = optional_int(fields, "queueId", -1)
    offset = optional_int(fields, "offset", -1, INT64_MAX)
    return ResetOrder(
        topic=required_name(fields, "topic"),
        group=required_name(fields, "group"),
        timestamp_ms=required_int(fields, "timestamp"),
        force=truth(fields, "isForce"),
        queue_id=queue_id if queue_id >= 0 else None,
        offset=offset if offset != -1 else None,
    )


def reset_offsets_parts(topic: str, broker_name: str, offsets: Iterable[tuple[int, int]]) -> Iterator[str]:
    """Encode the new offsets of a group, one part per queue."""
    keys = QueueKeys(topic, broker_name)
    yield '{"offsetTable":{'
    yield from separated(f"{keys.write(queue_id)}:{offset}" for queue_id, offset in offsets)
    yield "}}"


class CloneOrder(msgspec.Struct, frozen=True):
    """A copy of one group's offsets to another, for one topic or all."""

    source: str
    destination: str
    topic: str | None
    offline: bool
    """Also for topics that the source group does not subscribe to."""


def decode_clone_order(request: Request) -> CloneOrder:
    """Decode a copy of offsets.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    source, destination = required_name(fields, "srcGroup"), required_name(fields, "destGroup")
    return CloneOrder(source, destination, optional_name(fields, "topic"), truth(fields, "offline"))


def encode_clone_order(order: CloneOrder) -> Request:
    """Encode a copy of offsets."""
    fields = {
        "srcGroup": order.source,
        "destGroup": order.destination,
        "offline": "true" if order.offline else "false",
    }
    if order.topic is not None:
        fields["topic"] = order.topic
    return Request(RequestCode.CLONE_GROUP_OFFSET, fields)
