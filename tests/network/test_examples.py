"""What the README and the demonstration promise is run as a reader would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 60


def run(folder: Path, *words: str | Path) -> list[str]:
    """The lines that a Python process prints, which must end well; a warning is allowed, for a machine may be busy."""
    environment = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not re.search(r"\b(Traceback|ERROR)\b", done.stderr), done.stderr
    return done.stdout.splitlines()


def test_the_demonstration_tells_a_clusters_life(tmp_path: Path) -> None:
    told = [line.partition(" s  ")[2] for line in run(tmp_path, ROOT / "examples" / "demo.py")]
    story = [
        r"name server ready at 127\.0\.0\.1:\d+ \(process \d+\)",
        r"name server ready at 127\.0\.0\.1:\d+ \(process \d+\)",
        r"route of orders: none",
        r"broker broker-a master registered from 127\.0\.0\.1:10911",
        r"broker broker-a slave  registered from .*, told that its master is 127\.0\.0\.1:10911",
        r"broker broker-b master registered from .*",
        r"broker broker-c master registered from .*",
        r"route of orders: broker-a x8 \(0=.*:10911, 1=.*:10921\) \| broker-b x8 .* \| broker-c x8 .*",
        r"route of payments: broker-a x4 .* \| broker-b x4 .*",
        r"route of audit: broker-c x2 .*",
        r"broker-b falls silent, .*",
        r"… evicted after \d\.\d\d s\. route of orders: broker-a x8 .* \| broker-c x8 .*",
        r"broker-c is cut off, as by kill -9 …",
        r"… evicted after \d+ ms\. route of audit: none",
        r"broker-b comes back",
        r"route of orders: broker-a x8 .* \| broker-b x8 .*",
        r"everybody says goodbye",
        r"route of orders: none",
        r".* more questions answered in .*",
        r".*: code 3, request type 9999 not supported",
        r"name server at .* stopped with exit code 0",
        r"name server at .* stopped with exit code 0",
    ]
    at = 0
    for line in told:
        at += at < len(story) and re.fullmatch(story[at], line) is not None
    assert at == len(story), f"not told: {story[at]!r}, in\n" + "\n".join(told)


def test_the_name_server_in_the_readme_runs_as_printed(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    # Those that want a cluster are run against a real one, in tests/peers/client.
    [program] = [block for block in blocks if "NameServer" in block]
    (tmp_path / "program.py").write_text(program)
    [line] = run(tmp_path, tmp_path / "program.py")
    assert re.fullmatch(r"serving at 127\.0\.0\.1:[1-9]\d*", line)
