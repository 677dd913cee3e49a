"""Writes changes of broker groups to the log."""

import logging
from collections.abc import Collection

from skyroute.controller.events import (
    AddressChanged,
    GroupEvent,
    IdGranted,
    MasterElected,
    MasterLost,
    ReplicasRemoved,
    SyncSetChanged,
)

log = logging.getLogger(__name__)


def log_events(events: Collection[GroupEvent]) -> None:
    """Log each change in one line."""
    for event in events:
        level = logging.WARNING if _is_alarming(event) else logging.INFO
        log.log(level, "%s broker=%s cause=%s", _text(event), event.broker_name, event.cause.value)


def _is_alarming(event: GroupEvent) -> bool:
    return isinstance(event, MasterLost) or (isinstance(event, MasterElected) and event.is_unclean)


def _text(event: GroupEvent) -> str:
    match event:
        case MasterElected():
            kind = "master elected unclean" if event.is_unclean else "master elected"
            before = "none" if event.previous is None else event.previous
            return f"{kind} id={event.master} address={event.address} epoch={event.master_epoch} previous={before}"
        case MasterLost():
            return f"master lost id={event.previous} epoch={event.master_epoch}"
        case SyncSetChanged():
            return (
                f"sync state set changed from={_ids(event.before)} to={_ids(event.after)} epoch={event.sync_set_epoch}"
            )
        case IdGranted():
            return f"broker id granted id={event.broker_id} address={event.address}"
        case AddressChanged():
            return f"broker address changed id={event.broker_id} from={event.before} to={event.after}"
        case ReplicasRemoved():
            return f"replicas removed ids={_ids(event.broker_ids)} whole_group={event.is_whole_group}"
        case _:
            raise TypeError(f"no text for {type(event).__name__}")


def _ids(broker_ids: frozenset[int]) -> str:
    return ",".join(map(str, sorted(broker_ids))) or "none"
