"""Route events as log lines."""

import logging
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final

from skyroute.routing.events import (
    BrokerChanged,
    BrokerConfirmed,
    BrokerJoined,
    BrokerLeft,
    FilterServersChanged,
    GroupChanged,
    LeaseHeld,
    MappingsChanged,
    RouteEvent,
    SmallestIdChanged,
    TopicsChanged,
    WritesChanged,
)

log = logging.getLogger(__name__)

NAMES_SHOWN: Final = 5


def log_events(events: Iterable[RouteEvent]) -> None:
    """Log each event."""
    for event in events:
        log.info("%s", describe(event))


def describe(event: RouteEvent) -> str:  # noqa: PLR0911 - one for each kind of event
    """Return an event as one line: a fixed phrase, then key=value."""
    match event:
        case BrokerJoined():
            lease = f"lease_s={event.lease_s:g} {event.version}"
            return f"broker joined {_broker(event)} {lease} cause={event.cause}"
        case BrokerLeft():
            return f"broker left {_broker(event)} cause={event.cause}"
        case BrokerConfirmed():
            return f"broker confirmed {_broker(event)} cause={event.cause}"
        case LeaseHeld():
            return f"broker held {_broker(event)} lease_s={event.lease_s:g} cause={event.cause}"
        case BrokerChanged():
            return (
                f"broker changed cluster={event.cluster} broker={event.broker_name} address={event.address}"
                f" id={_change(event.id_before, event.id_after)}"
                f" ha={_change(event.ha_address_before, event.ha_address_after)}"
                f" version={_change(event.version_before.counter, event.version_after.counter)}"
            )
        case GroupChanged():
            return (
                f"group changed broker={event.broker_name} cluster={_change(event.cluster_before, event.cluster_after)}"
                f" acting_master={_change(event.acting_master_before, event.acting_master_after)}"
                f" zone={_change(event.zone_before, event.zone_after)} cause={event.cause}"
            )
        case TopicsChanged():
            return (
                f"topics changed broker={event.broker_name} cause={event.cause} added={_names(event.added)}"
                f" changed={_names(event.changed)} removed={_names(event.removed)}"
            )
        case WritesChanged():
            return (
                f"writes changed broker={event.broker_name} cause={event.cause}"
                f" forbidden={_names(event.forbidden)} restored={_names(event.restored)}"
            )
        case MappingsChanged():
            return (
                f"static topics changed broker={event.broker_name} cause={event.cause} topics={_names(event.changed)}"
            )
        case FilterServersChanged():
            return (
                f"filter servers changed broker={event.broker_name} address={event.address}"
                f" before={_names(event.before)} after={_names(event.after)}"
            )
        case SmallestIdChanged():
            return (
                f"smallest id changed broker={event.broker_name} id={event.smallest_id}"
                f" address={event.smallest_address} cause={event.cause}"
            )


def _broker(event: BrokerJoined | BrokerLeft | BrokerConfirmed | LeaseHeld) -> str:
    return f"cluster={event.cluster} broker={event.broker_name} id={event.broker_id} address={event.address}"


def _change(before: object, after: object) -> str:
    return f"{before}" if before == after else f"{before}->{after}"


def _names(names: Collection[str]) -> str:
    """Return the number of names, and the first few."""
    if not names:
        return "0"
    shown = ",".join(islice(names, NAMES_SHOWN))
    return f"{len(names)}[{shown}{',…' if len(names) > NAMES_SHOWN else ''}]"
