"""Problems that a topic can have, with advice. Texts are English with names in braces; pages translate them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from skyroute.console.texts import translatable


class Severity(IntEnum):
    """How urgent a problem is."""

    NOTE = 1
    WARNING = 2
    FAILURE = 3


@dataclass(frozen=True, slots=True)
class Problem:
    """A kind of problem, and how to solve it."""

    key: str
    label: str
    advice: str


NO_MASTER: Final = Problem(
    "no-master",
    translatable("No master"),
    translatable("Restart the master, or create the topic on another broker too, so that producers can switch to it."),
)
UNWRITABLE: Final = Problem(
    "unwritable",
    translatable("Not writable"),
    translatable("If this is not intended, give the topic write permission and at least one write queue."),
)
UNREADABLE: Final = Problem(
    "unreadable",
    translatable("Not readable"),
    translatable("If this is not intended, give the topic read permission and at least one read queue."),
)
READ_WRITE: Final = Problem(
    "read-write",
    translatable("Read and write queues differ"),
    translatable(
        "Set both numbers to the same value. To remove queues, lower the write queues first, and the read queues "
        "when the others are empty."
    ),
)
UNEVEN: Final = Problem(
    "uneven",
    translatable("Uneven brokers"),
    translatable("Give the topic the same number of queues on every broker, unless one is meant to store more."),
)
DIFFERENT: Final = Problem(
    "different",
    translatable("Settings differ"),
    translatable("Save the settings once for the whole cluster, so that all brokers have the same."),
)
SINGLE_BROKER: Final = Problem(
    "single-broker",
    translatable("One broker only"),
    translatable("Create the topic on a second broker, so that it survives the loss of one."),
)
NAME_SERVERS: Final = Problem(
    "name-servers",
    translatable("Name servers differ"),
    translatable(
        "Clients get different routes, depending on the name server. Wait 30 seconds for the brokers to register "
        "again. If it persists, check the network between broker and name server."
    ),
)
SKEW: Final = Problem(
    "skew",
    translatable("Uneven queues"),
    translatable(
        "Check how producers select a queue: with a sharding key that most messages share, or always the same queue."
    ),
)
PROBLEMS: Final = (
    NO_MASTER, UNWRITABLE, UNREADABLE, READ_WRITE, NAME_SERVERS, DIFFERENT, UNEVEN, SINGLE_BROKER, SKEW,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of one topic."""

    problem: Problem
    severity: Severity
    text: str
    values: Mapping[str, object]


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings sorted by severity."""
    return sorted(findings, key=lambda finding: -finding.severity)
