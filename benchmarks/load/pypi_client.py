"""The package `rocketmq` of PyPI (a C++ core behind ctypes) under the same load as ours.

It runs in a virtual environment of its own, where nothing of this repository is installed, and prints as
`our_client.py` does.
"""

from __future__ import annotations

import argparse
import random
import string
import sys
import threading
import time

from rocketmq.client import Message, Producer, PushConsumer  # type: ignore[import-not-found]  # in another venv

THREADS = 16
count = [0] * THREADS
failed = [0] * THREADS


def _send(arguments: argparse.Namespace) -> Producer:
    body = "".join(random.choices(string.ascii_letters + string.digits, k=arguments.size))
    producer = Producer("pypi_benchmark_producer")
    producer.set_namesrv_addr(arguments.name_servers)
    producer.start()

    def send_on(number: int) -> None:
        while True:
            message = Message(arguments.topic)
            message.set_body(body)
            try:
                producer.send_sync(message)
                count[number] += 1
            except Exception as error:  # noqa: BLE001 - whatever it is, the other threads send on
                failed[number] += 1
                print(error, file=sys.stderr, flush=True)

    for number in range(THREADS):
        threading.Thread(target=send_on, args=(number,), daemon=True).start()
    return producer


def _consume(arguments: argparse.Namespace) -> PushConsumer:
    def handle(_: object) -> None:
        count[0] += 1

    consumer = PushConsumer(arguments.group)
    consumer.set_namesrv_addr(arguments.name_servers)
    consumer.set_thread_count(20)
    consumer.subscribe(arguments.topic, handle)
    consumer.start()
    return consumer


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("do", choices=["send", "consume"])
    parser.add_argument("--name-servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="pypi_benchmark_consumer")
    parser.add_argument("--size", type=int, default=1024)
    parsed = parser.parse_args()
    client = _send(parsed) if parsed.do == "send" else _consume(parsed)  # it lives for as long as this name
    began = time.monotonic()
    while True:
        time.sleep(1.0)
        print(f"{time.monotonic() - began:.3f} {sum(count)} {sum(failed)}", flush=True)
