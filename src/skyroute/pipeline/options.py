"""Parses the options of the format `rocketmq`, and reports all wrong options in one error."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final, TypeVar, overload

from skyroute.client.errors import ClientError
from skyroute.client.session.name_servers import ADDRESSES_ENV, NameServers
from skyroute.client.session.signing import FILE_VARIABLE, Credentials
from skyroute.errors import SkyrouteError
from skyroute.remoting.tls_settings import TlsClientSettings
from skyroute.settings.errors import ConfigError

D = TypeVar("D")
T = TypeVar("T")

COUNT_MAX: Final = (1 << 63) - 1
_BOOLEANS: Final = {"true": True, "false": False}
_OF_KAFKA: Final = {
    "kafka.bootstrap.servers": "nameServer",
    "bootstrap.servers": "nameServer",
    "kafka.group.id": "groupId",
    "groupidprefix": "groupId",
    "includeheaders": "includeProperties",
    "kafkaconsumer.polltimeoutms": "pullTimeoutMs",
}
"""Options of Spark's Kafka source in lower case, and ours for the same."""


class OptionsError(SkyrouteError, ValueError):
    """Wrong options; the text names each of them with what is expected."""


class OptionReader:
    """Parses options one by one, collects the problems, and raises them together in `finish`.

    Names are case-insensitive, as in Spark. Reading an option declares its name and aliases as known.
    """

    def __init__(self, given: Mapping[str, str], ignored: Collection[str] = ()) -> None:
        """`ignored` are the names of Spark's own options."""
        self.names: dict[str, tuple[str, ...]] = {}
        """Options read so far, with their aliases."""
        self._given = {name.lower(): text for name, text in given.items()}
        self._ignored = {name.lower() for name in ignored}
        self._problems: list[str] = []

    def __contains__(self, name: str) -> bool:
        """Whether the user set an option that was read before, under any of its names."""
        return any(each.lower() in self._given for each in (name, *self.names[name]))

    @overload
    def text(self, name: str, *aliases: str) -> str | None: ...
    @overload
    def text(self, name: str, *aliases: str, default: str) -> str: ...
    def text(self, name: str, *aliases: str, default: str | None = None) -> str | None:
        """Return the text of an option; a blank one counts as absent."""
        self.names[name] = aliases
        given = {each: self._given[each.lower()] for each in (name, *aliases) if each.lower() in self._given}
        if len(set(given.values())) > 1:
            self.add_problem(f"{' and '.join(given)} are the same option with different values: keep {name}")
        return next(iter(given.values()), "").strip() or default

    def parsed(self, name: str, *aliases: str, parse: Callable[[str], T], default: D) -> T | D:
        """Return the parsed value of an option. A ValueError of `parse` must say what is expected."""
        text = self.text(name, *aliases)
        if text is None:
            return default
        try:
            return parse(text)
        except ValueError as error:
            self.add_problem(f"{name}: invalid value {text[:100]!r} (expected {error})")
            return default

    def flag(self, name: str, *aliases: str, default: bool = False) -> bool:
        """Return a boolean option."""
        return self.parsed(name, *aliases, parse=_flag, default=default)

    def count(self, name: str, *aliases: str, default: D, least: int = 1, most: int = COUNT_MAX) -> int | D:
        """Return an integer option."""
        return self.parsed(name, *aliases, parse=lambda text: _count(text, least, most), default=default)

    def milliseconds(self, name: str, *aliases: str, default_s: float) -> float:
        """Return, in seconds, an option given in milliseconds."""
        return self.parsed(name, *aliases, parse=lambda text: _count(text, 1, COUNT_MAX) / 1000, default=default_s)

    def choice(self, name: str, *aliases: str, choices: Collection[str], default: str) -> str:
        """Return an option that has one of a few values."""

        def parse(text: str) -> str:
            if text.lower() not in choices:
                raise ValueError(f"one of {', '.join(choices)}")
            return text.lower()

        return self.parsed(name, *aliases, parse=parse, default=default)

    def refuse(self, name: str, hint: str) -> None:
        """Add a problem if the user set an option that does not apply."""
        if name.lower() in self._given:
            self.add_problem(f"{name}: {hint}")

    def add_problem(self, problem: str) -> None:
        """Add a problem to the error that `finish` raises."""
        self._problems.append(problem)

    def finish(self) -> None:
        """Check that all options are known and valid.

        Raises:
            OptionsError: some are not; the text names them all.
        """
        known = {each.lower(): name for name, aliases in self.names.items() for each in (name, *aliases)}
        for name in self._given.keys() - known.keys() - self._ignored:
            near = [_OF_KAFKA[name]] if _OF_KAFKA.get(name) in self.names else []
            near = near or [known[each] for each in get_close_matches(name, known, n=1)]
            hint = f"did you mean {near[0]}?" if near else f"options are {', '.join(sorted(self.names))}"
            self._problems.append(f"unknown option {name}: {hint}")
        if self._problems:
            raise OptionsError(describe_problems("options", self._problems))


