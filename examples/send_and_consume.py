"""Sends ten orders, and consumes them. Pass the name servers' addresses, or set NAMESRV_ADDR."""

import asyncio
import sys

from skyroute import Admin, Consumer, Message, Producer, StartPosition, StoredMessage

NAME_SERVERS = sys.argv[1] if len(sys.argv) > 1 else None
TOPIC, GROUP, ORDERS = "ExampleOrders", "example-billing", 10


async def main() -> None:
    async with Admin(NAME_SERVERS) as admin:
        await admin.create_topic(TOPIC)

    done = asyncio.Event()
    booked: set[str] = set()
    consumer = Consumer(GROUP, NAME_SERVERS, start=StartPosition.FIRST)

    @consumer.on(TOPIC, "paid || refunded")
    async def book(message: StoredMessage) -> None:
        booked.update(message.keys)
        print("booked", message.body.decode(), message.tag, *message.keys, flush=True)
        if len(booked) >= ORDERS:
            done.set()

    async with consumer, Producer("example-shop", NAME_SERVERS) as producer:
        for number in range(ORDERS):
            message = Message(TOPIC, f"{number} coffees".encode(), tag="paid", keys=f"order-{number}")
            result = await producer.send(message)
            print("sent", result.message_id, result.status.name, flush=True)
        async with asyncio.timeout(60):
            await done.wait()


asyncio.run(main())
