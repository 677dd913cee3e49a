"""Our broker as a process, with the interface of Apache's."""

from __future__ import annotations

import sys

from tests.support.apache import ApacheBroker


class SkyrouteBroker(ApacheBroker):
    """Our broker, as an operator runs it, with the settings of Apache's."""

    python: str = sys.executable
    """The interpreter that runs it, such as one with compiled modules."""

    def command(self) -> list[str]:
        return [self.python, "-m", "skyroute", "broker", "-c", str(self.config_file)]
