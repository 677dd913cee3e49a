"""Committed offsets: stored by brokers for a group, or in a file for a broadcasting consumer."""

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
    """The offset file cannot be read or written: repair it, or remove it to start at `start`."""


class OffsetStore(Protocol):
    """Stores the offset of each queue to continue at. One consumer uses it, on one event loop."""

    async def load(self) -> None:
        """Prepare the store. Called first, once per start."""
        ...

    async def read(self, queue: QueueRef) -> int | None:
        """Return the stored offset; None if there is none."""
        ...

    def cached(self, queue: QueueRef) -> int | None:
        """Return the offset of the last `read` or `update`."""
        ...

    def update(self, queue: QueueRef, offset: int, *, only_forward: bool = True) -> None:
        """Set an offset, which the next `persist` stores."""
        ...

    async def persist(self, queues: Iterable[QueueRef], *, wait: bool = False) -> None:
        """Store the offsets of these queues. A failure is logged, and the next `persist` tries again.

        With `wait` they are stored when this returns, as the handover of a queue requires.
        """
        ...

    def forget(self, queue: QueueRef) -> None:
        """Drop the offset in memory; the stored one stays."""
        ...


class _InMemory:
    """The offsets in memory."""

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


class BrokerOffsets(_InMemory):
    """Offsets of a group, stored by the broker of each queue. Names include the namespace."""

    def __init__(self, session: Session, group: str) -> None:
        super().__init__()
        self._session = session
        self._group = group
        self._uncommitted: set[QueueRef] = set()
        """Queues whose last commit failed, which is logged once."""

    async def load(self) -> None:
        """Do nothing: `read` sends a request for each queue."""

    async def read(self, queue: QueueRef) -> int | None:
        """Read the offset from the broker.

        Raises:
            ClientError, RemotingError: the broker refuses, or does not respond. The group may have an offset, so the
                caller must not use `start`.
        """
        offset = await calls.committed_offset(self._session, self._group, queue)
        if offset is not None:
            self.update(queue, offset, only_forward=False)
        return offset

    async def persist(self, queues: Iterable[QueueRef], *, wait: bool = False) -> None:
        await asyncio.gather(*(self._commit(queue, offset, wait=wait) for queue, offset in self._among(queues)))

    def _among(self, queues: Iterable[QueueRef]) -> list[tuple[QueueRef, int]]:
        return [(queue, self._offsets[queue]) for queue in queues if queue in self._offsets]

    async def _commit(self, queue: QueueRef, offset: int, *, wait: bool) -> None:
        try:
            await calls.commit_offset(self._session, self._group, queue, offset, wait=wait)
        except SkyrouteError as error:
            if queue not in self._uncommitted:
                self._uncommitted.add(queue)
                log.warning("offset not committed group=%s queue=%s reason=%s", self._group, queue, error)
        else:
            self._uncommitted.discard(queue)

    def forget(self, queue: QueueRef) -> None:
        super().forget(queue)
        self._uncommitted.discard(queue)


class FileOffsets(_InMemory):
    """Offsets of one client in a file, at the path and in the format of Apache's Java client.

    Consumers with the same client id and group share the file, as in Java: `persist` keeps the offsets of other queues.
    """

    def __init__(self, client_id: str, group: str, *, directory: Path | None = None) -> None:
        """Choose the path.

        Raises:
            InvalidNameError: the client id or the group is not usable as a folder name.
        """
        super().__init__()
        for name in (client_id, group):
            check_file_name(name)
        self.path = (directory or Path.home() / ".rocketmq_offsets") / client_id / group / "offsets.json"
        self._backup = backup_path(self.path)
        # A thread continues after its task is cancelled, and the next thread must not write at the same time.
        self._writing = threading.Lock()

    async def load(self) -> None:
        """Read the file, if it exists.

        Raises:
            OffsetFileError: neither the file nor its backup can be read.
        """
        self._offsets.update(await asyncio.to_thread(self._read_file))

    async def read(self, queue: QueueRef) -> int | None:
        """Read the offset from the file.

        Raises:
            OffsetFileError: neither the file nor its backup can be read.
        """
        offset = (await asyncio.to_thread(self._read_file)).get(queue)
        if offset is not None:
            self.update(queue, offset, only_forward=False)
        return offset

    async def persist(self, queues: Iterable[QueueRef], *, wait: bool = True) -> None:
        """Write the file if an offset has changed. Always waits for the disk."""
        changed = {queue: self._offsets[queue] for queue in queues if queue in self._offsets}
        if not changed:
            return
        try:
            await asyncio.to_thread(self._merge_into_file, changed)
        except OffsetFileError as error:
            log.error("offsets not written path=%s reason=%s", self.path, error)  # noqa: TRY400 - the reason is enough

    def _merge_into_file(self, changed: Mapping[QueueRef, int]) -> None:
        with self._writing:
            kept = self._read_file()
            if changed.items() <= kept.items():
                return
            try:
                text = _to_text({**kept, **changed})
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
            log.warning("offsets read from the backup path=%s reason=%s", self.path, damage)
        return offsets

    def _is_sound(self) -> bool:
        """Return whether the file is intact, so that it may become the backup."""
        try:
            return _from_file(self.path) is not None
        except OffsetFileError:
            return False


class _OffsetFile(msgspec.Struct, rename="camel"):
    offset_table: dict[str, int] = {}


def _from_file(path: Path) -> dict[QueueRef, int] | None:
    """Return the offsets in a file, or None if it is absent or empty."""
    try:
        content = path.read_bytes()
        if not content:
            return None
        return by_queue(decode_with_queue_keys(content, _OffsetFile).offset_table)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OffsetFileError(f"offset file {path} cannot be read: {error.strerror}") from error
    except BodyError as error:
        raise OffsetFileError(f"offset file {path} is damaged ({error}): repair or remove it") from error


def _to_text(offsets: Mapping[QueueRef, int]) -> str:
    """Return the text of the file as Java writes it, with tabs and with queues as keys, which older readers need."""
    entries = ",".join(
        f'\n\t\t{{\n\t\t\t"brokerName":{_quoted(queue.broker_name)},\n\t\t\t"queueId":{queue.queue_id},'
        f'\n\t\t\t"topic":{_quoted(queue.topic)}\n\t\t}}:{offset}'
        for queue, offset in sorted(offsets.items())
    )
    return f'{{\n\t"offsetTable":{{{entries}\n\t}}\n}}'


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
