"""Apache's proxy, and the official 5.x Python client in an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from pathlib import Path
from typing import Any

from tests.support.apache import (
    APACHE,
    SMALL_HEAP,
    PeerFailedError,
    PeerProcess,
    PeerUnavailableError,
    fetch_dependencies,
    free_port,
    java,
    made_once,
)

PYTHON_CLIENT = "rocketmq-python-client==5.1.2"
SCENARIOS = Path(__file__).parents[1] / "peers" / "python5" / "official_client.py"

_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>skyroute.peers</groupId><artifactId>proxy</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-proxy</artifactId>
      <version>{APACHE}</version></dependency>
  </dependencies>
</project>
"""


class ApacheProxy(PeerProcess):
    """Apache's proxy in cluster mode: gRPC on `port`, remoting on another one."""

    ready_mark = "rocketmq-proxy startup successfully"

    def __init__(self, home: Path, name_server: str, cluster: str) -> None:
        super().__init__("proxy", home, start_timeout_s=90.0)
        self.name_server = name_server
        self._settings = home / "rmq-proxy.json"
        self._config = {
            "rocketMQClusterName": cluster,
            "grpcServerPort": self.port,
            "remotingListenPort": free_port(),
            "localServeAddr": "127.0.0.1",
            "namesrvAddr": name_server,
        }

    def prepare(self) -> None:
        self._settings.write_text(json.dumps(self._config))

    def environment(self) -> dict[str, str]:
        return {**os.environ, "ROCKETMQ_HOME": str(self.home)}

    def command(self) -> list[str]:
        lib = fetch_dependencies(f"apache-proxy-{APACHE}", _POM, f"Apache's proxy {APACHE}")
        main = ("org.apache.rocketmq.proxy.ProxyStartup", "-n", self.name_server, "-pm", "cluster")
        return java(lib, self.home, *main, "-pc", str(self._settings), options=(*SMALL_HEAP, "-Xmx512m"))


def python_client() -> Path:
    """Return the Python of an environment with the official client; pip installs it the first time.

    Raises:
        PeerUnavailableError: it cannot be installed.
    """

    def install(folder: Path) -> None:
        venv.create(folder / "env", with_pip=True)
        command = [str(folder / "env" / "bin" / "python"), "-m", "pip", "install", "-q", PYTHON_CLIENT]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PeerUnavailableError(f"pip could not install {PYTHON_CLIENT}:\n{done.stderr[-2000:]}")

    return made_once(PYTHON_CLIENT.replace("==", "-"), install) / "env" / "bin" / "python"


def run_official_client(home: Path, *arguments: str, timeout_s: float = 120.0) -> list[dict[str, Any]]:
    """Run one scenario of the official client; return the JSON lines that it prints.

    Raises:
        PeerFailedError: it failed.
    """
    home.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "HOME": str(home)}
    environment.pop("PYTHONPATH", None)
    command = [str(python_client()), str(SCENARIOS), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False, env=environment, cwd=home
    )
    if done.returncode != 0:
        raise PeerFailedError(f"{arguments} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
