"""Brokers in controller mode, controllers as processes, and a load that remembers what was acknowledged."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from skyroute import Credentials, Message, SendStatus
from skyroute.blocking import Producer, PullConsumer
from skyroute.errors import SkyrouteError
from tests.support.apache import ApacheBroker, PeerProcess, fetch_jars, free_port, java, properties
from tests.support.etcd import EtcdCluster
from tests.support.raw import RawConnection, Request
from tests.support.signing import Key
from tests.support.waiting import wait_until

JOIN_S = 60.0
"""A slave connects, is caught up, and the master looks every five seconds."""


class SkyrouteController(PeerProcess):
    """Our controller as a process. With a key, it has access control, and its calls are signed."""

    key: Key | None = None
    settings: Mapping[str, str] = {}

    def guard(self, key: Key, settings: Mapping[str, str]) -> Self:
        """Turn access control on, before the start."""
        self.key, self.settings = key, settings
        return self

    def prepare(self) -> None:
        values = {
            **self.settings,
            "controllerDLegerPeers": f"n0-{self.address}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": str(self.home),
            "bindAddress": "127.0.0.1",
        }
        (self.home / "controller.conf").write_text(properties(values))

    def command(self) -> list[str]:
        return [sys.executable, "-m", "skyroute", "controller", "-c", str(self.home / "controller.conf")]

    def group(self) -> tuple[int | None, int, list[int]]:
        """Master, its epoch, and the sync state set."""
        asked = Request(1004, {"brokerName": "pair"})
        with RawConnection(self.address) as line:
            answer = line.call(asked if self.key is None else self.key.sign(asked))
            master = answer.fields.get("masterBrokerId")
            epoch = int(answer.fields.get("masterEpoch", "0"))
            return int(master) if master else None, epoch, sorted(answer.value["syncStateSet"]) if answer.body else []


class ControllerInNameServer(SkyrouteController):
    """Our controller in the process of a name server, which brokers and clients use as well."""

    def __init__(self, name: str, home: Path) -> None:
        super().__init__(name, home)
        self._name_server_port = free_port()

    @property
    def name_server_address(self) -> str:
        return f"127.0.0.1:{self._name_server_port}"

    def prepare(self) -> None:
        values = {
            "listenPort": str(self._name_server_port),
            "bindAddress": "127.0.0.1",
            "kvConfigPath": str(self.home / "kvConfig.json"),
            "configStorePath": str(self.home / "namesrv.properties"),
            "memoryPath": str(self.home / "memory"),
            "enableControllerInNamesrv": "true",
            "controllerDLegerPeers": f"n0-{self.address}",
            "controllerStorePath": str(self.home / "controller"),
        }
        (self.home / "namesrv.conf").write_text(properties(values))

    def command(self) -> list[str]:
        return [sys.executable, "-m", "skyroute", "nameserver", "-c", str(self.home / "namesrv.conf")]


class ControllerOnEtcd(SkyrouteController):
    """Our controller with its state in an etcd of one member, which runs while this object is entered."""

    def __init__(self, name: str, home: Path) -> None:
        super().__init__(name, home)
        self._etcd = EtcdCluster(home / "etcd", size=1)
        self.settings = {"etcdEndpoints": self._etcd.endpoints}

    def __enter__(self) -> Self:
        self._etcd.__enter__()
        try:
            return super().__enter__()
        except BaseException:
            self._etcd.__exit__(None, None, None)
            raise

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._etcd.__exit__(None, None, None)


class ApacheController(SkyrouteController):
    """Apache's controller with DLedger, one node."""

    def prepare(self) -> None:
        values = {
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": f"n0-{self.address}",
            "controllerDLegerSelfId": "n0",
            "controllerStorePath": str(self.home / "store"),
        }
        (self.home / "controller.conf").write_text(properties(values))

    def command(self) -> list[str]:
        main = ("org.apache.rocketmq.controller.ControllerStartup", "-c", str(self.home / "controller.conf"))
        options = ("-Xms512m", "-Xmx512m", f"-Drocketmq.home.dir={self.home}")
        return java(fetch_jars(), self.home, *main, options=options)

    def start(self) -> None:
        super().start()
        with RawConnection(self.address) as line:
            wait_until(
                lambda: line.call(1005).fields.get("isLeader") == "true", "the controller leads", timeout_s=JOIN_S
            )


class Load(threading.Thread):
    """Sends until told to stop, and remembers what was acknowledged."""

    def __init__(self, name_server: str, key: Key | None = None) -> None:
        super().__init__()
        self.acknowledged: list[bytes] = []
        self.longest_pause_s = 0.0
        """Longest time between two acknowledged sends."""
        self.ended = threading.Event()
        self._name_server = name_server
        self._key = key

    def run(self) -> None:
        number, last_at = 0, time.monotonic()
        with Producer("load", name_servers=self._name_server, credentials=credentials(self._key)) as producer:
            while not self.ended.is_set():
                number += 1
                body = b"message %d" % number
                try:
                    is_safe = producer.send(Message("Failover", body)).status is SendStatus.OK
                except SkyrouteError:
                    is_safe = False
                if not is_safe:
                    self.ended.wait(0.02)
                else:
                    self.acknowledged.append(body)
                    self.longest_pause_s = max(self.longest_pause_s, time.monotonic() - last_at)
                    last_at = time.monotonic()

    def take_longest_pause(self) -> float:
        """Return the longest pause since the last call."""
        found, self.longest_pause_s = self.longest_pause_s, 0.0
        return found

    def until(self, count: int) -> None:
        wait_until(lambda: len(self.acknowledged) >= count, f"{count} messages", timeout_s=30.0)


def credentials(key: Key | None) -> Credentials | None:
    return None if key is None else Credentials(key.name, key.secret)


def broker(
    home: Path,
    name_server: str,
    controller: str,
    guard: Mapping[str, str] | None = None,
    *,
    kind: type[ApacheBroker] = ApacheBroker,
) -> ApacheBroker:
    settings = {
        "brokerId": "-1",
        "brokerRole": "SLAVE",
        "enableControllerMode": "true",
        "controllerAddr": controller,
        "allAckInSyncStateSet": "true",
        "storePathEpochFile": str(home / "store" / "epochFileCheckpoint"),
        "storePathBrokerIdentity": str(home / "store" / "brokerIdentity"),
        **(guard or {}),
    }
    return kind("pair", home, [name_server], config=settings)


def read_all(name_server: str, key: Key | None = None) -> set[bytes]:
    found: set[bytes] = set()
    with PullConsumer("reader", name_servers=name_server, credentials=credentials(key)) as consumer:
        queues = list(consumer.queues("Failover"))
        consumer.assign(queues)
        for queue in queues:
            consumer.seek_to_begin(queue)
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < 5.0:
            messages = consumer.poll(1.0)
            found.update(message.body for message in messages)
            if messages:
                quiet_since = time.monotonic()
    return found
