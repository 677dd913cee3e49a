"""The files of a broker in controller mode: its epochs and its id, in the formats of Apache's broker."""

import logging
from pathlib import Path
from typing import NamedTuple

from skyroute.broker.replication.epochs import Epochs, parse_epochs, render_epochs
from skyroute.broker.store.errors import StoreDamagedError
from skyroute.files.disk import Disk
from skyroute.files.replace import backup_path, damaged_path, replace_file

log = logging.getLogger(__name__)


class EpochFile:
    """The epochs of this broker's log, in memory and in `epochFileCheckpoint`. Each change is on disk at once."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self.path = path
        self._disk = disk or Disk()
        self._epochs = self._load()

    def __repr__(self) -> str:
        return f"<EpochFile {self.path} epochs={len(self._epochs)} last={self._epochs.last_number}>"

    @property
    def epochs(self) -> Epochs:
        return self._epochs

    def replace(self, epochs: Epochs) -> None:
        """Replace the epochs.

        Raises:
            FileWriteError: the epochs are as they were.
        """
        if epochs == self._epochs:
            return
        if epochs:
            replace_file(self.path, render_epochs(epochs), disk=self._disk)
        else:  # Apache's broker takes an empty file for a damaged one, and then reads the backup
            for path in (backup_path(self.path), self.path):
                if path.exists():
                    self._disk.remove(path)
        self._epochs = epochs

    def _load(self) -> Epochs:
        """Read the file, or the backup of a missing or damaged one.

        Raises:
            StoreDamagedError: both are damaged, or one is and the other is missing.
        """
        damage: list[str] = []
        for path in (self.path, backup_path(self.path)):
            try:
                epochs = parse_epochs(path.read_bytes())
            except FileNotFoundError:
                continue
            except StoreDamagedError as error:
                damage.append(f"{path} is damaged: {error}")
                continue
            if path != self.path:
                if damage:
                    self._disk.replace(self.path, damaged_path(self.path))
                log.warning("epoch file unusable, its backup is used file=%s reason=%s", self.path, damage or "missing")
            return epochs
        if damage:
            raise StoreDamagedError(
                f"{'; '.join(damage)}. Without epochs this broker cannot tell where its log differs from its master's: "
                "restore the file, or empty the store folder to replicate everything again"
            )
        return Epochs()


class BrokerIdentity(NamedTuple):
    """The id that a controller granted to a broker, or will grant: `check_code` shows who applied for it."""

    cluster: str
    broker_name: str
    broker_id: int
    check_code: str = ""


class IdentityFiles:
    """`brokerIdentity`, and `brokerIdentity-temp` while a broker applies for an id."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self.path = path
        self._applied_path = path.with_name(f"{path.name}-temp")
        self._disk = disk or Disk()

    def __repr__(self) -> str:
        return f"<IdentityFiles {self.path}>"

    def granted(self) -> BrokerIdentity | None:
        """Return the granted id; None if there is none yet.

        Raises:
            StoreDamagedError: the file is damaged.
        """
        return _read_identity(self.path, 3)

    def applied(self) -> BrokerIdentity | None:
        """Return the id that was applied for; None if there is none, or if the file is damaged."""
        try:
            return _read_identity(self._applied_path, 4)
        except StoreDamagedError as error:
            log.warning("id application ignored reason=%s", error)
            return None

    def apply(self, identity: BrokerIdentity) -> None:
        """Note, on disk, which id is applied for, so that a broker that dies meanwhile applies for the same one.

        Raises:
            FileWriteError: the note is not on disk.
        """
        replace_file(self._applied_path, _line(identity), keep_backup=False, disk=self._disk)

    def drop_application(self) -> None:
        """Forget an application that was refused."""
        self._applied_path.unlink(missing_ok=True)

    def grant(self, identity: BrokerIdentity) -> None:
        """Note, on disk, the granted id.

        Raises:
            FileWriteError: the note is not on disk.
        """
        replace_file(self.path, _line(identity._replace(check_code="")), keep_backup=False, disk=self._disk)
        self.drop_application()


def _line(identity: BrokerIdentity) -> bytes:
    fields = [identity.cluster, identity.broker_name, str(identity.broker_id)]
    return "#".join([*fields, identity.check_code] if identity.check_code else fields).encode()


def _read_identity(path: Path, fields: int) -> BrokerIdentity | None:
    try:
        parts = path.read_text("utf-8").strip().split("#")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        parts = []
    if len(parts) != fields or not (parts[2].isascii() and parts[2].isdigit() and len(parts[2]) < 19):
        expected = "cluster#brokerName#id" + ("#checkCode" if fields > 3 else "")
        raise StoreDamagedError(f"{path} is damaged: expected {expected}. Restore it: a new id is a new replica")
    return BrokerIdentity(parts[0], parts[1], int(parts[2]), parts[3] if fields > 3 else "")
