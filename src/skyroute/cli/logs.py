"""How the commands that serve log: as lines for people or as JSON, to stderr or to a file that is kept small."""

import json
import logging
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
"""Besides the one that is written; the oldest goes."""
LINES: Final = "%(asctime)s %(levelname)s %(name)s - %(message)s"


@dataclass(frozen=True, slots=True)
class LogSettings:
    """What is logged, how and where."""

    level: str = "info"
    form: str = "text"
    file: str | None = None


def log_options(level: str) -> Callable[[F], F]:
    """Add `--log-level`, `--log-format` and `--log-file`; the command is given them as `log_settings`."""

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
                    help="The least serious log lines to write.",
                ),
                click.option(
                    "--log-format",
                    type=click.Choice(["text", "json"]),
                    default="text",
                    show_default=True,
                    help="Lines for people, or one JSON object a line.",
                ),
                click.option(
                    "--log-file",
                    metavar="FILE",
                    type=click.Path(dir_okay=False),
                    help=f"Write there and not to stderr; kept to {FILES_KEPT + 1} files of {FILE_BYTES_MAX >> 20} MB.",
                ),
            )
        ):
            call = option(call)
        return call

    return add


def start_logging(settings: LogSettings) -> None:
    """Begin to log.

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
    handler.setFormatter(JsonLines() if settings.form == "json" else logging.Formatter(LINES))
    logging.basicConfig(level=settings.level.upper(), handlers=[handler])


class JsonLines(logging.Formatter):
    """A record as one JSON object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told)
