"""An auto-created topic is on the disk when its first message is acknowledged."""

import asyncio
import json
import signal
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from skyroute.wire.calls.topics import TopicConfig
from skyroute.wire.codes import ResponseCode
from tests.network.broker.calls import send
from tests.support.apache import free_port
from tests.support.connections import AsyncConnection, accepts_connections, connection_to
from tests.support.waiting import eventually

KNOWN = 5_000
"""Number of topics before the test; each save writes all of them."""
PRODUCERS = 8
ANSWERS = 100


def folder_with_topics(folder: Path) -> Path:
    table = {f"known-{number}": msgspec.to_builtins(TopicConfig(f"known-{number}")) for number in range(KNOWN)}
    (folder / "config").mkdir(parents=True)
    (folder / "config/topics.json").write_bytes(json.dumps({"topicConfigTable": table}).encode())
    return folder


async def start(folder: Path, port: int) -> asyncio.subprocess.Process:
    settings = {"listenPort": port, "brokerIP1": "127.0.0.1", "storePathRootDir": folder, "brokerName": "broker-a"}
    more = {"mappedFileSizeCommitLog": 1 << 24, "maxHashSlotNum": 1000, "maxIndexNum": 4000}
    flags = [word for key, value in (settings | more).items() for word in ("-D", f"{key}={value}")]
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "skyroute", "broker", "--log-level", "error", *flags), stderr=asyncio.subprocess.DEVNULL
    )


async def test_every_auto_created_topic_survives_a_kill_after_its_first_acknowledged_send(tmp_path: Path) -> None:
    folder, port = folder_with_topics(tmp_path / "store"), free_port()
    broker = await start(folder, port)
    answered: list[str] = []
    enough = asyncio.Event()

    async def produce(line: AsyncConnection, producer: int) -> None:
        for number in range(ANSWERS):
            topic = f"new-{producer}-{number}"
            assert (await line.call(send(topic))).code == ResponseCode.SUCCESS
            answered.append(topic)
            if len(answered) >= ANSWERS:
                enough.set()

    try:
        await eventually(lambda: accepts_connections(f"127.0.0.1:{port}"), "the broker listens")
        async with asyncio.timeout(60), AsyncExitStack() as stack, asyncio.TaskGroup() as producing:
            lines = [await stack.enter_async_context(connection_to(f"127.0.0.1:{port}")) for _ in range(PRODUCERS)]
            tasks = [producing.create_task(produce(line, producer)) for producer, line in enumerate(lines)]
            await enough.wait()
            broker.send_signal(signal.SIGKILL)
            expected = set(answered)
            for task in tasks:
                task.cancel()
    finally:
        if broker.returncode is None:
            broker.kill()
        await broker.wait()
    table = json.loads((folder / "config/topics.json").read_bytes())["topicConfigTable"]
    assert expected <= table.keys()
    assert len(table) >= KNOWN + ANSWERS
