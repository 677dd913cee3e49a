"""The limit of open files, and how servers share it."""

import resource
from typing import Final

OTHER_FILES: Final = 64
"""Open files that are neither client connections nor segments: logs, outgoing connections, files being replaced.

Under a limit below twice this number, half of the limit is reserved for them."""

UNLIMITED: Final = 1 << 30


def open_files_max() -> int:
    """Return the number of files that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def open_files_shared() -> int:
    """Return the number of open files for client connections and segments."""
    limit = open_files_max()
    return limit - min(OTHER_FILES, limit // 2)
