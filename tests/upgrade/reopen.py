"""Opens a fixture with the sources of any version, and reads it in full through the client: `make test-downgrade`.

    PYTHONPATH=OLD/src python -m tests.upgrade.reopen ARCHIVE

Like `write_fixture.py`, it uses only what every version has. It fails if a server does not start, a message is missing
or changed, an offset is lost, or the journal is damaged.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from skyroute import Consumer, Message, Producer, StartPosition
from tests.upgrade.write_fixture import BROKER, NAME_SERVER, free_port, start

READ_S = 60


async def read(name_servers: str, wanted: "Counter[tuple[str, str]]") -> "Counter[tuple[str, str]]":
    """Consume all messages of the fixture in a new group."""
    found: Counter[tuple[str, str]] = Counter()
    done = asyncio.Event()

    async def handle(message: Any) -> None:
        found[message.topic, message.body.hex()] += 1
        if not wanted - found:
            done.set()

    consumer = Consumer("again", name_servers, start=StartPosition.FIRST)
    for topic in sorted({topic for topic, _ in wanted}):
        consumer.subscribe(topic, handler=handle)
    async with consumer:
        try:
            await asyncio.wait_for(done.wait(), READ_S)
        except TimeoutError:
            sys.exit(f"missing after {READ_S} s: {wanted - found}")
    async with Producer("again", name_servers) as producer:
        await producer.send(Message("Plain", b"new"))
    return found


def expected(sent: dict[str, Any]) -> "Counter[tuple[str, str]]":
    committed = b"committed".hex()
    return Counter(
        (each["topic"], each["body"])
        for each in sent["messages"]
        if each["kind"] in ("plain", "compressed", "batch") or each["body"] == committed
    )


def offsets_of_readers(store: Path) -> list[str]:
    """Return the offsets of a group in a file. Its keys are written with or without quotes."""
    text = (store / "config" / "consumerOffset.json").read_text()
    found = re.search(r'"Plain@readers":\{"?0"?:(\d+),"?1"?:(\d+)\}', text)
    if found is None:
        sys.exit(f"no offsets of the group: {text}")
    return list(found.groups())


def reopen(folder: Path, sent: dict[str, Any]) -> None:
    processes = []
    ports = free_port(), free_port()
    name_server, store = folder / "namesrv", folder / "store"
    snapshot = name_server / "memory" / "routes.snapshot"
    os.utime(snapshot)  # an old one is not used
    before = offsets_of_readers(store)
    os.environ["HOME"] = str(folder / "home")
    files = {"memoryPath": str(name_server / "memory"), "kvConfigPath": str(name_server / "kvConfig.json")}
    own = {"listenPort": str(ports[0]), "configStorePath": str(name_server / "namesrv.properties")}
    address = f"127.0.0.1:{ports[0]}"
    try:
        processes.append(start(folder, "nameserver", NAME_SERVER | files | own, ports[0]))
        stored = {"storePathRootDir": str(store), "listenPort": str(ports[1]), "namesrvAddr": address}
        processes.append(start(folder, "broker", BROKER | stored, ports[1]))
        time.sleep(1)
        wanted = expected(sent)
        found = asyncio.run(read(address, wanted))
        # A delayed message may have become due since the fixture was written.
        unknown = {key for key in found - wanted if not bytes.fromhex(key[1]).startswith(b"after")}
        if unknown:
            sys.exit(f"messages that were not sent, or came twice: {unknown}")
        for process in processes:
            process.send_signal(signal.SIGTERM)
            if process.wait(30) != 0:
                sys.exit(f"a server ended with {process.returncode}")
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    log = (folder / "nameserver.log").read_text()
    if "restored" not in log:
        sys.exit(f"the snapshot was not used:\n{log[-2000:]}")
    after = offsets_of_readers(store)
    if after != before:
        sys.exit(f"the offsets of a group were {before} and are {after}")
    journal = ["journal", "verify", "--path", str(name_server / "memory")]
    subprocess.run([sys.executable, "-m", "skyroute", *journal], check=True, stdout=subprocess.DEVNULL)


def main(archive: Path) -> None:
    for state in ("clean", "killed"):
        folder = Path(tempfile.mkdtemp(prefix="skyroute-reopen-"))
        try:
            with tarfile.open(archive) as packed:
                packed.extractall(folder, filter="data")
            reopen(folder / state, json.loads((folder / "sent.json").read_bytes()))
            sys.stdout.write(f"{archive.name} {state}: all messages, offsets, routes and the journal are there\n")
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
