"""What a name server refuses to store."""

from skyroute.errors import SkyrouteError


class KvConfigRefusedError(SkyrouteError):
    """The key-value table cannot take this entry: it would grow past its bound, or is not text."""
