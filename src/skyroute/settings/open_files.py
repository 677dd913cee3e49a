"""The limit of open files, and the share that servers may use."""

import resource
from typing import Final

OTHER_FILES: Final = 64
"""Open files that are neither connections of peers nor segments: log, sockets we open ourselves, files being replaced.

Under a limit below twice this number, half of the limit is theirs."""

UNLIMITED: Final = 1 << 30


def open_files_max() -> int:
    """Return how many files this process may have open at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def open_files_shared() -> int:
    """Return how many of these are for connections of peers and for segments."""
    limit = open_files_max()
    return limit - min(OTHER_FILES, limit // 2)
