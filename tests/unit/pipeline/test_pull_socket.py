"""The blocking socket of pulls, against a socket on loopback."""

import socket
from collections.abc import Iterator

import pytest

from skyroute.pipeline.pull_socket import PullSocket
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import FLAG_RESPONSE, Request
from skyroute.wire.errors import FrameError
from skyroute.wire.frame import FrameDecoder
from skyroute.wire.header import decode_command, encode_request

PULL = Request(RequestCode.PULL_MESSAGE)


class Broker:
    """One end of a connection, with a `PullSocket` at the other."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.socket = PullSocket(f"127.0.0.1:{listening.getsockname()[1]}", None, 5.0, 5.0)
            self._end, _ = listening.accept()
        self._decoder = FrameDecoder()

    def received(self, count: int) -> list[Request]:
        """Return the next requests."""
        frames: list[bytes] = []
        while len(frames) < count:
            frames += self._decoder.feed(self._end.recv(65536))
        return [decode_command(frame) for frame in frames]

    def send(self, data: bytes) -> None:
        self._end.sendall(data)

    def respond(self, request_id: int, body: bytes) -> None:
        self.send(encode_request(Request(0, flag=FLAG_RESPONSE, body=body), request_id))

    def close(self) -> None:
        self.socket.close()
        self._end.close()


@pytest.fixture
def broker() -> Iterator[Broker]:
    here = Broker()
    yield here
    here.close()


def read(broker: Broker) -> tuple[int, bytes]:
    head = broker.socket.receive()
    body = bytearray(head.body_bytes)
    broker.socket.read_into(memoryview(body))
    return head.request_id, bytes(body)


def test_responses_are_read_in_the_order_of_arrival(broker: Broker) -> None:
    ids = [broker.socket.send(PULL) for _ in range(2)]
    assert [request.request_id for request in broker.received(2)] == ids
    assert broker.socket.open_requests == 2
    broker.respond(ids[1], b"second")
    broker.respond(ids[0], b"first")
    assert [read(broker), read(broker)] == [(ids[1], b"second"), (ids[0], b"first")]
    assert broker.socket.open_requests == 0


def test_requests_of_the_broker_and_unknown_responses_are_skipped(broker: Broker) -> None:
    request_id = broker.socket.send(PULL)
    broker.send(encode_request(Request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, body=b"notice"), request_id))
    broker.respond(request_id + 1, b"unknown")
    broker.respond(request_id, b"found")
    assert read(broker) == (request_id, b"found")


def test_a_malformed_frame_is_refused(broker: Broker) -> None:
    broker.socket.send(PULL)
    broker.send(b"HTTP/1.1 400")
    with pytest.raises(FrameError, match="is it a broker"):
        broker.socket.receive()


def test_a_closed_connection_is_reported_and_not_idle(broker: Broker) -> None:
    assert broker.socket.is_idle
    broker.socket.send(PULL)
    broker.received(1)
    broker._end.close()
    with pytest.raises(ConnectionResetError, match="closed the connection"):
        broker.socket.receive()
    assert not broker.socket.is_idle
