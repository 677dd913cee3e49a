"""Errors of reading a topic."""

from skyroute.errors import SkyrouteError


class SourceError(SkyrouteError):
    """A topic cannot be read with these options."""


class DataLossError(SourceError):
    """Requested messages no longer exist."""


class RejectedRecordError(SourceError):
    """A record cannot be decoded, and the option `rejects` is `fail`."""


class BrokerLostError(SourceError):
    """A name server or broker did not respond after all retries."""
