"""The programs that readers are shown, run as they are shown, against Apache's broker."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.peers.client.java_client import Place
from tests.peers.client.programs import ROOT, TIMEOUT_S, run

EXPECTED = {
    "send_and_consume.py": r"(sent \w+ OK\n|booked \d coffees paid order-\d\n){20,}",
    "ordered.py": r"(order-\d placed→paid→brewed→served\n){4}",
    "request_reply.py": r"42, if you asked for everything\n",
    "pull.py": r"read 100 messages\n",
    "script.py": r"(sent OK\n){3}read\nline 0\nline 1\nline 2\n",
}


@pytest.mark.parametrize("name", EXPECTED)
async def test_an_example_does_what_it_says(name: str, place: Place) -> None:
    printed = await run(ROOT / "examples" / name, place.name_servers)
    assert re.fullmatch(EXPECTED[name], printed), printed


def test_every_example_is_run() -> None:
    elsewhere = {"__init__.py", "demo.py", "transaction.py"}
    assert {path.name for path in (ROOT / "examples").glob("*.py")} == set(EXPECTED) | elsewhere


async def test_the_programs_in_the_documents_run_as_printed(place: Place, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "client.md").read_text() + (ROOT / "README.md").read_text()
    blocks = [
        block.replace("127.0.0.1:9876", place.name_servers)
        for block in re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        if "127.0.0.1:9876" in block
    ]
    sending = [block for block in blocks if "Producer" in block]
    consuming = next(block for block in blocks if "Consumer" in block)  # both documents show the same
    assert len(sending) == 2
    for number, block in enumerate(sending):
        (tmp_path / f"sending_{number}.py").write_text(block)
        assert re.match(r"[0-9A-F]{32}", await run(tmp_path / f"sending_{number}.py"))

    (tmp_path / "consuming.py").write_text(consuming)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-u", str(tmp_path / "consuming.py"), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                # A new group may begin after what was sent so far, so send again until it has begun.
                await run(tmp_path / "sending_0.py")
                try:
                    async with asyncio.timeout(1.0):
                        line = await process.stdout.readline()
                except TimeoutError:
                    continue
                break
        assert re.fullmatch(rb"[0-9A-F]{32} b'one coffee'\n", line)
        process.send_signal(signal.SIGINT)
        async with asyncio.timeout(TIMEOUT_S):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
