"""The settings of a server: load them, list them, change them at run time.

A value comes from the built-in default, the environment, the properties file or the command line; the last one wins.
Files and lists have RocketMQ's names and units, fields have ours. `Setting.field_value` and `file_value` convert.
"""

import asyncio
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self

from skyroute.files.replace import replace_file
from skyroute.remoting.client_meters import ClientLimits
from skyroute.remoting.limits import Limits
from skyroute.remoting.tls_settings import TlsSettings
from skyroute.settings.access_keys import AccessConfig, check_access
from skyroute.settings.errors import BlackListedError, ConfigError, StartOnlyError
from skyroute.settings.keys import (
    ALIASES,
    INERT_SETTINGS,
    LONG_MAX,
    MS,
    SECONDS,
    InertSettings,
    Scope,
    Setting,
    Value,
    parse_setting,
    setting,
    text_of,
)
from skyroute.settings.networks import parse_networks
from skyroute.settings.properties import format_properties, parse_properties, read_properties
from skyroute.settings.secrets import HIDDEN, may_be_secret, shown
from skyroute.settings.tls_keys import TlsValues, is_tls_key, list_tls

log = logging.getLogger(__name__)

SERVER_MAX_CONNECTIONS: Final = 50_000
UPDATE_CHARS_MAX: Final = 64 * 1024

"""Parsing happens between two requests. All settings take 13 KB; this much takes about 10 ms."""

Changes = Mapping[str, tuple[str | None, str | None]]
"""Keys of changed settings to what clients may read of their values, before and after."""

_CHECKED_FOR_SPELLING: Final = 20
_SIMILAR: Final = 0.85
"""Unknown keys that are compared with known ones, each a millisecond; and how similar two must be."""

_COMMAND_LINE = "the command line"
_UPDATE = "the update"
_LINE_BREAKS = str.maketrans({"\n": "\\n", "\r": "\\r"})


def home_folder() -> Path:
    """Return the user's home folder, or the current folder if there is none."""
    try:
        return Path.home()
    except RuntimeError:  # a container may run us under a user id without an entry in /etc/passwd
        return Path.cwd()


