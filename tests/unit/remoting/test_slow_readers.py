from types import SimpleNamespace
from typing import Any, cast

from skyroute.remoting.dispatch import Peer
from skyroute.remoting.limits import ByteBudget
from skyroute.remoting.response_writer import READ_BYTES_PER_S, ResponseWriter
from skyroute.wire.conversation import Conversation

PATIENCE_S = 120.0


class FullTransport:
    """A transport whose peer reads slowly."""

    unsent = 100 * READ_BYTES_PER_S

    def get_write_buffer_size(self) -> int:
        return self.unsent


def blocked_writer() -> ResponseWriter:
    context = cast("Any", SimpleNamespace(unsent=ByteBudget(1 << 30)))
    conversation: Conversation[Any] = Conversation()
    writer = ResponseWriter(Peer(1, "10.0.0.1:1"), conversation, context)
    writer.attach(cast("Any", FullTransport()))
    writer.block()
    return writer


def test_a_reader_has_the_idle_time_and_the_time_of_its_bytes() -> None:
    writer = blocked_writer()
    assert not writer.is_too_slow(1000.0, PATIENCE_S)
    assert not writer.is_too_slow(1000.0 + PATIENCE_S + 100, PATIENCE_S)
    assert writer.is_too_slow(1000.0 + PATIENCE_S + 101, PATIENCE_S)


def test_a_reader_that_catches_up_starts_anew() -> None:
    writer = blocked_writer()
    assert not writer.is_too_slow(0.0, PATIENCE_S)
    writer.unblock()
    assert not writer.is_too_slow(1000.0, PATIENCE_S)
    writer.block()
    assert not writer.is_too_slow(1001.0, PATIENCE_S)
