"""Settings by their RocketMQ names: kind, bounds, unit, aliases, and the settings that are accepted without effect."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from skyroute.settings.errors import ConfigError
from skyroute.settings.secrets import HIDDEN, may_be_secret

T = TypeVar("T")
Value = str | int | bool
"""A value as properties files hold it."""
FieldValue = Value | float

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class Scope(Enum):
    """The Java class that has a setting, which decides where the setting is listed."""

    NAME_SERVER = "NamesrvConfig"
    BROKER = "BrokerConfig"
    STORE = "MessageStoreConfig"
    CONTROLLER = "ControllerConfig"
    SERVER = "NettyServerConfig"
    OWN = "Skyroute only"
    CLIENT = "NettyClientConfig"
    AUTH = "AuthConfig"
    SYSTEM = "Java system property"


class Unit(NamedTuple):
    """Converts between the number in a properties file and the value of a field."""

    to_field: Callable[[int], float]
    to_file: Callable[[float], int]


HOUR_MS: Final = 3_600_000
MS: Final = Unit(lambda ms: ms / 1000, lambda seconds: round(seconds * 1000))
"""Milliseconds in the file, seconds in the field."""
SECONDS: Final = Unit(float, round)
HOURS: Final = Unit(lambda hours: hours * HOUR_MS, lambda ms: int(ms) // HOUR_MS)
"""Hours in the file, milliseconds in the field."""
PERCENT: Final = Unit(lambda percent: percent / 100, lambda ratio: round(ratio * 100))
"""A percentage in the file, a ratio from 0 to 1 in the field."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What one setting may hold. Bounds are in the unit of the properties file."""

    scope: Scope
    kind: type
    at_least: int = 0
    at_most: int = INT_MAX
    choices: tuple[str, ...] = ()
    may_be_empty: bool = True
    optional: bool = False
    """Empty text means that it is not set."""
    live: bool = False
    """A change takes effect at once, without a restart."""
    key: str = ""
    unit: Unit | None = None
    """None: the field has the value of the file."""

    def field_value(self, value: Value | None) -> FieldValue | None:
        """Convert a value of the properties file to the value of the field."""
        return value if self.unit is None or value is None else self.unit.to_field(int(value))

    def file_value(self, value: FieldValue | None) -> Value | None:
        """Convert the value of the field to the value of the properties file."""
        if self.unit is not None and value is not None:
            return min(self.unit.to_file(float(value)), self.at_most)  # a float rounds the largest long up
        assert not isinstance(value, float), "a setting with fractions has a unit"
        return value

    @property
    def allowed(self) -> str:
        """Describe the accepted values for an error text."""
        if self.kind is bool:
            return "true or false"
        if self.kind is int:
            return f"a whole number from {self.at_least} to {self.at_most}"
        if self.choices:
            return " or ".join(self.choices)
        return "text on one line" if self.may_be_empty else "text on one line, not empty"

    def parse(self, text: str) -> Value | None:
        """Return the value of a trimmed text.

        Raises:
            ValueError: the text is not `allowed`.
        """
        if self.optional and not text:
            return None
        if self.kind is bool:
            return _parse_bool(text)
        if self.kind is int:
            return self._parse_int(text)
        if self.choices:
            return self._parse_choice(text)
        if not text.isprintable() or not (text or self.may_be_empty):
            raise ValueError(text)
        return text

    def _parse_int(self, text: str) -> int:
        # int() alone also accepts underscores, digits of other scripts and any length.
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", text, re.ASCII):
            raise ValueError(text)
        number = int(text)
        if not self.at_least <= number <= self.at_most:
            raise ValueError(text)
        return number

    def _parse_choice(self, text: str) -> str:
        for choice in self.choices:
            if choice.lower() == text.lower():
                return choice
        raise ValueError(text)


def _parse_bool(text: str) -> bool:
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ValueError(text)
    return lowered == "true"


def setting(
    key: str,
    scope: Scope,
    default: T,
    *,
    kind: type | None = None,
    unit: Unit | None = None,
    at_least: int = 0,
    at_most: int = INT_MAX,
    choices: tuple[str, ...] = (),
    may_be_empty: bool = True,
    live: bool = False,
) -> T:
    """Return a dataclass field for the setting `key`.

    The default is in the field's unit, the bounds are in the file's.
    """
    described = Setting(
        *(scope, kind or (int if unit else type(default)), at_least, at_most, choices),
        may_be_empty=may_be_empty,
        optional=default is None,
        live=live,
        key=key,
        unit=unit,
    )
    described_field: T = field(default=default, repr=not may_be_secret(key), metadata={"setting": described})
    return described_field


ALIASES = {
    "com.rocketmq.remoting.frameMaxLength": ("frameMaxLength",),
    "com.rocketmq.remoting.socket.sndbuf.size": ("serverSocketSndBufSize", "clientSocketSndBufSize"),
    "com.rocketmq.remoting.socket.rcvbuf.size": ("serverSocketRcvBufSize", "clientSocketRcvBufSize"),
    "com.rocketmq.remoting.socket.backlog": ("serverSocketBacklog",),
    "com.rocketmq.remoting.write.buffer.high.water.mark": ("writeBufferHighWaterMark",),
    "com.rocketmq.remoting.write.buffer.low.water.mark": ("writeBufferLowWaterMark",),
    "com.rocketmq.remoting.client.connect.timeout": ("connectTimeoutMillis",),
    "com.rocketmq.remoting.client.channel.maxIdleTimeSeconds": ("clientChannelMaxIdleTimeSeconds",),
    "com.rocketmq.remoting.client.closeSocketIfTimeout": ("clientCloseSocketIfTimeout",),
    "com.rocketmq.remoting.client.worker.size": ("clientWorkerThreads",),
    "com.rocketmq.remoting.clientAsyncSemaphoreValue": ("clientAsyncSemaphoreValue",),
    "com.rocketmq.remoting.clientOnewaySemaphoreValue": ("clientOnewaySemaphoreValue",),
    "rocketmq.home.dir": ("rocketmqHome",),
}
"""Java system properties that set the defaults of settings."""


InertSettings = dict[str, tuple[Setting, Value]]
"""Settings that are accepted, checked and listed, and have no effect; with their defaults."""


def inert_settings(scope: Scope, text: str) -> InertSettings:
    """Return the settings of a text `key=default key=default`. A value must be of the default's type."""
    known: InertSettings = {}
    for word in text.split():
        key, _, written = word.partition("=")
        default: Value = written
        if written in ("true", "false"):
            default = written == "true"
        elif re.fullmatch("-?(0|[1-9][0-9]*)", written):  # 05 is an hour of the day
            default = int(written)
        known[key] = Setting(scope, type(default), -LONG_MAX, LONG_MAX), default
    return known


INERT_SETTINGS: InertSettings = {
    **inert_settings(
        Scope.SERVER,
        "serverWorkerThreads=8 serverCallbackExecutorThreads=0 serverSelectorThreads=3 serverOnewaySemaphoreValue=256 "
        "serverAsyncSemaphoreValue=64 serverPooledByteBufAllocatorEnable=true useEpollNativeSelector=false "
        "serverNettyWorkerGroupEnable=true",
    ),
    **inert_settings(
        Scope.CLIENT,
        f"clientWorkerThreads=4 clientCallbackExecutorThreads={os.cpu_count() or 1} clientOnewaySemaphoreValue=65535 "
        "clientAsyncSemaphoreValue=65535 channelNotActiveInterval=60000 clientChannelMaxIdleTimeSeconds=120 "
        "clientSocketSndBufSize=0 clientSocketRcvBufSize=0 clientPooledByteBufAllocatorEnable=false "
        "clientCloseSocketIfTimeout=true disableCallbackExecutor=false disableNettyWorkerGroup=false "
        "socksProxyConfig={} maxReconnectIntervalTimeSeconds=60 enableReconnectForGoAway=true "
        "enableTransparentRetry=true scanAvailableNameSrv=true",
    ),
    **inert_settings(
        Scope.AUTH,
        "userCacheMaxNum=1000 userCacheExpiredSecond=600 userCacheRefreshSecond=60 aclCacheMaxNum=1000 "
        "aclCacheExpiredSecond=600 aclCacheRefreshSecond=60 statefulAuthenticationCacheMaxNum=10000 "
        "statefulAuthenticationCacheExpiredSecond=60 statefulAuthorizationCacheMaxNum=10000 "
        "statefulAuthorizationCacheExpiredSecond=60",
    ),
}
"""Settings for threads, selectors, allocators, pools and caches that our servers do not have, with their defaults.

Files written for Apache's servers contain them.
"""


def text_of(value: Value | None) -> str:
    """Return a value as Java writes it into a file; empty if it is not set."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_setting(key: str, known: Setting, text: str, origin: str) -> Value | None:
    """Return the value of a trimmed text.

    Raises:
        ConfigError: the value is not allowed; the text has the key, the value, the origin and what is allowed.
    """
    try:
        return known.parse(text)
    except ValueError as error:
        quoted = HIDDEN if may_be_secret(key) else repr(text[:80])
        raise ConfigError(f"{key}={quoted} from {origin} is wrong: it must be {known.allowed}") from error
