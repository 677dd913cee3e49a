"""The `tls.*` settings, from properties files, options and the file that `tls.config.file` names."""

import logging
from collections.abc import Mapping
from pathlib import Path

from skyroute.remoting.tls_settings import ClientAuth, TlsClientSettings, TlsMode, TlsSettings
from skyroute.settings.keys import Scope, Setting, Value, parse_setting, text_of
from skyroute.settings.properties import read_properties
from skyroute.settings.secrets import HIDDEN

log = logging.getLogger(__name__)

CONFIG_FILE_KEY = "tls.config.file"
CONFIG_FILE_DEFAULT = "/etc/rocketmq/tls.properties"

_MODE_KEY = "tls.server.mode"
_ENABLE_KEY = "tls.enable"
_FLAG = Setting(Scope.SYSTEM, bool)
_TEXT = Setting(Scope.SYSTEM, str)
_SETTINGS = {
    _MODE_KEY: Setting(Scope.SYSTEM, str, choices=tuple(TlsMode)),
    _ENABLE_KEY: _FLAG,
    CONFIG_FILE_KEY: _TEXT,
    "tls.test.mode.enable": _FLAG,
    "tls.server.need.client.auth": Setting(Scope.SYSTEM, str, choices=tuple(ClientAuth)),
    "tls.server.keyPath": _TEXT,
    "tls.server.keyPassword": _TEXT,
    "tls.server.certPath": _TEXT,
    "tls.server.authClient": _FLAG,
    "tls.server.trustCertPath": _TEXT,
    "tls.client.keyPath": _TEXT,
    "tls.client.keyPassword": _TEXT,
    "tls.client.certPath": _TEXT,
    "tls.client.authServer": _FLAG,
    "tls.client.trustCertPath": _TEXT,
}
# The extra file cannot turn TLS on or off, nor name another file.
_NOT_FROM_EXTRA_FILE = frozenset({_MODE_KEY, _ENABLE_KEY, CONFIG_FILE_KEY})


def is_tls_key(key: str) -> bool:
    """Return whether `TlsValues.add` accepts this key."""
    return key in _SETTINGS


class TlsValues:
    """Collects `tls.*` values from several sources, of which the last wins, into `TlsSettings`."""

    def __init__(self) -> None:
        self._values: dict[str, Value | None] = {}

    def add(self, key: str, text: str, origin: str) -> None:
        """Add a value; an empty text removes it.

        Raises:
            ConfigError: the value is not allowed.
        """
        if not text:
            self._values.pop(key, None)
            return
        self._values[key] = parse_setting(key, _SETTINGS[key], text, origin)

    def add_extra_file(self) -> None:
        """Add the values of the file that `tls.config.file` names, if it exists.

        Raises:
            ConfigError: the file cannot be read, or a value is wrong.
        """
        path = self._text(CONFIG_FILE_KEY) or CONFIG_FILE_DEFAULT
        if not Path(path).exists():
            if CONFIG_FILE_KEY in self._values:
                log.warning("tls config file is missing file=%s", path)
            return
        ignored = []
        for key, text in read_properties(path).items():
            if is_tls_key(key) and key not in _NOT_FROM_EXTRA_FILE:
                self.add(key, text.strip(), path)
            else:
                ignored.append(key)
        if ignored:
            log.warning("tls config file has keys without effect file=%s keys=%s", path, ",".join(sorted(ignored)))

    def settings(self, *, use_tls: bool | None) -> TlsSettings:
        """Return the values as `TlsSettings`; `use_tls` is the setting `useTLS`, which overrides `tls.enable`."""
        mode = TlsMode(self._text(_MODE_KEY) or TlsMode.PERMISSIVE)
        enabled = self._flag(_ENABLE_KEY, default=mode is TlsMode.ENFORCING) if use_tls is None else use_tls
        return TlsSettings(
            mode=mode,
            test_mode=self._flag("tls.test.mode.enable", default=True),
            need_client_auth=ClientAuth(self._text("tls.server.need.client.auth") or ClientAuth.NONE),
            key_path=self._text("tls.server.keyPath"),
            key_password=self._text("tls.server.keyPassword"),
            cert_path=self._text("tls.server.certPath"),
            auth_client=self._flag("tls.server.authClient", default=False),
            trust_cert_path=self._text("tls.server.trustCertPath"),
            client=TlsClientSettings(
                enabled=enabled,
                key_path=self._text("tls.client.keyPath"),
                key_password=self._text("tls.client.keyPassword"),
                cert_path=self._text("tls.client.certPath"),
                auth_server=self._flag("tls.client.authServer", default=False),
                trust_cert_path=self._text("tls.client.trustCertPath"),
            ),
        )

    def _text(self, key: str) -> str | None:
        value = self._values.get(key)
        return None if value is None else str(value)

    def _flag(self, key: str, *, default: bool) -> bool:
        return bool(self._values.get(key, default))


def list_tls(tls: TlsSettings) -> dict[str, str]:
    """Return the effective settings by key, without absent ones, and with passwords hidden."""
    listed: Mapping[str, str | bool | None] = {
        _MODE_KEY: str(tls.mode),
        _ENABLE_KEY: tls.client.enabled,
        "tls.test.mode.enable": tls.test_mode,
        "tls.server.need.client.auth": str(tls.need_client_auth),
        "tls.server.keyPath": tls.key_path,
        "tls.server.keyPassword": HIDDEN if tls.key_password else None,
        "tls.server.certPath": tls.cert_path,
        "tls.server.authClient": tls.auth_client,
        "tls.server.trustCertPath": tls.trust_cert_path,
        "tls.client.keyPath": tls.client.key_path,
        "tls.client.keyPassword": HIDDEN if tls.client.key_password else None,
        "tls.client.certPath": tls.client.cert_path,
        "tls.client.authServer": tls.client.auth_server,
        "tls.client.trustCertPath": tls.client.trust_cert_path,
    }
    return {key: text_of(value) for key, value in listed.items() if value is not None}
