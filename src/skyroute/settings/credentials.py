"""Access keys from settings and files. Errors name the setting and the file, and never show a value."""

import logging
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from skyroute.remoting.signing import Signer
from skyroute.settings.errors import ConfigError

log = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 64 * 1024
_LINE: Final = re.compile(r"\s*([A-Za-z]+)\s*[:=]\s*(.*?)\s*")


def read_credentials(text: str, path: str, key: str) -> Signer | None:
    """Return the credentials of a setting, or of the file that its twin `<key>File` names; None if both are empty.

    Raises:
        ConfigError: access key or secret key is missing.
    """
    found = _read(text, path, key)
    if found is None:
        return None
    access_key, secret_key = _required(found, key, path, "accessKey", "secretKey")
    return Signer(access_key, secret_key, found.get("securityToken") or None)


def read_credentials_file(path: str) -> Signer:
    """Return the credentials in a file: JSON, or lines `accessKey: …` and `secretKey: …`, as in `tools.yml`.

    Raises:
        ConfigError: the file cannot be read, or a key is missing.
    """
    found = read_credentials("", path, "credentials")
    assert found is not None
    return found


def read_user(text: str, path: str, key: str) -> tuple[str, str] | None:
    """Return name and password of a setting, or of the file of its twin `<key>File`; None if both are empty.

    Raises:
        ConfigError: one of them is missing.
    """
    found = _read(text, path, key)
    if found is None:
        return None
    name, password = _required(found, key, path, "username", "password")
    return name, password


def _read(text: str, path: str, key: str) -> dict[str, str] | None:
    if text and path:
        raise ConfigError(f"{key} and {key}File are both set (expected one of them)")
    if path:
        text = _content(Path(path), key)
    if not text.strip() or text.strip() == "{}":
        if path:
            raise ConfigError(f"{key}: file {path} is empty")
        return None
    return _parse(text, f"{path or key}")


def _content(path: Path, key: str) -> str:
    try:
        status = path.stat()
        if status.st_size > FILE_BYTES_MAX:
            raise ConfigError(f"{key}: file {path} has {status.st_size} bytes (expected at most {FILE_BYTES_MAX})")
        if status.st_mode & (stat.S_IROTH | stat.S_IWOTH):  # a warning: secrets in containers are often like this
            log.warning("file with credentials can be read by others file=%s advice=chmod 600", path)
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"{key}: file {path} cannot be read: {reason}") from None


def _parse(text: str, where: str) -> dict[str, str]:
    if text.lstrip().startswith("{"):
        try:
            return msgspec.json.decode(text, type=dict[str, str])
        except msgspec.MsgspecError:
            raise ConfigError(f"{where} is not a JSON object of texts") from None
    found = {}
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ConfigError(f"{where} has a line without a key (expected lines such as accessKey: name)")
        found[match[1]] = match[2].strip("\"'")
    return found


def _required(found: Mapping[str, str], key: str, path: str, *names: str) -> list[str]:
    missing = [name for name in names if not found.get(name)]
    if missing:
        raise ConfigError(f"{path or key} has no {' and no '.join(missing)}")
    return [found[name] for name in names]
