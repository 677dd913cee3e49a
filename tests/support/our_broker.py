"""Our broker as a peer process, behind the same face as Apache's."""

from __future__ import annotations

import sys

from tests.support.apache import ApacheBroker


class SkyrouteBroker(ApacheBroker):
    """Ours, as an operator runs it, under the very settings that Apache's gets."""

    def command(self) -> list[str]:
        return [sys.executable, "-m", "skyroute", "broker", "-c", str(self.config_file)]
