"""Settings of brokers and name servers, key-value config as its users see it, and what a broker says of its state."""

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

# Java's reader ends a name at the first of `=`, `:` and blank, and drops the blanks before a value.
_SPECIAL_IN_NAME: Final = re.compile(r"[\\=:#! ]|[^ -~]")
_SPECIAL_IN_VALUE: Final = re.compile(r"\\|[^ -~]|^ ")


def encode_settings(settings: Mapping[str, str]) -> bytes:
    """Write settings so that Java's reader of properties reads them back as they are."""
    lines = (
        f"{_SPECIAL_IN_NAME.sub(_escape, name)}={_SPECIAL_IN_VALUE.sub(_escape, value)}\n"
        for name, value in settings.items()
    )
    return "".join(lines).encode()


def _escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def decode_settings(body: bytes) -> dict[str, str]:
    """Read settings as servers write them, which is without any escapes: a value may hold anything but a line's end."""
    lines = (line.partition("=") for line in body.decode("utf-8", "replace").split("\n") if line.strip())
    return {name: value for name, _, value in sorted(lines)}


def encode_broker_settings_query() -> Request:
    """Ask a broker for its settings."""
    return Request(RequestCode.GET_BROKER_CONFIG)


def encode_broker_settings_update(settings: Mapping[str, str]) -> Request:
    """Change settings of a broker while it runs."""
    return Request(RequestCode.UPDATE_BROKER_CONFIG, body=encode_settings(settings))


def encode_settings_answer(text: str, version: DataVersion) -> Response:
    """Write a broker's settings, which are lines of text already, and their edition."""
    return Response(fields={"version": write_legacy(version_members(version))}, body=text.encode("utf-8", "replace"))


def encode_name_server_settings_query() -> Request:
    """Ask a name server for its settings."""
    return Request(RequestCode.GET_NAMESRV_CONFIG)


def encode_name_server_settings_update(settings: Mapping[str, str]) -> Request:
    """Change settings of a name server while it runs."""
    return Request(RequestCode.UPDATE_NAMESRV_CONFIG, body=encode_settings(settings))


# ------------------------------------------------------------------------------------------------ key-value config


def encode_kv_put(namespace: str, key: str, value: str) -> Request:
    """Have a name server keep a value."""
    return Request(RequestCode.PUT_KV_CONFIG, {"namespace": namespace, "key": key, "value": value})


def encode_kv_query(namespace: str, key: str) -> Request:
    """Ask a name server for a value."""
    return Request(RequestCode.GET_KV_CONFIG, {"namespace": namespace, "key": key})


def decode_kv_value(response: Response) -> str:
    """Read a value.

    Raises:
        FieldError: there is none.
    """
    value = (response.fields or {}).get("value")
    if value is None:  # it may well be empty
        raise FieldError("value is required")
    return value


def encode_kv_deletion(namespace: str, key: str) -> Request:
    """Have a name server forget a value."""
    return Request(RequestCode.DELETE_KV_CONFIG, {"namespace": namespace, "key": key})


# --------------------------------------------------------------------------------------------------- broker's state


class _Table(msgspec.Struct):
    table: dict[str, str] = {}


def encode_broker_state_query() -> Request:
    """Ask a broker how it is."""
    return Request(RequestCode.GET_BROKER_RUNTIME_INFO)


def decode_broker_state(body: bytes) -> dict[str, str]:
    """Read how a broker is: names and texts, sorted.

    Raises:
        BodyError: it cannot be read.
    """
    return dict(sorted(read_body(body, _Table, "a broker's state").table.items()))


def encode_broker_state(state: Mapping[str, str]) -> Response:
    """Write how a broker is."""
    return Response(body=fastjson.dumps({"table": dict(state)}, fastjson.Dialect.LEGACY))


def encode_expired_log_deletion() -> Request:
    """Have a broker drop the part of its log that is too old, whatever the hour."""
    return Request(RequestCode.DELETE_EXPIRED_COMMITLOG)


def encode_expired_queues_cleaning() -> Request:
    """Have a broker drop the files of queues whose messages are gone."""
    return Request(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)


def encode_unused_topics_cleaning() -> Request:
    """Have a broker drop the queues of topics that it no longer has."""
    return Request(RequestCode.CLEAN_UNUSED_TOPIC)


class StatsSpan(msgspec.Struct, frozen=True, rename={"average": "avgpt"}):
    """A count over a span of time."""

    sum: Int64 = 0
    tps: float = 0.0
    average: float = 0.0


class BrokerStats(
    msgspec.Struct, frozen=True, rename={"minute": "statsMinute", "hour": "statsHour", "day": "statsDay"}
):
    """How often something happened on one broker."""

    minute: StatsSpan = StatsSpan()
    hour: StatsSpan = StatsSpan()
    day: StatsSpan = StatsSpan()

    @property
    def sum_of_day(self) -> int:
        """The count of 24 hours; of a broker that has not run so long, of the longest span it knows."""
        return self.day.sum or self.hour.sum or self.minute.sum


def encode_broker_stats_query(name: str, key: str) -> Request:
    """Ask a broker how often something happened."""
    return Request(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})


def decode_broker_stats(body: bytes) -> BrokerStats:
    """Read how often something happened.

    Raises:
        BodyError: it cannot be read.
    """
    return read_body(body, BrokerStats, "a broker's counts")


class StatsQuery(msgspec.Struct, frozen=True, gc=False):
    """Which count is asked for, in the words of Apache's tools."""

    name: str
    key: str


def decode_broker_stats_query(request: Request) -> StatsQuery:
    """Read which count is asked for.

    Raises:
        FieldError: a field is missing.
    """
    return StatsQuery(required_name(request.fields, "statsName"), required_name(request.fields, "statsKey"))


def encode_broker_stats(stats: BrokerStats) -> Response:
    """Write how often something happened."""
    return Response(body=msgspec.json.encode(stats))
