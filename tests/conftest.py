"""With SKYROUTE_NO_SKIP=1, as in CI, a skipped test fails. With SKYROUTE_LONG=1, tests marked `long` run too."""

import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import settings

# The time of an example depends on the load of the machine.
settings.register_profile("skyroute", deadline=None)
settings.load_profile("skyroute")

# A shell that runs pytest in the background ignores SIGINT, and child processes would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

NO_SKIP = os.environ.get("SKYROUTE_NO_SKIP") == "1"
IS_LONG = os.environ.get("SKYROUTE_LONG") == "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    long = [] if IS_LONG else [item for item in items if item.get_closest_marker("long")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if NO_SKIP and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, though SKYROUTE_NO_SKIP=1: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if NO_SKIP and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped, though SKYROUTE_NO_SKIP=1: {report.longrepr}"
    return report
