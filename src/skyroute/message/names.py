"""Valid names of topics and groups: Apache's limits and error texts.

A name that becomes a folder or a file on the disk passes `check_file_name` first, whatever it names.
"""

import re
from functools import lru_cache
from typing import Final

from skyroute.message.errors import InvalidNameError
from skyroute.message.reserved_topics import CLOSED_TO_SENDERS, DLQ_PREFIX, RETRY_PREFIX

TOPIC_CHARS_MAX: Final = 127
RETRY_TOPIC_CHARS_MAX: Final = 255
"""Also for a dead-letter topic."""
GROUP_CHARS_MAX: Final = 120
"""Less than a topic's, because the name of a retry topic includes its group."""

FILE_NAME_BYTES_MAX: Final = 255
"""The longest name of a file on common file systems."""

DEFAULT_PRODUCER_GROUP: Final = "DEFAULT_PRODUCER"
DEFAULT_CONSUMER_GROUP: Final = "DEFAULT_CONSUMER"

_SHOWN_CHARS_MAX: Final = 512
"""Maximum length of a name in an error text: a name may be as long as a frame."""
_PATTERN: Final = "^[%|a-zA-Z0-9_-]+$"
_LEGAL: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


def check_topic(topic: str) -> None:
    """Check the name of a topic of any kind.

    Raises:
        InvalidNameError: the name is invalid.
    """
    try:
        _check_topic(topic)
    except TypeError:  # not hashable, such as a list
        raise InvalidNameError(f"the name of a topic must be text, not {topic!r}") from None


@lru_cache(maxsize=1024)
def _check_topic(topic: str) -> None:
    if not isinstance(topic, str):
        raise InvalidNameError(f"the name of a topic must be text, not {topic!r}")
    if not topic or topic.isspace():
        raise InvalidNameError("The specified topic is blank.")
    shown = topic[:_SHOWN_CHARS_MAX]
    if _LEGAL.fullmatch(topic) is None:
        raise InvalidNameError(f"The specified topic: {shown}, contains illegal characters, allowing only {_PATTERN}")
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        if len(topic) > RETRY_TOPIC_CHARS_MAX:
            raise InvalidNameError(
                f"The specified topic is DLQ or Retry topic: {shown}, "
                f"and it's longer than topic max length: {RETRY_TOPIC_CHARS_MAX}"
            )
    elif len(topic) > TOPIC_CHARS_MAX:
        raise InvalidNameError(f"The specified topic: {shown}, is longer than topic max length: {TOPIC_CHARS_MAX}")


def check_group(group: str) -> None:
    """Check the name of a producer or consumer group.

    Raises:
        InvalidNameError: the name is invalid.
    """
    if not isinstance(group, str):
        raise InvalidNameError(f"the name of a group must be text, not {group!r}")
    if not group or group.isspace():
        raise InvalidNameError("The specified group is blank.")
    shown = group[:_SHOWN_CHARS_MAX]
    if _LEGAL.fullmatch(group) is None:
        raise InvalidNameError(f"The specified group: {shown}, contains illegal characters, allowing only {_PATTERN}")
    if len(group) > GROUP_CHARS_MAX:
        raise InvalidNameError(f"The specified group: {shown}, is longer than group max length: {GROUP_CHARS_MAX}")


def check_file_name(name: str) -> None:
    """Check that a name is valid for one file or folder, and is not a path.

    Raises:
        InvalidNameError: the name has a slash or NUL, is too long, or is `.` or `..`.
    """
    is_fit = name not in ("", ".", "..") and "/" not in name and "\0" not in name
    # A lone surrogate takes three bytes too.
    if is_fit and len(name.encode("utf-8", "surrogatepass")) <= FILE_NAME_BYTES_MAX:
        return
    raise InvalidNameError(
        f"{name[:80]!r} cannot be the name of a folder (expected 1 to {FILE_NAME_BYTES_MAX} bytes without / and NUL)"
    )


def check_producer_group(group: str) -> None:
    """Check the name of an application's producer group.

    Raises:
        InvalidNameError: the name is invalid.
    """
    check_group(group)
    if group == DEFAULT_PRODUCER_GROUP:
        raise InvalidNameError(f"producerGroup can not equal {group}, please specify another one.")


def check_consumer_group(group: str) -> None:
    """Check the name of an application's consumer group.

    Raises:
        InvalidNameError: the name is invalid.
    """
    check_group(group)
    if group == DEFAULT_CONSUMER_GROUP:
        raise InvalidNameError(f"consumerGroup can not equal {group}, please specify another one.")


def check_open_to_senders(topic: str) -> None:
    """Check that clients may send to a topic.

    Raises:
        InvalidNameError: only brokers may write to it.
    """
    if topic in CLOSED_TO_SENDERS:
        raise InvalidNameError(f"Sending message to topic[{topic}] is forbidden.")
