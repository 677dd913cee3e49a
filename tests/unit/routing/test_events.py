"""Events in full: a log, a journal or a mirror knows nothing else of a change."""

from dataclasses import replace

from skyroute.routing.events import (
    BrokerChanged,
    BrokerConfirmed,
    BrokerJoined,
    BrokerLeft,
    Cause,
    FilterServersChanged,
    GroupChanged,
    LeaseHeld,
    MappingsChanged,
    TopicsChanged,
    WritesChanged,
)
from skyroute.routing.leases import NO_CONNECTION
from skyroute.routing.registration import DataVersion
from skyroute.routing.table import RouteTable
from skyroute.routing.topology import BrokerKey
from tests.unit.routing.brokers import HA, MASTER, OTHER, READ_ONLY, SLAVE, WRITABLE, mapping, registration, tell

TOPICS = {"T1": WRITABLE, "T2": WRITABLE}
FIRST, SECOND = DataVersion(0, 1, 1), DataVersion(0, 2, 2)
KEY = BrokerKey("c1", MASTER)


def full_table() -> RouteTable:
    """One group with all that a group can have, and another one."""
    table = RouteTable()
    said = registration(
        zone="z1", acting_master=True, lease_s=30.0, filter_servers=("f:1",), mappings={"T1": mapping("T1")}
    )
    tell(table, said, connection=1)
    tell(table, registration(1, SLAVE, zone="z1", acting_master=True), connection=2)
    tell(table, registration(0, OTHER, name="broker-b", topics={"T1": READ_ONLY, "T3": WRITABLE}), connection=3)
    table.forbid_writes("broker-a")
    return table


def test_a_restored_table_reports_what_a_mirror_needs_in_order() -> None:
    table = RouteTable()
    events = table.restore(full_table().snapshot(0.0), lease_s=45.0, now=0.0)
    restored = Cause.RESTORED
    assert events == (
        GroupChanged("broker-a", None, "c1", False, True, None, "z1", restored),
        BrokerJoined("c1", "broker-a", 0, MASTER, HA[MASTER], FIRST, 30.0, NO_CONNECTION, restored),
        BrokerJoined("c1", "broker-a", 1, SLAVE, HA[SLAVE], FIRST, 120.0, NO_CONNECTION, restored),
        TopicsChanged("c1", "broker-a", restored, None, added=TOPICS, changed={}, removed={}),
        MappingsChanged("c1", "broker-a", restored, {"T1": (None, mapping("T1"))}),
        WritesChanged("c1", "broker-a", restored, forbidden=frozenset(TOPICS), restored=frozenset()),
        FilterServersChanged("c1", "broker-a", MASTER, (), ("f:1",), restored),
        GroupChanged("broker-b", None, "c1", False, False, None, None, restored),
        BrokerJoined("c1", "broker-b", 0, OTHER, HA[OTHER], FIRST, 120.0, NO_CONNECTION, restored),
        TopicsChanged(
            "c1", "broker-b", restored, None, added={"T1": READ_ONLY, "T3": WRITABLE}, changed={}, removed={}
        ),
    )


def test_a_restored_broker_reports_its_first_request() -> None:
    table = RouteTable()
    table.restore(full_table().snapshot(0.0), lease_s=45.0, now=0.0)
    assert table.renew(KEY, connection=7, now=1.0) == (
        BrokerConfirmed("c1", "broker-a", 0, MASTER, FIRST, 7, Cause.HEARTBEAT),
    )
    (event, *_) = tell(table, registration(1, SLAVE, zone="z1", acting_master=True), connection=8).events
    assert event == BrokerConfirmed("c1", "broker-a", 1, SLAVE, FIRST, 8, Cause.REGISTERED)


def test_a_held_lease_is_reported_with_its_broker() -> None:
    table = full_table()
    assert table.hold_expired(31.0, share_max=0.0) == (
        LeaseHeld("c1", "broker-a", 0, MASTER, FIRST, 30.0, Cause.MASS_EXPIRY),
    )


