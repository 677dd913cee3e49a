"""Checks of access control that a handler makes. Handlers get None for each if nothing is checked."""

from collections.abc import Callable

from skyroute.access.resources import Action
from skyroute.remoting.dispatch import Peer
from skyroute.wire.command import Request, Response

RequireTopic = Callable[[str, Action, Peer], None]
"""Checks that the sender of the request in hand may do this with a topic that only a record names.

It raises RefusedError, and must be called before the handler first awaits anything.
"""

Recheck = Callable[[], Response | None]
"""Decides again about a request that waited, if the rules have changed; a response refuses it."""
MakeRecheck = Callable[[Request, Peer], Recheck | None]
