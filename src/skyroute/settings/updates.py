"""The request that changes settings of a running server."""

import logging

from skyroute.remoting.dispatch import Peer
from skyroute.remoting.errors import RefusedError
from skyroute.settings.config import Changes, ServerConfig
from skyroute.settings.errors import BlackListedError, MalformedPropertiesError
from skyroute.wire.codes import ResponseCode
from skyroute.wire.command import Request

log = logging.getLogger(__name__)


async def update_settings(config: ServerConfig, request: Request, peer: Peer) -> Changes:
    """Apply the settings in a request, all or none, and return the values that have changed.

    Raises:
        RefusedError: a key cannot be changed remotely, or the body is not a properties text.
        ConfigError, FileWriteError: as `ServerConfig.apply_update`.
    """
    try:
        changed = await config.apply_update(request.body.decode())
    except BlackListedError:
        raise RefusedError(ResponseCode.NO_PERMISSION, "Can not update config in black list.") from None
    except (UnicodeDecodeError, MalformedPropertiesError) as error:
        raise RefusedError(ResponseCode.SYSTEM_ERROR, f"string2Properties error: {error}") from None
    if changed:
        log.info("settings updated peer=%s keys=%s", peer.address, ",".join(changed))
    return changed
