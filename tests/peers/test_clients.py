"""Apache's own Java producer and push consumer find their broker through our name server, plainly and over TLS."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.support.apache import SMALL_HEAP, ApacheBroker, NameServerProcess, run_java
from tests.support.codes import GET_ROUTE
from tests.support.raw import RawConnection, split_address

COUNT = 200
TLS_CLIENT_HELLO = 0x16


def test_java_clients_exchange_messages_through_our_name_server(
    ours: NameServerProcess, broker: ApacheBroker, lib: Path, java_classes: Path, tmp_path: Path
) -> None:
    said = run_java(lib, tmp_path, "Exchange", ours.address, "PlainTopic", str(COUNT), classes=java_classes)
    assert f"sent={COUNT} received={COUNT}" in said
    with RawConnection(ours.address) as line:
        assert line.call(GET_ROUTE, {"topic": "PlainTopic"}).value["brokerDatas"][0]["brokerName"] == broker.broker_name


def test_java_clients_in_tls_test_mode_use_our_permissive_port(
    ours: NameServerProcess, broker: ApacheBroker, lib: Path, java_classes: Path, tmp_path: Path
) -> None:
    with tapped(ours.address) as tap:
        options = (*SMALL_HEAP, "-Dtls.enable=true", "-Dtls.test.mode.enable=true")
        arguments = ("Exchange", tap.address, "TlsTopic", str(COUNT))
        said = run_java(lib, tmp_path, *arguments, classes=java_classes, options=options)
    assert f"sent={COUNT} received={COUNT}" in said
    assert tap.first_bytes
    assert set(tap.first_bytes) == {TLS_CLIENT_HELLO}


class Tap:
    """A TCP relay that keeps the first byte of every connection, to see in which language the client opened."""

    def __init__(self, target: str) -> None:
        self.first_bytes: list[int] = []
        self._target = split_address(target)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._relay, daemon=True)
        self._closed = threading.Event()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._closed.set()
        self._thread.join()
        self._listening.close()

    def _relay(self) -> None:
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as sockets:
            selector.register(self._listening, selectors.EVENT_READ)
            partners: dict[socket.socket, socket.socket] = {}
            while not self._closed.is_set():
                for key, _ in selector.select(timeout=0.1):
                    ready = key.fileobj
                    assert isinstance(ready, socket.socket)
                    if ready is self._listening:
                        client = sockets.enter_context(self._listening.accept()[0])
                        server = sockets.enter_context(socket.create_connection(self._target))
                        partners |= {client: server, server: client}
                        selector.register(client, selectors.EVENT_READ, self.first_bytes)
                        selector.register(server, selectors.EVENT_READ)
                    elif ready in partners and not self._forward(ready, partners[ready], selector, key.data):
                        for end in (ready, partners[ready]):
                            selector.unregister(end)
                            end.close()
                        del partners[partners.pop(ready)]

    @staticmethod
    def _forward(
        source: socket.socket, sink: socket.socket, selector: selectors.BaseSelector, first_bytes: list[int] | None
    ) -> bool:
        """Pass on what there is; false at the end of the stream. A list as `first_bytes` says that none came yet."""
        try:
            data = source.recv(65536)
            sink.sendall(data)
        except ConnectionError:
            return False
        if data and first_bytes is not None:
            first_bytes.append(data[0])
            selector.modify(source, selectors.EVENT_READ)
        return bool(data)


@contextlib.contextmanager
def tapped(target: str) -> Iterator[Tap]:
    tap = Tap(target)
    tap.start()
    try:
        yield tap
    finally:
        tap.stop()
