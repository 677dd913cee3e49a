"""Errors of the route table. A refused change leaves no trace in the table."""

from skyroute.errors import SkyrouteError


class RegistrationRefusedError(SkyrouteError):
    """A rule refuses this registration; the text says which."""


class PartialFirstRegistrationError(RegistrationRefusedError):
    """A broker that is not registered sent a single topic.

    Brokers announce a new topic by a registration with that topic only. As a broker's first registration, it would
    record the version of a whole table of which one topic is known.
    """


class NameTakenError(RegistrationRefusedError):
    """A live broker of another cluster has this name and id."""


class TableFullError(RegistrationRefusedError):
    """The table has reached one of its bounds."""


class InvalidSnapshotError(SkyrouteError):
    """A snapshot of a route table contradicts itself."""