def test_a_changed_broker_is_reported_before_and_after() -> None:
    table = full_table()
    said = replace(registration(1, SLAVE, zone="z1", acting_master=True, version=2), broker_id=2, ha_address="ha:9")
    assert tell(table, said, connection=2).events[0] == BrokerChanged(
        cluster="c1",
        broker_name="broker-a",
        address=SLAVE,
        id_before=1,
        id_after=2,
        ha_address_before=HA[SLAVE],
        ha_address_after="ha:9",
        version_before=FIRST,
        version_after=SECOND,
        cause=Cause.REGISTERED,
    )


def test_changed_filter_servers_and_mappings_are_reported_before_and_after() -> None:
    table = full_table()
    later = mapping("T1", epoch=2)
    said = registration(
        zone="z1", acting_master=True, version=2, filter_servers=("f:2",), mappings={"T1": later, "T2": mapping("T2")}
    )
    assert tell(table, said, connection=1).events[-2:] == (
        MappingsChanged(
            "c1",
            "broker-a",
            Cause.REGISTERED,
            {"T1": (mapping("T1"), later), "T2": (None, mapping("T2"))},
        ),
        FilterServersChanged("c1", "broker-a", MASTER, ("f:1",), ("f:2",), Cause.REGISTERED),
    )


def test_a_group_that_is_gone_reports_all_that_it_was() -> None:
    table = RouteTable()
    tell(table, registration(zone="z1", acting_master=True, mappings={"T1": mapping("T1")}), connection=7)
    gone = Cause.GROUP_GONE
    assert table.drop_connection(7) == (
        BrokerLeft("c1", "broker-a", 0, MASTER, Cause.CONNECTION_CLOSED, FIRST, (7,)),
        TopicsChanged("c1", "broker-a", gone, None, added={}, changed={}, removed=TOPICS),
        MappingsChanged("c1", "broker-a", gone, {"T1": (mapping("T1"), None)}),
        GroupChanged("broker-a", "c1", None, True, False, "z1", None, gone),
    )


def test_brokers_that_give_way_are_reported_as_replaced() -> None:
    table = RouteTable()
    tell(table, registration(0, MASTER, name="broker-b"), connection=1)
    tell(table, registration(0, SLAVE, topics=("T1", "T2")), connection=2)
    replaced = Cause.ADDRESS_REPLACED
    # The broker of broker-b takes the name and the id of broker-a's: its group is gone, and the other broker leaves.
    events = tell(table, registration(0, MASTER, topics=("T1", "T2")), connection=2).events
    assert events == (
        BrokerLeft("c1", "broker-b", 0, MASTER, replaced, FIRST, (1,)),
        TopicsChanged("c1", "broker-b", Cause.GROUP_GONE, None, added={}, changed={}, removed=TOPICS),
        GroupChanged("broker-b", "c1", None, False, False, None, None, Cause.GROUP_GONE),
        BrokerLeft("c1", "broker-a", 0, SLAVE, replaced, FIRST, ()),
        BrokerJoined("c1", "broker-a", 0, MASTER, HA[MASTER], FIRST, 120.0, 2, Cause.REGISTERED),
    )


def test_a_broker_that_cannot_follow_its_group_is_reported_as_replaced() -> None:
    table = RouteTable()
    tell(table, registration(0, MASTER), connection=1)
    tell(table, registration(1, SLAVE), connection=2)
    tell(table, registration(0, SLAVE, name="broker-b", cluster="c2"), connection=3)
    # The new broker comes on the connection of the one that leaves, so that it is not unused.
    events = tell(table, registration(2, OTHER, cluster="c2"), connection=2).events
    assert events[0] == BrokerLeft("c1", "broker-a", 1, SLAVE, Cause.ADDRESS_REPLACED, FIRST, ())


def test_changed_topics_are_reported_before_and_after() -> None:
    table = full_table()
    (event, *_) = table.register_topic("T3", {"broker-b": READ_ONLY})
    assert event == TopicsChanged(
        "c1",
        "broker-b",
        Cause.TOPIC_REGISTERED,
        None,
        added={},
        changed={"T3": (WRITABLE, READ_ONLY)},
        removed={},
    )
