"""Raw POP requests, and what their responses have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from skyroute.message.message import StoredMessage
from skyroute.wire.codes import RequestCode
from tests.network.broker.calls import found
from tests.network.broker.clusters import Cluster
from tests.support.connections import AsyncConnection
from tests.support.raw import Command, Request


def pop(topic: str = "T", **fields: object) -> Request:
    """A pop without long polling; `fields` have the wire's names."""
    values: dict[str, object] = {
        **{"consumerGroup": "g", "topic": topic, "queueId": -1, "maxMsgNums": 32, "invisibleTime": 60_000},
        **{"pollTime": 0, "bornTime": 0, "initMode": 0, "exp": "*", "expType": "TAG", "order": "false"},
    }
    return Request(RequestCode.POP_MESSAGE, {name: str(value) for name, value in (values | fields).items()})


@dataclass(frozen=True)
class Got:
    """A popped message and its receipt."""

    message: StoredMessage
    receipt: str
    topic: str
    """The topic that has the message."""

    @property
    def body(self) -> bytes:
        return self.message.body

    def fields(self, **more: object) -> dict[str, str]:
        """The fields of an acknowledgement."""
        values = {
            **{"consumerGroup": "g", "topic": self.topic, "queueId": self.receipt.split(" ")[6]},
            **{"offset": self.receipt.split(" ")[7], "extraInfo": self.receipt},
        }
        return values | {name: str(value) for name, value in more.items()}


def got(answer: Command, topic: str = "T", group: str = "g") -> list[Got]:
    """The messages of a response, with receipts made as Apache's clients make them."""
    if answer.code != 0:
        return []
    starts = {}
    for entry in answer.fields["startOffsetInfo"].split(";"):
        flag, queue, start = entry.split(" ")
        starts[flag, queue] = start
    messages = []
    for message in found(answer):
        receipt = message.properties.get("POP_CK")
        if receipt is None:
            queue = str(message.queue_id)
            times = " ".join(answer.fields[name] for name in ("popTime", "invisibleTime", "reviveQid"))
            receipt = f"{starts['0', queue]} {times} 0 broker-a {queue} {message.queue_offset}"
        flag = receipt.split(" ")[4]
        stored = {"0": topic, "1": f"%RETRY%{group}_{topic}", "2": f"%RETRY%{group}+{topic}"}[flag]
        messages.append(Got(message, receipt, stored))
    return messages


async def popped(line: AsyncConnection, topic: str = "T", **fields: object) -> list[Got]:
    """Pop once."""
    group = str(fields.get("consumerGroup", "g"))
    return got(await line.call(pop(topic, **fields)), topic, group)


async def ack(line: AsyncConnection, *messages: Got, **more: Any) -> None:
    """Acknowledge messages one by one."""
    for message in messages:
        answer = await line.call(RequestCode.ACK_MESSAGE, message.fields(**more))
        assert answer.code == 0, answer


def later(cluster: Cluster, seconds: float) -> None:
    """Advance the clock, and do what is due."""
    components = cluster.broker.components
    cluster.clock.advance(seconds)
    now_ms = int(cluster.clock.wall() * 1000)
    while (components.timers.step(now_ms) or now_ms + 1) <= now_ms:
        pass
    while components.revival.step(now_ms) <= now_ms:
        pass
    components.pop_polling.expire(cluster.clock.monotonic())
