"""Registrations for tests of the routing rules."""

from collections.abc import Iterable, Mapping
from typing import TypeVar

from skyroute.routing.events import RegistrationOutcome, RouteEvent
from skyroute.routing.registration import DataVersion, Registration, TopicTable
from skyroute.routing.table import RouteTable
from skyroute.routing.topology import QueueSettings, StaticMapping

_Event = TypeVar("_Event")

MASTER = "10.0.0.1:10911"
SLAVE = "10.0.0.2:10911"
OTHER = "10.0.0.3:10911"

WRITABLE = QueueSettings(read_queues=8, write_queues=8, permission=6)
READ_ONLY = QueueSettings(read_queues=8, write_queues=8, permission=4)

HA = {MASTER: "10.0.0.1:10912", SLAVE: "10.0.0.2:10912", OTHER: "10.0.0.3:10912"}


def registration(
    broker_id: int = 0,
    address: str = MASTER,
    *,
    name: str = "broker-a",
    cluster: str = "c1",
    topics: Iterable[str] | Mapping[str, QueueSettings] = ("T1", "T2"),
    version: DataVersion | int = 1,
    mappings: Mapping[str, StaticMapping] | None = None,
    filter_servers: tuple[str, ...] | None = None,
    zone: str | None = None,
    acting_master: bool | None = None,
    lease_s: float | None = None,
    fingerprint: bytes | None = None,
) -> Registration:
    return Registration(
        cluster=cluster,
        broker_name=name,
        broker_id=broker_id,
        address=address,
        ha_address=HA.get(address),
        zone=zone,
        acting_master=acting_master,
        lease_s=lease_s,
        table=TopicTable(
            version=DataVersion(0, version, version) if isinstance(version, int) else version,
            topics=topics if isinstance(topics, Mapping) else dict.fromkeys(topics, WRITABLE),
            mappings=mappings or {},
            filter_servers=filter_servers,
        ),
        fingerprint=fingerprint,
    )


def mapping(topic: str, name: str = "broker-a", *, epoch: int = 1) -> StaticMapping:
    return StaticMapping(topic=topic, broker_name=name, total_queues=2, epoch=epoch, current_ids={0: 0, 1: 1})


def tell(
    table: RouteTable, said: Registration, *, connection: int = 1, now: float = 0.0, delete_missing_topics: bool = False
) -> RegistrationOutcome:
    return table.register(said, connection=connection, now=now, delete_missing_topics=delete_missing_topics)


def only(events: Iterable[RouteEvent], kind: type[_Event]) -> _Event:
    (event,) = (event for event in events if isinstance(event, kind))
    return event
