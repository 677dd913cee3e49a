"""Our client under load, as a process of its own: `python -m benchmarks.load.our_client send|consume ...`.

It does what Apache's benchmark programs do, in the same measure, and never ends by itself. Every second it prints how
many messages it has sent or received since its start, and how many sends failed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import string
import sys
import time
from dataclasses import dataclass

import uvloop

from skyroute import Consumer, Message, Producer, SkyrouteError, StartPosition, StoredMessage


@dataclass(slots=True)
class Count:
    done: int = 0
    failed: int = 0


async def _report(count: Count) -> None:
    began = time.monotonic()
    while True:
        await asyncio.sleep(1.0)
        print(f"{time.monotonic() - began:.3f} {count.done} {count.failed}", flush=True)


async def _send(name_servers: str, topic: str, size: int, in_flight: int, count: Count) -> None:
    body = "".join(random.choices(string.ascii_letters + string.digits, k=size)).encode()

    async def send_on(producer: Producer) -> None:
        while True:
            try:
                await producer.send(Message(topic, body))
                count.done += 1
            except SkyrouteError as error:
                count.failed += 1
                print(error, file=sys.stderr, flush=True)

    async with Producer("our_benchmark_producer", name_servers=name_servers) as producer, asyncio.TaskGroup() as tasks:
        for _ in range(in_flight):
            tasks.create_task(send_on(producer))


async def _consume(name_servers: str, topic: str, group: str, count: Count) -> None:
    async def handle(_: StoredMessage) -> None:
        count.done += 1

    consumer = Consumer(group, name_servers=name_servers, start=StartPosition.FIRST)
    consumer.subscribe(topic, "*", handle)
    async with consumer:
        await asyncio.Event().wait()


async def _main(arguments: argparse.Namespace) -> None:
    count = Count()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_report(count))
        if arguments.do == "send":
            await _send(arguments.name_servers, arguments.topic, arguments.size, arguments.in_flight, count)
        else:
            await _consume(arguments.name_servers, arguments.topic, arguments.group, count)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("do", choices=["send", "consume"])
    parser.add_argument("--name-servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="our_benchmark_consumer")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--in-flight", type=int, default=16)
    uvloop.run(_main(parser.parse_args()))
