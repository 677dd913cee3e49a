"""Parses the options of a read."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from enum import Enum
from typing import Final

from pyspark.sql.types import DataType, StringType, StructType

from skyroute.client.consuming.subscription import SQL92, TAG
from skyroute.clock import SystemClock
from skyroute.message.errors import InvalidNameError, TagExpressionError
from skyroute.message.names import check_group, check_topic
from skyroute.message.queue_ref import QueueRef
from skyroute.message.tags import EVERY_TAG, parse_tag_expression
from skyroute.pipeline.options import ConnectionOptions, OptionReader, read_connection
from skyroute.pipeline.source.body_schema import parse_body_schema
from skyroute.pipeline.source.columns import COLUMNS, BodyFormat
from skyroute.pipeline.source.offsets import Offsets, parse_json, parse_offsets, parse_queue

EARLIEST_OFFSET: Final = -2
LATEST_OFFSET: Final = -1
"""The ends of a queue in JSON offsets, with the values of Spark's Kafka source."""

READER_GROUP: Final = "TOOLS_CONSUMER"
"""The default consumer group. Every broker knows it and stores no offsets for it."""

EVERY_COLUMN: Final = "*"
"""The value of `columns` that chooses all."""

PULL_MESSAGES_MAX: Final = 65_536
"""Largest value of `pullBatchSize`."""

SECONDS: Final = range(10**9, 10**11)
"""Numbers that are refused as milliseconds, because they are seconds since 1970: as milliseconds, of 1970 to 1973."""

TIME_MS_MAX: Final = 253_402_300_799_999

