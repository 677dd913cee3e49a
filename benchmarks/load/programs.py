"""The load programs, built from their sources and spoken to from Python."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Literal, Self

SOURCES = Path(__file__).parent

HeaderForm = Literal["json", "binary"]
Change = Literal["same", "version", "queues"]
"""What differs from one round of heartbeats to the next: nothing, the data version, or some queue counts too."""


class LoadError(RuntimeError):
    """A load program could not be built, or did not do what it was asked."""


@dataclass(frozen=True, slots=True)
class Reads:
    """What one run of `nsload` saw."""

    per_s: float
    p50_us: float
    p90_us: float
    p99_us: float
    p999_us: float
    max_us: float
    right: int
    wrong: int
    body_bytes: int
    mb_per_s: float


@dataclass(frozen=True, slots=True)
class Registrations:
    """What `nsreg` saw while it carried out one command."""

    count: int
    rounds: int
    body_bytes: int
    total_s: float
    per_s: float
    median_ms: float
    max_ms: float


@dataclass(frozen=True, slots=True)
class Messages:
    """What one run of `brload` saw."""

    messages: int
    per_s: float
    answers: int
    wrong: int
    seconds: float
    p50_us: float
    p99_us: float
    p999_us: float


@cache
def build(name: str) -> Path:
    """The program of that name, compiled unless this very source was before.

    Raises:
        LoadError: There is no compiler, or it failed.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise LoadError("no C compiler: gcc or cc is needed to build the load programs")
    source = SOURCES / f"{name}.c"
    headers = b"".join(header.read_bytes() for header in sorted(SOURCES.glob("*.h")))
    digest = hashlib.sha256(source.read_bytes() + headers).hexdigest()[:12]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skyroute" / "load"
    program = folder / f"{name}-{digest}"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            fresh = Path(scratch) / name
            command = [compiler, "-O2", "-std=gnu11", "-Wall", "-Wextra", "-o", str(fresh), str(source)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise LoadError(f"{' '.join(command)}:\n{done.stderr}")
            fresh.rename(program)
    return program


def read_routes(
    port: int,
    connections: int,
    depth: int,
    *,
    seconds: float,
    topics: tuple[str, int],
    form: HeaderForm = "json",
    once: bool = False,
    key: str | None = None,
) -> Reads:
    """Ask for routes in a closed loop; `topics` is a prefix and how many there are.

    With `once` it ends before its time when every topic was asked for. A key `NAME:SECRET` signs the requests.

    Raises:
        LoadError: An answer was no route, or the connection was lost.
    """
    prefix, count = topics
    command = [str(build("nsload")), "127.0.0.1", str(port), str(connections), str(depth), str(seconds), prefix]
    done = subprocess.run(
        [*command, str(count), form, *(["once"] if once else [])],
        capture_output=True,
        text=True,
        timeout=seconds + 60,
        check=False,
        env=_environment(key),
    )
    if done.returncode != 0:
        raise LoadError(f"nsload: {done.stdout}{done.stderr}")
    return Reads(**json.loads(done.stdout))


def _environment(key: str | None) -> dict[str, str]:
    return os.environ | ({} if key is None else {"LOAD_KEY": key})


def load_broker(
    port: int, what: str, *words: str | float, timeout_s: float = 600.0, key: str | None = None
) -> Messages:
    """Send to a broker, or pull from it; the words are those of `brload.c`. A key `NAME:SECRET` signs sends.

    Raises:
        LoadError: An answer was wrong, or the connection was lost.
    """
    command = [str(build("brload")), "127.0.0.1", str(port), what, *map(str, words)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False, env=_environment(key)
    )
    if done.returncode != 0:
        raise LoadError(f"{' '.join(command[1:])}: {done.stdout}{done.stderr}")
    return Messages(**json.loads(done.stdout))


class Brokers:
    """Brokers that hold their connections to one name server; they leave it when this is closed."""

    def __init__(
        self,
        port: int,
        *,
        clusters: int,
        brokers: int,
        topics: int,
        prefix: str = "T",
        compact: bool = False,
        first_cluster: int = 0,
    ) -> None:
        sizes = (str(port), str(clusters), str(brokers), str(topics))
        form = "compact" if compact else "spaced"
        command = [str(build("nsreg")), "127.0.0.1", *sizes, prefix, form, str(first_cluster)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._process)

    def register(self) -> Registrations:
        """Connect and register all, one after another."""
        return self._ask("register")

    def renew(self) -> Registrations:
        """Every broker says once more what it said last."""
        return self._ask("once")

    def beat(self, change: Change, seconds: float) -> Registrations:
        """Heartbeat one after another without pause."""
        return self._ask(f"beat {change} {seconds:g}")

    def start_beating(self, change: Change, seconds_max: float) -> None:
        """Heartbeat in the background until `stop_beating`."""
        self._say(f"beat {change} {seconds_max:g}")

    def stop_beating(self) -> Registrations:
        self._say("")
        return self._hear()

    def _ask(self, command: str) -> Registrations:
        self._say(command)
        return self._hear()

    def _say(self, line: str) -> None:
        _pipe(self._process.stdin).write(line + "\n")

    def _hear(self) -> Registrations:
        line = _pipe(self._process.stdout).readline()
        if not line:
            raise LoadError(f"nsreg ended with status {self._process.wait(10)}")
        return Registrations(**json.loads(line))


class Limit:
    """A server that decides nothing: the most that loopback and the load program allow."""

    def __init__(self, body_bytes: int) -> None:
        command = [str(build("nslimit")), str(body_bytes)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self._process.pid
        self.port = int(_pipe(self._process.stdout).readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _end(self._process)


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def _end(process: subprocess.Popen[str]) -> None:
    """Close its input, which ends it; insist if that takes long."""
    try:
        process.communicate(timeout=10)
    except (subprocess.TimeoutExpired, BrokenPipeError):
        process.kill()
        process.wait()
