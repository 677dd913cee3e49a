"""Writes a fixture: the files of a name server, a broker and a client of one version, with all kinds of content.

It runs with the sources of that version, such as an unpacked `git archive TAG`, and uses only what every version has:
the commands, RocketMQ's names of settings, and the public names of the client.

    PYTHONPATH=OLD/src python -m tests.upgrade.write_fixture tests/fixtures/VERSION.tar.xz

`clean` has the folders after an orderly stop, `killed` those of a broker and name server that were killed. `sent.json`
has what was sent.
"""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from skyroute import Compression, Consumer, Message, MessageModel, Producer, StartPosition, TransactionOutcome

STARTED_S = 30.0
BROKER = {
    "brokerName": "broker-a",
    "brokerClusterName": "DefaultCluster",
    "brokerIP1": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "autoCreateTopicEnable": "false",
    "mappedFileSizeCommitLog": "8192",
    "mappedFileSizeConsumeQueue": "200",
    "mapperFileSizeBatchConsumeQueue": "92",
    "maxHashSlotNum": "16",
    "maxIndexNum": "100",
    "flushConsumerOffsetInterval": "200",
    "flushDelayOffsetInterval": "200",
    "transactionCheckInterval": "600000",
}
NAME_SERVER = {"bindAddress": "127.0.0.1", "journalSegmentBytes": "1024", "snapshotIntervalSeconds": "1"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start(folder: Path, command: str, settings: dict[str, str], port: int) -> "subprocess.Popen[bytes]":
    """Start a server, and wait until it listens."""
    (folder / f"{command}.properties").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    with (folder / f"{command}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "skyroute", command, "-c", str(folder / f"{command}.properties")],
            stdout=log,
            stderr=log,
        )
    deadline = time.monotonic() + STARTED_S
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process
        time.sleep(0.05)
    process.kill()
    raise SystemExit(f"{command} did not start:\n{(folder / f'{command}.log').read_text()[-3000:]}")


def admin(address: str, *words: str) -> None:
    subprocess.run([sys.executable, "-m", "skyroute", "admin", *words, "-n", address], check=True, stdout=sys.stderr)


class Sent:
    """Collects what was sent, for the test that reads it again."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def add(self, kind: str, message: Message, result: Any) -> None:
        self.messages.append(
            {
                "kind": kind,
                "topic": message.topic,
                "body": message.body.hex(),
                "tag": message.tag,
                "keys": list(message.keys),
                "properties": dict(message.properties),
                "id": result.message_id,
                "queue": result.queue.queue_id,
            }
        )


async def use(name_servers: str, sent: Sent, home: Path) -> None:
    """Send every kind of message, and consume some."""
    outcomes = {b"committed": TransactionOutcome.COMMIT, b"rolled back": TransactionOutcome.ROLLBACK}

    async def execute(message: Message, _result: Any) -> TransactionOutcome:
        return outcomes.get(bytes(message.body), TransactionOutcome.UNKNOWN)

    async def check(_message: Any) -> TransactionOutcome:
        return TransactionOutcome.UNKNOWN

    async with Producer(
        "writers", name_servers, compress_from_bytes=200, compression=Compression.ZLIB, check=check
    ) as producer:
        for number in range(30):
            body = b"plain %d " % number + b"x" * (number * 13 % 180)
            message = Message(
                *("Plain", body),
                tag=f"t{number % 3}",
                keys=[f"k{number}", "all"],
                properties={"number": str(number), "中": "é"},
            )
            sent.add("plain", message, await producer.send(message))
        message = Message("Plain", b"compressed " * 100, keys="packed")
        sent.add("compressed", message, await producer.send(message))
        for start_at in range(0, 12, 4):
            batch = [
                Message("Whole", b"batch %d" % number, keys=f"b{number}") for number in range(start_at, start_at + 4)
            ]
            await producer.send_batch(batch)
            for message in batch:
                sent.messages.append({"kind": "batch", "topic": "Whole", "body": message.body.hex()})
        for message in (
            Message("Plain", b"after two hours", delay_level=18, keys="later"),
            Message("Plain", b"after two days", deliver_after_s=2 * 86_400, keys="timed"),
        ):
            sent.add("delayed", message, await producer.send(message))
        for body in (b"committed", b"rolled back", b"undecided"):
            message = Message("Payments", body, keys=body.decode().replace(" ", "-"))
            sent.add("transaction", message, (await producer.send_in_transaction(message, execute)).sent)

    seen = asyncio.Event()
    wanted = 31

    def counter(retry: bytes) -> Any:
        found: set[str] = set()

        async def handle(message: Any) -> None:
            found.add(message.message_id)
            if len(found) >= wanted:
                seen.set()
            if message.body.startswith(retry):
                raise ValueError("this one goes to the retry topic")

        return handle

    for model in (MessageModel.CLUSTERING, MessageModel.BROADCASTING):
        seen.clear()
        os.environ["HOME"] = str(home)
        consumer = Consumer("readers" if model is MessageModel.CLUSTERING else "listeners", name_servers, model=model,
                            start=StartPosition.FIRST)  # fmt: skip
        consumer.subscribe("Plain", handler=counter(b"plain 7 " if model is MessageModel.CLUSTERING else b"none"))
        async with consumer:
            await asyncio.wait_for(seen.wait(), 60)


def write(target: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="skyroute-fixture-"))
    home = folder / "home"
    home.mkdir()
    os.environ["HOME"] = str(home)
    ports = free_port(), free_port()
    name_servers = f"127.0.0.1:{ports[0]}"
    processes = []
    try:
        memory = {
            "memoryPath": str(folder / "namesrv" / "memory"),
            "kvConfigPath": str(folder / "namesrv" / "kvConfig.json"),
        }
        own = {"listenPort": str(ports[0]), "configStorePath": str(folder / "namesrv" / "namesrv.properties")}
        (folder / "namesrv").mkdir()
        processes.append(start(folder, "nameserver", NAME_SERVER | memory | own, ports[0]))
        store = {"storePathRootDir": str(folder / "store"), "listenPort": str(ports[1]), "namesrvAddr": name_servers}
        processes.append(start(folder, "broker", BROKER | store, ports[1]))
        address = f"127.0.0.1:{ports[1]}"
        time.sleep(1)
        admin(name_servers, "updateTopic", "-b", address, "-t", "Plain", "-r", "2", "-w", "2")
        admin(name_servers, "updateTopic", "-b", address, "-t", "Payments", "-r", "1", "-w", "1")
        batch_topic = ("-r", "1", "-w", "1", "-a", "+queue.type=BatchCQ")
        admin(name_servers, "updateTopic", "-b", address, "-t", "Whole", *batch_topic)
        admin(name_servers, "updateSubGroup", "-b", address, "-g", "readers", "-r", "5")
        admin(name_servers, "updateKvConfig", "-s", "ORDER_TOPIC_CONFIG", "-k", "Plain", "-v", "broker-a:2")
        admin(name_servers, "updateKvConfig", "-s", "own", "-k", "a key", "-v", "a value, 中")
        sent = Sent()
        asyncio.run(use(name_servers, sent, home))
        time.sleep(13)  # until the retry is delivered, and tables, progress and snapshot are saved
        shutil.copytree(folder, folder.with_suffix(".copy"))
        for process in processes:  # the name server first: its snapshot then has the broker
            process.send_signal(signal.SIGTERM)
            process.wait(30)
        (folder / "sent.json").write_text(json.dumps({"messages": sent.messages, "broker": address}, indent=1))
        with tarfile.open(target, "w:xz") as archive:
            for name, source in (("clean", folder), ("killed", folder.with_suffix(".copy"))):
                for part in ("namesrv", "store", "home"):
                    archive.add(source / part, f"{name}/{part}")
            archive.add(folder / "sent.json", "sent.json")
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(folder.with_suffix(".copy"), ignore_errors=True)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
