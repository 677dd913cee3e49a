"""Apache's proxy, and the official 5.x clients of Python, Go and Java, unmodified."""

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
from tests.support.foreign import build_go, build_java

PYTHON_CLIENT = "rocketmq-python-client==5.1.2"
JAVA_CLIENT = "5.2.0"
PEERS = Path(__file__).parents[1] / "peers"


def _pom(artifact: str, version: str) -> str:
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>skyroute.peers</groupId><artifactId>peer</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>{artifact}</artifactId>
      <version>{version}</version></dependency>
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
        lib = fetch_dependencies(f"apache-proxy-{APACHE}", _pom("rocketmq-proxy", APACHE), f"Apache's proxy {APACHE}")
        main = ("org.apache.rocketmq.proxy.ProxyStartup", "-n", self.name_server, "-pm", "cluster")
        return java(lib, self.home, *main, "-pc", str(self._settings), options=(*SMALL_HEAP, "-Xmx512m"))


def python_client() -> list[str]:
    """Return the command of the official Python client; pip installs it the first time, in an environment of its own.

    Raises:
        PeerUnavailableError: it cannot be installed.
    """

    def install(folder: Path) -> None:
        venv.create(folder / "env", with_pip=True)
        command = [str(folder / "env" / "bin" / "python"), "-m", "pip", "install", "-q", PYTHON_CLIENT]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PeerUnavailableError(f"pip could not install {PYTHON_CLIENT}:\n{done.stderr[-2000:]}")

    environment = made_once(PYTHON_CLIENT.replace("==", "-"), install) / "env"
    return [str(environment / "bin" / "python"), str(PEERS / "python5" / "official_client.py")]


def go_client() -> list[str]:
    """Return the command of the official Go client of `go5/go.mod`; Go builds it the first time.

    Raises:
        PeerUnavailableError: Go is missing, or could not build it.
    """
    return [str(build_go(PEERS / "go5"))]


def java_client() -> list[str]:
    """Return the command of the official Java client; Maven fetches it the first time.

    Raises:
        PeerUnavailableError: Java or Maven is missing, or Maven failed.
    """
    name = f"rocketmq-client-java-{JAVA_CLIENT}"
    lib = fetch_dependencies(name, _pom("rocketmq-client-java", JAVA_CLIENT), name)
    classes = build_java(PEERS / "java5" / "OfficialClient.java", lib)
    options = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    return ["java", *options, "-cp", f"{classes}{os.pathsep}{lib}/*", "OfficialClient"]


OFFICIAL_CLIENTS = {"python": python_client, "go": go_client, "java": java_client}


def run_official_client(
    language: str, home: Path, proxy: str, *arguments: str, timeout_s: float = 120.0
) -> list[dict[str, Any]]:
    """Run one scenario of an official client; return the JSON lines that it prints.

    Raises:
        PeerUnavailableError: this machine cannot run the client.
        PeerFailedError: it failed.
    """
    home.mkdir(parents=True, exist_ok=True)
    # Where each language's client writes its log.
    logs = {"HOME": str(home), "rocketmq.client.logRoot": str(home), "JDK_JAVA_OPTIONS": f"-Duser.home={home}"}
    environment = {**os.environ, **logs}
    environment.pop("PYTHONPATH", None)
    command = [*OFFICIAL_CLIENTS[language](), proxy, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False, env=environment, cwd=home
    )
    if done.returncode != 0:
        raise PeerFailedError(f"{language}: {arguments} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
