"""Errors in received bytes."""

from skyroute.errors import SkyrouteError


class WireError(SkyrouteError):
    """The peer's bytes break the protocol."""


class FrameError(WireError):
    """The stream or a frame is malformed: the connection must be closed."""


class HeaderError(FrameError):
    """A frame's header cannot be decoded: there is no request id to respond to."""


class FieldError(WireError):
    """A field is missing or has an invalid value. The response says so; the connection stays open."""


class BodyError(WireError):
    """A body cannot be decoded. The response says so; the connection stays open."""
