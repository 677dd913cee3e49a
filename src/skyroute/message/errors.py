"""Errors of messages, records and expressions."""

from skyroute.errors import SkyrouteError


class MessageError(SkyrouteError):
    """Base of all errors of this package."""


class InvalidMessageError(MessageError):
    """A message breaks a rule and cannot be sent."""


class InvalidNameError(MessageError):
    """The name of a topic or group is invalid. The text is that of Apache's servers."""


class TagExpressionError(MessageError):
    """A tag expression has no tags."""


class ExpressionError(MessageError):
    """An SQL92 expression is invalid, or compares values that cannot be compared."""

    def __init__(self, text: str, at: int) -> None:
        super().__init__(text)
        self.at = at
        """Position of the error in the expression, in characters."""

    def __reduce__(self) -> tuple[type["ExpressionError"], tuple[str, int]]:
        return type(self), (str(self), self.at)


class IncomparableError(MessageError):
    """A property cannot be compared as an SQL92 expression requires. The message does not match."""


class PropertyError(MessageError):
    """Properties cannot be encoded: a name or value is empty or has a separator, or all together are too long."""


class MessageIdError(MessageError):
    """A text is not a message id."""


class HostError(MessageError):
    """An address or port is invalid."""


class BatchError(MessageError):
    """The body of a batch is invalid."""


class CompressionError(MessageError):
    """A body cannot be decompressed: damaged, truncated, too large, or of an unknown type."""


class MissingExtraError(CompressionError):
    """The compression of a body needs an optional package that is not installed."""


class RecordError(MessageError):
    """The bytes are not a record."""

    def __init__(self, text: str, at: int = 0) -> None:
        super().__init__(text)
        self.at = at
        """Position of the record in the buffer."""


class TruncatedRecordError(RecordError):
    """The buffer ends inside a record, which may be valid."""


class SegmentEndError(RecordError):
    """The end mark of a commit log segment is where a record should start."""


class ChecksumError(RecordError):
    """The checksum of a body or record does not match."""
