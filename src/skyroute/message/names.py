"""What a topic and a group may be called: Apache's limits, and the very texts its servers refuse with.

A name that becomes a folder or a file on the disk passes `check_file_name` first, whatever it names.
"""

import re
from functools import lru_cache
from typing import Final

from skyroute.message.errors import InvalidNameError
from skyroute.message.reserved_topics import DLQ_PREFIX, RETRY_PREFIX, is_closed_to_senders, is_system_topic

TOPIC_CHARS_MAX: Final = 127
RETRY_TOPIC_CHARS_MAX: Final = 255
"""Also of a dead letter topic."""
GROUP_CHARS_MAX: Final = 120
"""Less than a topic's, because retry topics are made of a group and a topic."""

FILE_NAME_BYTES_MAX: Final = 255
"""The longest name of a file on common file systems."""

DEFAULT_PRODUCER_GROUP: Final = "DEFAULT_PRODUCER"
DEFAULT_CONSUMER_GROUP: Final = "DEFAULT_CONSUMER"

_SAID_CHARS_MAX: Final = 512
"""Maximum length of a name in an error text: a name may be as long as a frame."""
_PATTERN: Final = "^[%|a-zA-Z0-9_-]+$"
_LEGAL: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


def check_topic(topic: str) -> None:
    """Let pass what may name a topic of any kind.

    Raises:
        InvalidNameError: it may not.
    """
    try:
        _check_topic(topic)
    except TypeError:  # it cannot be looked up among those known, as a list cannot
        raise InvalidNameError(f"the name of a topic is text, not {topic!r}") from None


@lru_cache(maxsize=1024)
def _check_topic(topic: str) -> None:
    if not isinstance(topic, str):
        raise InvalidNameError(f"the name of a topic is text, not {topic!r}")
    if not topic or topic.isspace():
        raise InvalidNameError("The specified topic is blank.")
    said = topic[:_SAID_CHARS_MAX]
    if _LEGAL.fullmatch(topic) is None:
        raise InvalidNameError(f"The specified topic: {said}, contains illegal characters, allowing only {_PATTERN}")
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        if len(topic) > RETRY_TOPIC_CHARS_MAX:
            raise InvalidNameError(
                f"The specified topic is DLQ or Retry topic: {said}, "
                f"and it's longer than topic max length: {RETRY_TOPIC_CHARS_MAX}"
            )
    elif len(topic) > TOPIC_CHARS_MAX:
        raise InvalidNameError(f"The specified topic: {said}, is longer than topic max length: {TOPIC_CHARS_MAX}")


def check_group(group: str) -> None:
    """Let pass what may name a group of producers or consumers.

    Raises:
        InvalidNameError: it may not.
    """
    if not isinstance(group, str):
        raise InvalidNameError(f"the name of a group is text, not {group!r}")
    if not group or group.isspace():
        raise InvalidNameError("The specified group is blank.")
    said = group[:_SAID_CHARS_MAX]
    if _LEGAL.fullmatch(group) is None:
        raise InvalidNameError(f"The specified group: {said}, contains illegal characters, allowing only {_PATTERN}")
    if len(group) > GROUP_CHARS_MAX:
        raise InvalidNameError(f"The specified group: {said}, is longer than group max length: {GROUP_CHARS_MAX}")


def check_file_name(name: str) -> None:
    """Check that a name can be that of one folder or file, and leads nowhere else.

    Raises:
        InvalidNameError: the name has a slash or NUL, is too long, or is `.` or `..`.
    """
    is_fit = name not in ("", ".", "..") and "/" not in name and "\0" not in name
    # A lone surrogate takes three bytes too.
    if is_fit and len(name.encode("utf-8", "surrogatepass")) <= FILE_NAME_BYTES_MAX:
        return
    raise InvalidNameError(
        f"{name[:80]!r} cannot be the name of a folder: 1 to {FILE_NAME_BYTES_MAX} bytes without / and NUL are expected"
    )


def check_producer_group(group: str) -> None:
    """Let pass what an application may call its group of producers.

    Raises:
        InvalidNameError: it may not.
    """
    check_group(group)
    if group == DEFAULT_PRODUCER_GROUP:
        raise InvalidNameError(f"producerGroup can not equal {group}, please specify another one.")


def check_consumer_group(group: str) -> None:
    """Let pass what an application may call its group of consumers.

    Raises:
        InvalidNameError: it may not.
    """
    check_group(group)
    if group == DEFAULT_CONSUMER_GROUP:
        raise InvalidNameError(f"consumerGroup can not equal {group}, please specify another one.")


def check_open_to_senders(topic: str) -> None:
    """Let pass a topic that clients may send to.

    Raises:
        InvalidNameError: only the broker itself writes there.
    """
    if is_closed_to_senders(topic):
        raise InvalidNameError(f"Sending message to topic[{topic}] is forbidden.")


def check_not_system_topic(topic: str) -> None:
    """Let pass a topic that people may create and delete.

    Raises:
        InvalidNameError: it is one of the system's own.
    """
    if is_system_topic(topic):
        raise InvalidNameError(f"The topic[{topic}] is conflict with system topic.")
