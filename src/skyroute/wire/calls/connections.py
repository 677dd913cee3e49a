"""What a broker tells of the clients it knows: who is in a group, and what the group wants."""

from collections.abc import Iterable, Mapping

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


def decode_producer_group(request: Request) -> str:
    """Read which producer group is meant.

    Raises:
        FieldError: none is.
    """
    return required_name(request.fields, "producerGroup")


def encode_consumer_connections(
    connections: Iterable[Connection],
    subscriptions: Mapping[str, Subscription],
    consume_type: ConsumeType,
    model: MessageModel,
    start_from: StartFrom,
) -> Response:
    """Tell who is connected for a consumer group, and what for."""
    members = {
        "connectionSet": _connections(connections),
        "consumeFromWhere": start_from,
        "consumeType": consume_type,
        "messageModel": model,
        "subscriptionTable": {topic: subscription_members(wanted) for topic, wanted in subscriptions.items()},
    }
    return Response(body=write_body(members))


def encode_producer_connections(connections: Iterable[Connection]) -> Response:
    """Tell who is connected for a producer group."""
    return Response(body=write_body({"connectionSet": _connections(connections)}))


def _connections(connections: Iterable[Connection]) -> list[dict[str, object]]:
    return [
        {
            "clientAddr": connection.address,
            "clientId": connection.client_id,
            "language": connection.language,
            "version": connection.version,
        }
        for connection in connections
    ]


class HeardProducer(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename={"client_id": "clientId", "heard_at_ms": "lastUpdateTimestamp", "address": "remoteIP"},
):
    """A producer, and when it was last heard from."""

    client_id: str
    language: str
    heard_at_ms: Int64
    address: str
    version: int


def encode_producers(groups: Mapping[str, Iterable[HeardProducer]]) -> Response:
    """Tell who produces, by group."""
    table = {group: [msgspec.to_builtins(producer) for producer in producers] for group, producers in groups.items()}
    return Response(body=write_body({"data": table}))


class SubscriptionQuery(msgspec.Struct, frozen=True, gc=False):
    """A question what a group wants of a topic."""

    group: str
    topic: str | None


def decode_subscription_query(request: Request) -> SubscriptionQuery:
    """Read the question what a group wants of a topic.

    Raises:
        FieldError: it names no group, or what is no name.
    """
    return SubscriptionQuery(required_name(request.fields, "group"), optional_name(request.fields, "topic"))


def encode_subscription(query: SubscriptionQuery, subscription: Subscription | None) -> Response:
    """Tell what a group wants of a topic; nothing, where it does not want it."""
    members = {
        "group": query.group,
        "subscriptionData": None if subscription is None else subscription_members(subscription),
        "topic": query.topic,
    }
    return Response(body=write_body(members))
