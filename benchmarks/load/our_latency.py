"""Our push consumer with a stopwatch: how old is each message when it is handled? Ends when its input does.

The first eight bytes of a body are the wall clock of its sender, in nanoseconds; sender and consumer share a machine.
Prints `ready` once it holds its queues, and in the end one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time

import uvloop

from skyroute import Consumer, StartPosition, StoredMessage


async def main(name_servers: str, topic: str, group: str, queues: int, skip: int) -> None:
    ages_us: list[float] = []

    async def handle(message: StoredMessage) -> None:
        ages_us.append((time.time_ns() - int.from_bytes(message.body[:8], "big")) / 1000)

    consumer = Consumer(group, name_servers=name_servers, start=StartPosition.LAST)
    consumer.subscribe(topic, "*", handle)
    async with consumer:
        while len([queue for queue in consumer.assignment if queue.topic == topic]) < queues:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.05)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
    counted = sorted(ages_us[skip:])
    if not counted:
        sys.exit("no message came")
    shares = {"p50_us": 0.5, "p99_us": 0.99, "p999_us": 0.999}
    told = {name: counted[min(len(counted) - 1, int(share * len(counted)))] for name, share in shares.items()}
    print(json.dumps({"messages": len(ages_us), **told, "max_us": counted[-1]}), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--name-servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--queues", type=int, required=True)
    parser.add_argument("--skip", type=int, default=0, help="messages that are not counted, at first")
    arguments = parser.parse_args()
    uvloop.run(main(arguments.name_servers, arguments.topic, arguments.group, arguments.queues, arguments.skip))
