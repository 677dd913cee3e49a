"""Clients as a broker sees them: peers that note what they are told, and what they say in heartbeats."""

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


class NotingLine:
    """A way to a peer that keeps what is sent, and answers with what it was given."""

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


def a_peer(connection: int) -> tuple[Peer, NotingLine]:
    line = NotingLine()
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
