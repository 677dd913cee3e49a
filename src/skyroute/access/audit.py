"""The record of one decision of access control."""

from typing import Final

import msgspec

TEXT_CHARS_MAX: Final = 512
"""Maximum length of each text in a record: most of it comes from a peer."""

_encode: Final = msgspec.json.Encoder().encode


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who asked for what, from where, and whether it was allowed. It has no field that can hold a password."""

    time_ms: int
    server: str
    source: str
    code: int
    request: str = ""
    """Name of the request code; empty if it is unknown."""
    user: str = ""
    """The user that the request names; whether it was that user is in `reason`."""
    door: str = ""
    needs: tuple[str, ...] = ()
    """Resource and actions, such as `Topic:orders Pub`: those that were refused, or all."""
    is_allowed: bool
    reason: str
    count: int = 1
    """Number of equal decisions that this record stands for."""

    def line(self) -> bytes:
        """Return the record as one line of JSON."""
        short = {
            name: value[:TEXT_CHARS_MAX]
            for name in ("source", "user")
            if len(value := getattr(self, name)) > TEXT_CHARS_MAX
        }
        record = msgspec.structs.replace(self, **short) if short else self
        return _encode(record) + b"\n"


def decode_record(line: bytes) -> AuditRecord:
    """Read a line of the audit log.

    Raises:
        msgspec.MsgspecError: it is not a record.
    """
    return msgspec.json.decode(line, type=AuditRecord)
