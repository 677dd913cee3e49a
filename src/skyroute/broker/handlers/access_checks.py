"""Checks of access control that a handler makes. Handlers get None for each if nothing is checked."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from skyroute.access.resources import Action
from skyroute.broker.delivery.filters import Filter, without_groups
from skyroute.message.message import StoredMessage
from skyroute.message.properties import find_property
from skyroute.message.property_names import ORIGIN_GROUP
from skyroute.message.reserved_topics import is_pop_retry_topic, is_retry_topic
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


MayReadRetries = Callable[[str, str], bool]
"""Whether a user may read the messages of a group in a retry topic."""
HideOthers = Callable[[Filter], Filter]
"""Changes a filter so that it hides messages of groups that the user may not read."""


@dataclass(frozen=True, slots=True)
class SharedRetryTopics:
    """Access to retry topics that belong to several groups.

    `%RETRY%a_b` is the retry topic of group `a_b`, and the POP retry topic of group `a` for topic `b`. The right to
    read one group does not include the messages of the other one.
    """

    groups_of: Callable[[str], Iterable[str]]
    """Returns the groups that have an offset in a topic: each has one before its first retry is stored."""
    reader: Callable[[Peer], MayReadRetries | None]
    """Returns the rights of the sender of the request in hand; None if it may read everything."""

    def hider(self, topic: str, peer: Peer) -> HideOthers | None:
        """Return what hides messages of a topic from the sender of the request in hand; None if it may read them all.

        It may be called again later: groups and rights may have changed.
        """
        may_read = self.reader(peer) if is_retry_topic(topic) else None
        if may_read is None:
            return None

        def hide(plain: Filter) -> Filter:
            sharing = (group for group in self.groups_of(topic) if is_pop_retry_topic(topic, group))
            hidden = frozenset(group for group in sharing if not may_read(topic, group))
            return without_groups(plain, hidden) if hidden else plain

        return hide


Recheck = Callable[[], Response | None]
"""Decides again about a request that waited, if the rules have changed; a response refuses it."""
MakeRecheck = Callable[[Request, Peer], Recheck | None]


def kept_chars(request: Request, recheck: Recheck | None) -> int:
    """Return the size of a request that waits: a recheck needs all of it, for its signature."""
    if recheck is None:
        return 0
    texts = len(request.remark or "") + len(request.language or "")
    return len(request.body) + texts + sum(len(name) + len(value) for name, value in request.fields.items())
