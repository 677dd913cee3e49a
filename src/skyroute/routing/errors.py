"""What the routing rules refuse. A refusal leaves no trace in the table."""

from skyroute.errors import SkyrouteError


class RegistrationRefusedError(SkyrouteError):
    """The rules do not let this broker in as it presents itself."""


class PartialFirstRegistrationError(RegistrationRefusedError):
    """A broker we do not know sent a single topic.

    Brokers announce a new topic by a registration that carries only that one. Taking it for the first word of a
    broker would record the version of a whole table of which one topic is known.
    """


class NameTakenError(RegistrationRefusedError):
    """A live broker of another cluster holds this name and id."""


class TableFullError(RegistrationRefusedError):
    """The table has reached one of its bounds."""


class InvalidSnapshotError(SkyrouteError):
    """What was kept from before a restart is not the image of a route table."""
