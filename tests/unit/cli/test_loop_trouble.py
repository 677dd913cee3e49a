"""Errors of the event loop that a server process logs, or ignores."""

import asyncio
import logging
import socket
from typing import Any

import pytest

from skyroute.cli.server_process import _log_loop_errors


class _Failing(asyncio.SelectorEventLoop):
    """Runs one callback and stops."""

    def run_once(self, callback: Any, *args: Any) -> None:
        self.set_exception_handler(_log_loop_errors())
        self.call_soon(callback, *args)
        self.call_soon(self.stop)
        self.run_forever()
        self.close()


def fail() -> None:
    raise ValueError("ours")


def test_listening_again_on_a_closed_server_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    listening.close()
    loop = _Failing()
    loop.run_once(loop._start_serving, asyncio.Protocol, listening)  # type: ignore[attr-defined]  # asyncio calls it a second after it ran out of file descriptors
    assert caplog.records == []


def test_other_errors_are_logged_with_their_exception(caplog: pytest.LogCaptureFixture) -> None:
    _Failing().run_once(fail)
    (record,) = caplog.records
    assert (record.levelno, str(record.exc_info and record.exc_info[1])) == (logging.ERROR, "ours")
