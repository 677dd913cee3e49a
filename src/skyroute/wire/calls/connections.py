"""Connected clients of a broker, and their subscriptions."""

from collections.abc import Iterable, Iterator

import msgspec

from skyroute.wire.calls.clients import (
    ConsumeType,
    MessageModel,
    StartFrom,
    Subscription,
    subscription_members,
    write_body,
)
from skyroute.wire.calls.groups import Connection
from skyroute.wire.command import Int64, Request, Response
from skyroute.wire.fields import optional_name, required_name
from skyroute.wire.queue_maps import separated, write_legacy


def decode_producer_group(request: Request) -> str:
    """Decode the producer group of a request.

    Raises:
        FieldError: it is missing.
    """
    return required_name(request.fields, "producerGroup")


def consumer_connections_parts(
    connections: Iterable[Connection],
    subscriptions: Iterable[Subscription],
    consume_type: ConsumeType,
    model: MessageModel,
    start_from: StartFrom,
) -> Iterator[str]:
    """Encode the connections and subscriptions of a consumer group, one part each."""
    yield '{"connectionSet":['
    yield from separated(map(_write_connection, connections))
    yield f'],"consumeFromWhere":"{start_from}","consumeType":"{consume_type}","messageModel":"{model}",'
    yield '"subscriptionTable":{'
    yield from separated(
        f"{write_legacy(wanted.topic)}:{write_legacy(subscription_members(wanted))}" for wanted in subscriptions
    )
    yield "}}"


def producer_connections_parts(connections: Iterable[Connection]) -> Iterator[str]:
    """Encode the connections of a producer group, one part each."""
    yield '{"connectionSet":['
    yield from separated(map(_write_connection, connections))
    yield "]}"


def _write_connection(connection: Connection) -> str:
    return write_legacy(
        {
            "clientAddr": connection.address,
            "clientId": connection.client_id,
            "language": connection.language,
            "version": connection.version,
        }
    )


class HeardProducer(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename={"client_id": "clientId", "heard_at_ms": "lastUpdateTimestamp", "address": "remoteIP"},
):
    """A connected producer and the time of its last heartbeat."""

    client_id: str
    language: str
    heard_at_ms: Int64
    address: str
    version: int


def producers_parts(groups: Iterable[tuple[str, Iterable[HeardProducer]]]) -> Iterator[str]:
    """Encode all producers by group, one part each."""
    yield '{"data":{'
    for number, (group, producers) in enumerate(groups):
        yield f"{',' if number else ''}{write_legacy(group)}:["
        yield from separated(write_legacy(msgspec.to_builtins(producer)) for producer in producers)
        yield "]"
    yield "}}"


class SubscriptionQuery(msgspec.Struct, frozen=True, gc=False):
    """A request for a group's subscription to a topic."""

    group: str
    topic: str | None


def decode_subscription_query(request: Request) -> SubscriptionQuery:
    """Decode a request for a group's subscription to a topic.

    Raises:
        FieldError: the group or topic is missing or invalid.
    """
    return SubscriptionQuery(required_name(request.fields, "group"), optional_name(request.fields, "topic"))


def encode_subscription(query: SubscriptionQuery, subscription: Subscription | None) -> Response:
    """Encode a group's subscription to a topic; empty if it has none."""
    members = {
        "group": query.group,
        "subscriptionData": None if subscription is None else subscription_members(subscription),
        "topic": query.topic,
    }
    return Response(body=write_body(members))
