"""The options of the data source `rocketmq`, from Spark's texts to values; every wrong one is named at once."""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final, TypeVar, overload

from skyroute.client.errors import ClientError
from skyroute.client.name_servers import ADDRESSES_ENV, NameServers
from skyroute.errors import SkyrouteError
from skyroute.remoting.tls_settings import TlsClientSettings

D = TypeVar("D")
T = TypeVar("T")

COUNT_MAX: Final = (1 << 63) - 1
_TRUTHS: Final = {"true": True, "false": False}


class OptionsError(SkyrouteError, ValueError):
    """Options that cannot be meant: the text names each of them, and says what is right."""


class OptionReader:
    """Reads options one by one, notes what is wrong, and at the end raises all of it together.

    Names are compared without regard to case, as Spark does. Reading an option makes its name and aliases known.
    """

    def __init__(self, given: Mapping[str, str], ignored: Collection[str] = ()) -> None:
        """`ignored` are names that belong to Spark."""
        self.names: dict[str, tuple[str, ...]] = {}
        """Every option that was read, with its aliases."""
        self._given = {name.lower(): text for name, text in given.items()}
        self._ignored = {name.lower() for name in ignored}
        self._problems: list[str] = []

    def __contains__(self, name: str) -> bool:
        """Whether an option that was read has a value."""
        return any(word.lower() in self._given for word in (name, *self.names[name]))

    @overload
    def text(self, name: str, *aliases: str) -> str | None: ...
    @overload
    def text(self, name: str, *aliases: str, default: str) -> str: ...
    def text(self, name: str, *aliases: str, default: str | None = None) -> str | None:
        """Return a text as it is given; what is blank counts as absent."""
        self.names[name] = aliases
        given = {word: self._given[word.lower()] for word in (name, *aliases) if word.lower() in self._given}
        if len(set(given.values())) > 1:
            self.refuse(f"{' and '.join(given)} are the same option and differ: keep {name}")
        return next(iter(given.values()), "").strip() or default

    def parsed(self, name: str, *aliases: str, parse: Callable[[str], T], default: D) -> T | D:
        """Return what `parse` makes of a text; the ValueError it raises says what is expected."""
        text = self.text(name, *aliases)
        if text is None:
            return default
        try:
            return parse(text)
        except ValueError as error:
            self.refuse(f"{name} is {error}, not {text[:100]!r}")
            return default

    def flag(self, name: str, *aliases: str, default: bool = False) -> bool:
        """Return true or false."""
        return self.parsed(name, *aliases, parse=_flag, default=default)

    def count(self, name: str, *aliases: str, default: D, least: int = 1, most: int = COUNT_MAX) -> int | D:
        """Return a whole number."""
        return self.parsed(name, *aliases, parse=lambda text: _count(text, least, most), default=default)

    def milliseconds(self, name: str, *aliases: str, default_s: float) -> float:
        """Return a time in seconds that is given in milliseconds."""
        return self.parsed(name, *aliases, parse=lambda text: _count(text, 1, COUNT_MAX) / 1000, default=default_s)

    def choice(self, name: str, *aliases: str, choices: Collection[str], default: str) -> str:
        """Return one of a few words."""

        def parse(text: str) -> str:
            if text.lower() not in choices:
                raise ValueError(f"one of {', '.join(choices)}")
            return text.lower()

        return self.parsed(name, *aliases, parse=parse, default=default)

    def refuse(self, problem: str) -> None:
        """Note that something is wrong with what was read."""
        self._problems.append(problem)

    def finish(self) -> None:
        """Let pass options that are all known and right.

        Raises:
            OptionsError: some are not.
        """
        known = {word.lower(): name for name, aliases in self.names.items() for word in (name, *aliases)}
        for name in self._given.keys() - known.keys() - self._ignored:
            near = get_close_matches(name, known, n=1)
            hint = f"did you mean {known[near[0]]}?" if near else f"there are {', '.join(sorted(self.names))}"
            self._problems.append(f"{name} is not an option: {hint}")
        if self._problems:
            raise OptionsError("wrong options for rocketmq:" + "".join(f"\n  - {each}" for each in self._problems))


def _flag(text: str) -> bool:
    try:
        return _TRUTHS[text.lower()]
    except KeyError:
        raise ValueError("true or false") from None


def _count(text: str, least: int, most: int) -> int:
    if not (text.isascii() and text.isdigit()) or not least <= int(text) <= most:
        raise ValueError(f"a whole number, {least} or more" + (f", at most {most}" if most < COUNT_MAX else ""))
    return int(text)


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How to reach a cluster. Connections are shared by all who have the same."""

    name_server: str
    namespace: str | None = None
    access_key: str | None = None
    secret_key: str | None = field(default=None, repr=False)
    security_token: str | None = field(default=None, repr=False)
    tls: TlsClientSettings = field(default_factory=TlsClientSettings)
    connect_timeout_s: float = 3.0
    request_timeout_s: float = 3.0
    retries: int = 3
    """How often a call that failed for a reason that may pass is made again."""
    retry_interval_s: float = 0.5


def read_connection(options: OptionReader) -> ConnectionOptions:
    """Return how to reach the cluster; what is wrong is noted in `options`."""
    name_server = options.text("nameServer", "nameServers", "namesrvAddr", default=os.environ.get(ADDRESSES_ENV, ""))
    if not name_server:
        options.refuse(f"nameServer is missing: give host:port;host:port, or set {ADDRESSES_ENV}")
    else:
        try:
            NameServers(name_server)
        except ClientError as error:
            options.refuse(f"nameServer: {error}")
    access_key, secret_key = options.text("accessKey"), options.text("secretKey")
    if (access_key is None) != (secret_key is None):
        options.refuse("accessKey and secretKey go together: one of them is missing")
    tls = TlsClientSettings(
        enabled=options.flag("tls.enable"),
        key_path=options.text("tls.client.keyPath"),
        key_password=options.text("tls.client.keyPassword"),
        cert_path=options.text("tls.client.certPath"),
        auth_server=options.flag("tls.client.authServer"),
        trust_cert_path=options.text("tls.client.trustCertPath"),
    )
    if tls != TlsClientSettings() and not tls.enabled:
        options.refuse("tls.client options need tls.enable=true")
    return ConnectionOptions(
        name_server,
        options.text("namespace"),
        access_key,
        secret_key,
        options.text("securityToken"),
        tls,
        connect_timeout_s=options.milliseconds("connectTimeoutMs", default_s=3.0),
        request_timeout_s=options.milliseconds("requestTimeoutMs", default_s=3.0),
        retries=options.count("fetchOffset.numRetries", "numRetries", default=3, least=0, most=1_000),
        retry_interval_s=options.milliseconds("fetchOffset.retryIntervalMs", "retryIntervalMs", default_s=0.5),
    )
