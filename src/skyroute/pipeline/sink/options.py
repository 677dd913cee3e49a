"""The options of a write, from Spark's texts to values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from skyroute.client.outbound import BODY_BYTES_MAX
from skyroute.client.producer import BATCH_BYTES_MAX
from skyroute.message.errors import InvalidNameError
from skyroute.message.names import check_open_to_senders, check_producer_group, check_topic
from skyroute.pipeline.options import ConnectionOptions, OptionReader, read_connection

QUEUES_MAX: Final = 1_024
"""More than anybody asks a broker to create behind the scenes."""

_OF_SPARK: Final = ("checkpointLocation",)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How rows are sent."""

    connection: ConnectionOptions
    topic: str | None = None
    """For all rows, whatever a column says; None: the column says it."""
    group: str = "spark"
    """What brokers know us by."""
    write_id: str | None = None
    """What the keys of rows begin with, so that a second run of the same job gives the same keys."""
    send_timeout_s: float = 10.0
    batch_bytes_max: int = BATCH_BYTES_MAX
    new_topic_queues: int = 4
    """Queues of a topic that a broker creates because we send to it."""


def read_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Read and check the options of a write.

    Raises:
        OptionsError: some are wrong; the text names them all.
    """
    options = OptionReader(given, ignored=_OF_SPARK)
    found = WriteOptions(
        read_connection(options),
        options.parsed("topic", "path", parse=_topic, default=None),
        options.parsed("producerGroup", "group", parse=_group, default="spark"),
        options.parsed("writeId", parse=_write_id, default=None),
        options.milliseconds("sendTimeoutMs", default_s=10.0),
        options.count("batchBytes", default=BATCH_BYTES_MAX, least=1, most=BODY_BYTES_MAX),
        options.count("newTopicQueues", default=4, most=QUEUES_MAX),
    )
    options.finish()
    return found


def _topic(text: str) -> str:
    try:
        check_topic(text)
        check_open_to_senders(text)
    except InvalidNameError as error:
        raise ValueError(f"the name of one topic ({error})") from None
    return text


def _group(text: str) -> str:
    try:
        check_producer_group(text)
    except InvalidNameError as error:
        raise ValueError(f"the name of a group of producers ({error})") from None
    return text


def _write_id(text: str) -> str:
    if len(text) > 200 or not text.isprintable():
        raise ValueError("at most 200 printable characters")
    return text
