"""Builds a route table from the records of a journal."""

from dataclasses import dataclass, field

from skyroute.nameserver.journal.schema import CONTROLLER_KINDS, Kind, Record
from skyroute.routing.events import Cause
from skyroute.routing.group_state import GroupMember, GroupState
from skyroute.routing.registration import DataVersion


@dataclass(slots=True)
class Replay:
    """Broker groups by name. Leases and connections are not recorded, and mean nothing here.

    A record that contradicts the table replaces its content: records before it may have been lost.
    """

    groups: dict[str, GroupState] = field(default_factory=dict)

    def apply(self, record: Record) -> None:
        """Apply a record to the table."""
        if record.kind == Kind.SERVER_STARTED:
            self.groups.clear()
        if record.broker is None or record.kind in CONTROLLER_KINDS:
            return
        group = self.groups.setdefault(record.broker, GroupState(record.broker, record.cluster or ""))
        match record.kind:
            case Kind.GROUP_CHANGED:
                self._place(group, record)
            case Kind.BROKER_JOINED | Kind.BROKER_LEFT | Kind.BROKER_CHANGED | Kind.BROKER_CONFIRMED:
                _apply_broker(group, record)
            case Kind.TOPICS_CHANGED:
                _apply_topics(group, record)
            case Kind.WRITES_CHANGED:
                group.forbidden |= {*(record.forbidden or ())}
                group.forbidden -= {*(record.restored or ())}
            case Kind.MAPPINGS_CHANGED:
                for topic, (_, after) in (record.mappings or {}).items():
                    group.mappings.pop(topic, None)
                    if after is not None:
                        group.mappings[topic] = after
            case Kind.FILTER_SERVERS_CHANGED:
                member = group.member_at(record.address or "")
                if member is not None and record.after is not None:
                    member.filter_servers = record.after.filter_servers or ()

    def _place(self, group: GroupState, record: Record) -> None:
        after = record.after
        if after is None:
            del self.groups[group.name]
        else:
            group.cluster, group.zone = after.cluster or "", after.zone
            group.acting_master = bool(after.acting_master)


def _apply_broker(group: GroupState, record: Record) -> None:
    before, after, broker_id = record.before, record.after, record.broker_id or 0
    old_id = broker_id if before is None or before.broker_id is None else before.broker_id
    known = group.members.pop(old_id, None)
    if record.kind == Kind.BROKER_LEFT:
        return
    member = known or GroupMember(group, broker_id, "", None, DataVersion(0, 0, 0), 0.0, 0.0, 0, knows_acting=False)
    member.broker_id, member.address = broker_id, record.address or ""
    member.version = record.version or member.version
    if after is not None:
        member.ha_address = after.ha_address
    member.confirmed = record.cause != Cause.RESTORED
    group.members[broker_id] = member


def _apply_topics(group: GroupState, record: Record) -> None:
    group.queues |= record.added or {}
    group.queues |= {topic: after for topic, (_, after) in (record.changed or {}).items()}
    for topic in record.removed or ():
        group.queues.pop(topic, None)
    group.forbidden -= {*(record.changed or ()), *(record.removed or ())}
