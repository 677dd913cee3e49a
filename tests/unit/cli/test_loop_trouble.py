"""What the loop of a serving process reports, and what it need not."""

import asyncio
import logging
import socket
from typing import Any

import pytest

from skyroute.cli.serve import _complain_now_and_then


class _Failing(asyncio.SelectorEventLoop):
    """Runs one callback and ends."""

    def run_once(self, callback: Any, *args: Any) -> None:
        self.set_exception_handler(_complain_now_and_then())
        self.call_soon(callback, *args)
        self.call_soon(self.stop)
        self.run_forever()
        self.close()


def fail() -> None:
    raise ValueError("our own")


def test_a_listener_that_was_closed_after_files_ran_out_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    listening.close()
    loop = _Failing()
    loop.run_once(loop._start_serving, asyncio.Protocol, listening)  # type: ignore[attr-defined]  # what asyncio plans
    assert caplog.records == []


def test_other_trouble_of_the_loop_is_told_with_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    _Failing().run_once(fail)
    (record,) = caplog.records
    assert (record.levelno, str(record.exc_info and record.exc_info[1])) == (logging.ERROR, "our own")
