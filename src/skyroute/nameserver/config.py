"""Every setting of a name server, under Java's names at the edges and under ours inside.

A value comes from the built-in default, the properties file or the command line, the later winning. Millisecond values
keep Java's unit, because that is how they are listed and written back; the properties that end in `_s` are for use.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from skyroute.remoting.tls_settings import TlsSettings
from skyroute.settings.errors import BlackListedError, ConfigError
from skyroute.settings.files import replace_file
from skyroute.settings.keys import (
    ALIASES,
    INERT_SETTINGS,
    LONG_MAX,
    Scope,
    Setting,
    Value,
    key_of_field,
    parse_setting,
    setting,
    text_of,
)
from skyroute.settings.properties import format_properties, parse_properties, read_properties
from skyroute.settings.tls_keys import TlsValues, is_secret, is_tls_key, list_tls

log = logging.getLogger(__name__)

SERVER_MAX_CONNECTIONS = 50_000
UPDATE_CHARS_MAX = 1024 * 1024
"""Parsing happens between two requests; far more than all settings take, and still a matter of milliseconds."""

_ENVIRONMENT = {"ROCKETMQ_HOME": "rocketmqHome", "ROCKETMQ_SERIALIZE_TYPE": "rocketmq.serialize.type"}
_BLACK_LIST = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})
_COMMAND_LINE = "the command line"
_UPDATE = "the update"
_LINE_BREAKS = str.maketrans({"\n": "\\n", "\r": "\\r"})


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a container may run us under a user id that nobody has written down
        return Path.cwd()


@dataclass(frozen=True, slots=True)
class UpdatedConfig:
    """What an update did: the keys whose value is another now, and those of them that wait for a restart."""

    changed: frozenset[str]
    needs_restart: frozenset[str]


@dataclass(slots=True, kw_only=True)
class NameServerConfig:
    """The settings of one name server, which owns this object; a request reads the flags it needs when it needs them.

    The constructor takes values as they are and suits tests; `load` is for what people wrote.
    """

    rocketmq_home: str | None = setting(Scope.NAME_SERVER, default=None, kind=str)
    kv_config_path: str = setting(Scope.NAME_SERVER, default="", may_be_empty=False)
    config_store_path: str = setting(Scope.NAME_SERVER, default="", may_be_empty=False)
    product_env_name: str = setting(Scope.NAME_SERVER, default="center")
    cluster_test: bool = setting(Scope.NAME_SERVER, default=False)
    order_message_enable: bool = setting(Scope.NAME_SERVER, default=False, live=True)
    config_black_list: str = setting(Scope.NAME_SERVER, default="configBlackList;configStorePath;kvConfigPath")
    return_order_topic_config_to_broker: bool = setting(Scope.NAME_SERVER, default=True, live=True)
    scan_not_active_broker_interval: int = setting(Scope.NAME_SERVER, default=5000, at_least=1, at_most=LONG_MAX)
    support_acting_master: bool = setting(Scope.NAME_SERVER, default=False, live=True)
    enable_all_topic_list: bool = setting(Scope.NAME_SERVER, default=True, live=True)
    enable_topic_list: bool = setting(Scope.NAME_SERVER, default=True, live=True)
    notify_min_broker_id_changed: bool = setting(Scope.NAME_SERVER, default=False, live=True)
    enable_controller_in_namesrv: bool = setting(Scope.NAME_SERVER, default=False)
    need_wait_for_service: bool = setting(Scope.NAME_SERVER, default=False, live=True)
    wait_seconds_for_service: int = setting(Scope.NAME_SERVER, default=45, live=True)
    delete_topic_with_broker_registration: bool = setting(Scope.NAME_SERVER, default=False, live=True)

    bind_address: str = setting(Scope.SERVER, default="0.0.0.0", may_be_empty=False)
    listen_port: int = setting(Scope.SERVER, default=9876, at_most=65535)
    server_channel_max_idle_time_seconds: int = setting(Scope.SERVER, default=120)
    server_socket_snd_buf_size: int = setting(Scope.SERVER, default=0)
    server_socket_rcv_buf_size: int = setting(Scope.SERVER, default=0)
    write_buffer_high_water_mark: int = setting(Scope.SERVER, default=0)
    write_buffer_low_water_mark: int = setting(Scope.SERVER, default=0)
    server_socket_backlog: int = setting(Scope.SERVER, default=1024, at_least=1)
    enable_shutdown_gracefully: bool = setting(Scope.SERVER, default=False)
    shutdown_wait_time_seconds: int = setting(Scope.SERVER, default=30)

    frame_max_length: int = setting(Scope.OWN, default=16 * 1024 * 1024, at_least=1024)
    registration_max_length: int = setting(Scope.OWN, default=64 * 1024 * 1024, at_least=1024)
    """Frames longer than `frame_max_length` may be registrations only; their inflated bodies end here too."""
    server_max_connections: int = setting(Scope.OWN, default=SERVER_MAX_CONNECTIONS, at_least=1)
    server_buffered_bytes_max: int = setting(Scope.OWN, default=1024 * 1024 * 1024, at_least=1024, at_most=LONG_MAX)
    """All incomplete frames of all connections together."""
    prologue_timeout_seconds: int = setting(Scope.OWN, default=10, at_least=1)
    """How long a new connection may take to show what it speaks."""
    brokers_max: int = setting(Scope.OWN, default=20_000, at_least=1)
    topic_entries_max: int = setting(Scope.OWN, default=10_000_000, at_least=1)
    kv_config_max_bytes: int = setting(Scope.OWN, default=16 * 1024 * 1024, at_least=1024)

    connect_timeout_millis: int = setting(Scope.CLIENT, default=3000, at_least=1)
    use_tls: bool | None = setting(Scope.CLIENT, default=None, kind=bool)

    serialize_type: str = setting(Scope.SYSTEM, default="JSON", choices=("JSON", "ROCKETMQ"))

    tls: TlsSettings = field(default_factory=TlsSettings)
    inert: dict[str, str] = field(default_factory=dict)
    """Settings without meaning here that somebody set."""
    extras: dict[str, str] = field(default_factory=dict)
    """Settings that nobody knows, kept because the file has them."""

    _given: set[str] = field(default_factory=set, init=False, repr=False)
    _in_file: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    _black_list: frozenset[str] = field(default=frozenset(), init=False, repr=False)

    def __post_init__(self) -> None:
        self.kv_config_path = self.kv_config_path or str(_home() / "namesrv" / "kvConfig.json")
        self.config_store_path = self.config_store_path or str(_home() / "namesrv" / "namesrv.properties")
        self._remember_black_list()

    @classmethod
    def load(
        cls,
        path: str | None = None,
        *,
        options: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> "NameServerConfig":
        """Settings from a properties file, if one is named, and from options `key: value`, which win.

        Of the environment only `ROCKETMQ_HOME` and `ROCKETMQ_SERIALIZE_TYPE` count, and least.

        Raises:
            ConfigError: a file cannot be read or a value is wrong.
        """
        config = cls()
        environment = environment or {}
        config._take(
            {key: environment[name] for name, key in _ENVIRONMENT.items() if environment.get(name)}, "the environment"
        )
        if path is not None:
            config._in_file = read_properties(path)
            config._given |= config._take(config._in_file, path)
        config._given |= config._take(options or {}, _COMMAND_LINE)
        if path is not None:
            config.config_store_path = path
        tls = TlsValues()
        for properties, origin in ((config._in_file, str(path)), (options or {}, _COMMAND_LINE)):
            for key, text in properties.items():
                if is_tls_key(key):
                    tls.add(key, text.strip(), origin)
        tls.add_extra_file()
        config.tls = tls.settings(use_tls=config.use_tls)
        config._remember_black_list()
        config._say_what_has_no_effect()
        return config

    @property
    def scan_interval_s(self) -> float:
        """How often expired leases are looked for."""
        return self.scan_not_active_broker_interval / 1000

    @property
    def wait_for_service_s(self) -> float:
        """How long after the start routes are not yet given, where `need_wait_for_service` is set."""
        return float(self.wait_seconds_for_service)

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

    def render(self) -> str:
        """What a remote asker is told: lines `key=value` sorted by key, with values as they are.

        Settings of the client side appear only where somebody set them, and passwords never.
        """
        listed = self._list(everything=False)
        listed |= {key: text.strip() for key, text in self._in_file.items() if is_tls_key(key) and not is_secret(key)}
        return _format_lines(listed)

    def render_all(self) -> str:
        """What the operator at the command line is told: also the client side and TLS, with passwords hidden."""
        return _format_lines(self._list(everything=True) | list_tls(self.tls))

    def apply_update(self, text: str) -> UpdatedConfig:
        """Take new values from a properties text: all of them, on disk first, or none.

        Keys that are not listed by `render` are ignored.

        Raises:
            BlackListedError: a key may not be changed from afar.
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
        accepted = {key: value.strip() for key, value in properties.items() if key in before}
        if not accepted:
            return UpdatedConfig(frozenset(), frozenset())
        parsed = self._parse(accepted, _UPDATE)
        in_file = (self._in_file or self._stored()) | accepted
        replace_file(Path(self.config_store_path), format_properties(in_file).encode("ascii"))
        self._in_file = in_file
        self._apply(parsed)
        after = self._list(everything=False)
        changed = frozenset(key for key in accepted if after.get(key) != before[key])
        return UpdatedConfig(changed, frozenset(key for key in changed if key in _SETTINGS and not _SETTINGS[key].live))

    def _stored(self) -> dict[str, str]:
        """Return what earlier updates left in the file, where we did not start from it."""
        return read_properties(self.config_store_path) if Path(self.config_store_path).is_file() else {}

    def _take(self, properties: Mapping[str, str], origin: str) -> set[str]:
        """Set every value but those of TLS, and return the keys by their own names."""
        parsed = self._parse(properties, origin)
        self._apply(parsed)
        return set(parsed)

    def _parse(self, properties: Mapping[str, str], origin: str) -> dict[str, Value | None]:
        """The values by key, once each is allowed and all go together with what is set already."""
        parsed: dict[str, Value | None] = {}
        for key, untrimmed in _under_own_names(properties):
            text = untrimmed.strip()
            if key in _SETTINGS:
                parsed[key] = parse_setting(key, _SETTINGS[key], text, origin)
            elif key in INERT_SETTINGS:
                parsed[key] = parse_setting(key, INERT_SETTINGS[key][0], text, origin)
            elif not is_tls_key(key):
                parsed[key] = text
        self._check_together(parsed, origin)
        return parsed

    def _check_together(self, parsed: Mapping[str, Value | None], origin: str) -> None:
        if parsed.get("enableControllerInNamesrv"):
            raise ConfigError(
                f"enableControllerInNamesrv=true from {origin} cannot be served: there is no embedded controller here, "
                "run Apache RocketMQ's controller on its own"
            )
        high = int(parsed.get("writeBufferHighWaterMark", self.write_buffer_high_water_mark) or 0)
        low = int(parsed.get("writeBufferLowWaterMark", self.write_buffer_low_water_mark) or 0)
        # Zero stands for the default, and a mark counts only if the other is set as well.
        if 0 < high < low:
            raise ConfigError(
                f"writeBufferLowWaterMark={low} from {origin} is wrong: "
                f"it must not be above writeBufferHighWaterMark, which is {high}"
            )

    def _apply(self, parsed: Mapping[str, Value | None]) -> None:
        for key, value in parsed.items():
            if key in _FIELDS:
                setattr(self, _FIELDS[key], value)
            elif key in INERT_SETTINGS:
                self.inert[key] = text_of(value)
            else:
                self.extras[key] = text_of(value)

    def _list(self, *, everything: bool) -> dict[str, str]:
        listed = dict(self.extras)
        for key, (inert, default) in INERT_SETTINGS.items():
            if everything or inert.scope.always_listed or key in self._given:
                listed[key] = self.inert.get(key, text_of(default))
        for key, known in _SETTINGS.items():
            value = getattr(self, _FIELDS[key])
            if value is not None and (everything or known.scope.always_listed or key in self._given):
                listed[key] = text_of(value)
        return listed

    def _remember_black_list(self) -> None:
        configured = (key.strip() for key in self.config_black_list.split(";"))
        self._black_list = _BLACK_LIST | {key for key in configured if key}

    def _say_what_has_no_effect(self) -> None:
        if self.inert:
            log.warning("settings without meaning here are accepted keys=%s", ",".join(sorted(self.inert)))
        if self.extras:
            log.warning("unknown settings are kept without effect keys=%s", ",".join(sorted(self.extras)))


_SETTINGS: dict[str, Setting] = {
    key_of_field(each.name): each.metadata["setting"] for each in fields(NameServerConfig) if "setting" in each.metadata
}
_FIELDS = {key_of_field(each.name): each.name for each in fields(NameServerConfig) if "setting" in each.metadata}


def _under_own_names(properties: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Every entry with aliases replaced by what they stand for; a key under its own name wins."""
    for alias, keys in ALIASES.items():
        if alias in properties:
            yield from ((key, properties[alias]) for key in keys)
    yield from ((key, text) for key, text in properties.items() if key not in ALIASES)


def _format_lines(listed: Mapping[str, str]) -> str:
    # A value may hold a line break by way of an escape, and must not pass for another setting.
    return "".join(f"{key}={listed[key]}".translate(_LINE_BREAKS) + "\n" for key in sorted(listed))
