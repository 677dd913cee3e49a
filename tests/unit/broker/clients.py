"""Clients of a broker: peers that record the requests they get, and heartbeats."""

from collections.abc import Iterable

from skyroute.remoting.dispatch import Peer
from skyroute.remoting.errors import CallTimeoutError
from skyroute.wire.calls.clients import (
    ConsumerData,
    ConsumeType,
    Heartbeat,
    MessageModel,
    StartFrom,
    Subscription,
)
from skyroute.wire.command import Request, Response


class RecordingLine:
    """A connection to a peer that records requests, and responds with `answer`."""

    def __init__(self) -> None:
        self.told: list[Request] = []
        self.calls: list[tuple[Request, float]] = []
        self.answer: Response | None = None

    def send_oneway(self, request: Request) -> None:
        self.told.append(request)

    async def call(self, request: Request, timeout_s: float) -> Response:
        self.calls.append((request, timeout_s))
        if self.answer is None:
            raise CallTimeoutError("no answer")
        return self.answer


def a_peer(connection: int) -> tuple[Peer, RecordingLine]:
    line = RecordingLine()
    return Peer(connection, f"10.0.0.1:{40000 + connection}", caller=line), line


def a_consumer(
    group: str,
    *topics: str,
    model: MessageModel = MessageModel.CLUSTERING,
    version: int = 1,
    subscriptions: Iterable[Subscription] = (),
) -> ConsumerData:
    wanted = (*(Subscription(topic, version=version) for topic in topics), *subscriptions)
    return ConsumerData(group, ConsumeType.PUSH, model, StartFrom.LAST_OFFSET, wanted)


def a_beat(
    client_id: str, *consumers: ConsumerData, producers: Iterable[str] = (), fingerprint: int = 0, whole: bool = True
) -> Heartbeat:
    return Heartbeat(client_id, tuple(producers), consumers, fingerprint, without_subscriptions=not whole)
