"""Receives messages of a topic, and acknowledges each."""

import asyncio
import sys

from skyroute import Admin, Message, Producer, SimpleConsumer

NAME_SERVERS = sys.argv[1] if len(sys.argv) > 1 else None
TOPIC, GROUP = "ExampleJobs", "example-workers"


async def main() -> None:
    async with Admin(NAME_SERVERS) as admin:
        await admin.create_topic(TOPIC)

    async with Producer("example-office", NAME_SERVERS) as producer:
        await producer.send_batch(Message(TOPIC, b"job %d" % number) for number in range(20))

    async with SimpleConsumer(GROUP, NAME_SERVERS) as consumer:
        consumer.subscribe(TOPIC)
        received: set[bytes] = set()
        while len(received) < 20:
            messages = await consumer.receive(16, wait_s=10, invisible_s=60)
            if not messages:
                sys.exit("the messages did not come")
            received |= {message.body for message in messages}
            await consumer.ack(*messages)
    print("received", len(received), "messages")


asyncio.run(main())
