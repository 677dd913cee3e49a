"""Sends a request to a topic, and gets the reply of its consumer."""

import asyncio
import sys

from skyroute import Admin, Consumer, Message, Producer, StartPosition, StoredMessage

NAME_SERVERS = sys.argv[1] if len(sys.argv) > 1 else None
TOPIC, GROUP = "ExampleQuestions", "example-oracle"


async def main() -> None:
    async with Admin(NAME_SERVERS) as admin:
        await admin.create_topic(TOPIC)

    async with Producer("example-replies", NAME_SERVERS) as replies:
        consumer = Consumer(GROUP, NAME_SERVERS, start=StartPosition.LAST)

        @consumer.on(TOPIC)
        async def answer(message: StoredMessage) -> None:
            await replies.reply(message, b"42, if you asked for " + message.body)

        async with consumer, Producer("example-asking", NAME_SERVERS) as producer:
            reply = await producer.request(Message(TOPIC, b"everything"), timeout_s=30.0)
            print(reply.body.decode())


asyncio.run(main())
