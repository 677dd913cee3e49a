"""Apache RocketMQ for tests and benchmarks: its jars by Maven coordinates, and its processes.

It does not depend on pytest. Every process has its own home folder, listens on loopback, writes to one log file, and
is stopped by its process id.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

from tests.support.raw import RawConnection
from tests.support.waiting import wait_until

APACHE = "5.5.0"
APACHE_4 = "4.9.7"
APACHE_4_CLIENT = "4.9.8"

ARTIFACTS = {
    APACHE: ("namesrv", "broker", "tools", "example", "client"),
    APACHE_4: ("broker",),
    APACHE_4_CLIENT: ("client", "acl"),
}

SMALL_HEAP = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
LARGE_HEAP = ("-Xms2g", "-Xmx2g")

CLUSTERS = 106
REGISTERED_S = 45.0
"""A broker registers every ten seconds, and may wait as long for a response."""

# Packages that 4.9 uses and JDK 17 closes.
OPENED_FOR_4 = (
    *("--add-opens", "java.base/java.nio=ALL-UNNAMED"),
    *("--add-opens", "java.base/sun.nio.ch=ALL-UNNAMED"),
    *("--add-opens", "java.base/java.lang=ALL-UNNAMED"),
    *("--add-opens", "java.base/jdk.internal.ref=ALL-UNNAMED"),
    *("--add-exports", "java.base/jdk.internal.ref=ALL-UNNAMED"),
)

_LOGBACK = """<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


class PeerUnavailableError(RuntimeError):
    """This machine cannot run Apache's programs: a tool is missing, or the jars cannot be downloaded."""


class PeerFailedError(RuntimeError):
    """A process did not start or end in time. The message ends with its last output."""


# -------------------------------------------------------------------------------------------------------------- jars


def missing_tools() -> list[str]:
    """Return the programs that this module needs and that are not installed."""
    return [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]


def fetch_jars(version: str = APACHE) -> Path:
    """Return the folder with the jars of one release; Maven downloads them the first time.

    Raises:
        PeerUnavailableError: Java or Maven is missing, or Maven failed.
    """
    what = f"Apache RocketMQ {version} ({', '.join(ARTIFACTS[version])})"
    return fetch_dependencies(f"apache-{version}", _pom(version), what)


