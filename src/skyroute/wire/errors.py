"""What can be wrong with a peer's bytes."""

from skyroute.errors import SkyrouteError


class WireError(SkyrouteError):
    """The peer's bytes do not say what the protocol lets them say."""


class FrameError(WireError):
    """The stream cannot be cut into frames, or a frame not into header and body: the connection is lost."""


class HeaderError(FrameError):
    """A frame's header cannot be read: who asked, and what, is unknown, so nothing can be answered."""


class FieldError(WireError):
    """A field of a request is missing or has a value of the wrong kind. Answered; the connection lives on."""


class BodyError(WireError):
    """The body of a request or reply cannot be read. Answered; the connection lives on."""
