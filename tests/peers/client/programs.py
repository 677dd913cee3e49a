"""Runs example programs."""

import asyncio
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 90.0


async def run(program: Path, *words: str) -> str:
    """What a program prints, which must end well and find nothing to complain about."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(program), *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(TIMEOUT_S):
            printed, complaints = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, complaints.decode()
    assert complaints == b""
    return printed.decode()
