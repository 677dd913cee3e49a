"""What can be wrong with a message, its bytes, or the words around it."""

from skyroute.errors import SkyrouteError


class MessageError(SkyrouteError):
    """A message, or something written about one, is not what it has to be."""


class InvalidMessageError(MessageError):
    """The application's message breaks a rule; no broker would keep it as it was meant."""


class InvalidNameError(MessageError):
    """A topic or a group cannot have this name. The text is the one Apache's servers answer with."""


class TagExpressionError(MessageError):
    """A subscription's tag expression selects nothing at all."""


class ExpressionError(MessageError):
    """An SQL92 expression cannot be understood, or compares what cannot be compared."""

    def __init__(self, text: str, at: int) -> None:
        super().__init__(text)
        self.at = at
        """Where in the expression the trouble is: characters before it."""

    def __reduce__(self) -> tuple[type["ExpressionError"], tuple[str, int]]:
        return type(self), (str(self), self.at)


class IncomparableError(MessageError):
    """A message's property cannot be compared as an SQL92 expression asks. The message does not match."""


class PropertyError(MessageError):
    """Properties cannot be written: a name or value holds a separator, is empty, or all are too long together."""


class MessageIdError(MessageError):
    """A text is not a message id."""


class HostError(MessageError):
    """An address or a port is none."""


class BatchError(MessageError):
    """The body of a batch is not a row of batch items."""


class CompressionError(MessageError):
    """A compressed body cannot be unpacked: damaged, cut short, too large, or of a kind nobody knows."""


class MissingExtraError(CompressionError):
    """The body is compressed in a way that needs an optional package, and it is not installed."""


class RecordError(MessageError):
    """The bytes are not a record."""

    def __init__(self, text: str, at: int = 0) -> None:
        super().__init__(text)
        self.at = at
        """Where in the buffer the bad record starts."""


class TruncatedRecordError(RecordError):
    """The buffer ends inside a record. With more bytes it may yet be a good one."""


class SegmentEndError(RecordError):
    """Where a record should start stands the filler that ends a segment of the commit log."""


class ChecksumError(RecordError):
    """A record's body, or the whole record, is not what its checksum was taken of."""
