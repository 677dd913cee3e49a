"""Checks of access control that a handler makes. Handlers get None for each if nothing is checked."""

from collections.abc import Callable
from typing import Protocol

from skyroute.access.resources import Action
from skyroute.message.message import StoredMessage
from skyroute.message.properties import find_property
from skyroute.message.property_names import ORIGIN_GROUP
from skyroute.remoting.dispatch import Peer
from skyroute.wire.command import Request, Response


class RequireTopic(Protocol):
    """Checks that the sender of the request in hand may do this with a topic that only a record names.

    It raises RefusedError, and must be called before the handler first awaits anything. `group` is the consumer group
    of a message in a POP retry topic, whose name does not tell where the group ends.
    """

    def __call__(self, topic_name: str, action: Action, peer: Peer, *, group: str = "") -> None: ...


def require_message(require: RequireTopic, message: StoredMessage, action: Action, peer: Peer) -> None:
    """Check that the sender of the request in hand may do this with a message."""
    require(message.topic, action, peer, group=find_property(message.raw_properties, ORIGIN_GROUP) or "")


Recheck = Callable[[], Response | None]
"""Decides again about a request that waited, if the rules have changed; a response refuses it."""
MakeRecheck = Callable[[Request, Peer], Recheck | None]
