"""How far a consumer has come: kept by brokers for a group, or in a file by who consumes everything himself."""

import asyncio
import logging
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from skyroute.client.consuming import queue_calls as calls
from skyroute.client.errors import ClientError
from skyroute.client.session.session import Session
from skyroute.errors import SkyrouteError
from skyroute.files.errors import FileWriteError
from skyroute.files.replace import backup_path, replace_file
from skyroute.message.names import check_file_name
from skyroute.message.queue_ref import QueueRef
from skyroute.wire.errors import BodyError
from skyroute.wire.queue_maps import by_queue, decode_with_queue_keys

log = logging.getLogger(__name__)


class OffsetFileError(ClientError):
    """The file of offsets cannot be read or written: mend or remove it, and consuming starts anew."""


class OffsetStore(Protocol):
    """Remembers, for each queue, the offset to go on from. One consumer uses it, on one event loop."""

    async def load(self) -> None:
        """Get ready. Called once, before anything else."""
        ...

    async def read(self, queue: QueueRef) -> int | None:
        """Return what was consumed before, from where it is kept; None if nothing was."""
        ...

    def cached(self, queue: QueueRef) -> int | None:
        """Return what was last read or updated here."""
        ...

    def update(self, queue: QueueRef, offset: int, *, only_forward: bool = True) -> None:
        """Note an offset, to be kept by the next `persist`."""
        ...

    async def persist(self, queues: Iterable[QueueRef], *, wait: bool = False) -> None:
        """Keep what was noted about these queues. Failures are logged: the next time will do.

        With `wait` it is kept when this returns, which matters before a queue is handed over to another member.
        """
        ...

    def forget(self, queue: QueueRef) -> None:
        """Drop what was noted about a queue; what was kept stays."""
        ...


class _Noted:
    """The part of a store that is in memory."""

    def __init__(self) -> None:
        self._offsets: dict[QueueRef, int] = {}

    def cached(self, queue: QueueRef) -> int | None:
        return self._offsets.get(queue)

    def update(self, queue: QueueRef, offset: int, *, only_forward: bool = True) -> None:
        before = self._offsets.get(queue)
        if before is None or offset > before or not only_forward:
            self._offsets[queue] = offset

    def forget(self, queue: QueueRef) -> None:
        self._offsets.pop(queue, None)


class BrokerOffsets(_Noted):
    """ConsumerOffsets of a group, kept by the broker that has the queue. Names bear their namespace."""

    def __init__(self, session: Session, group: str) -> None:
        super().__init__()
        self._session = session
        self._group = group
        self._uncommitted: set[QueueRef] = set()
        """Queues whose broker failed us the last time, of which the log has told."""

    async def load(self) -> None:
        """Do nothing: brokers are asked about each queue."""

    async def read(self, queue: QueueRef) -> int | None:
        """Ask the broker.

        Raises:
            ClientError, RemotingError: it does not say. The group may have consumed something, so do not start anew.
        """
        offset = await calls.committed_offset(self._session, self._group, queue)
        if offset is not None:
            self.update(queue, offset, only_forward=False)
        return offset

    async def persist(self, queues: Iterable[QueueRef], *, wait: bool = False) -> None:
        await asyncio.gather(*(self._commit(queue, offset, wait) for queue, offset in self._among(queues)))

    def _among(self, queues: Iterable[QueueRef]) -> list[tuple[QueueRef, int]]:
        return [(queue, self._offsets[queue]) for queue in queues if queue in self._offsets]

    async def _commit(self, queue: QueueRef, offset: int, wait: bool) -> None:  # noqa: FBT001 - a private step
        try:
            await calls.commit_offset(self._session, self._group, queue, offset, wait=wait)
        except SkyrouteError as error:
            if queue not in self._uncommitted:
                self._uncommitted.add(queue)
                log.warning("offset not committed group=%s queue=%s cause=%s", self._group, queue, error)
        else:
            self._uncommitted.discard(queue)

    def forget(self, queue: QueueRef) -> None:
        super().forget(queue)
        self._uncommitted.discard(queue)


