"""Shell completion of commands and options."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from skyroute.cli.completion import SHELLS, VARIABLE
from skyroute.cli.main import main

BIN = Path(sys.executable).parent
SERVERS = {
    "asyncio",
    "msgspec",
    "skyroute.cli.server_process",
    "skyroute.nameserver",
    "skyroute.broker",
    "skyroute.client",
}


def in_a_shell(program: str, *arguments: str, **variables: str) -> str:
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", **variables}
    done = subprocess.run(
        [*arguments, program], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_the_completion_script_of_each_shell_calls_skyroute(shell: str) -> None:
    printed = CliRunner().invoke(main, ["completion", shell])
    assert printed.exit_code == 0
    assert f"{VARIABLE}={shell}_complete" in printed.output
    if shutil.which(shell):
        in_a_shell(printed.output, shell, "-n" if shell != "fish" else "--no-execute", "-c")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("skyroute na", "nameserver"),
        ("skyroute admin topicR", "topicRoute"),
        ("skyroute nameserver --conf", "--configFile"),
        ("skyroute completion z", "zsh"),
        ("skyroute frobnicate x", ""),
    ],
)
def test_bash_completes_a_line(line: str, found: str) -> None:
    program = f"""
eval "$(skyroute completion bash)"
COMP_WORDS=({line}) COMP_CWORD={line.count(" ")}
_skyroute_completion skyroute
echo "${{COMPREPLY[*]}}"
"""
    assert in_a_shell(program, "bash", "-c") == f"{found}\n"


@pytest.mark.parametrize("line", ["skyroute ", "skyroute admin ", "skyroute admin upd"])
def test_completing_command_names_imports_no_command(line: str) -> None:
    check = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from skyroute.cli.main import main
main(prog_name="skyroute")
"""
    environment = {**os.environ, VARIABLE: "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    done = subprocess.run(
        [sys.executable, "-c", check], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert "plain," in done.stdout
    assert "skyroute.cli.lazy_group" in done.stderr.split()
    assert not SERVERS & set(done.stderr.split())