def caches() -> Path:
    """Return the folder of downloaded and built programs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "skyroute"


def made_once(name: str, make: Callable[[Path], None], is_whole: Callable[[Path], bool] = Path.is_dir) -> Path:
    """Return a folder of the cache; `make` fills it if it is missing.

    Concurrent runs wait for each other, because Maven's cache allows one writer. The folder appears only when complete.
    """
    final = caches() / name
    caches().mkdir(parents=True, exist_ok=True)
    with (caches() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_whole(final):
            fresh = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=caches()))
            try:
                make(fresh)
                shutil.rmtree(final, ignore_errors=True)
                fresh.rename(final)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
    return final


def fetch_dependencies(name: str, pom: str, what: str) -> Path:
    """Return the folder with the jars of a POM; Maven downloads them the first time.

    Raises:
        PeerUnavailableError: Java or Maven is missing, or Maven failed.
    """
    if missing := missing_tools():
        raise PeerUnavailableError(f"not installed: {', '.join(missing)}")

    def fetch(folder: Path) -> None:
        sys.stderr.write(f"fetching {what} by Maven ...\n")
        _copy_dependencies(folder, pom)
        (folder / "stamp").write_text(pom)  # last: a folder with a stamp is whole
        sys.stderr.write(f"fetched {len(list((folder / 'lib').iterdir()))} jars\n")

    return made_once(name, fetch, lambda folder: _is_complete(folder, pom)) / "lib"


def _is_complete(folder: Path, pom: str) -> bool:
    stamp = folder / "stamp"
    return stamp.is_file() and stamp.read_text() == pom


def _copy_dependencies(folder: Path, pom: str) -> None:
    (folder / "pom.xml").write_text(pom)
    command = ["mvn", "-q", "-B", "-f", str(folder / "pom.xml"), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={folder / 'lib'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PeerUnavailableError(f"Maven could not fetch the jars:\n{(done.stdout + done.stderr)[-4000:]}")


def _pom(version: str) -> str:
    dependencies = "\n".join(
        f"    <dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-{artifact}</artifactId>"
        f"<version>{version}</version></dependency>"
        for artifact in ARTIFACTS[version]
    )
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>skyroute.peers</groupId><artifactId>apache</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""


# ------------------------------------------------------------------------------------------------------------- ports


_FIRST_PORT, _LAST_PORT = 21_000, 32_000  # below the kernel's range of ephemeral ports
_given_out: set[int] = set()


def free_port() -> int:
    """A port whose neighbours are free too, ten away from every other that this process gave out.

    A broker listens on `port - 2` and `port + 1` besides.
    """
    candidates = list(range(_FIRST_PORT, _LAST_PORT, 10))
    random.shuffle(candidates)
    for port in candidates:
        if port not in _given_out and all(_is_free(near) for near in (port - 2, port, port + 1)):
            _given_out.add(port)
            return port
    raise PeerUnavailableError("no free port")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


# --------------------------------------------------------------------------------------------------------- processes


class PeerProcess:
    """A program that prints a line once it serves."""

    ready_mark = "boot success"
    started: ClassVar[list[PeerProcess]] = []  # so that a failed test can show what they said

    def __init__(self, name: str, home: Path, *, port: int | None = None, start_timeout_s: float = 60.0) -> None:
        self.name = name
        self.home = home
        self.port = port or free_port()
        self.log = home / "output.log"
        self._start_timeout_s = start_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._said_before = 0
        home.mkdir(parents=True, exist_ok=True)

    def __repr__(self) -> str:
        state = f"pid {self._process.pid}" if self._process and self.is_running else "stopped"
        return f"<{type(self).__name__} {self.name} {self.address} {state}>"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def command(self) -> list[str]:
        raise NotImplementedError

    def prepare(self) -> None:
        """Write the files that the program reads. Called by `start`."""

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def start(self) -> None:
        """Start the program and wait until it says that it serves.

        Raises:
            PeerFailedError: It ended, or stayed silent for too long.
        """
        self.spawn()
        self.until_ready()

    def spawn(self) -> None:
        """Start the program; `until_ready` waits for it."""
        self.prepare()
        if self not in self.started:
            self.started.append(self)
        self._said_before = len(self.output())
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment(), cwd=self.home
            )

    def until_ready(self) -> None:
        """Wait until the program says that it serves.

        Raises:
            PeerFailedError: It ended, or stayed silent for too long.
        """
        try:
            wait_until(
                lambda: self.ready_mark in self.output()[self._said_before :] or not self.is_running,
                timeout_s=self._start_timeout_s,
                what=f"{self.name} prints {self.ready_mark!r}",
            )
        except TimeoutError as error:
            self.kill()
            raise self._failure("did not become ready") from error
        if not self.is_running:
            raise self._failure("ended while starting")

    def ask_to_stop(self) -> None:
        """Send SIGTERM and do not wait."""
        self._running().terminate()

    def stop(self, *, timeout_s: float = 60.0) -> int:
        """Stop it, and return its exit status."""
        self.ask_to_stop()
        return self.wait(timeout_s=timeout_s)

    def wait(self, *, timeout_s: float = 60.0) -> int:
        """Wait for its end, and return its exit status.

        Raises:
            PeerFailedError: It did not end in time, and was killed.
        """
        try:
            return self._running().wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise self._failure(f"did not end within {timeout_s:g} s") from error

    def kill(self) -> None:
        """End it at once (SIGKILL); nothing if it has ended."""
        if self._process is not None and self.is_running:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def restart(self) -> None:
        """Stop and start again: same port, same files."""
        if self.is_running:
            self.stop()
        self.start()

    def output(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def tail(self, lines: int = 60) -> str:
        """Its last words, without the start-up chatter of the logging library."""
        said = [line for line in self.output().splitlines() if "|-INFO in org.apache.rocketmq.logging" not in line]
        return "\n".join(said[-lines:])

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise PeerFailedError(f"{self.name} was never started")
        return self._process

    def _failure(self, what: str) -> PeerFailedError:
        status = self._process.poll() if self._process else None
        return PeerFailedError(f"{self.name} {what} (exit status {status}):\n{self.tail()}")


class NameServerProcess(PeerProcess):
    """What Apache's name server and ours have in common: one properties file, and one file of key-value settings."""

    def __init__(
        self, name: str, home: Path, *, config: Mapping[str, str] | None = None, port: int | None = None
    ) -> None:
        super().__init__(name, home, port=port)
        self.config_file = home / "namesrv.properties"
        self.kv_file = home / "kvConfig.json"
        self._config = config or {}

    def prepare(self) -> None:
        if self.config_file.exists():  # a restart keeps what the server itself has written since
            return
        config = {
            "listenPort": str(self.port),
            "bindAddress": "127.0.0.1",
            "kvConfigPath": str(self.kv_file),
            **self._config,
        }
        self.config_file.write_text(properties(config))


class SkyrouteNameServer(NameServerProcess):
    """Ours, as an operator runs it."""

    def command(self) -> list[str]:
        return [
            sys.executable,
            "-m",
            "skyroute",
            "nameserver",
            "-c",
            str(self.config_file),
            "-D",
            "trustedProxies=127.0.0.1",
        ]