class FileOffsets(_Noted):
    """Offsets of one client, kept in a file of its own where Apache's Java client keeps them, in the same form.

    Consumers of one machine that share client id and group share the file, as Java's do: what others wrote about other
    queues is left in it.
    """

    def __init__(self, client_id: str, group: str, *, directory: Path | None = None) -> None:
        """Name the file.

        Raises:
            InvalidNameError: the client id or the group cannot be the name of a folder.
        """
        super().__init__()
        for name in (client_id, group):
            check_file_name(name)
        self.path = (directory or Path.home() / ".rocketmq_offsets") / client_id / group / "offsets.json"
        self._backup = backup_path(self.path)
        # Held by threads only: a cancelled task leaves its thread behind, and the next one must not write beside it.
        self._writing = threading.Lock()

    async def load(self) -> None:
        """Read the file, if there is one.

        Raises:
            OffsetFileError: neither it nor its backup can be read.
        """
        self._offsets.update(await asyncio.to_thread(self._read_file))

    async def read(self, queue: QueueRef) -> int | None:
        """Look into the file.

        Raises:
            OffsetFileError: neither it nor its backup can be read.
        """
        offset = (await asyncio.to_thread(self._read_file)).get(queue)
        if offset is not None:
            self.update(queue, offset, only_forward=False)
        return offset

    async def persist(self, queues: Iterable[QueueRef], *, wait: bool = True) -> None:
        """Write the file, unless it says all this already. Always waits: there is nobody to wait for but the disk."""
        noted = {queue: self._offsets[queue] for queue in queues if queue in self._offsets}
        if not noted:
            return
        try:
            await asyncio.to_thread(self._merge_into_file, noted)
        except OffsetFileError as error:
            log.error("offsets not written path=%s cause=%s", self.path, error)  # noqa: TRY400 - the cause says it all

    def _merge_into_file(self, noted: Mapping[QueueRef, int]) -> None:
        with self._writing:
            kept = self._read_file()
            if noted.items() <= kept.items():
                return
            try:
                text = _to_text({**kept, **noted})
                replace_file(self.path, text.encode(), keep_backup=self._is_sound(), is_shared=True)
            except FileWriteError as error:
                raise OffsetFileError(str(error)) from error

    def _read_file(self) -> dict[QueueRef, int]:
        damage: OffsetFileError | None = None
        try:
            offsets = _from_file(self.path)
        except OffsetFileError as error:
            offsets, damage = None, error
        if offsets is None:
            offsets = _from_file(self._backup)
        if offsets is None:
            if damage is not None:
                raise damage
            return {}
        if damage is not None:
            log.warning("offsets read from the backup path=%s cause=%s", self.path, damage)
        return offsets

    def _is_sound(self) -> bool:
        """Return whether the file is worth keeping as the backup."""
        try:
            return _from_file(self.path) is not None
        except OffsetFileError:
            return False


class _OffsetFile(msgspec.Struct):
    offsetTable: dict[str, int] = {}  # noqa: N815 - the file's name for it


def _from_file(path: Path) -> dict[QueueRef, int] | None:
    """Return what a file says, or None where it is absent or empty."""
    try:
        content = path.read_bytes()
        if not content:
            return None
        return by_queue(decode_with_queue_keys(content, _OffsetFile).offsetTable)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OffsetFileError(f"cannot read {path}: {error.strerror}") from error
    except BodyError as error:
        raise OffsetFileError(f"{path} is damaged ({error}): mend it, or remove it to start anew") from error


def _to_text(offsets: Mapping[QueueRef, int]) -> str:
    """Write the table as Java does: indented by tabs, and with queues as keys, because its older readers insist."""
    entries = ",".join(
        f'\n\t\t{{\n\t\t\t"brokerName":{_quoted(queue.broker_name)},\n\t\t\t"queueId":{queue.queue_id},'
        f'\n\t\t\t"topic":{_quoted(queue.topic)}\n\t\t}}:{offset}'
        for queue, offset in sorted(offsets.items())
    )
    return f'{{\n\t"offsetTable":{{{entries}\n\t}}\n}}'


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
