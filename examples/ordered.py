"""Keeps the steps of each order in order: one sharding key, one queue, one ordered consumer."""

import asyncio
import sys
from collections import defaultdict

from skyroute import Admin, Consumer, Message, Producer, StartPosition, StoredMessage

NAME_SERVERS = sys.argv[1] if len(sys.argv) > 1 else None
TOPIC, GROUP = "ExampleSteps", "example-kitchen"
STEPS = ("placed", "paid", "brewed", "served")


async def main() -> None:
    async with Admin(NAME_SERVERS) as admin:
        await admin.create_topic(TOPIC)

    seen: defaultdict[str, list[str]] = defaultdict(list)
    orders = [f"order-{number}" for number in range(4)]
    done = asyncio.Event()
    consumer = Consumer(GROUP, NAME_SERVERS, ordered=True, start=StartPosition.FIRST)

    @consumer.on(TOPIC)
    async def follow(message: StoredMessage) -> None:
        order = message.sharding_key or "?"
        if (step := message.body.decode()) not in seen[order]:  # a message may be delivered twice
            seen[order].append(step)
        if all(len(seen[order]) == len(STEPS) for order in orders):
            done.set()

    async with Producer("example-waiter", NAME_SERVERS) as producer, consumer:
        for step in STEPS:
            for order in orders:
                await producer.send(Message(TOPIC, step.encode(), sharding_key=order))
        async with asyncio.timeout(60):
            await done.wait()
    for order in orders:
        print(order, "→".join(seen[order]))


asyncio.run(main())