@dataclass(slots=True, kw_only=True)
class ServerConfig(AccessConfig):
    """The settings of one server. The server owns this object; handlers read live settings at each request.

    The constructor takes values in the units of the fields, unchecked. `load` takes text and checks it.
    """

    ENVIRONMENT: ClassVar[Mapping[str, str]] = {
        "ROCKETMQ_HOME": "rocketmqHome",
        "ROCKETMQ_SERIALIZE_TYPE": "rocketmq.serialize.type",
        "SKYROUTE_CREDENTIALS_FILE": "innerClientAuthenticationCredentialsFile",
        "SKYROUTE_INIT_USER_FILE": "initAuthenticationUserFile",
    }
    """Environment variables that set settings, with the lowest priority."""
    INERT: ClassVar[InertSettings] = INERT_SETTINGS
    LISTED: ClassVar[frozenset[Scope]] = frozenset({Scope.SERVER, Scope.OWN})
    """Scopes that a remote client is always shown; settings of other scopes are listed only if they are set."""
    FIXED: ClassVar[frozenset[str]] = frozenset(
        {"configBlackList", "rocketmqHome", *(each.metadata["setting"].key for each in fields(AccessConfig))}
    )
    """Keys that cannot be changed remotely."""
    PATH_FIELD: ClassVar[str]
    """Name of the field with the path to which updates are written."""

    rocketmq_home: str | None = setting("rocketmqHome", Scope.OWN, None, kind=str)
    config_black_list: str = setting("configBlackList", Scope.OWN, "configBlackList")

    bind_address: str = setting("bindAddress", Scope.SERVER, "0.0.0.0", may_be_empty=False)
    listen_port: int = setting("listenPort", Scope.SERVER, 0, at_most=65535)
    idle_timeout_s: float = setting("serverChannelMaxIdleTimeSeconds", Scope.SERVER, 120.0, unit=SECONDS)
    send_buffer_bytes: int = setting("serverSocketSndBufSize", Scope.SERVER, 0)
    receive_buffer_bytes: int = setting("serverSocketRcvBufSize", Scope.SERVER, 0)
    write_high_bytes: int = setting("writeBufferHighWaterMark", Scope.SERVER, 0)
    write_low_bytes: int = setting("writeBufferLowWaterMark", Scope.SERVER, 0)
    listen_backlog: int = setting("serverSocketBacklog", Scope.SERVER, 1024, at_least=1)
    graceful_shutdown: bool = setting("enableShutdownGracefully", Scope.SERVER, False)
    shutdown_wait_s: float = setting("shutdownWaitTimeSeconds", Scope.SERVER, 30.0, unit=SECONDS)

    frame_bytes_max: int = setting("frameMaxLength", Scope.OWN, 16 * 1024 * 1024, at_least=1024)
    connections_max: int = setting("serverMaxConnections", Scope.OWN, SERVER_MAX_CONNECTIONS, at_least=1)
    buffered_bytes_max: int = setting(
        "serverBufferedBytesMax", Scope.OWN, 1024 * 1024 * 1024, at_least=1024, at_most=LONG_MAX
    )
    """Bytes of incomplete frames, over all connections."""
    prologue_timeout_s: float = setting("prologueTimeoutSeconds", Scope.OWN, 10.0, unit=SECONDS, at_least=1)
    """Time for the first bytes of a new connection, which show whether it uses PROXY or TLS."""

    address_connections_max: int = setting("addressConnectionsMax", Scope.OWN, 0)
    """Connections of one client address; 0: no limit, as for the next four."""
    address_handshakes_max: int = setting("addressHandshakesMax", Scope.OWN, 0)
    """Connections of one client address that have sent no request yet."""
    address_requests_per_s: int = setting("addressRequestsPerSecond", Scope.OWN, 0)
    address_bytes_per_s: int = setting("addressBytesPerSecond", Scope.OWN, 0, at_most=LONG_MAX)
    limit_exempt_addresses: str = setting("limitExemptAddresses", Scope.OWN, "")
    """Addresses and networks without these limits, separated by commas."""

    trusted_proxies: str = setting("trustedProxies", Scope.OWN, "")
    """Addresses and networks of load balancers whose PROXY header is trusted, separated by commas."""

    metrics_port: int = setting("metricsPort", Scope.OWN, 0, at_most=65535)
    """Port of `/metrics`, `/livez` and `/readyz`; 0: not served."""
    metrics_host: str = setting("metricsHost", Scope.OWN, "127.0.0.1", may_be_empty=False)
    """Loopback by default, because these pages require no authentication."""

    connect_timeout_s: float = setting("connectTimeoutMillis", Scope.CLIENT, 3.0, unit=MS, at_least=1)
    use_tls: bool | None = setting("useTLS", Scope.CLIENT, None, kind=bool)

    serialize_type: str = setting("rocketmq.serialize.type", Scope.SYSTEM, "JSON", choices=("JSON", "ROCKETMQ"))

    tls: TlsSettings = field(default_factory=TlsSettings)
    inert: dict[str, str] = field(default_factory=dict, repr=False)
    """Settings without effect that are set."""
    extras: dict[str, str] = field(default_factory=dict, repr=False)
    """Unknown settings of the file, which are preserved. Each may be a secret."""

    _given: set[str] = field(default_factory=set, init=False, repr=False)
    _in_file: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    _black_list: frozenset[str] = field(default=frozenset(), init=False, repr=False)
    _updating: asyncio.Lock = field(default_factory=asyncio.Lock, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._set_machine_defaults()
        self._remember_black_list()

    @classmethod
    def load(
        cls,
        path: str | None = None,
        *,
        options: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """Load settings from a properties file, if a path is given, and from `options`, which win.

        Of the environment, only the variables in `ENVIRONMENT` are read, with the lowest priority.

        Raises:
            ConfigError: a file cannot be read or a value is wrong.
        """
        config = cls()
        environment = environment or {}
        config._take(
            {key: environment[name] for name, key in cls.ENVIRONMENT.items() if environment.get(name)},
            "the environment",
        )
        if path is not None:
            config._in_file = read_properties(path)
            config._given |= config._take(config._in_file, path)
        config._given |= config._take(options or {}, _COMMAND_LINE)
        if path is not None:
            setattr(config, cls.PATH_FIELD, path)
        tls = TlsValues()
        for properties, origin in ((config._in_file, str(path)), (options or {}, _COMMAND_LINE)):
            for key, text in properties.items():
                if is_tls_key(key):
                    tls.add(key, text.strip(), origin)
        tls.add_extra_file()
        config.tls = tls.settings(use_tls=config.use_tls)
        config._remember_black_list()
        config._warn_of_settings_without_effect()
        return config

    # Subclasses override these

    def _set_machine_defaults(self) -> None:
        """Set the defaults that depend on the machine."""

    def _check_supported(self, parsed: Mapping[str, Value | None], origin: str) -> None:
        """Raise ConfigError for valid values that this server does not support."""

    def _belongs_to_another_server(self, key: str) -> bool:
        """Return whether an unknown key is a setting of another server that reads the same file."""
        return False

    # For use

    @property
    def settings_path(self) -> Path:
        """File to which remote updates are written."""
        return Path(str(getattr(self, self.PATH_FIELD)))

    @property
    def files_held(self) -> int:
        """Number of files a server keeps open besides its connections."""
        return 0

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Address of the metrics pages; None if they are not served."""
        return (self.metrics_host, self.metrics_port) if self.metrics_port else None

    def limits(self, **more: Any) -> Limits:
        """Return the limits for connections; `more` are other fields of `Limits`."""
        # As in Netty, the two marks have an effect only together.
        if self.write_high_bytes > 0 and self.write_low_bytes > 0:
            more["write_high_bytes"] = self.write_high_bytes
            more["write_low_bytes"] = self.write_low_bytes
        return Limits(
            connections_max=self.connections_max,
            frame_bytes_max=self.frame_bytes_max,
            buffered_bytes_max=self.buffered_bytes_max,
            idle_s=self.idle_timeout_s or math.inf,
            opening_s=self.prologue_timeout_s,
            listen_backlog=self.listen_backlog,
            send_buffer_bytes=self.send_buffer_bytes,
            receive_buffer_bytes=self.receive_buffer_bytes,
            trusts_proxy=parse_networks(self.trusted_proxies).contains,
            clients=ClientLimits(
                connections_max=self.address_connections_max,
                handshakes_max=self.address_handshakes_max,
                requests_per_s=self.address_requests_per_s,
                bytes_per_s=self.address_bytes_per_s,
                is_exempt=parse_networks(self.limit_exempt_addresses).contains,
            ),
            **more,
        )

    def render(self) -> str:
        """Return the settings for a remote client: lines `key=value` sorted by key.

        Settings outside `LISTED` appear only if they are set. Values that may be secrets are hidden, and so are all
        values of unknown settings.
        """
        return _format_lines(self._readable())

    def render_all(self) -> str:
        """Return all settings, TLS included, for the operator at the command line. Possible secrets are hidden."""
        return _format_lines(self._list(everything=True) | list_tls(self.tls))

    def log_settings(self) -> None:
        """Log each setting that has an effect or is set, as Apache's servers do at the start. Secrets are hidden."""
        listed = self._list(everything=True) | list_tls(self.tls) | dict.fromkeys(self.extras, HIDDEN)
        known = {key: text for key, text in listed.items() if key not in self.INERT or key in self.inert}
        for line in _format_lines(known).splitlines():
            log.info("setting %s", line)

    async def apply_update(self, text: str) -> Changes:
        """Apply new values from a properties text: all of them, to the file first, or none. One update at a time.

        Keys that `render` does not list are ignored, and so are hidden values that are sent back. The resulting file
        is checked as at a start. Returns the values that have changed.

        Raises:
            BlackListedError: a key cannot be changed remotely.
            StartOnlyError: a key takes effect only at the start.
            ConfigError: the text or a value in it is wrong.
            FileWriteError: the file could not be written.
        """
        async with self._updating:
            return await self._apply_update(text)

    async def _apply_update(self, text: str) -> Changes:
        if len(text) > UPDATE_CHARS_MAX:
            raise ConfigError(f"the update has {len(text)} characters (expected at most {UPDATE_CHARS_MAX})")
        properties = dict(_under_own_names(parse_properties(text)))
        # A client that reaches the port must not weaken TLS for the next start.
        refused = frozenset(
            key
            for key, value in properties.items()
            if (key in self._black_list and value.strip() != HIDDEN) or key.startswith("tls.")
        )
        if refused:
            raise BlackListedError(refused)

        before = self._list(everything=False)
        trimmed = {key: value.strip() for key, value in properties.items() if key in before}
        accepted = {key: value for key, value in trimmed.items() if value != HIDDEN}
        if not accepted:
            return {}
        parsed = self._parse(accepted, _UPDATE)
        self._refuse_start_only(parsed, before)
        in_file = self._stored() | accepted
        self._check_start(in_file)
        content = format_properties(in_file).encode("ascii")
        await asyncio.to_thread(replace_file, self.settings_path, content)
        readable_before = self._readable()
        self._in_file = in_file
        self._apply(parsed)
        after, readable = self._list(everything=False), self._readable()
        changed = sorted(key for key in accepted if after.get(key) != before[key])
        return {key: (readable_before.get(key), readable.get(key)) for key in changed}

    @classmethod
    def _check_start(cls, in_file: Mapping[str, str]) -> None:
        """Check that the next start accepts these settings."""
        config = cls()
        config._take(in_file, _UPDATE)

    def _refuse_start_only(self, parsed: Mapping[str, Value | None], before: Mapping[str, str]) -> None:
        known = _known(type(self))
        for key, value in parsed.items():
            if key in known and not known[key].setting.live and text_of(value) != before[key]:
                wanted, stays = shown(key, text_of(value)), shown(key, before[key])
                raise StartOnlyError(
                    f"{key}={wanted[:80]} is refused, it stays {stays[:80]}: this setting takes effect"
                    " only at the start; edit the file that the server is started with (-c), and restart it"
                )

    def _stored(self) -> dict[str, str]:
        """Return the settings of the file, which another server of this process may have updated."""
        return read_properties(self.settings_path) if self.settings_path.is_file() else self._in_file

    def _take(self, properties: Mapping[str, str], origin: str) -> set[str]:
        """Set every value except TLS settings; return the keys with aliases replaced."""
        parsed = self._parse(properties, origin)
        self._apply(parsed)
        return set(parsed)

    def _parse(self, properties: Mapping[str, str], origin: str) -> dict[str, Value | None]:
        """Return the values by key, checked one by one and against the values that are set already."""
        known = _known(type(self))
        parsed: dict[str, Value | None] = {}
        for key, untrimmed in _under_own_names(properties):
            text = untrimmed.strip()
            if key in known:
                parsed[key] = parse_setting(key, known[key].setting, text, origin)
            elif key in self.INERT:
                parsed[key] = parse_setting(key, self.INERT[key][0], text, origin)
            elif not is_tls_key(key):
                parsed[key] = text
        self._check_water_marks(parsed, origin)
        self._check_networks(parsed, origin)
        check_access(parsed, origin)
        self._check_supported(parsed, origin)
        return parsed

    def _check_water_marks(self, parsed: Mapping[str, Value | None], origin: str) -> None:
        high = int(parsed.get("writeBufferHighWaterMark", self.write_high_bytes) or 0)
        low = int(parsed.get("writeBufferLowWaterMark", self.write_low_bytes) or 0)
        # Zero means the default, and a mark has an effect only if the other is set as well.
        if 0 < high < low:
            raise ConfigError(
                f"writeBufferLowWaterMark={low} from {origin} is wrong: "
                f"it must not be above writeBufferHighWaterMark, which is {high}"
            )

    def _check_networks(self, parsed: Mapping[str, Value | None], origin: str) -> None:
        for key in ("trustedProxies", "limitExemptAddresses"):
            text = str(parsed.get(key, ""))
            try:
                parse_networks(text)
            except ValueError as error:
                raise ConfigError(
                    f"{key}={text[:80]!r} from {origin} is wrong: {error} "
                    "(expected addresses and networks separated by commas, such as 10.0.0.5,192.168.0.0/16)"
                ) from None

    def _apply(self, parsed: Mapping[str, Value | None]) -> None:
        known = _known(type(self))
        for key, value in parsed.items():
            if key in known:
                setattr(self, known[key].field_name, known[key].setting.field_value(value))
            elif key in self.INERT:
                self.inert[key] = text_of(value)
            else:
                self.extras[key] = text_of(value)

    def _readable(self) -> dict[str, str]:
        """Return what a remote client may read."""
        listed = self._list(everything=False)
        in_file = {key: text.strip() for key, text in self._in_file.items() if is_tls_key(key)}
        listed |= {key: text for key, text in in_file.items() if not may_be_secret(key)}
        return listed | {key: HIDDEN for key, text in self.extras.items() if text}

    def _list(self, *, everything: bool) -> dict[str, str]:
        listed = dict(self.extras)
        for key, (inert, default) in self.INERT.items():
            if everything or inert.scope in self.LISTED or key in self._given:
                listed[key] = self.inert.get(key, text_of(default))
        for key, known in _known(type(self)).items():
            value = known.setting.file_value(getattr(self, known.field_name))
            if value is not None and (everything or known.setting.scope in self.LISTED or key in self._given):
                listed[key] = text_of(value)
        return listed

    def _remember_black_list(self) -> None:
        configured = (key.strip() for key in self.config_black_list.split(";"))
        self._black_list = self.FIXED | {key for key in configured if key}

    def _warn_of_settings_without_effect(self) -> None:
        if self.inert:
            log.warning("settings without effect keys=%s", ",".join(sorted(self.inert)))
        unknown = sorted(key for key in self.extras if not self._belongs_to_another_server(key))
        if unknown:
            log.warning("unknown settings, kept without effect keys=%s", ",".join(unknown))
        for key in unknown[:_CHECKED_FOR_SPELLING]:
            if similar := get_close_matches(key, _known(type(self)), n=1, cutoff=_SIMILAR):
                log.warning("setting may be misspelled key=%s similar=%s", key, similar[0])


class _Known(NamedTuple):
    field_name: str
    setting: Setting


_known_of: dict[type[ServerConfig], dict[str, _Known]] = {}


def _known(kind: type[ServerConfig]) -> dict[str, _Known]:
    """Return every setting with a field, by its RocketMQ name."""
    if kind not in _known_of:
        _known_of[kind] = {
            described.key: _Known(each.name, described)
            for each in fields(kind)
            if (described := each.metadata.get("setting"))
        }
    return _known_of[kind]


def _under_own_names(properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Give every entry with aliases replaced; a key under its own name wins."""
    for alias, keys in ALIASES.items():
        if alias in properties:
            yield from ((key, properties[alias]) for key in keys)
    yield from ((key, text) for key, text in properties.items() if key not in ALIASES)


def _format_lines(listed: Mapping[str, str]) -> str:
    # An escaped line break in a value must not look like another setting.
    return "".join(f"{key}={shown(key, listed[key])}".translate(_LINE_BREAKS) + "\n" for key in sorted(listed))
