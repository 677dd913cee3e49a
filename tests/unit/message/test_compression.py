"""Compressed bodies: Apache's, ours, and hostile ones."""

import sys
import zlib
from contextlib import suppress
from importlib.util import find_spec

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.message.compression import compress, unpack
from skyroute.message.errors import CompressionError, MissingExtraError
from skyroute.message.flags import Compression, compression_of, with_compression
from skyroute.message.record import decode_records
from tests.unit.message.samples import golden, stored

BODY = b"0123456789abcdef" * 64
PACKAGES = {Compression.ZLIB: "zlib", Compression.LZ4: "lz4", Compression.ZSTD: "zstandard"}
# Two of the three are extras and are tested if installed; the error for a missing one is tested always.
HERE = [kind for kind, package in PACKAGES.items() if find_spec(package)]
FLAGS = {Compression.ZLIB: 0x301, Compression.LZ4: 0x101, Compression.ZSTD: 0x201}


@pytest.mark.parametrize("kind", HERE)
def test_bodies_compressed_by_apache_are_decompressed(kind: Compression) -> None:
    (message,) = decode_records(golden(f"record-{kind.name.lower()}"))
    assert message.sys_flag == FLAGS[kind]
    assert message.body == BODY
    assert message.body is message.body


def test_zlib_without_a_type_is_what_old_clients_send() -> None:
    (message,) = decode_records(golden("record-legacy"))
    assert message.sys_flag == 1
    assert message.body == BODY


@pytest.mark.parametrize("kind", HERE)
@pytest.mark.parametrize("body", [b"", b"x", BODY, bytes(range(256)) * 300])
def test_bodies_are_decompressed_as_compressed(kind: Compression, body: bytes) -> None:
    assert unpack(compress(body, kind), FLAGS[kind]) == body


@pytest.mark.parametrize("kind", HERE)
def test_a_body_cut_anywhere_is_refused(kind: Compression) -> None:
    packed = compress(BODY, kind)
    for length in range(len(packed)):
        with pytest.raises(CompressionError):
            unpack(packed[:length], FLAGS[kind])


@pytest.mark.parametrize("kind", HERE)
def test_a_body_that_would_grow_too_large_is_refused(kind: Compression) -> None:
    packed = compress(bytes(1 << 20), kind)
    assert len(unpack(packed, FLAGS[kind], 1 << 20)) == 1 << 20
    with pytest.raises(CompressionError, match="more than"):
        unpack(packed, FLAGS[kind], (1 << 20) - 1)


@pytest.mark.parametrize("kind", HERE)
@given(noise=st.binary(max_size=60))
def test_any_bytes_are_a_body_or_refused(kind: Compression, noise: bytes) -> None:
    for body in (noise, compress(BODY, kind)[:30] + noise):
        with suppress(CompressionError):
            assert isinstance(unpack(body, FLAGS[kind]), bytes)


@pytest.mark.parametrize(
    ("kind", "module", "extra"), [(Compression.LZ4, "lz4.frame", "lz4"), (Compression.ZSTD, "zstandard", "zstd")]
)
def test_a_missing_extra_is_named(kind: Compression, module: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf"skyroute\[{extra}\]"):
        compress(BODY, kind)
    with pytest.raises(MissingExtraError, match=rf"skyroute\[{extra}\]"):
        assert stored(sys_flag=FLAGS[kind]).body


def test_what_is_not_compressed_is_left_alone() -> None:
    assert unpack(BODY, 0x300) is BODY
    assert compression_of(0x300) is None


def test_an_unknown_compression_type_is_refused() -> None:
    with pytest.raises(CompressionError, match="type 7"):
        unpack(zlib.compress(BODY), 0x701)


@pytest.mark.parametrize("kind", FLAGS)
def test_the_flag_of_each_kind(kind: Compression) -> None:
    assert with_compression(0x8, kind) == FLAGS[kind] | 0x8
    assert with_compression(FLAGS[kind] | 0x8, None) == 0x8
    assert compression_of(FLAGS[kind]) is kind
