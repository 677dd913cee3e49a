"""CRC-32, in the fastest available implementation: every body is checked when stored and when read."""

try:
    from isal.isal_zlib import crc32  # the extra `fast`: uses processor instructions, six times as fast
except ImportError:
    from zlib import crc32

__all__ = ["crc32"]
