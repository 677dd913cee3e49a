"""Parses the options of a write."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from skyroute.client.producing.prepared_message import BODY_BYTES_MAX
from skyroute.message.errors import InvalidNameError
from skyroute.message.names import check_open_to_senders, check_producer_group, check_topic
from skyroute.pipeline.options import ConnectionOptions, OptionReader, read_connection

BATCH_BYTES: Final = 256 * 1024
"""Default of `batchBytes`. Larger batches cost the broker more processor time a row: the copies leave its cache."""

QUEUES_MAX: Final = 1_024
"""Largest value of `newTopicQueues`."""

_SPARK_OPTIONS: Final = ("checkpointLocation", "queryName")
_FILTERS: Final = ("tags", "subExpression", "expressionType")


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The parsed options of a write."""

    connection: ConnectionOptions
    topic: str | None = None
    """The topic of all rows; None: use the column `topic`."""
    producer_group: str = "spark"
    write_id: str | None = None
    """Prefix of the idempotency keys; a second run with the same prefix gives rows the same keys."""
    send_timeout_s: float = 10.0
    batch_bytes_max: int = BATCH_BYTES
    new_topic_queues: int = 4
    """Number of queues of an auto-created topic."""
    new_topic_is_batch: bool = False
    """Whether a topic that does not exist is created as a batch topic, which stores each batch as one record."""


def read_write_options(given: Mapping[str, str], ignored: Collection[str] = ()) -> WriteOptions:
    """Parse and check the options of a write; `ignored` are names of options that only reads have.

    Raises:
        OptionsError: options are wrong; the text names them all.
    """
    # A view or table has one set of options for reads and writes.
    options = OptionReader(given, ignored={*_SPARK_OPTIONS, *ignored})
    for name in _FILTERS:
        options.refuse(name, "filters a read: remove it, or give each row a column tags")
    found = WriteOptions(
        read_connection(options),
        options.parsed("topic", "path", parse=_topic, default=None),
        options.parsed("producerGroup", "group", parse=_group, default="spark"),
        options.parsed("writeId", parse=_write_id, default=None),
        options.milliseconds("sendTimeoutMs", default_s=10.0),
        options.count("batchBytes", default=BATCH_BYTES, least=1, most=BODY_BYTES_MAX),
        options.count("newTopicQueues", default=4, most=QUEUES_MAX),
        options.choice("newTopicType", choices=("normal", "batch"), default="normal") == "batch",
    )
    options.finish()
    return found


def _topic(text: str) -> str:
    try:
        check_topic(text)
        check_open_to_senders(text)
    except InvalidNameError as error:
        raise ValueError(f"one topic name; {error}") from None
    return text


def _group(text: str) -> str:
    try:
        check_producer_group(text)
    except InvalidNameError as error:
        raise ValueError(f"a producer group; {error}") from None
    return text


def _write_id(text: str) -> str:
    if len(text) > 200 or not text.isprintable():
        raise ValueError("at most 200 printable characters")
    return text
