"""What the settings of every server have in common: where they come from, how they are listed, and how they change.

A value comes from the built-in default, the properties file or the command line, the later winning. Millisecond values
keep Java's unit, because that is how they are listed and written back; the properties that end in `_s` are for use.
"""

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Self

from skyroute.files.replace import replace_file
from skyroute.remoting.connection import Limits
from skyroute.remoting.tls_settings import TlsSettings
from skyroute.settings.errors import BlackListedError, ConfigError, StartOnlyError
from skyroute.settings.keys import (
    ALIASES,
    INERT_SETTINGS,
    LONG_MAX,
    InertSettings,
    Scope,
    Setting,
    Value,
    key_of_field,
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

_COMMAND_LINE = "the command line"
_UPDATE = "the update"
_LINE_BREAKS = str.maketrans({"\n": "\\n", "\r": "\\r"})


def home_folder() -> Path:
    """The user's own folder, or where we are."""
    try:
        return Path.home()
    except RuntimeError:  # a container may run us under a user id that nobody has written down
        return Path.cwd()


@dataclass(slots=True, kw_only=True)
class ServerConfig:
    """The settings of one server, which owns this object; a request reads the flags it needs when it needs them.

    The constructor takes values as they are and suits tests; `load` is for what people wrote.
    """

    ENVIRONMENT: ClassVar[Mapping[str, str]] = {
        "ROCKETMQ_HOME": "rocketmqHome",
        "ROCKETMQ_SERIALIZE_TYPE": "rocketmq.serialize.type",
    }
    """Variables that stand for settings, and count least."""
    INERT: ClassVar[InertSettings] = INERT_SETTINGS
    LISTED: ClassVar[frozenset[Scope]] = frozenset({Scope.SERVER, Scope.OWN})
    """What a remote asker is always told; the others are listed only where somebody set them."""
    FIXED: ClassVar[frozenset[str]] = frozenset({"configBlackList", "rocketmqHome"})
    """Keys that nobody may change from afar."""
    PATH_FIELD: ClassVar[str]
    """The field that says where updates are written."""

    rocketmq_home: str | None = setting(Scope.OWN, default=None, kind=str)
    config_black_list: str = setting(Scope.OWN, default="configBlackList")

    bind_address: str = setting(Scope.SERVER, default="0.0.0.0", may_be_empty=False)
    listen_port: int = setting(Scope.SERVER, default=0, at_most=65535)
    server_channel_max_idle_time_seconds: int = setting(Scope.SERVER, default=120)
    server_socket_snd_buf_size: int = setting(Scope.SERVER, default=0)
    server_socket_rcv_buf_size: int = setting(Scope.SERVER, default=0)
    write_buffer_high_water_mark: int = setting(Scope.SERVER, default=0)
    write_buffer_low_water_mark: int = setting(Scope.SERVER, default=0)
    server_socket_backlog: int = setting(Scope.SERVER, default=1024, at_least=1)
    enable_shutdown_gracefully: bool = setting(Scope.SERVER, default=False)
    shutdown_wait_time_seconds: int = setting(Scope.SERVER, default=30)

    frame_max_length: int = setting(Scope.OWN, default=16 * 1024 * 1024, at_least=1024)
    server_max_connections: int = setting(Scope.OWN, default=SERVER_MAX_CONNECTIONS, at_least=1)
    server_buffered_bytes_max: int = setting(Scope.OWN, default=1024 * 1024 * 1024, at_least=1024, at_most=LONG_MAX)
    """All incomplete frames of all connections together."""
    prologue_timeout_seconds: int = setting(Scope.OWN, default=10, at_least=1)
    """How long a new connection may take to show what it speaks."""

    trusted_proxies: str = setting(Scope.OWN, default="")
    """Addresses and networks of load balancers whose PROXY header is trusted, separated by commas."""

    metrics_port: int = setting(Scope.OWN, default=0, at_most=65535)
    """Where `/metrics`, `/livez` and `/readyz` are served; 0: nowhere."""
    metrics_host: str = setting(Scope.OWN, default="127.0.0.1", may_be_empty=False)
    """Nobody is asked who they are there, whatever TLS demands of peers: so it is this machine's own at first."""

    connect_timeout_millis: int = setting(Scope.CLIENT, default=3000, at_least=1)
    use_tls: bool | None = setting(Scope.CLIENT, default=None, kind=bool)

    serialize_type: str = setting(Scope.SYSTEM, default="JSON", choices=("JSON", "ROCKETMQ"))

    tls: TlsSettings = field(default_factory=TlsSettings)
    inert: dict[str, str] = field(default_factory=dict, repr=False)
    """Settings without meaning here that somebody set."""
    extras: dict[str, str] = field(default_factory=dict, repr=False)
    """Unknown settings of the file, which are preserved. Any of them may be a secret."""

    _given: set[str] = field(default_factory=set, init=False, repr=False)
    _in_file: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    _black_list: frozenset[str] = field(default=frozenset(), init=False, repr=False)

    def __post_init__(self) -> None:
        self._fill_in()
        self._remember_black_list()

    @classmethod
    def load(
        cls,
        path: str | None = None,
        *,
        options: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """Settings from a properties file, if one is named, and from options `key: value`, which win.

        Of the environment only the variables of `ENVIRONMENT` count, and least.

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
        config._settle()
        config._remember_black_list()
        config._say_what_has_no_effect()
        return config

    # For a kind of server to say more

    def _fill_in(self) -> None:
        """Give a value to settings whose default is found out and not written down."""

    def _settle(self) -> None:
        """Look at all that was loaded together."""

    def _refuse(self, parsed: Mapping[str, Value | None], origin: str) -> None:
        """Raise ConfigError for values that are well formed and cannot be served."""

    # For use

    @property
    def settings_path(self) -> Path:
        """Where updates from afar are kept."""
        return Path(str(getattr(self, self.PATH_FIELD)))

    @property
    def files_held(self) -> int:
        """How many files a server keeps open besides its connections."""
        return 0

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Where metrics are served; None for nowhere."""
        return (self.metrics_host, self.metrics_port) if self.metrics_port else None

    @property
    def idle_timeout_s(self) -> float | None:
        """After how long a silent connection is closed; None for never."""
        return float(self.server_channel_max_idle_time_seconds) or None

    @property
    def prologue_timeout_s(self) -> float:
        """How long a new connection may take to show what it speaks."""
        return float(self.prologue_timeout_seconds)

    @property
    def shutdown_wait_s(self) -> float:
        """How long a graceful stop waits for what is under way."""
        return float(self.shutdown_wait_time_seconds)

    @property
    def connect_timeout_s(self) -> float:
        """How long an outbound connection may take to open."""
        return self.connect_timeout_millis / 1000

    def limits(self, **more: Any) -> Limits:
        """What peers may take of us; `more` are other fields of `Limits`."""
        # As in Netty, the two marks count only together.
        if self.write_buffer_high_water_mark > 0 and self.write_buffer_low_water_mark > 0:
            more["write_high_bytes"] = self.write_buffer_high_water_mark
            more["write_low_bytes"] = self.write_buffer_low_water_mark
        return Limits(
            connections_max=self.server_max_connections,
            frame_bytes_max=self.frame_max_length,
            buffered_bytes_max=self.server_buffered_bytes_max,
            idle_s=self.idle_timeout_s or math.inf,
            opening_s=self.prologue_timeout_s,
            listen_backlog=self.server_socket_backlog,
            send_buffer_bytes=self.server_socket_snd_buf_size,
            receive_buffer_bytes=self.server_socket_rcv_buf_size,
            trusts_proxy=parse_networks(self.trusted_proxies).contains,
            **more,
        )

    def render(self) -> str:
        """Return the settings for a remote client: lines `key=value` sorted by key.

        Settings outside `LISTED` appear only if they are set. Values that may be secrets are hidden, and so are all
        values of unknown settings.
        """
        listed = self._list(everything=False)
        in_file = {key: text.strip() for key, text in self._in_file.items() if is_tls_key(key)}
        listed |= {key: text for key, text in in_file.items() if not may_be_secret(key)}
        return _format_lines(listed | {key: HIDDEN for key, text in self.extras.items() if text})

    def render_all(self) -> str:
        """Return all settings, TLS included, for the operator at the command line. Possible secrets are hidden."""
        return _format_lines(self._list(everything=True) | list_tls(self.tls))

    def apply_update(self, text: str) -> frozenset[str]:
        """Take new values from a properties text: all of them, on disk first, or none.

        Keys that `render` does not list are ignored, and so are hidden values sent back. The resulting file is checked
        as at a start. Returns the keys whose values have changed.

        Raises:
            BlackListedError: a key may not be changed from afar.
            StartOnlyError: a key takes effect only at the start.
            ConfigError: the text or a value in it is wrong.
            FileWriteError: the disk refused.
        """
        if len(text) > UPDATE_CHARS_MAX:
            raise ConfigError(f"an update has {len(text)} characters, at most {UPDATE_CHARS_MAX} are taken")
        properties = dict(_under_own_names(parse_properties(text)))
        # Whoever can reach the port must not be able to weaken the transport with the next restart.
        refused = frozenset(key for key in properties if key in self._black_list or key.startswith("tls."))
        if refused:
            raise BlackListedError(refused)

        before = self._list(everything=False)
        trimmed = {key: value.strip() for key, value in properties.items() if key in before}
        accepted = {key: value for key, value in trimmed.items() if value != HIDDEN}
        if not accepted:
            return frozenset()
        parsed = self._parse(accepted, _UPDATE)
        self._refuse_start_only(parsed, before)
        in_file = (self._in_file or self._stored()) | accepted
        self._check_start(in_file)
        replace_file(self.settings_path, format_properties(in_file).encode("ascii"))
        self._in_file = in_file
        self._apply(parsed)
        after = self._list(everything=False)
        return frozenset(key for key in accepted if after.get(key) != before[key])

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
        """Return what earlier updates left in the file, where we did not start from it."""
        return read_properties(self.settings_path) if self.settings_path.is_file() else {}

    def _take(self, properties: Mapping[str, str], origin: str) -> set[str]:
        """Set every value but those of TLS, and return the keys by their own names."""
        parsed = self._parse(properties, origin)
        self._apply(parsed)
        return set(parsed)

    def _parse(self, properties: Mapping[str, str], origin: str) -> dict[str, Value | None]:
        """The values by key, once each is allowed and all go together with what is set already."""
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
        self._check_proxies(parsed, origin)
        self._refuse(parsed, origin)
        return parsed

    def _check_water_marks(self, parsed: Mapping[str, Value | None], origin: str) -> None:
        high = int(parsed.get("writeBufferHighWaterMark", self.write_buffer_high_water_mark) or 0)
        low = int(parsed.get("writeBufferLowWaterMark", self.write_buffer_low_water_mark) or 0)
        # Zero stands for the default, and a mark counts only if the other is set as well.
        if 0 < high < low:
            raise ConfigError(
                f"writeBufferLowWaterMark={low} from {origin} is wrong: "
                f"it must not be above writeBufferHighWaterMark, which is {high}"
            )

    def _check_proxies(self, parsed: Mapping[str, Value | None], origin: str) -> None:
        text = str(parsed.get("trustedProxies", ""))
        try:
            parse_networks(text)
        except ValueError as error:
            raise ConfigError(
                f"trustedProxies={text[:80]!r} from {origin} is wrong: {error} "
                "(expected addresses and networks separated by commas, such as 10.0.0.5,192.168.0.0/16)"
            ) from None

    def _apply(self, parsed: Mapping[str, Value | None]) -> None:
        known = _known(type(self))
        for key, value in parsed.items():
            if key in known:
                setattr(self, known[key].field_name, value)
            elif key in self.INERT:
                self.inert[key] = text_of(value)
            else:
                self.extras[key] = text_of(value)

    def _list(self, *, everything: bool) -> dict[str, str]:
        listed = dict(self.extras)
        for key, (inert, default) in self.INERT.items():
            if everything or inert.scope in self.LISTED or key in self._given:
                listed[key] = self.inert.get(key, text_of(default))
        for key, known in _known(type(self)).items():
            value = getattr(self, known.field_name)
            if value is not None and (everything or known.setting.scope in self.LISTED or key in self._given):
                listed[key] = text_of(value)
        return listed

    def _remember_black_list(self) -> None:
        configured = (key.strip() for key in self.config_black_list.split(";"))
        self._black_list = self.FIXED | {key for key in configured if key}

    def _say_what_has_no_effect(self) -> None:
        if self.inert:
            log.warning("settings without meaning here are accepted keys=%s", ",".join(sorted(self.inert)))
        if self.extras:
            log.warning("unknown settings are kept without effect keys=%s", ",".join(sorted(self.extras)))


class _Known(NamedTuple):
    field_name: str
    setting: Setting


_known_of: dict[type[ServerConfig], dict[str, _Known]] = {}


def _known(kind: type[ServerConfig]) -> dict[str, _Known]:
    """Every setting with a meaning, by its Java key."""
    if kind not in _known_of:
        _known_of[kind] = {
            key_of_field(each.name): _Known(each.name, each.metadata["setting"])
            for each in fields(kind)
            if "setting" in each.metadata
        }
    return _known_of[kind]


def _under_own_names(properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Every entry with aliases replaced by what they stand for; a key under its own name wins."""
    for alias, keys in ALIASES.items():
        if alias in properties:
            yield from ((key, properties[alias]) for key in keys)
    yield from ((key, text) for key, text in properties.items() if key not in ALIASES)


def _format_lines(listed: Mapping[str, str]) -> str:
    # A value may hold a line break by way of an escape, and must not pass for another setting.
    return "".join(f"{key}={shown(key, listed[key])}".translate(_LINE_BREAKS) + "\n" for key in sorted(listed))
