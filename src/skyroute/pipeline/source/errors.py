"""What can go wrong with reading a topic."""

from skyroute.errors import SkyrouteError


class SourceError(SkyrouteError):
    """A topic cannot be read as it was asked for."""


class DataLossError(SourceError):
    """Messages that were to be read are not there any more."""


class RejectedRecordError(SourceError):
    """A record cannot be decoded, and was not to be set aside."""


class BrokerLostError(SourceError):
    """A broker did not answer, however often it was tried."""
