"""What brokers tell administrators of how far groups have come, and what they are told to do about it."""

from collections.abc import Mapping
from typing import Final

import msgspec

from skyroute.message.queue_ref import QueueRef
from skyroute.wire.calls.groups import ConsumeStats
from skyroute.wire.calls.topics import write_struct
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Int64, Request, Response
from skyroute.wire.errors import FieldError
from skyroute.wire.fields import optional_int, optional_name, required_int, required_name, truth
from skyroute.wire.queue_maps import encode_queue_map, queue_members, write_legacy, write_queue_map

_INT64_MAX: Final = (1 << 63) - 1
TOPICS_ASKED_MAX: Final = 10_000
"""About how many topics one may ask at once."""


class ConsumeStatsQuery(msgspec.Struct, frozen=True):
    """Which group is asked about, and of which topics; none means all that it has come anywhere with."""

    group: str
    topics: tuple[str, ...]
    even_if_not_subscribed: bool
    """The topics were given as a list: then members of the group need not want them."""


def decode_consume_stats_query(request: Request) -> ConsumeStatsQuery:
    """Read the question how far a group has come.

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


def encode_consume_stats(stats: ConsumeStats) -> Response:
    """Tell how far a group has come."""
    return Response(body=_write_stats(stats).encode("utf-8", "replace"))


def _write_stats(stats: ConsumeStats) -> str:
    return f'{{"consumeTps":{stats.tps!r},"offsetTable":{write_queue_map(stats.queues, write_struct)}}}'


class BrokerProgress(msgspec.Struct, frozen=True):
    """How far all groups of a broker have come."""

    address: str
    groups: dict[str, list[ConsumeStats]]
    """Group to one entry for each of its topics."""
    lag: int
    inflight: int


def decode_broker_progress_query(request: Request) -> bool:
    """Read whether only ordered topics are asked about."""
    return truth(request.fields, "isOrder")


def encode_broker_progress(progress: BrokerProgress) -> Response:
    """Tell how far all groups of a broker have come."""
    groups = ",".join(
        f"{{{write_legacy(group)}:[{','.join(map(_write_stats, stats))}]}}" for group, stats in progress.groups.items()
    )
    text = (
        f'{{"brokerAddr":{write_legacy(progress.address)},"consumeStatsList":[{groups}]'
        f',"totalDiff":{progress.lag},"totalInflightDiff":{progress.inflight}}}'
    )
    return Response(body=text.encode("utf-8", "replace"))


class QueueTimes(
    msgspec.Struct,
    frozen=True,
    rename={"oldest_ms": "minTimeStamp", "newest_ms": "maxTimeStamp"}
    | {"consumed_ms": "consumeTimeStamp", "behind_ms": "delayTime"},
):
    """When the messages of a queue were stored that matter to a group; -1 where there is none."""

    oldest_ms: Int64
    newest_ms: Int64
    consumed_ms: Int64
    """The last one the group has consumed."""
    behind_ms: Int64 = 0
    """How long ago the next one was stored."""


class GroupOnTopic(msgspec.Struct, frozen=True):
    """A group and a topic that are asked about."""

    group: str
    topic: str


def decode_time_span_query(request: Request) -> GroupOnTopic:
    """Read whose times in which topic are asked for.

    Raises:
        FieldError: a field is missing or malformed.
    """
    return GroupOnTopic(required_name(request.fields, "group"), required_name(request.fields, "topic"))


def encode_time_spans(spans: Mapping[QueueRef, QueueTimes]) -> Response:
    """Tell when messages were stored, queue by queue."""
    entries = [{"messageQueue": queue_members(queue), **msgspec.to_builtins(times)} for queue, times in spans.items()]
    return Response(body=msgspec.json.encode({"consumeTimeSpanSet": entries}))


# ---------------------------------------------------------------------------------------------------- moving groups


class ResetOrder(msgspec.Struct, frozen=True):
    """Where a group is to be sent."""

    topic: str
    group: str
    timestamp_ms: int
    """To the first message from then on; behind the last one where it is negative."""
    force: bool
    """Also forwards; only the old way of telling members asks for it."""
    queue_id: int | None
    offset: int | None
    """To this very offset, in one queue."""


def decode_reset_order(request: Request) -> ResetOrder:
    """Read where a group is to be sent.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    queue_id = optional_int(fields, "queueId", -1)
    offset = optional_int(fields, "offset", -1, _INT64_MAX)
    return ResetOrder(
        topic=required_name(fields, "topic"),
        group=required_name(fields, "group"),
        timestamp_ms=required_int(fields, "timestamp"),
        force=truth(fields, "isForce"),
        queue_id=queue_id if queue_id >= 0 else None,
        offset=offset if offset != -1 else None,
    )


def encode_reset_offsets(offsets: Mapping[QueueRef, int]) -> Response:
    """Tell where a group was sent."""
    return Response(body=encode_queue_map("offsetTable", offsets))


class CloneOrder(msgspec.Struct, frozen=True):
    """Have one group go on where another does, with one topic or with all."""

    source: str
    destination: str
    topic: str | None
    offline: bool
    """Also with topics that members of the source do not want."""


def decode_clone_order(request: Request) -> CloneOrder:
    """Read which group is to go on where another does.

    Raises:
        FieldError: a field is missing or malformed.
    """
    fields = request.fields
    source, destination = required_name(fields, "srcGroup"), required_name(fields, "destGroup")
    return CloneOrder(source, destination, optional_name(fields, "topic"), truth(fields, "offline"))


def encode_clone_order(order: CloneOrder) -> Request:
    """Have a broker let one group go on where another does."""
    fields = {
        "srcGroup": order.source,
        "destGroup": order.destination,
        "offline": "true" if order.offline else "false",
    }
    if order.topic is not None:
        fields["topic"] = order.topic
    return Request(RequestCode.CLONE_GROUP_OFFSET, fields)
