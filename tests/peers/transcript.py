"""One scenario on one name server: what was asked, and every answer, in a form that two servers can be compared by."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.apache import NameServerProcess
from tests.support.codes import GET_CONFIG, GET_MEMBERS, GET_ROUTE, QUERY_VERSION, SUCCESS, UPDATE_CONFIG
from tests.support.raw import (
    VERSION_5,
    Command,
    DataVersion,
    Form,
    Listener,
    RawConnection,
    Registration,
    Request,
    Topic,
    canonical,
    compact,
    loads,
)
from tests.support.waiting import wait_until

# Settings that differ between any two name servers on one machine.
PLACES = frozenset({"configStorePath", "kvConfigPath", "listenPort", "rocketmqHome"})

# Settings that only ours has.
OUR_KEYS = frozenset(
    {
        "addressBytesPerSecond",
        "addressConnectionsMax",
        "addressHandshakesMax",
        "addressRequestsPerSecond",
        "brokersMax",
        "frameMaxLength",
        "journalEnable",
        "journalMaxAgeHours",
        "journalMaxBytes",
        "journalQueueBytesMax",
        "journalQueueMax",
        "journalSegmentBytes",
        "journalSegmentSeconds",
        "kvConfigMaxBytes",
        "limitExemptAddresses",
        "massExpiryPercent",
        "memoryPath",
        "metricsHost",
        "metricsPort",
        "prologueTimeoutSeconds",
        "registrationBytesMax",
        "registrationMaxLength",
        "serverBufferedBytesMax",
        "serverMaxConnections",
        "snapshotIntervalSeconds",
        "snapshotMaxAgeSeconds",
        "topicEntriesMax",
        "trustedProxies",
        "warmRestartEnable",
        "warmRestartLeaseSeconds",
        "watchEnable",
    }
)

STRICT_SINCE = 401  # 4.9.4: from here on 105 is answered in standard JSON

Step = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """Two servers gave two answers."""

    step: str
    field: str
    apache: Any
    ours: Any

    def __str__(self) -> str:
        apache, ours = _around_the_difference(repr(self.apache), repr(self.ours))
        return f"{self.step}: {self.field}\n    Apache: {apache}\n    ours:   {ours}"


def _around_the_difference(left: str, right: str, width: int = 80) -> tuple[str, str]:
    """Both texts without what they have in common at their ends, but for a little."""
    ahead = _common(left, right)
    behind = _common(left[:ahead:-1], right[:ahead:-1])

    def cut(text: str) -> str:
        start, end = max(0, ahead - width), min(len(text), len(text) - behind + width)
        return ("…" if start else "") + text[start:end] + ("…" if end < len(text) else "")

    return cut(left), cut(right)


def _common(left: str, right: str) -> int:
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def differences(apache: Mapping[str, Step], ours: Mapping[str, Step]) -> list[Difference]:
    """Field by field, in the order of the steps. The text counts where the values are equal and the spelling is not."""
    found = []
    for step in [*apache, *(step for step in ours if step not in apache)]:
        left, right = apache.get(step, {}), ours.get(step, {})
        differing = {field for field in left.keys() | right.keys() if left.get(field) != right.get(field)}
        if "body" in differing:
            differing.discard("text")
        found += [Difference(step, field, left.get(field), right.get(field)) for field in sorted(differing)]
    return found


class Stage:
    """What a scenario plays on: one server, names that are this scenario's own, and a record of every noted answer.

    All names begin with `prefix`, and bodies that describe the whole server are cut down to them.
    """

    def __init__(self, server: NameServerProcess, number: int, form: Form, *, is_ours: bool) -> None:
        self.server = server
        self.form: Form = form
        self.is_ours = is_ours
        self.prefix = f"S{number:02}{form[0]}_"
        self.cluster = f"{self.prefix}cluster"
        self.steps: dict[str, Step] = {}
        self._aliases: dict[str, str] = {}
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    # ---- the cast

    def line(self, form: Form | None = None) -> RawConnection:
        """A new connection, closed when the scenario ends."""
        return self._open.enter_context(RawConnection(self.server.address, form=form or self.form))

    def listener(self, alias: str) -> Listener:
        """A listening broker; its address is noted as `alias`, because its port differs between runs."""
        listener = self._open.enter_context(Listener())
        self._aliases[listener.address] = alias
        return listener

    def name(self, text: str) -> str:
        return self.prefix + text

    def topics(self, *names: str, **every: Any) -> tuple[Topic, ...]:
        return tuple(Topic(self.name(name), **every) for name in names)

    def registration(self, broker: str = "a", host: int = 1, topics: str = "T1 T2", **more: Any) -> Registration:
        """Return a registration of `broker` at 127.0.0.`host`; no broker listens there."""
        address = f"127.0.0.{host}:10911"
        return Registration(self.cluster, self.name(broker), address, self.topics(*topics.split()), **more)

    # ---- asking without noting

    def members(self, line: RawConnection, broker: str = "a") -> dict[str, str]:
        """Return addresses by broker id, from GET_BROKER_MEMBER_GROUP."""
        fields = {"clusterName": self.cluster, "brokerName": self.name(broker)}
        group: dict[str, str] = line.call(GET_MEMBERS, fields).value["brokerMemberGroup"]["brokerAddrs"]
        return group

    def perms(self, line: RawConnection, topic: str) -> dict[str, int]:
        """Broker name without prefix to permission; empty when there is no route."""
        reply = line.call(GET_ROUTE, {"topic": self.name(topic)})
        if reply.code != SUCCESS:
            return {}
        return {queue["brokerName"].removeprefix(self.prefix): queue["perm"] for queue in reply.value["queueDatas"]}

    def until(self, probe: Callable[[], object], what: str) -> None:
        """Wait for background work of Apache's server: it responds to UNREGISTER_BROKER before it removes anything."""
        wait_until(probe, what=f"{self.server.name}: {what}")

    def gone(self, line: RawConnection, broker: str = "a") -> None:
        self.until(lambda: not self.members(line, broker), f"{broker} leaves")

    def settings(self, **values: str) -> contextlib.AbstractContextManager[None]:
        return run_time_settings(self.server, **values)

    # ---- asking and noting

    def ask(
        self,
        step: str,
        line: RawConnection,
        code: int | Request | Registration,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Command:
        """Ask, note the answer under `step`, give it."""
        reply = line.call(code.request if isinstance(code, Registration) else code, fields, body)
        return self.note(step, reply)

    def route(self, step: str, line: RawConnection, topic: str, *, version: int = VERSION_5, **fields: str) -> Command:
        """Ask for a route and note it, byte for byte but for what Java leaves to hash order."""
        request = Request(GET_ROUTE, {"topic": self.name(topic), **fields}, version=version)
        strict = version >= STRICT_SINCE or fields.get("acceptStandardJsonOnly", "").lower() == "true"
        return self.note(step, line.call(request), strict=strict)

    def version_query(self, step: str, line: RawConnection, registration: Registration, known: DataVersion) -> Command:
        return self.ask(step, line, QUERY_VERSION, registration.identity, compact(known.wire()).encode())

    def note(self, step: str, command: Command, *, strict: bool = False, body: Any = None) -> Command:
        """Write down an answer; `body` replaces the parsed body where the text itself cannot be compared."""
        if step in self.steps:
            raise ValueError(f"{step} was noted before")
        noted: Step = {
            "code": command.code,
            "flag": command.flag,
            "remark": self._named(command.remark),
            "fields": {key: self._named(value) for key, value in command.fields.items()},
            "form": command.form,
        }
        if body is not None:
            noted["body"] = body
        elif command.body:
            noted["text"] = self._named(canonical(command.text, strict=strict, keep=self.prefix))
            noted["body"] = loads(noted["text"])
        self.steps[step] = noted
        return command

    def remember(self, step: str, value: Any) -> None:
        """Note something that is not an answer."""
        self.steps[step] = {"value": value}

    def body(self, step: str) -> Any:
        return self.steps[step]["body"]

    def _named(self, text: Any) -> Any:
        if isinstance(text, str):
            for address, alias in self._aliases.items():
                text = text.replace(address, alias)
        return text


def ids(reply: Command) -> dict[str, dict[str, str]]:
    """Broker name to its members, of a route."""
    return {data["brokerName"]: data["brokerAddrs"] for data in reply.value["brokerDatas"]}


@contextlib.contextmanager
def run_time_settings(server: NameServerProcess, **values: str) -> Iterator[None]:
    """Change settings of a name server while it runs, and put them back."""
    if not values:
        yield
        return
    with RawConnection(server.address) as line:
        before = properties_of(line.call(GET_CONFIG).text)
        assert line.call(UPDATE_CONFIG, body=_properties(values)).code == SUCCESS
    try:
        yield
    finally:
        with RawConnection(server.address) as line:
            assert line.call(UPDATE_CONFIG, body=_properties({key: before[key] for key in values})).code == SUCCESS


def properties_of(text: str) -> dict[str, str]:
    """The lines that 319 gives: `key=value`, nothing escaped."""
    return dict(line.split("=", 1) for line in text.splitlines())


def _properties(values: Mapping[str, str]) -> bytes:
    return "".join(f"{key}={value}\n" for key, value in values.items()).encode()
