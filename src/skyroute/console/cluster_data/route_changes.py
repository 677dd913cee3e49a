"""Waits for changed routes at a name server that supports watches: Skyroute's does, Apache's does not."""

import logging
from collections.abc import Iterable
from typing import Final

from skyroute.client.errors import ClientError, refusal
from skyroute.client.session.session import Session
from skyroute.errors import SkyrouteError
from skyroute.wire.calls.watch import TIMEOUT_MS, Bookmark, WatchQuery, decode_watch_answer, encode_watch
from skyroute.wire.codes import ResponseCode

log = logging.getLogger(__name__)

WATCH_S: Final = TIMEOUT_MS / 1000


class NoWatchError(ClientError):
    """No name server that responds supports watches."""


class RouteChanges:
    """One watch of all topics, at one name server at a time."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._address = ""
        self._bookmark: Bookmark | None = None
        """Changes up to here were returned, or read otherwise."""
        self._unsupported: set[str] = set()

    async def wait(self, name_servers: Iterable[str]) -> frozenset[str] | None:
        """Return the topics whose routes changed, or an empty set after `WATCH_S`. None: any route may have changed.

        The first call returns None at once. A name server that is not in `name_servers` for one call is tried again
        later, even if it did not support watches before.

        Raises:
            NoWatchError: no name server supports watches.
        """
        addresses = set(name_servers)
        self._unsupported &= addresses
        # Another name server has other revisions, and needs a full read: keep to the same one.
        for address in sorted(addresses - self._unsupported, key=lambda each: (each != self._address, each)):
            after = self._bookmark if address == self._address else None
            timeout_s = self._session.request_timeout_s + (WATCH_S if after else 0.0)
            try:
                response = await self._session.call(address, encode_watch(WatchQuery(None, after)), timeout_s)
                if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    self._unsupported.add(address)
                    continue
                if response.code != ResponseCode.SUCCESS:
                    raise refusal(response, address)
                answer = decode_watch_answer(response)
            except SkyrouteError as error:
                log.debug("watch failed address=%s reason=%s", address, error)
                continue
            self._address, self._bookmark = address, answer.now
            return None if answer.compacted else frozenset(topic for each in answer.changes for topic in each.topics)
        raise NoWatchError("no name server that responds supports watches")
