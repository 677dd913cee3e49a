"""Frames and bytes of a connection that wait."""

import select
import socket

import pytest

from skyroute.remoting.limits import ByteBudget
from skyroute.remoting.waiting_input import BACKLOG_FRAMES, FRAME_OVERHEAD_BYTES, WaitingInput
from tests.unit.remoting.transport import MemoryTransport


def test_frames_are_taken_in_order_and_in_bounded_numbers() -> None:
    waiting, frames = WaitingInput(ByteBudget(1)), [b"%d" % number for number in range(2 * BACKLOG_FRAMES + 3)]
    waiting.put_back(frames)
    taken = []
    while waiting.has_frames:
        some = waiting.take_frames()
        assert len(some) <= BACKLOG_FRAMES
        taken += some
    assert taken == frames
    assert waiting.held_bytes == 0


def test_frames_put_back_come_before_the_others() -> None:
    waiting = WaitingInput(ByteBudget(1))
    waiting.put_back([b"3", b"4"])
    waiting.put_back([b"1", b"2"])
    assert waiting.take_frames() == [b"1", b"2", b"3", b"4"]
    assert waiting.is_empty


def test_frames_are_counted_with_their_overhead_and_bytes_without() -> None:
    waiting = WaitingInput(ByteBudget(1))
    waiting.put_back([b"abc", b"de"])
    waiting.unread += b"rest"
    assert waiting.held_bytes == 5 + 2 * FRAME_OVERHEAD_BYTES + 4
    assert (waiting.take_unread(), waiting.held_bytes) == (b"rest", 5 + 2 * FRAME_OVERHEAD_BYTES)
    waiting.clear()
    assert (waiting.is_empty, waiting.held_bytes) == (True, 0)


@pytest.mark.skipif(not hasattr(select, "POLLRDHUP"), reason="only Linux reports a closed peer behind unread bytes")
def test_a_peer_that_hangs_up_is_found_behind_unread_bytes_while_reading_is_paused() -> None:
    ours, peer = socket.socketpair()
    waiting, transport = WaitingInput(ByteBudget(1)), MemoryTransport(sock=ours)
    with ours, peer:
        peer.sendall(b"unread")
        waiting.pause(transport)
        assert not waiting.has_hung_up(transport)
        peer.close()
        assert waiting.has_hung_up(transport)
        waiting.resume(transport)
        assert not waiting.has_hung_up(transport), "asyncio reports it"
