import msgspec
import pytest

from skyroute.wire.calls.clients import ConsumeType, MessageModel, StartFrom, Subscription
from skyroute.wire.calls.connections import (
    SubscriptionQuery,
    consumer_connections_parts,
    decode_producer_group,
    decode_subscription_query,
    encode_subscription,
    producer_connections_parts,
)
from skyroute.wire.calls.groups import Connection, encode_producer_connections_query
from skyroute.wire.command import Request
from skyroute.wire.errors import FieldError
from tests.unit.wire.golden import golden_line


def test_connections_of_a_consumer_group_are_encoded_as_by_java() -> None:
    retry = Subscription("%RETRY%golden-group", version=1794733113246)
    tags = Subscription("TwoTopic", "TagA || TagB", "TAG", 1794733113265, ("TagA", "TagB"), (2598919, 2598920))
    parts = consumer_connections_parts(
        [Connection("192.0.2.2@25552#1794733113236656013", "127.0.0.1:39730", "PYTHON", 479)],
        [retry, tags],
        ConsumeType.PUSH,
        MessageModel.CLUSTERING,
        StartFrom.FIRST_OFFSET,
    )
    assert "".join(parts).encode() == golden_line("client/consumer-connections.txt")


def test_connections_of_a_producer_group_are_encoded_as_by_java() -> None:
    connection = Connection("192.0.2.2@25552#1794733113237409399", "127.0.0.1:39716", "PYTHON", 479)
    written = "".join(producer_connections_parts([connection])).encode()
    assert written == golden_line("client/producer-connections.txt")
    assert decode_producer_group(encode_producer_connections_query("p")) == "p"


def test_a_missing_subscription_is_left_out() -> None:
    body = encode_subscription(SubscriptionQuery("g", None), None).body
    assert msgspec.json.decode(body) == {"group": "g"}


@pytest.mark.parametrize("fields", [{}, {"group": ""}, {"group": "\0"}, {"group": "g", "topic": "\0"}])
def test_a_request_about_no_name_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(FieldError):
        decode_subscription_query(Request(345, fields))
