"""A pytest plugin: a test fails after some seconds of CPU time, as it does if a change makes the code loop for ever.

mutmut's own limit also counts the time in which a busy machine runs something else.
"""

import signal
from collections.abc import Generator
from typing import Final, NoReturn

import pytest

CPU_S: Final = 3.0
"""For one test; every selected test takes less than 1."""


class CpuLimitError(BaseException):
    """The test used too much CPU time. Not an `Exception`, which the tested code could catch."""


def _fail(_signal: int, _frame: object) -> NoReturn:
    raise CpuLimitError(f"more than {CPU_S:.0f} s of CPU time")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    before = signal.signal(signal.SIGPROF, _fail)
    signal.setitimer(signal.ITIMER_PROF, CPU_S, 1.0)  # again, if the tested code goes on
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
