"""What can ail a topic, in words for people, and what they can do about it.

Texts are English with names in braces, as the translator of pages takes them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class Severity(IntEnum):
    """How soon somebody should look."""

    NOTE = 1
    WARNING = 2
    FAILURE = 3


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that many topics can suffer from, and what to do about it."""

    key: str
    label: str
    advice: str


NO_MASTER: Final = Problem(
    "no-master",
    "No master",
    "Start the master again, or make the topic on another broker too, so that producers can go there.",
)
UNWRITABLE: Final = Problem(
    "unwritable",
    "Not writable",
    "If it is not closed on purpose, give the topic the permission to write, and at least one queue to write.",
)
UNREADABLE: Final = Problem(
    "unreadable",
    "Not readable",
    "If it is not closed on purpose, give the topic the permission to read, and at least one queue to read.",
)
READ_WRITE: Final = Problem(
    "read-write",
    "Read and write queues differ",
    "Make both numbers the same; to have fewer queues, lower the number to write first, and the other when they are "
    "empty.",
)
UNEVEN: Final = Problem(
    "uneven",
    "Uneven brokers",
    "Give the topic the same number of queues on every broker, unless one is meant to take more.",
)
DIFFERENT: Final = Problem(
    "different", "Settings differ", "Save the settings once for the whole cluster, so that every broker has the same."
)
SINGLE_BROKER: Final = Problem(
    "single-broker", "One broker only", "Make the topic on a second broker, so that it outlives the loss of one."
)
NAME_SERVERS: Final = Problem(
    "name-servers",
    "Name servers disagree",
    "Clients see another route, depending on whom they ask. Wait half a minute for brokers to tell it again; if it "
    "stays, look at the line between broker and name server.",
)
SKEW: Final = Problem(
    "skew",
    "Uneven queues",
    "Look at how producers choose a queue: by a sharding key that most messages share, or always the same one.",
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
    """Return findings in the order in which to show them."""
    return sorted(findings, key=lambda finding: -finding.severity)
