"""A message that is ready to send: checked, with an id, and compressed if that saves bytes."""

import asyncio
from dataclasses import dataclass
from typing import Final

import msgspec

from skyroute.message.compression import COMPRESS_FROM_BYTES, COMPRESSION_LEVEL, compress
from skyroute.message.errors import InvalidMessageError, PropertyError
from skyroute.message.flags import Compression, with_compression
from skyroute.message.properties import PROPERTIES_BYTES_MAX, join_properties

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""The default limit of brokers (`maxMessageSize`)."""

THREAD_COMPRESSION_BYTES: Final = 128 * 1024
"""Longer bodies are compressed in a thread, so that they do not block the event loop."""


class MessageTooLargeError(InvalidMessageError):
    """The body, or all properties together, are longer than the limit."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Compression and size limit of bodies."""

    compression: Compression = Compression.ZLIB
    level: int = COMPRESSION_LEVEL
    from_bytes: int = COMPRESS_FROM_BYTES
    body_bytes_max: int = BODY_BYTES_MAX

    def check(self, body: bytes) -> None:
        """Check the length of a body.

        Raises:
            InvalidMessageError: the body is empty.
            MessageTooLargeError: the body is too long.
        """
        if not body:
            raise InvalidMessageError("the body is empty: expected at least one byte, as RocketMQ requires")
        if len(body) > self.body_bytes_max:
            raise MessageTooLargeError(
                f"the body has {len(body)} bytes: expected at most {self.body_bytes_max} (body_bytes_max here, and"
                " maxMessageSize of the broker)"
            )

    async def pack(self, body: bytes) -> tuple[bytes, int]:
        """Return the body to send, compressed if that is shorter, and the system flag of the compression.

        Raises:
            MissingExtraError: the package for this compression is not installed.
        """
        if len(body) < self.from_bytes:
            return body, 0
        if len(body) < THREAD_COMPRESSION_BYTES:
            packed = compress(body, self.compression, self.level)
        else:
            packed = await asyncio.to_thread(compress, body, self.compression, self.level)
        if len(packed) >= len(body):
            return body, 0
        return packed, with_compression(0, self.compression)


def write_properties(properties: dict[str, str]) -> str:
    """Return the properties in wire format.

    Raises:
        PropertyError: one cannot be encoded.
        MessageTooLargeError: together they are too long.
    """
    text = join_properties(properties)
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        raise PropertyError("a property contains half a surrogate pair: expected valid Unicode text") from None
    if size > PROPERTIES_BYTES_MAX:
        raise MessageTooLargeError(f"the properties have {size} bytes: expected at most {PROPERTIES_BYTES_MAX}")
    return text


class Outbound(msgspec.Struct, gc=False):
    """One message, or one batch, that is ready to send."""

    topic: str
    body: bytes
    properties: str
    message_id: str
    sys_flag: int = 0
    flag: int = 0
    batch: bool = False
    reply: bool = False
    began_at: float = 0.0
    """When its delivery began, in monotonic seconds."""
