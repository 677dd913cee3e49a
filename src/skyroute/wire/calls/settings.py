"""Requests of operators: settings, key-value config, runtime state and statistics."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from skyroute.routing.registration import DataVersion
from skyroute.wire import fastjson
from skyroute.wire.calls.topics import read_body
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Int64, Request, Response
from skyroute.wire.data_version import version_members
from skyroute.wire.errors import FieldError
from skyroute.wire.fields import required_name
from skyroute.wire.queue_maps import write_legacy

# Java's reader ends a key at the first `=`, `:` or blank, and drops blanks before a value.
_SPECIAL_IN_NAME: Final = re.compile(r"[\\=:#! ]|[^ -~]")
_SPECIAL_IN_VALUE: Final = re.compile(r"\\|[^ -~]|^ ")


def encode_settings(settings: Mapping[str, str]) -> bytes:
    """Encode settings as Java properties."""
    lines = (
        f"{_SPECIAL_IN_NAME.sub(_escape, name)}={_SPECIAL_IN_VALUE.sub(_escape, value)}\n"
        for name, value in settings.items()
    )
    return "".join(lines).encode()


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def decode_settings(body: bytes) -> dict[str, str]:
    """Decode settings as servers write them: without escapes, one per line."""
    lines = (line.partition("=") for line in body.decode("utf-8", "replace").split("\n") if line.strip())
    return {name: value for name, _, value in sorted(lines)}


def encode_broker_settings_query() -> Request:
    """Encode a request for a broker's settings."""
    return Request(RequestCode.GET_BROKER_CONFIG)


def encode_broker_settings_update(settings: Mapping[str, str]) -> Request:
    """Encode an update of a broker's settings."""
    return Request(RequestCode.UPDATE_BROKER_CONFIG, body=encode_settings(settings))


def encode_settings_answer(text: str, version: DataVersion) -> Response:
    """Encode a broker's settings, which are lines of text, and their version."""
    return Response(fields={"version": write_legacy(version_members(version))}, body=text.encode("utf-8", "replace"))


def encode_name_server_settings_query() -> Request:
    """Encode a request for a name server's settings."""
    return Request(RequestCode.GET_NAMESRV_CONFIG)


def encode_name_server_settings_update(settings: Mapping[str, str]) -> Request:
    """Encode an update of a name server's settings."""
    return Request(RequestCode.UPDATE_NAMESRV_CONFIG, body=encode_settings(settings))


def encode_controller_settings_query() -> Request:
    """Encode a request for a controller's settings."""
    return Request(RequestCode.GET_CONTROLLER_CONFIG)


def encode_controller_settings_update(settings: Mapping[str, str]) -> Request:
    """Encode an update of a controller's settings."""
    return Request(RequestCode.UPDATE_CONTROLLER_CONFIG, body=encode_settings(settings))


# ------------------------------------------------------------------------------------------------ key-value config


def encode_kv_put(namespace: str, key: str, value: str) -> Request:
    """Encode a change of a value of the key-value config."""
    return Request(RequestCode.PUT_KV_CONFIG, {"namespace": namespace, "key": key, "value": value})


def encode_kv_query(namespace: str, key: str) -> Request:
    """Encode a request for a value of the key-value config."""
    return Request(RequestCode.GET_KV_CONFIG, {"namespace": namespace, "key": key})


def decode_kv_value(response: Response) -> str:
    """Decode a value of the key-value config.

    Raises:
        FieldError: it is missing.
    """
    value = (response.fields or {}).get("value")
    if value is None:  # an empty value is valid
        raise FieldError("value is required")
    return value


def encode_kv_deletion(namespace: str, key: str) -> Request:
    """Encode a deletion from the key-value config."""
    return Request(RequestCode.DELETE_KV_CONFIG, {"namespace": namespace, "key": key})


# --------------------------------------------------------------------------------------------------- broker's state


class _Table(msgspec.Struct):
    table: dict[str, str] = {}


def encode_broker_state_query() -> Request:
    """Encode a request for a broker's runtime state."""
    return Request(RequestCode.GET_BROKER_RUNTIME_INFO)


def decode_broker_state(body: bytes) -> dict[str, str]:
    """Decode a broker's runtime state: names and texts, sorted.

    Raises:
        BodyError: it is invalid.
    """
    return dict(sorted(read_body(body, _Table, "a broker's state").table.items()))


def encode_broker_state(state: Mapping[str, str]) -> Response:
    """Encode a broker's runtime state."""
    return Response(body=fastjson.dumps({"table": dict(state)}, fastjson.Dialect.LEGACY))


def encode_expired_log_deletion() -> Request:
    """Encode a request to delete expired commit log files now."""
    return Request(RequestCode.DELETE_EXPIRED_COMMITLOG)


def encode_expired_queues_cleaning() -> Request:
    """Encode a request to delete expired consume queue files."""
    return Request(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)


def encode_unused_topics_cleaning() -> Request:
    """Encode a request to delete consume queues of deleted topics."""
    return Request(RequestCode.CLEAN_UNUSED_TOPIC)


class StatsSpan(msgspec.Struct, frozen=True, rename={"average": "avgpt"}):
    """A statistic over a time span."""

    sum: Int64 = 0
    tps: float = 0.0
    average: float = 0.0


class BrokerStats(
    msgspec.Struct, frozen=True, rename={"minute": "statsMinute", "hour": "statsHour", "day": "statsDay"}
):
    """Statistics of one kind and key on one broker."""

    minute: StatsSpan = StatsSpan()
    hour: StatsSpan = StatsSpan()
    day: StatsSpan = StatsSpan()

    @property
    def sum_of_day(self) -> int:
        """The count of 24 hours, or of the longest known time span of a younger broker."""
        return self.day.sum or self.hour.sum or self.minute.sum


def encode_broker_stats_query(name: str, key: str) -> Request:
    """Encode a request for statistics."""
    return Request(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})


def decode_broker_stats(body: bytes) -> BrokerStats:
    """Decode statistics.

    Raises:
        BodyError: it is invalid.
    """
    return read_body(body, BrokerStats, "a broker's counts")


class StatsQuery(msgspec.Struct, frozen=True, gc=False):
    """Kind and key of statistics, with the names of Apache's tools."""

    name: str
    key: str


def decode_broker_stats_query(request: Request) -> StatsQuery:
    """Decode a request for statistics.

    Raises:
        FieldError: a field is missing.
    """
    return StatsQuery(required_name(request.fields, "statsName"), required_name(request.fields, "statsKey"))


def encode_broker_stats(stats: BrokerStats) -> Response:
    """Encode statistics."""
    return Response(body=msgspec.json.encode(stats))
