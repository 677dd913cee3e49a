"""The example programs against Apache's broker."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.peers.client.java_client import Place
from tests.peers.client.programs import TIMEOUT_S, run
from tests.support.shown import PRINTED, ROOT, programs_for, runs_for_ever


@pytest.mark.parametrize("name", PRINTED)
async def test_an_example_prints_the_expected_output(name: str, place: Place) -> None:
    printed = await run(ROOT / "examples" / name, place.name_servers)
    assert re.fullmatch(PRINTED[name], printed), printed


async def test_the_programs_in_the_documents_run_as_printed(place: Place, tmp_path: Path) -> None:
    shown = programs_for(place.name_servers)
    ending = [program for program in shown if not runs_for_ever(program)]
    consuming = next(filter(runs_for_ever, shown))  # both documents show the same
    sending = next(program for program in ending if "Consumer" not in program)
    for program in (*(program for program in ending if program != sending), sending):
        (tmp_path / "sending.py").write_text(program)
        assert re.match(r"(sent )?[0-9A-F]{32}", await run(tmp_path / "sending.py"))

    (tmp_path / "consuming.py").write_text(consuming)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-u", str(tmp_path / "consuming.py"), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                # A new group may begin after what was sent so far, so send again until it has begun.
                await run(tmp_path / "sending.py")
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
