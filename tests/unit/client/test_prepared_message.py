import asyncio
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from skyroute.client.producing.prepared_message import (
    THREAD_COMPRESSION_BYTES,
    MessageTooLargeError,
    Packing,
    write_properties,
)
from skyroute.message.compression import unpack
from skyroute.message.errors import InvalidMessageError, PropertyError
from skyroute.message.flags import Compression, compression_of


@pytest.mark.parametrize("compression", list(Compression))
@pytest.mark.parametrize("size", [4096, THREAD_COMPRESSION_BYTES - 1, THREAD_COMPRESSION_BYTES, 3_000_000])
async def test_a_body_is_packed_so_that_it_can_be_unpacked(compression: Compression, size: int) -> None:
    body = (b"over and over " * (size // 14 + 1))[:size]
    packed, sys_flag = await Packing(compression).pack(body)
    assert len(packed) < size
    assert compression_of(sys_flag) is compression
    assert unpack(packed, sys_flag) == body


async def test_a_short_body_travels_as_it_is() -> None:
    body = b"x" * 4095
    assert await Packing().pack(body) == (body, 0)
    assert await Packing(from_bytes=4095).pack(body) != (body, 0)


@pytest.mark.parametrize("size", [5_000, THREAD_COMPRESSION_BYTES])
@pytest.mark.parametrize("compression", list(Compression))
async def test_a_body_that_would_not_get_shorter_travels_as_it_is(compression: Compression, size: int) -> None:
    body = os.urandom(size)
    assert await Packing(compression).pack(body) == (body, 0)


class CountingThreads(ThreadPoolExecutor):
    jobs = 0

    def submit(self, *arguments: Any, **named: Any) -> "Future[Any]":
        self.jobs += 1
        return super().submit(*arguments, **named)


@pytest.mark.parametrize(("size", "jobs"), [(THREAD_COMPRESSION_BYTES - 1, 0), (THREAD_COMPRESSION_BYTES, 1)])
async def test_only_long_bodies_are_packed_in_a_thread(size: int, jobs: int) -> None:
    threads = CountingThreads()
    asyncio.get_running_loop().set_default_executor(threads)
    await Packing().pack(bytes(size))
    assert threads.jobs == jobs


def test_a_body_has_to_be_there() -> None:
    with pytest.raises(InvalidMessageError, match="empty"):
        Packing().check(b"")


def test_a_body_above_the_limit_is_refused() -> None:
    packing = Packing(body_bytes_max=10)
    packing.check(b"x" * 10)
    with pytest.raises(MessageTooLargeError, match=r"11 bytes: expected at most 10 .*maxMessageSize"):
        packing.check(b"x" * 11)
    assert issubclass(MessageTooLargeError, InvalidMessageError)


def test_four_mebibytes_are_the_default() -> None:
    Packing().check(bytes(4 * 1024 * 1024))
    with pytest.raises(MessageTooLargeError):
        Packing().check(bytes(4 * 1024 * 1024 + 1))


@pytest.mark.parametrize("letter", ["a", "é", "字", "😀"])
def test_properties_may_be_just_so_long_in_utf_8(letter: str) -> None:
    fits = (32767 - 3) // len(letter.encode())
    assert write_properties({"n": letter * fits}) == f"n\x01{letter * fits}\x02"
    with pytest.raises(MessageTooLargeError, match="at most 32767"):
        write_properties({"n": letter * (fits + 1)})


@pytest.mark.parametrize("properties", [{"a": ""}, {"": "a"}, {"a\x01": "b"}, {"a": "b\x02"}, {"a": "\ud800"}])
def test_properties_that_no_reader_would_read_back_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(PropertyError):
        write_properties(properties)
