"""Kills Spark drivers during their work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skyroute.pipeline.spark_versions import HAS_READ_LIMITS
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]


def limit_of_batches(messages: int) -> dict[str, str]:
    """Options that limit a batch; none if this Spark cannot."""
    return {"maxOffsetsPerTrigger": str(messages)} if HAS_READ_LIMITS else {}


def kill_driver_once(module: str, *arguments: str, log: Path, until: Callable[[], Any], timeout_s: float) -> None:
    """Start a driver, and kill it with its Java and its workers as soon as `until` is true."""
    with log.open("ab") as output:
        command = [sys.executable, "-m", f"tests.spark.{module}", *arguments]
        driver = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True)
    try:
        wait_until(lambda: until() or driver.poll() is not None, "a batch", timeout_s=timeout_s)
        assert driver.poll() is None, log.read_text()
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
