"""A message made ready to leave: checked, named, and compressed where that helps."""

import asyncio
from dataclasses import dataclass
from typing import Final

import msgspec

from skyroute.message.compression import COMPRESS_FROM_BYTES, COMPRESSION_LEVEL, compress
from skyroute.message.errors import InvalidMessageError, PropertyError
from skyroute.message.flags import Compression, with_compression
from skyroute.message.properties import PROPERTIES_BYTES_MAX, join_properties

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""What a broker takes unless it is set up otherwise."""

COMPRESS_ASIDE_BYTES: Final = 128 * 1024
"""Longer bodies are compressed in a thread, so that the others need not wait for it."""


class MessageTooLargeError(InvalidMessageError):
    """The body, or all properties together, are longer than a broker takes."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How bodies are compressed, and how long they may be."""

    compression: Compression = Compression.ZLIB
    level: int = COMPRESSION_LEVEL
    from_bytes: int = COMPRESS_FROM_BYTES
    body_bytes_max: int = BODY_BYTES_MAX

    def check(self, body: bytes) -> None:
        """Let pass a body that a broker would take.

        Raises:
            InvalidMessageError: it is empty.
            MessageTooLargeError: it is too long.
        """
        if not body:
            raise InvalidMessageError("the body is empty: RocketMQ has no messages without one")
        if len(body) > self.body_bytes_max:
            raise MessageTooLargeError(
                f"a body of {len(body)} bytes; at most {self.body_bytes_max} are allowed (body_bytes_max here, and"
                " maxMessageSize on the broker)"
            )

    async def pack(self, body: bytes) -> tuple[bytes, int]:
        """Return the body as it travels, and the system flag that says how.

        Raises:
            MissingExtraError: the package for this compression is not installed.
        """
        if len(body) < self.from_bytes:
            return body, 0
        if len(body) < COMPRESS_ASIDE_BYTES:
            packed = compress(body, self.compression, self.level)
        else:
            packed = await asyncio.to_thread(compress, body, self.compression, self.level)
        if len(packed) >= len(body):
            return body, 0
        return packed, with_compression(0, self.compression)


def write_properties(properties: dict[str, str]) -> str:
    """Write properties as they travel.

    Raises:
        PropertyError: one cannot be written.
        MessageTooLargeError: they are too long together.
    """
    text = join_properties(properties)
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise PropertyError("a property holds half a surrogate pair, which no UTF-8 has") from None
    if size > PROPERTIES_BYTES_MAX:
        raise MessageTooLargeError(f"properties of {size} bytes in all; at most {PROPERTIES_BYTES_MAX} are possible")
    return text


class Outbound(msgspec.Struct, gc=False):
    """One message, or one batch, on its way out."""

    topic: str
    body: bytes
    properties: str
    message_id: str
    sys_flag: int = 0
    flag: int = 0
    batch: bool = False
    reply: bool = False
    began_at: float = 0.0
    """When its turn came to be sent."""
