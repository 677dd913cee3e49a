"""A TCP proxy that can be cut: bytes then wait, as in a network that lost the way, and arrive when it is healed."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping
from typing import Self


class CutProxy:
    """Forwards connections to an address. `replaced` changes bytes of responses, by others of the same length."""

    def __init__(self, target: str, replaced: Mapping[str, str] | None = None) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._replaced = {before.encode(): after.encode() for before, after in (replaced or {}).items()}
        if any(len(before) != len(after) for before, after in self._replaced.items()):
            raise ValueError(f"lengths differ: {replaced}")
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._whole = threading.Event()
        self._whole.set()
        self._over = False
        self._refuses = False
        self._sockets: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._listening.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._whole.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        for each in (self._listening, *self._sockets):
            with contextlib.suppress(OSError):
                each.close()

    def stand_in(self) -> None:
        """Name this proxy in place of its target in what the target sends. Both ports have as many digits."""
        self._replaced[f"{self._target[0]}:{self._target[1]}".encode()] = self.address.encode()

    def cut(self, *, refuse: bool = False) -> None:
        """Hold all bytes, of open connections and of new ones. With `refuse`, new connections are closed."""
        self._refuses = refuse
        self._whole.clear()

    def heal(self) -> None:
        """Let the bytes through that were held."""
        self._whole.set()

    def _accept(self) -> None:
        while not self._over:
            try:
                client, _ = self._listening.accept()
            except OSError:  # closed
                continue
            self._sockets.append(client)
            if self._refuses and not self._whole.is_set():
                client.close()
                continue
            self._whole.wait()
            try:
                server = socket.create_connection(self._target, timeout=10)
            except OSError:
                client.close()
                continue
            self._sockets.append(server)
            server.settimeout(None)
            threading.Thread(target=self._pump, args=(client, server, {}), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, self._replaced), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, replaced: Mapping[bytes, bytes]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(64 * 1024):
                self._whole.wait()
                for before, after in replaced.items():
                    data = data.replace(before, after)
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
