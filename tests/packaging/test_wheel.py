"""The wheel in an empty environment, without the source."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from urllib.request import urlopen

import pytest

from skyroute import __version__
from tests.support.booted import booted
from tests.support.raw import RawConnection

REPOSITORY = Path(__file__).parents[2]
GET_ROUTE, TOPIC_NOT_EXIST = 105, 17
TIMEOUT_S = 50


def run(*words: str | Path, cwd: Path) -> str:
    result = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=environment(cwd),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 0, f"{words}:\n{result.stdout}\n{result.stderr}"
    return result.stdout


def environment(home: Path) -> dict[str, str]:
    """Ours, but for what would let the source or another installation be found."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "ROCKETMQ_HOME", "NAMESRV_ADDR"}
    return {**{name: value for name, value in os.environ.items() if name not in hidden}, "HOME": str(home)}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", out, REPOSITORY, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment that holds the wheel and what it asks for."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=True, symlinks=True)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel, cwd=folder)
    return folder / "bin"


def test_the_wheel_holds_the_package_and_its_licence_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"skyroute/py.typed", "skyroute/__main__.py", "skyroute/pipeline/log4j2.properties"} <= set(names)
    console = (
        "templates/base.html",
        "static/style.css",
        "static/console.js",
        "static/htmx/htmx.min.js",
        "locale/zh/LC_MESSAGES/console.mo",
    )
    assert {f"skyroute/console/{name}" for name in console} <= set(names)
    information = f"skyroute-{__version__}.dist-info"
    assert {f"{information}/licenses/LICENSE", f"{information}/licenses/NOTICE"} <= set(names)
    assert {name.partition("/")[0] for name in names} == {"skyroute", "pyspark_rocketmq", information}


def test_the_source_is_out_of_reach(installed: Path, tmp_path: Path) -> None:
    found = run(installed / "python", "-c", "import skyroute; print(skyroute.__file__)", cwd=tmp_path)
    assert Path(found.strip()).is_relative_to(installed.parent)


def test_it_tells_its_version(installed: Path, tmp_path: Path) -> None:
    assert run(installed / "skyroute", "--version", cwd=tmp_path) == f"skyroute {__version__}\n"


def test_it_prints_its_settings(installed: Path, tmp_path: Path) -> None:
    assert "listenPort=9876\n" in run(installed / "skyroute", "nameserver", "-p", cwd=tmp_path)


def test_it_serves(installed: Path, tmp_path: Path) -> None:
    options = ["listenPort=0", "bindAddress=127.0.0.1", f"kvConfigPath={tmp_path}/kvConfig.json"]
    command = [str(installed / "skyroute"), "nameserver", *(f"-D{option}" for option in options)]
    with booted(command, cwd=tmp_path, environment=environment(tmp_path)) as server:
        with RawConnection(server.address) as line:
            reply = line.call(GET_ROUTE, {"topic": "TopicTest"})
        assert reply.code == TOPIC_NOT_EXIST
        assert server.stop()[0] == 0


def test_the_console_names_a_missing_extra_and_serves_once_it_is_installed(
    installed: Path, wheel: Path, tmp_path: Path
) -> None:
    command = [str(installed / "skyroute"), "console", "--port", "0", "--data", str(tmp_path)]
    lacking = subprocess.run(
        command, env=environment(tmp_path), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert lacking.returncode == 1
    assert "pip install 'skyroute[console]'" in lacking.stderr
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(installed / "python", *pip, f"{wheel}[console]", cwd=tmp_path)
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[-1]
            with urlopen(url) as page, urlopen(f"{url}static/style.css") as style:
                assert b"<title>Overview" in page.read()
                assert style.status == 200
        finally:
            process.terminate()
