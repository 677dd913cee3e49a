"""Logging of the server commands: text or JSON lines, to standard error or to a rotated file."""

import json
import logging
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import wraps
from logging.handlers import RotatingFileHandler
from typing import Any, Final, TypeVar

import click

from skyroute.files.errors import FileWriteError

F = TypeVar("F", bound=Callable[..., Any])

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
FILES_KEPT: Final = 5
"""Rotated files besides the current one."""
TEXT_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s - %(message)s"
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Level, format and file of the log."""

    level: str = "info"
    format: str = "text"
    file: str | None = None


def log_options(level: str) -> Callable[[F], F]:
    """Add `--log-level`, `--log-format` and `--log-file`; the command gets them as `log_settings`."""

    def add(command: F) -> Any:
        @wraps(command)
        def call(*args: Any, log_level: str, log_format: str, log_file: str | None, **others: Any) -> Any:
            return command(*args, log_settings=LogSettings(log_level, log_format, log_file), **others)

        for option in reversed(
            (
                click.option(
                    "--log-level",
                    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
                    default=level,
                    show_default=True,
                    help="Lowest level to log.",
                ),
                click.option(
                    "--log-format",
                    type=click.Choice(["text", "json"]),
                    default="text",
                    show_default=True,
                    help="Text lines, or one JSON object per line.",
                ),
                click.option(
                    "--log-file",
                    metavar="FILE",
                    type=click.Path(dir_okay=False),
                    help=f"Log to this file, not to stderr; keeps {FILES_KEPT + 1} files of {FILE_BYTES_MAX >> 20} MB.",
                ),
            )
        ):
            call = option(call)
        return call

    return add


def start_logging(settings: LogSettings) -> None:
    """Configure the root logger.

    Raises:
        FileWriteError: the file cannot be written.
    """
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if settings.file is not None:
        try:
            handler = RotatingFileHandler(
                settings.file,
                maxBytes=FILE_BYTES_MAX,
                backupCount=FILES_KEPT,
                encoding="utf-8",
                errors="backslashreplace",
            )
        except OSError as error:
            raise FileWriteError(
                f"cannot write {settings.file}: {error.strerror}; choose another --log-file"
            ) from error
    handler.setFormatter(JsonLines() if settings.format == "json" else TextLines(TEXT_FORMAT))
    logging.basicConfig(level=settings.level.upper(), handlers=[handler])


class TextLines(logging.Formatter):
    """Formats a message as one line: control characters, which a peer may have sent, are escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - overrides
        """Return the line without a traceback."""
        record.message = _CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}", record.message)
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """Formats a record as a JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)
