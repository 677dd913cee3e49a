"""Frames between master and slave in controller mode. Bytes to values and back; no I/O.

A connection begins with a handshake: the slave gives its id, the master its epochs. The slave cuts its log where it
differs, and reports its end; then the master sends the log in frames, and the slave acknowledges.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple

from skyroute.wire.errors import WireError

EPOCHS_MAX: Final = 1_000
"""Maximum number of epochs in a handshake; Apache's masters have room for this many."""
BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""Maximum size of a frame's body. Apache's slaves read into a buffer of this size."""

_HANDSHAKE: Final = 1
_TRANSFER: Final = 2
_STATE: Final = Struct(">i")
_SLAVE_HANDSHAKE: Final = Struct(">ihhq")
_ACK: Final = Struct(">iq")
_MASTER_HANDSHAKE: Final = Struct(">iiqi")
_EPOCH: Final = Struct(">iq")
_FRAME: Final = Struct(">iiqiqq")


class ReplicationProtocolError(WireError):
    """A peer on the replication port sent something else than frames of this protocol."""


class Epoch(NamedTuple):
    """The number of an epoch, and the position of its first record in the log."""

    number: int
    start: int


class SlaveHello(NamedTuple):
    """The handshake of a slave."""

    broker_id: int
    from_last_file: bool = False
    """With an empty log, start at the beginning of the master's last file instead of its first one."""
    is_learner: bool = False
    """Never join the sync state set."""


@dataclass(frozen=True, slots=True)
class MasterHello:
    """The handshake of a master: the end of its log, and its epochs, oldest first."""

    log_end: int
    epochs: tuple[Epoch, ...]


class FrameHeader(NamedTuple):
    """The header of a part of the log; without a body it is a heartbeat."""

    position: int
    body_bytes: int
    epoch: Epoch
    confirmed: int
    """Position up to which all replicas of the sync state set have the log."""


def encode_slave_hello(hello: SlaveHello) -> bytes:
    """Return the 16 bytes that a slave sends first."""
    return _SLAVE_HANDSHAKE.pack(_HANDSHAKE, hello.from_last_file, hello.is_learner, hello.broker_id)


def encode_ack(log_end: int) -> bytes:
    """Return the 12 bytes with which a slave reports the end of its log."""
    return _ACK.pack(_TRANSFER, log_end)


def encode_master_hello(hello: MasterHello) -> bytes:
    """Return a master's response to the handshake: 20 bytes, and 12 for each epoch."""
    epochs = hello.epochs
    header = _MASTER_HANDSHAKE.pack(
        _HANDSHAKE, len(epochs) * _EPOCH.size, hello.log_end, epochs[-1].number if epochs else -1
    )
    return header + b"".join(_EPOCH.pack(*epoch) for epoch in epochs)


def encode_frame_header(header: FrameHeader) -> bytes:
    """Return the 36 bytes before a part of the log."""
    return _FRAME.pack(_TRANSFER, header.body_bytes, header.position, *header.epoch, header.confirmed)


class SlaveStream:
    """What a slave sends, in pieces of any size: one handshake, then acknowledgements."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.hello: SlaveHello | None = None

    def feed(self, data: bytes) -> Iterator[SlaveHello | int]:
        """Give the handshake, and the log end of each acknowledgement.

        Raises:
            ReplicationProtocolError: the bytes are not from a slave in controller mode.
        """
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _STATE.size:
            (state,) = _STATE.unpack_from(buffer)
            if state == _HANDSHAKE and self.hello is None:
                layout = _SLAVE_HANDSHAKE
            elif state == _TRANSFER and self.hello is not None:
                layout = _ACK
            else:
                expected = _HANDSHAKE if self.hello is None else _TRANSFER
                raise ReplicationProtocolError(
                    f"a slave sent state {state} (expected {expected}): it is no broker in controller mode"
                )
            if len(buffer) < layout.size:
                return
            _, *values = layout.unpack_from(buffer)
            del buffer[: layout.size]
            if layout is _ACK:
                if values[0] < 0:
                    raise ReplicationProtocolError(f"a slave reported the log end {values[0]} (expected 0 or more)")
                yield values[0]
            else:
                from_last_file, is_learner, broker_id = values
                if broker_id < 0:
                    raise ReplicationProtocolError(f"a slave has the id {broker_id} (expected 0 or more)")
                self.hello = SlaveHello(broker_id, from_last_file == 1, is_learner == 1)
                yield self.hello


class MasterStream:
    """What a master sends, in pieces of any size: one handshake, then frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._has_hello = False

    def feed(self, data: bytes) -> Iterator[MasterHello | tuple[FrameHeader, bytes]]:
        """Give the handshake, and each frame with its body.

        Raises:
            ReplicationProtocolError: the bytes are not from a master in controller mode.
        """
        buffer = self._buffer
        buffer += data
        at = 0
        try:
            while (found := self._next(at)) is not None:
                value, at = found
                yield value
        finally:
            del buffer[:at]

    def _next(self, at: int) -> "tuple[MasterHello | tuple[FrameHeader, bytes], int] | None":
        buffer = self._buffer
        layout = _FRAME if self._has_hello else _MASTER_HANDSHAKE
        if len(buffer) - at < layout.size:
            return None
        state, body_bytes, position, number, *more = layout.unpack_from(buffer, at)
        expected = _TRANSFER if self._has_hello else _HANDSHAKE
        limit = BODY_BYTES_MAX if self._has_hello else EPOCHS_MAX * _EPOCH.size
        if state != expected or not 0 <= body_bytes <= limit:
            raise ReplicationProtocolError(
                f"the master sent state {state} with {body_bytes} bytes (expected state {expected}, at most {limit} "
                "bytes): it is no broker in controller mode"
            )
        start, end = at + layout.size, at + layout.size + body_bytes
        if len(buffer) < end:
            return None
        body = bytes(memoryview(buffer)[start:end])
        if self._has_hello:
            epoch_start, confirmed = more
            return (FrameHeader(position, body_bytes, Epoch(number, epoch_start), confirmed), body), end
        if body_bytes % _EPOCH.size:
            raise ReplicationProtocolError(f"the master's epochs have {body_bytes} bytes (expected 12 for each)")
        self._has_hello = True
        epochs = tuple(Epoch(*each) for each in _EPOCH.iter_unpack(body))
        if position < 0 or any(each.start < 0 for each in epochs[:1]) or not _are_in_order(epochs):
            raise ReplicationProtocolError(f"the master's epochs are not in order, or negative: {epochs[-3:]}")
        return MasterHello(position, epochs), end


def _are_in_order(epochs: tuple[Epoch, ...]) -> bool:
    return all(older.number < newer.number and older.start <= newer.start for older, newer in pairwise(epochs))
