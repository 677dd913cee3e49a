"""A member of a consumer group as a process of its own, so that a test can kill it.

Arguments: name servers, group, topic. Prints `owns N` whenever the number of its queues changes, and `got BODY`.
"""

from __future__ import annotations

import asyncio
import sys

from skyroute import Consumer, StartPosition, StoredMessage
from tests.peers.client.python_client import QUICK


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main(name_servers: str, group: str, topic: str) -> None:
    consumer = Consumer(group, name_servers, start=StartPosition.FIRST, intervals=QUICK)

    @consumer.on(topic)
    async def handle(message: StoredMessage) -> None:
        _say(f"got {message.body.decode()}")

    async with consumer:
        _say("serving")
        owned = -1
        while True:
            if len(consumer.assignment) != owned:
                owned = len(consumer.assignment)
                _say(f"owns {owned}")
            await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