class ApacheNameServer(NameServerProcess):
    """Apache's."""

    def __init__(
        self,
        name: str,
        home: Path,
        *,
        config: Mapping[str, str] | None = None,
        port: int | None = None,
        java_options: Sequence[str] = SMALL_HEAP,
    ) -> None:
        super().__init__(name, home, config=config, port=port)
        self._java_options = tuple(java_options)

    def command(self) -> list[str]:
        main = ("org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(self.config_file))
        return java(fetch_jars(), self.home, *main, options=(*self._java_options, f"-Drocketmq.home.dir={self.home}"))


class ApacheBroker(PeerProcess):
    """Apache's broker of either line; its store and its logs live under its own home."""

    def __init__(
        self,
        name: str,
        home: Path,
        name_servers: Sequence[str],
        *,
        version: str = APACHE,
        cluster: str = "PeerCluster",
        broker_id: int = 0,
        port: int | None = None,
        config: Mapping[str, str] | None = None,
        java_options: Sequence[str] = SMALL_HEAP,
    ) -> None:
        super().__init__(f"{name}-{broker_id}", home, port=port)
        self.broker_name = name
        self.cluster = cluster
        self.broker_id = broker_id
        self.name_servers = tuple(name_servers)
        self.version = version
        self.config_file = home / "broker.properties"
        self._java_options = (*java_options, "-XX:MaxDirectMemorySize=512m")
        self._config = {
            "brokerClusterName": cluster,
            "brokerName": name,
            "brokerId": str(broker_id),
            "brokerRole": "ASYNC_MASTER" if broker_id == 0 else "SLAVE",
            "listenPort": str(self.port),
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "namesrvAddr": ";".join(name_servers),
            "registerNameServerPeriod": "10000",  # the shortest that Apache's broker accepts
            "storePathRootDir": str(home / "store"),
            "storePathCommitLog": str(home / "store" / "commitlog"),
            "mappedFileSizeCommitLog": str(64 << 20),
            "diskMaxUsedSpaceRatio": "99",
            "autoCreateTopicEnable": "true",
            "waitTimeMillsInSendQueue": "5000",  # Apache's broker refuses sends that wait 200 ms on a busy machine
            **(config or {}),
        }

    @property
    def ha_address(self) -> str:
        return f"127.0.0.1:{self.port + 1}"

    def configure(self, **values: str) -> None:
        """Settings for its next start."""
        self._config |= values

    def start(self) -> None:
        """Start it and wait until every name server knows it: a broker listens before it has told them.

        Raises:
            PeerFailedError: It ended, or stayed silent for too long.
        """
        super().start()
        for server in self.name_servers:
            with RawConnection(server) as line:
                try:
                    wait_until(lambda: self.address in line.call(CLUSTERS).text, timeout_s=REGISTERED_S)
                except TimeoutError as error:
                    self.kill()
                    raise self._failure(f"did not register at {server}") from error

    def prepare(self) -> None:
        self.config_file.write_text(properties(self._config))
        if self.version == APACHE_4:
            (self.home / "conf").mkdir(exist_ok=True)
            (self.home / "conf" / "logback_broker.xml").write_text(_LOGBACK)

    def environment(self) -> dict[str, str]:
        return {**os.environ, "ROCKETMQ_HOME": str(self.home)}

    def command(self) -> list[str]:
        opened = OPENED_FOR_4 if self.version == APACHE_4 else ()
        options = (*opened, *self._java_options, f"-Drocketmq.home.dir={self.home}")
        main = ("org.apache.rocketmq.broker.BrokerStartup", "-c", str(self.config_file))
        return java(fetch_jars(self.version), self.home, *main, options=options)


def properties(values: Mapping[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in values.items())


# -------------------------------------------------------------------------------------------------------------- Java


def java(
    lib: Path, home: Path, *arguments: str, options: Sequence[str] = SMALL_HEAP, classes: Path | None = None
) -> list[str]:
    """The command line of one JVM with the jars, and perhaps a folder of our own classes, on its path."""
    class_path = f"{lib}/*" if classes is None else f"{classes}{os.pathsep}{lib}/*"
    return ["java", *options, f"-Duser.home={home}", "-cp", class_path, *arguments]


def compile_java(sources: Sequence[Path], lib: Path, classes: Path) -> Path:
    """Compile small Java programs against the jars; gives the folder of their classes.

    Raises:
        PeerFailedError: They do not compile.
    """
    classes.mkdir(parents=True, exist_ok=True)
    command = ["javac", "-nowarn", "-d", str(classes), "-cp", f"{lib}/*", *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PeerFailedError(f"javac failed:\n{done.stdout}{done.stderr}")
    return classes


def run_java(
    lib: Path,
    home: Path,
    *arguments: str,
    classes: Path | None = None,
    options: Sequence[str] = SMALL_HEAP,
    text: str = "",
    timeout_s: float = 120.0,
) -> str:
    """Run one Java program to its end and give its standard output.

    Raises:
        PeerFailedError: It took too long, or ended with a status other than 0.
    """
    home.mkdir(parents=True, exist_ok=True)
    command = java(lib, home, *arguments, options=options, classes=classes)
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=home
        )
    except subprocess.TimeoutExpired as error:
        said = json.dumps([str(part)[-2000:] for part in (error.stdout, error.stderr)])
        raise PeerFailedError(f"{arguments[0]} took more than {timeout_s:g} s: {said}") from error
    if done.returncode != 0:
        raise PeerFailedError(f"{arguments[0]} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout
