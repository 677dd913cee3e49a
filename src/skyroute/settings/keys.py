"""What Java's setting names mean here: kinds, bounds, other spellings, and those that are accepted without effect."""

import os
import re
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from skyroute.settings.errors import ConfigError
from skyroute.settings.secrets import HIDDEN, may_be_secret

T = TypeVar("T")
Value = str | int | bool

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class Scope(Enum):
    """Whose setting it is, which decides where it is listed."""

    NAME_SERVER = "NamesrvConfig"
    BROKER = "BrokerConfig"
    STORE = "MessageStoreConfig"
    SERVER = "NettyServerConfig"
    OWN = "ours alone"
    CLIENT = "NettyClientConfig"
    SYSTEM = "a property of the Java machine"


@dataclass(frozen=True, slots=True)
class Setting:
    """What one setting may hold."""

    scope: Scope
    kind: type
    at_least: int = 0
    at_most: int = INT_MAX
    choices: tuple[str, ...] = ()
    may_be_empty: bool = True
    optional: bool = False
    """Empty text means that it is not set."""
    live: bool = False
    """It is read for every request, so that a change takes effect at once."""

    @property
    def allowed(self) -> str:
        """What a value must be, as a phrase for people."""
        if self.kind is bool:
            return "true or false"
        if self.kind is int:
            return f"a whole number from {self.at_least} to {self.at_most}"
        if self.choices:
            return " or ".join(self.choices)
        return "text on one line" if self.may_be_empty else "text on one line, not empty"

    def parse(self, text: str) -> Value | None:
        """The value of a text that was already trimmed.

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
        # Narrower than int(), which takes underscores, inner signs of other scripts and any length.
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
    scope: Scope,
    *,
    default: T,
    kind: type | None = None,
    at_least: int = 0,
    at_most: int = INT_MAX,
    choices: tuple[str, ...] = (),
    may_be_empty: bool = True,
    live: bool = False,
) -> T:
    """A dataclass field that is a setting; its name is the Java key in snake case."""
    described = Setting(
        scope,
        kind or type(default),
        at_least,
        at_most,
        choices,
        may_be_empty=may_be_empty,
        optional=default is None,
        live=live,
    )
    described_field: T = field(default=default, metadata={"setting": described})
    return described_field


_KEY_EXCEPTIONS = {
    "use_tls": "useTLS",
    "serialize_type": "rocketmq.serialize.type",
    "broker_ip1": "brokerIP1",
    "broker_ip2": "brokerIP2",
}


def key_of_field(name: str) -> str:
    """`listen_port` to `listenPort`, save for the few keys that Java spells against its own rule."""
    if name in _KEY_EXCEPTIONS:
        return _KEY_EXCEPTIONS[name]
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)


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
"""Properties of the Java machine that stand behind the defaults of settings."""


InertSettings = dict[str, tuple[Setting, Value]]
"""Settings that are accepted, checked and listed, and do nothing; with their defaults."""


def inert_settings(scope: Scope, text: str) -> InertSettings:
    """The settings of a text of words `key=default`; what the default is says what a value must be."""
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
}
"""Settings that steer threads, selectors, allocators and pools which no server of ours has, with their defaults.

Operators' files contain them, so they are accepted, checked and listed.
"""


def text_of(value: Value | None) -> str:
    """A value as Java writes it into a file; one that is not set is empty."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_setting(key: str, known: Setting, text: str, origin: str) -> Value | None:
    """The value of a trimmed text.

    Raises:
        ConfigError: it is not allowed; the text names the key, the value, what is allowed and the origin.
    """
    try:
        return known.parse(text)
    except ValueError as error:
        said = HIDDEN if may_be_secret(key) else repr(text[:80])
        raise ConfigError(f"{key}={said} from {origin} is wrong: it must be {known.allowed}") from error
