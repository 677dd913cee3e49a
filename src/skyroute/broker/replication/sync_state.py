"""The sync state set as its master sees it: who is in it, who may join, who must leave. Pure: time is an argument.

A change counts once the controller has stored it. Until then the members of both sets must acknowledge.

A slave joins in two steps, so that no record is acknowledged without it which it lacks: first it must acknowledge new
records like a member, then, once it has all older ones, the controller is asked.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Final

from skyroute.broker.replication.epochs import Epochs

JOIN_GAP_BYTES: Final = 1024 * 1024
"""A slave that lacks no more than this may join."""
JOIN_S: Final = 1.0
"""A slave that has not caught up after this time acknowledges no longer like a member."""
BARRED_S: Final = 3.0
"""Time before such a slave, or one that the controller has refused, is tried again."""


@dataclass(slots=True)
class Follower:
    """A connected slave that has sent its handshake."""

    broker_id: int
    is_learner: bool = False
    acked: int | None = None
    """The end of its log; None before its first report."""
    acked_at: float = -inf
    """When it last reported."""
    caught_up_at: float = 0.0
    """When it last had all of the log."""
    sent_at: float = 0.0
    sent_end: int = 0
    """When records were last sent to it, and the end of the log then."""
    join_at: int | None = None
    """It acknowledges like a member, and joins once its log reaches this position; None if it does not join."""
    join_until: float = 0.0
    barred_until: float = -inf
    """It does not begin to join before this time."""

    def bar(self, now: float) -> None:
        """Let it not join for a while."""
        self.join_at, self.barred_until = None, now + BARRED_S

    def has(self, end: int) -> bool:
        """Return whether its log reaches a position."""
        return self.acked is not None and self.acked >= end


@dataclass(slots=True)
class SyncState:
    """The sync state set of a group, held by its master `own_id`."""

    own_id: int
    members: frozenset[int] = frozenset()
    epoch: int = 0
    asked: frozenset[int] = frozenset()
    """Members of the sets that the controller was asked for since its last answer."""
    confirmed: int = 0
    """Position up to which all members have the log; never goes back while this broker is master."""
    followers: dict[int, Follower] = field(default_factory=dict)
    """Connected slaves by id."""

    @property
    def to_acknowledge(self) -> frozenset[int]:
        """The slaves whose acknowledgement a send needs: of the set, of one that is asked for, and those that join."""
        joining = {each.broker_id for each in self.followers.values() if each.join_at is not None}
        return (self.members | self.asked | joining) - {self.own_id}

    def in_sync_count(self, heard_after: float) -> int:
        """Return the number of members that reported after a time, the master included.

        A master that is cut off cannot change the set, so the size of the set does not count.
        """
        reported = (self.followers.get(member) for member in self.members - {self.own_id})
        return 1 + sum(each is not None and each.acked_at >= heard_after for each in reported)

    def take(self, members: frozenset[int], epoch: int) -> bool:
        """Take over the set that the controller has; return False if it is older."""
        if epoch < self.epoch:
            return False
        self.members, self.epoch, self.asked = members, epoch, frozenset()
        for follower in self.followers.values():
            if follower.broker_id in members:
                follower.join_at = None
        return True

    def confirm(self, log_end: int) -> int:
        """Return, and note, the position up to which every member has the log.

        It does not advance while a member is not connected.
        """
        confirmed = log_end
        for member in self.to_acknowledge:
            follower = self.followers.get(member)
            if follower is None or follower.acked is None:
                return self.confirmed
            confirmed = min(confirmed, follower.acked)
        self.confirmed = max(confirmed, self.confirmed)
        return self.confirmed

    def reached(self, replicas: int, log_end: int) -> int:
        """Return the position up to which a number of slaves have the log; its end if none has to."""
        if replicas <= 0:
            return log_end
        ends = sorted((each.acked or 0 for each in self.followers.values()), reverse=True)
        return ends[replicas - 1] if replicas <= len(ends) else 0

    def note_ack(self, follower: Follower, end: int, log_end: int, now: float) -> None:
        """Note the end of a slave's log."""
        follower.acked, follower.acked_at = end, now
        if end >= log_end:
            follower.caught_up_at = now
        elif end >= follower.sent_end:
            follower.caught_up_at = max(follower.caught_up_at, follower.sent_at)

    def note_refusal(self, asked: frozenset[int], now: float) -> None:
        """Note that the controller refuses a set, so that slaves that it does not have do not keep others out."""
        for broker_id in asked - self.members:
            if broker_id in self.followers:
                self.followers[broker_id].bar(now)

    def wanted(self, epochs: Epochs, log_end: int, now: float, patience_s: float) -> frozenset[int] | None:
        """Return the set to ask the controller for; None if the present one is right.

        A member leaves if its connection is lost, or if it has not caught up for `patience_s`. Slaves join one by one:
        the controller refuses a set with one that is unknown or dead to it, and does not say which.
        """
        stay = {
            member
            for member in self.members
            if (found := self.followers.get(member)) is not None
            and (found.has(log_end) or now - found.caught_up_at <= patience_s)
        }
        join = [each for each in self.followers.values() if self._joins(each, epochs, log_end, now)]
        join.sort(key=lambda each: each.barred_until)  # those that the controller refuses keep no other one out
        wanted = frozenset({self.own_id, *stay, *(each.broker_id for each in join[:1])})
        return None if wanted == self.members else wanted

    def _joins(self, follower: Follower, epochs: Epochs, log_end: int, now: float) -> bool:
        """Return whether a slave can join now; let it acknowledge like a member if it soon can."""
        if follower.is_learner or follower.acked is None or follower.broker_id in self.members:
            return False
        if now < follower.barred_until:
            return False
        if follower.join_at is None and follower.has(max(epochs.last_start, log_end - JOIN_GAP_BYTES)):
            follower.join_at = max(self.confirm(log_end), epochs.last_start)
            follower.join_until = now + JOIN_S
        if follower.join_at is None:
            return False
        if follower.has(follower.join_at):
            return True
        if now > follower.join_until:
            follower.bar(now)
        return False
