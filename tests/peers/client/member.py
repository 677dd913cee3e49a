"""A member of a consumer group in its own process, so that a test can kill it.

Arguments: name servers, group, topic. Prints `owns N` whenever the number of its queues changes, and `got BODY`.
"""

from __future__ import annotations

import asyncio
import sys

from skyroute import Consumer, StartPosition, StoredMessage
from tests.peers.client.python_client import QUICK
from tests.support.waiting import eventually

TEST_S = 600.0
"""Longer than any test."""


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main(name_servers: str, group: str, topic: str) -> None:
    consumer = Consumer(group, name_servers, start=StartPosition.FIRST, intervals=QUICK)

    @consumer.on(topic)
    async def handle(message: StoredMessage) -> None:
        _print(f"got {message.body.decode()}")

    async with consumer:
        _print("serving")
        owned = -1

        async def has_changed() -> bool:
            return len(consumer.assignment) != owned

        while True:
            owned = len(consumer.assignment)
            _print(f"owns {owned}")
            await eventually(has_changed, timeout_s=TEST_S)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
