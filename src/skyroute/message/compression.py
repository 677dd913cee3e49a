"""Compresses and decompresses bodies. zlib comes with Python; LZ4 and Zstandard are extras, imported when needed."""

import zlib
from importlib import import_module
from types import ModuleType
from typing import Final

from skyroute.message.errors import CompressionError, MissingExtraError
from skyroute.message.flags import Compression, compression_of

COMPRESS_FROM_BYTES: Final = 4096
"""Default minimum length of bodies that producers compress."""

COMPRESSION_LEVEL: Final = 5

UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Default maximum length of a decompressed body: a few bytes can expand to gigabytes."""

# Four bytes of Zstandard can expand to 128 KiB: this much input gives at most 32 MiB of output beyond the limit.
_ZSTD_STEP_BYTES: Final = 1024


def compress(body: bytes, compression: Compression, level: int = COMPRESSION_LEVEL) -> bytes:
    """Compress a body in the format of RocketMQ's clients. As with Apache's clients, LZ4 has no levels.

    Raises:
        MissingExtraError: the package for it is not installed.
    """
    if compression is Compression.ZLIB:
        return zlib.compress(body, level)
    if compression is Compression.LZ4:
        # Java reads only frames with independent blocks.
        packed: bytes = _lz4().compress(body, block_linked=False)
    else:
        packed = _zstandard().ZstdCompressor(level=level).compress(body)
    return packed


def unpack(body: bytes, sys_flag: int, bytes_max: int = UNPACKED_BYTES_MAX) -> bytes:
    """Decompress a body according to the record's system flag.

    Raises:
        CompressionError: it is damaged, truncated or longer than `bytes_max`.
        MissingExtraError: the package for it is not installed.
    """
    compression = compression_of(sys_flag)
    if compression is None:
        return body
    if compression is Compression.ZLIB:
        unpacked, whole = _unpack_zlib(body, bytes_max)
    elif compression is Compression.LZ4:
        unpacked, whole = _unpack_lz4(body, bytes_max)
    else:
        unpacked, whole = _unpack_zstd(body, bytes_max)
    if len(unpacked) > bytes_max:
        raise CompressionError(f"a body of {len(body)} bytes decompresses to more than {bytes_max} bytes")
    if not whole:
        raise CompressionError(f"the {compression.name} body is truncated")
    return unpacked


def _unpack_zlib(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    unpacker = zlib.decompressobj()
    try:
        return unpacker.decompress(body, bytes_max + 1), unpacker.eof
    except zlib.error as error:
        raise CompressionError(f"not a zlib body: {error}") from error


def _unpack_lz4(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    unpacker = _lz4().LZ4FrameDecompressor()
    try:
        return unpacker.decompress(body, bytes_max + 1), unpacker.eof
    except RuntimeError as error:
        raise CompressionError(f"not an LZ4 body: {error}") from error


def _unpack_zstd(body: bytes, bytes_max: int) -> tuple[bytes, bool]:
    zstandard = _zstandard()
    unpacker = zstandard.ZstdDecompressor().decompressobj()
    pieces: list[bytes] = []
    length = 0
    try:
        for at in range(0, len(body), _ZSTD_STEP_BYTES):
            pieces.append(unpacker.decompress(body[at : at + _ZSTD_STEP_BYTES]))
            length += len(pieces[-1])
            if unpacker.eof or length > bytes_max:
                break
    except zstandard.ZstdError as error:
        raise CompressionError(f"not a Zstandard body: {error}") from error
    return b"".join(pieces), unpacker.eof


def _lz4() -> ModuleType:
    return _extra("lz4.frame", "lz4")


def _zstandard() -> ModuleType:
    return _extra("zstandard", "zstd")


def _extra(module: str, extra: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"this compression needs an extra: pip install 'skyroute[{extra}]'") from error
