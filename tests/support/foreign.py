"""Clients of other languages as peers: built or installed by their own tools, once, into the cache of this machine.

Sources stay in the tree; what their tools fetch and make does not. A change of a source makes a new folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.support.apache import PeerUnavailableError, compile_java, made_once

_SPENT_ON_TOOLS_S = 600.0


def build_go(sources: Path) -> Path:
    """The program of a Go module, compiled unless these very sources were before.

    Raises:
        PeerUnavailableError: Go is missing, or could not build it.
    """

    def build(folder: Path) -> None:
        _run(
            "go",
            ["build", "-buildvcs=false", "-o", str(folder / "program"), "."],
            cwd=sources,
            environment={"CGO_ENABLED": "0"},
        )

    return _made("go", [*sorted(sources.glob("*.go")), sources / "go.mod", sources / "go.sum"], build) / "program"


def build_java(source: Path, lib: Path) -> Path:
    """The folder with the classes of a Java program, compiled against the jars unless this very source was before."""
    return _made("java", [source], lambda folder: compile_java([source], lib, folder))


def install_node(package: Path) -> Path:
    """The folder `node_modules` with what a package.json asks for.

    Raises:
        PeerUnavailableError: Node or npm is missing, or npm could not install it.
    """
    if shutil.which("node") is None:
        raise PeerUnavailableError("not installed: node")

    def install(folder: Path) -> None:
        shutil.copy(package, folder / "package.json")
        _run("npm", ["install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"], cwd=folder)

    return _made("node", [package], install) / "node_modules"


def _made(kind: str, sources: Sequence[Path], make: Callable[[Path], object]) -> Path:
    """The folder that `make` fills from these sources."""
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]

    def tell_and_make(folder: Path) -> None:
        sys.stderr.write(f"making the peer clients of {kind} ...\n")
        make(folder)

    return made_once(f"{kind}-{digest}", tell_and_make)


def _run(tool: str, words: Sequence[str], *, cwd: Path, environment: Mapping[str, str] | None = None) -> None:
    if shutil.which(tool) is None:
        raise PeerUnavailableError(f"not installed: {tool}")
    done = subprocess.run(
        [tool, *words],
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=_SPENT_ON_TOOLS_S,
    )
    if done.returncode != 0:
        raise PeerUnavailableError(f"{tool} {words[0]} failed:\n{(done.stdout + done.stderr)[-4000:]}")