def describe_problems(of: str, problems: Sequence[str]) -> str:
    """Return the text of an error about one or more problems; a single one is in the first line."""
    if len(problems) == 1:
        return f"wrong {of} for rocketmq: {problems[0]}"
    return f"wrong {of} for rocketmq:" + "".join(f"\n  - {each}" for each in problems)


def _flag(text: str) -> bool:
    try:
        return _BOOLEANS[text.lower()]
    except KeyError:
        raise ValueError("true or false") from None


def _count(text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
        raise ValueError(f"a whole number, {least} or more" + (f", at most {most}" if most < COUNT_MAX else ""))
    return int(text)


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to reach a cluster. Tasks with equal options share one connection."""

    name_server: str
    namespace: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    security_token: str | None = field(default=None, repr=False)
    tls: TlsClientSettings = field(default_factory=TlsClientSettings)
    connect_timeout_s: float = 3.0
    request_timeout_s: float = 3.0
    retries: int = 3
    """Number of retries of a request after a retryable failure."""
    retry_interval_s: float = 0.5


def read_connection(options: OptionReader) -> ConnectionOptions:
    """Parse the options of the connection. Problems are added to `options`."""
    name_server = options.text("nameServer", "nameServers", "namesrvAddr", default=os.environ.get(ADDRESSES_ENV, ""))
    if not name_server:
        options.add_problem(f"nameServer is missing: set it to host:port;host:port, or set {ADDRESSES_ENV}")
    else:
        try:
            NameServers(name_server)
        except ClientError as error:
            options.add_problem(f"nameServer: {error}")
    access_key, secret_key = options.text("accessKey"), options.text("secretKey")
    security_token = options.text("securityToken")
    if (access_key is None) != (secret_key is None):
        options.add_problem("accessKey and secretKey need each other: set both or neither")
    path = options.text("credentialsFile") or os.environ.get(FILE_VARIABLE)
    if path and access_key is None:
        try:
            found = Credentials.from_file(path)  # by the driver: executors need no file
        except ConfigError as error:
            options.add_problem(f"credentialsFile: {error}")
        else:
            access_key, secret_key, security_token = found.access_key, found.secret_key, found.security_token
    tls = TlsClientSettings(
        enabled=options.flag("tls.enable"),
        key_path=options.text("tls.client.keyPath"),
        key_password=options.text("tls.client.keyPassword"),
        cert_path=options.text("tls.client.certPath"),
        auth_server=options.flag("tls.client.authServer"),
        trust_cert_path=options.text("tls.client.trustCertPath"),
    )
    if tls != TlsClientSettings() and not tls.enabled:
        options.add_problem("tls.client options need tls.enable=true")
    return ConnectionOptions(
        name_server,
        options.text("namespace"),
        access_key,
        secret_key,
        security_token,
        tls,
        connect_timeout_s=options.milliseconds("connectTimeoutMs", default_s=3.0),
        request_timeout_s=options.milliseconds("requestTimeoutMs", default_s=3.0),
        retries=options.count("fetchOffset.numRetries", "numRetries", default=3, least=0, most=1_000),
        retry_interval_s=options.milliseconds("fetchOffset.retryIntervalMs", "retryIntervalMs", default_s=0.5),
    )
