"""Polls a topic from its oldest message."""

import asyncio
import sys

from skyroute import Admin, Message, Producer, PullConsumer

NAME_SERVERS = sys.argv[1] if len(sys.argv) > 1 else None
TOPIC, GROUP = "ExampleReadings", "example-audit"


async def main() -> None:
    async with Admin(NAME_SERVERS) as admin:
        await admin.create_topic(TOPIC)

    async with Producer("example-sensor", NAME_SERVERS) as producer:
        await producer.send_batch(Message(TOPIC, b"%d degrees" % number) for number in range(100))

    async with PullConsumer(GROUP, NAME_SERVERS) as consumer:
        consumer.assign(await consumer.queues(TOPIC))
        for queue in consumer.assignment:
            await consumer.seek_to_begin(queue)
        read = 0
        while read < 100:
            messages = await consumer.poll(timeout_s=10.0)
            if not messages:
                sys.exit("the messages did not come")
            read += len(messages)
            await consumer.commit()
    print("read", read, "messages")


asyncio.run(main())