_SQL92_SIGNS: Final = re.compile(r"[<>=()']")
_TIME_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class PositionKind(Enum):
    """The kinds of start and end positions."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIME = "time"
    GROUP = "group"


@dataclass(frozen=True, slots=True)
class Position:
    """The start or end of a read."""

    kind: PositionKind
    queues: Offsets = field(default_factory=dict)
    """Offset of each queue; with kind TIME, milliseconds since 1970."""
    time_ms: int | None = None
    """With kind TIME: milliseconds since 1970, for all queues."""
    fail_if_no_message: bool = False
    """With kind TIME: fail if a queue has no message from that time on, instead of using the queue's end."""
    option: str = field(default="", compare=False)
    """The option that set this position, for errors."""
    moves: bool = False
    """With kind TIME: the time counts from now."""

    @property
    def may_move(self) -> bool:
        """Whether new messages change the offsets that this position resolves to."""
        return (
            self.kind in (PositionKind.LATEST, PositionKind.GROUP)
            or self.moves
            or (self.kind is PositionKind.OFFSETS and LATEST_OFFSET in self.queues.values())
            or (self.kind is PositionKind.TIME and not self.fail_if_no_message)
        )


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The parsed options of a read."""

    connection: ConnectionOptions
    topics: tuple[str, ...]
    pattern: str | None
    queues: tuple[QueueRef, ...]
    """Exactly one of topics, pattern and queues is given."""
    start: Position | None
    """None: earliest for a batch, latest for a stream."""
    end: Position | None
    """For a batch; None: latest."""
    fail_on_data_loss: bool
    expression: str
    expression_type: str
    columns: tuple[str, ...]
    legacy_columns: bool
    rejects_as_column: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_s: float
    consumer_group: str
    report_group_offsets: bool
    pull_messages: int
    pull_bytes: int
    pull_timeout_s: float
    body_format: BodyFormat = BodyFormat.BINARY
    body_schema: StructType | None = None
    """With format JSON: the columns of the body; None: those of `.schema(...)`."""
    pushes_filters: bool = False

    @property
    def body_type(self) -> DataType | None:
        """The type of the column `body`; None: the default, or only known to the program."""
        return StringType() if self.body_format is BodyFormat.STRING else self.body_schema


def read_options(given: Mapping[str, str], now_ms: int | None = None) -> ReadOptions:
    """Parse and check the options of a read; times such as `-1h` count from `now_ms`, or from the current time.

    Raises:
        OptionsError: options are wrong; the text names them all.
    """
    options = OptionReader(given)
    found = _parse(options, int(SystemClock().wall() * 1000) if now_ms is None else now_ms)
    options.finish()
    return found


def read_option_names() -> set[str]:
    """Return the names and aliases of all options of a read."""
    options = OptionReader({})
    _parse(options, 0)
    return {each for name, aliases in options.names.items() for each in (name, *aliases)}


def _parse(options: OptionReader, now_ms: int) -> ReadOptions:
    connection = read_connection(options)
    topics = options.parsed("topic", "topics", "subscribe", "path", parse=_topics, default=())
    pattern = options.parsed("subscribePattern", "topicPattern", parse=_pattern, default=None)
    queues = options.parsed("assign", parse=_queues, default=())
    _only_one_of(options, ("topic", "subscribePattern", "assign"), "what to read", is_required=True)
    expression_type = options.choice("expressionType", choices=("tag", "sql92"), default="tag").upper()
    legacy_columns = options.flag("legacyColumns")
    rejects = options.choice("rejects", choices=("fail", "column"), default="fail")
    group = options.parsed("groupId", "group", "consumerGroup", parse=_group, default=None)
    report_group_offsets = options.flag("reportGroupOffsets")
    if report_group_offsets and group is None:
        options.add_problem("reportGroupOffsets needs groupId: set the consumer group to report for")
    max_offsets = options.count("maxOffsetsPerTrigger", default=None)
    min_offsets = options.count("minOffsetsPerTrigger", default=None)
    if max_offsets is not None and min_offsets is not None and min_offsets > max_offsets:
        options.add_problem("minOffsetsPerTrigger is larger than maxOffsetsPerTrigger: lower it")
    start, end = _read_position(options, "starting", now_ms), _read_position(options, "ending", now_ms)
    _check_order(options, start, end)
    if start is not None and start.kind is PositionKind.GROUP and group is None:
        options.add_problem("startingOffsets=group needs groupId: set the consumer group whose offsets to start at")
    body_format = BodyFormat(options.choice("bodyFormat", choices=tuple(BodyFormat), default=BodyFormat.BINARY))
    body_schema = options.parsed("bodySchema", parse=parse_body_schema, default=None)
    if body_schema is not None and body_format is not BodyFormat.JSON:
        options.add_problem("bodySchema needs bodyFormat=json: set it, or remove bodySchema")
    return ReadOptions(
        connection,
        topics,
        pattern,
        queues,
        start,
        end,
        options.flag("failOnDataLoss", default=True),
        _read_expression(options, expression_type),
        expression_type,
        _read_columns(options, legacy=legacy_columns, with_rejects=rejects == "column"),
        legacy_columns,
        rejects == "column",
        options.count("minPartitions", default=None),
        options.count("maxRecordsPerPartition", default=None),
        max_offsets,
        min_offsets,
        options.parsed("maxTriggerDelay", parse=_duration, default=900.0),
        group or READER_GROUP,
        report_group_offsets,
        options.count("pullBatchSize", default=4096, most=PULL_MESSAGES_MAX),
        options.count("pullBatchBytes", default=4 << 20, most=8 << 20),
        options.milliseconds("pullTimeoutMs", "pullTimeout", "pollTimeoutMs", default_s=10.0),
        body_format,
        body_schema,
        options.flag("pushFilters"),
    )


def _only_one_of(options: OptionReader, names: tuple[str, ...], purpose: str, *, is_required: bool = False) -> None:
    given = [name for name in names if name in options]
    if len(given) > 1:
        options.add_problem(f"{' and '.join(given)} both set {purpose}: keep one of them")
    elif is_required and not given:
        options.add_problem(f"{names[0]} is missing: set one of {', '.join(names)}")


def _read_position(options: OptionReader, side: str, now_ms: int) -> Position | None:
    plain, by_time, at = f"{side}Offsets", f"{side}OffsetsByTimestamp", f"{side}Timestamp"
    is_start = side == "starting"

    def parse(text: str) -> Position:
        if text.lower() in ("latest", "earliest") and (is_start or text.lower() == "latest"):
            return Position(PositionKind(text.lower()))
        if is_start and text.lower() == PositionKind.GROUP.value:
            return Position(PositionKind.GROUP, option=plain)
        offsets = parse_offsets(text)
        if any(offset < EARLIEST_OFFSET or (offset == EARLIEST_OFFSET and not is_start) for offset in offsets.values()):
            raise ValueError("offsets of 0 or more, -1 for the latest" + (", -2 for the earliest" if is_start else ""))
        return Position(PositionKind.OFFSETS, offsets, option=plain)

    position = options.parsed(plain, parse=parse, default=None)
    fails = is_start and (
        options.choice("startingOffsetsByTimestampStrategy", choices=("error", "latest"), default="error") == "error"
    )
    moment = options.parsed(at, parse=lambda text: _moment(text, now_ms), default=None)
    times = options.parsed(by_time, parse=_times, default=None)
    _only_one_of(options, (plain, by_time, at), f"the {'start' if is_start else 'end'}")
    if moment is not None:
        time_ms, moves = moment
        return Position(PositionKind.TIME, time_ms=time_ms, fail_if_no_message=fails, option=at, moves=moves)
    if times is not None:
        return Position(PositionKind.TIME, times, fail_if_no_message=fails, option=by_time)
    return position


def _check_order(options: OptionReader, start: Position | None, end: Position | None) -> None:
    """Add a problem if the end is before the start: the read would return nothing."""
    if start is None or end is None:
        return
    if start.time_ms is not None and end.time_ms is not None and start.time_ms > end.time_ms:
        options.add_problem(f"{end.option} is before {start.option}: swap them")
    if start.kind is end.kind is PositionKind.OFFSETS:
        for queue, offset in end.queues.items():
            if 0 <= offset < start.queues.get(queue, 0):
                options.add_problem(f"{end.option} of {queue} is {offset}, below {start.option}: swap them")


def _read_expression(options: OptionReader, kind: str) -> str:
    def parse(text: str) -> str:
        if kind == SQL92:
            return text
        if "expressionType" not in options and _SQL92_SIGNS.search(text):
            raise ValueError("tags such as 'paid || sent'; set expressionType=sql92 for a condition")
        try:
            return parse_tag_expression(text).text
        except TagExpressionError as error:
            raise ValueError(f"tags such as 'paid || sent' ({error})") from None

    assert kind in (TAG, SQL92)
    return options.parsed("subExpression", "tags", parse=parse, default=EVERY_TAG)


def _read_columns(options: OptionReader, *, legacy: bool, with_rejects: bool) -> tuple[str, ...]:
    by_name = {column.legacy_name if legacy else column.name: column.name for column in COLUMNS}
    by_name.pop("reject")

    def parse(text: str) -> tuple[str, ...]:
        names = list(by_name) if text.strip() == EVERY_COLUMN else _split_list(text)
        for name in names:
            if name not in by_name:
                near = get_close_matches(name, by_name, n=1)
                hint = f"did you mean {near[0]}?" if near else f"columns are {', '.join(by_name)}"
                raise ValueError(f"column names; {name} is not one: {hint}")
        return tuple(by_name[name] for name in names)

    with_properties = options.flag("includeProperties")
    default = tuple(
        column.name for column in COLUMNS if column.is_default or (with_properties and column.name == "properties")
    )
    columns = options.parsed("columns", parse=parse, default=default)
    return (*columns, "reject") if with_rejects else columns


def _split_list(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _checked(check: Callable[[str], None], text: str, what: str) -> str:
    try:
        check(text)
    except InvalidNameError as error:
        raise ValueError(f"{what} ({error})") from None
    return text


def _topics(text: str) -> tuple[str, ...]:
    return tuple(_checked(check_topic, name, "topic names separated by commas") for name in _split_list(text))


def _group(text: str) -> str:
    return _checked(check_group, text, "a consumer group")


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None
    return text


def _queues(text: str) -> tuple[QueueRef, ...]:
    example = 'JSON such as {"Orders": ["broker-a:0", "broker-a:1"]}'
    value = parse_json(text, example)
    if not isinstance(value, dict) or not all(isinstance(names, list) for names in value.values()) or not value:
        raise ValueError(example)
    return tuple(sorted({parse_queue(topic, str(name)) for topic, names in value.items() for name in names}))


def _moment(text: str, now_ms: int) -> tuple[int, bool]:
    """Return a time in milliseconds since 1970, and whether it counts from now."""
    if text.isascii() and text.isdigit():
        return _milliseconds(int(text)), False
    if text.startswith("-"):
        with suppress(ValueError):
            return max(0, now_ms - round(_duration(text[1:]) * 1000)), True
    with suppress(ValueError):
        found = datetime.fromisoformat(text)
        return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000), False
    raise ValueError(
        "milliseconds since 1970, a time such as 2026-11-15T11:00:00+08:00 (UTC without an offset), or -1h"
    )


def _milliseconds(number: int) -> int:
    if number in SECONDS:
        raise ValueError(f"milliseconds since 1970; {number} seconds are {number}000")
    if number > TIME_MS_MAX:
        raise ValueError("milliseconds since 1970, before the year 10000")
    return number


def _times(text: str) -> Offsets:
    return {queue: _milliseconds(number) for queue, number in parse_offsets(text).items()}


def _duration(text: str) -> float:
    match = re.fullmatch(r"([0-9]+)\s*(ms|s|m|min|h|d)", text.lower())
    if match is None:
        raise ValueError("a duration such as 30s, 15m or 1h")
    return int(match[1]) * _TIME_UNITS_S[match[2]]
