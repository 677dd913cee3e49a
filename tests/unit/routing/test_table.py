"""The life of brokers in the table: coming, staying, changing and leaving."""

import re
from copy import deepcopy
from dataclasses import replace

import pytest

from skyroute.routing.discovery import cluster_view, find_route, member_addresses
from skyroute.routing.errors import NameTakenError, PartialFirstRegistrationError, TableFullError
from skyroute.routing.events import (
    BrokerChanged,
    BrokerJoined,
    BrokerLeft,
    Cause,
    FilterServersChanged,
    GroupChanged,
    RegistrationOutcome,
    SmallestIdChanged,
    TopicsChanged,
)
from skyroute.routing.memory_estimate import MEMBER_BYTES, server_bytes, text_bytes, topic_bytes
from skyroute.routing.registration import DataVersion, Registration
from skyroute.routing.table import RouteTable
from skyroute.routing.table_view import TableStats
from skyroute.routing.table_writer import LEAVING_COST, TOPICS_A_STEP
from skyroute.routing.topology import BrokerKey, ClusterView, StaticMapping
from tests.unit.routing.brokers import HA, MASTER, OTHER, READ_ONLY, SLAVE, mapping, only, registration, tell

EMPTY = "<RouteTable clusters=0 groups=0 brokers=0 connections=0 topics=0 topic_entries=0>"


def test_the_repr_counts_what_is_there() -> None:
    table = RouteTable()
    assert repr(table) == EMPTY
    tell(table, registration(), connection=1)
    tell(table, registration(1, SLAVE), connection=1)
    tell(table, registration(0, OTHER, name="broker-b", cluster="c2", topics=("T1", "T3")), connection=2)
    assert repr(table) == "<RouteTable clusters=2 groups=2 brokers=3 connections=2 topics=3 topic_entries=4>"


def test_stats_count_what_is_there() -> None:
    table = RouteTable()
    assert table.stats(0.0) == TableStats(0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0)
    tell(table, registration(lease_s=100.0), connection=1, now=10.0)
    tell(table, registration(1, SLAVE, lease_s=60.0), connection=1, now=20.0)
    tell(table, registration(0, OTHER, name="broker-b", cluster="c2", topics=("T1", "T3")), connection=2, now=5.0)
    stats = table.stats(30.0)
    assert stats == TableStats(
        clusters=2,
        groups=2,
        brokers=3,
        unconfirmed=0,
        held=0,
        topics=3,
        topic_entries=4,
        registration_bytes=table.snapshot(30.0).registration_bytes,
        lease_age_max_s=25.0,
        lease_left_min_s=50.0,
    )
    table.hold_expired(150.0, share_max=0.5)
    assert table.stats(150.0)[3:5] == (0, 3)
    again = RouteTable()
    again.restore(table.snapshot(150.0), lease_s=45.0, now=0.0)
    assert again.stats(0.0) == TableStats(2, 2, 3, 3, 0, 3, 4, stats.registration_bytes, 75.0, 45.0)


def test_every_byte_that_is_counted_belongs_to_a_broker_or_a_topic() -> None:
    table = RouteTable()

    def check() -> None:
        assert table.stats(0.0).registration_bytes == table.snapshot(0.0).registration_bytes

    several = {"T1": mapping("T1"), "T2": StaticMapping("T2", "broker-a", 3, 1, current_ids={0: 0})}
    tell(table, registration(filter_servers=("f:1", "f:22"), mappings=several))
    check()
    tell(table, registration(1, SLAVE, filter_servers=("f:333",)))
    tell(table, registration(0, OTHER, name="broker-b", topics=("T1", "主题")), connection=2)
    check()
    tell(table, registration(filter_servers=("f:1",), topics=("T1", "T3"), version=2))
    check()
    tell(table, registration(topics=("T4",), version=3), delete_missing_topics=True)
    check()
    restored = RouteTable()
    restored.restore(table.snapshot(0.0), lease_s=45.0, now=0.0)
    assert restored.stats(0.0).registration_bytes == table.stats(0.0).registration_bytes
    table.drop_connection(1)
    check()


def test_a_character_beyond_ascii_counts_six_bytes() -> None:
    assert text_bytes(()) == 0
    assert text_bytes(("ab", "c")) == 3
    assert text_bytes(("ab", "主", "c")) == 2 + 6 + 1


# Coming


def test_a_first_registration_reports_group_broker_and_topics_in_that_order() -> None:
    said = registration(zone="z1", acting_master=True, lease_s=10.0)
    outcome = tell(RouteTable(), said, connection=7)
    version = DataVersion(0, 1, 1)
    assert said.table is not None
    assert outcome == RegistrationOutcome(
        (
            GroupChanged("broker-a", None, "c1", False, True, None, "z1", Cause.REGISTERED),
            BrokerJoined("c1", "broker-a", 0, MASTER, HA[MASTER], version, 10.0, 7),
            TopicsChanged("c1", "broker-a", Cause.REGISTERED, version, added=said.table.topics, changed={}, removed={}),
        )
    )


def test_a_heartbeat_that_changes_nothing_reports_nothing() -> None:
    table = RouteTable()
    tell(table, registration())
    assert tell(table, registration()) == RegistrationOutcome()


def test_a_new_version_of_the_same_topics_reports_only_the_version() -> None:
    table = RouteTable()
    tell(table, registration(version=1))
    (event,) = tell(table, registration(version=2)).events
    assert isinstance(event, BrokerChanged)
    assert (event.version_before, event.version_after) == (DataVersion(0, 1, 1), DataVersion(0, 2, 2))
    assert table.version_of(BrokerKey("c1", MASTER)) == DataVersion(0, 2, 2)


def test_the_outcome_has_the_master_address_for_a_slave_only() -> None:
    table = RouteTable()
    assert tell(table, registration()).master_address is None
    outcome = tell(table, registration(1, SLAVE))
    assert (outcome.master_address, outcome.master_ha_address) == (MASTER, HA[MASTER])


def test_the_outcome_of_a_slave_without_master_has_no_address() -> None:
    outcome = tell(RouteTable(), registration(1, SLAVE))
    assert (outcome.master_address, outcome.master_ha_address) == (None, None)


def test_the_last_registrant_decides_zone_and_acting_master_of_its_group() -> None:
    table = RouteTable()
    tell(table, registration(zone="z1", acting_master=True))
    event = only(tell(table, registration(1, SLAVE, zone="z2", acting_master=None)).events, GroupChanged)
    assert (event.zone_before, event.zone_after) == ("z1", "z2")
    assert (event.acting_master_before, event.acting_master_after) == (True, False)


def test_filter_servers_are_kept_when_absent_and_cleared_when_empty() -> None:
    table = RouteTable()
    tell(table, registration(filter_servers=("f:1", "f:2")))
    tell(table, registration(filter_servers=None))
    assert table.filter_servers("broker-a") == {MASTER: ("f:1", "f:2")}
    event = only(tell(table, registration(filter_servers=())).events, FilterServersChanged)
    assert (event.before, event.after) == (("f:1", "f:2"), ())
    assert table.filter_servers("broker-a") == {}


# Refusing


def test_a_single_topic_from_an_unknown_broker_is_refused_without_a_trace() -> None:
    """No phantom group stays behind in cluster or group lists (§23 #5)."""
    table = RouteTable()
    text = f"{MASTER} is not registered as broker-a[0] and sent a single topic; it must send its whole table first"
    with pytest.raises(PartialFirstRegistrationError, match=f"^{re.escape(text)}$"):
        tell(table, registration(topics=("T1",)))
    assert repr(table) == EMPTY
    assert cluster_view(table) == ClusterView((), {})


def test_a_refusal_changes_neither_zone_nor_flags_nor_roles_of_the_group() -> None:
    """Everything is decided before anything is written (§23 #5)."""
    table = RouteTable()
    tell(table, registration())
    tell(table, registration(1, SLAVE))
    before = cluster_view(table)
    with pytest.raises(PartialFirstRegistrationError):
        tell(table, registration(2, SLAVE, topics=("T9",), zone="z9", acting_master=True))
    assert cluster_view(table) == before


def test_a_single_topic_from_a_known_broker_is_added() -> None:
    table = RouteTable()
    tell(table, registration(topics=("T1", "T2"), version=1))
    tell(table, registration(topics=("T3",), version=2))
    assert tuple(table.topics) == ("T1", "T2", "T3")


def test_a_broker_of_an_older_epoch_cannot_take_an_id_and_changes_nothing() -> None:
    table = RouteTable()
    tell(table, registration(version=DataVersion(5, 1, 1)))
    before = cluster_view(table)
    outcome = tell(table, registration(0, OTHER, version=DataVersion(4, 9, 9), zone="z9"))
    assert outcome == RegistrationOutcome(superseded=True)
    assert cluster_view(table) == before


def test_a_superseded_broker_keeps_the_id_it_has() -> None:
    """The Java server forgets the refused broker's lease and role (§23 #5)."""
    table = RouteTable()
    tell(table, registration(version=DataVersion(5, 1, 1)))
    tell(table, registration(1, SLAVE, version=DataVersion(4, 1, 1)))
    assert tell(table, registration(0, SLAVE, version=DataVersion(4, 2, 2))).superseded
    assert member_addresses(table, "broker-a") == {0: MASTER, 1: SLAVE}
    assert table.version_of(BrokerKey("c1", SLAVE)) == DataVersion(4, 1, 1)


def test_a_full_table_refuses_a_new_broker_and_accepts_heartbeats_and_replacements() -> None:
    table = RouteTable(brokers_max=1)
    tell(table, registration())
    with pytest.raises(TableFullError, match="brokersMax"):
        tell(table, registration(name="broker-b", address=OTHER))
    assert table.group("broker-b") is None
    tell(table, registration())
    tell(table, registration(0, OTHER))
    assert member_addresses(table, "broker-a") == {0: OTHER}


def test_a_table_takes_what_just_fits_and_a_byte_less_is_refused() -> None:
    said = registration(topics=("T1", "T2"))
    needed = MEMBER_BYTES + topic_bytes(("T1", "T2"))
    tell(RouteTable(brokers_max=1, topic_entries_max=2, registration_bytes_max=needed), said)
    with pytest.raises(TableFullError, match="registrationBytesMax"):
        tell(RouteTable(registration_bytes_max=needed - 1), said)
    with pytest.raises(TableFullError, match="topicEntriesMax"):
        tell(RouteTable(topic_entries_max=1), said)
    table = RouteTable(registration_bytes_max=needed + server_bytes(("f:1",)))
    tell(table, registration(topics=("T1", "T2"), filter_servers=("f:1",)))
    with pytest.raises(TableFullError, match="registrationBytesMax"):
        tell(table, registration(topics=("T1", "T2"), filter_servers=("f:10",)))


@pytest.mark.parametrize("maximum", ["brokers_max", "topic_entries_max", "registration_bytes_max"])
def test_a_table_above_its_bounds_still_takes_what_does_not_grow(maximum: str) -> None:
    """Whatever brought it there, brokers that are registered must not lose their routes."""
    before = RouteTable()
    tell(before, registration(topics=("T1", "T2", "T3")))
    tell(before, registration(0, OTHER, name="broker-b", topics=("T1", "T2", "T3")))
    table = deepcopy(before)
    setattr(table, f"_{maximum}", 1)
    tell(table, registration(topics=("T1", "T2", "T3"), version=2))
    table.register_topic("T1", {"broker-a": READ_ONLY})
    assert table.settings("broker-a", "T1") == READ_ONLY
    tell(table, registration(topics=("T1", "T2"), version=3), delete_missing_topics=True)
    assert set(table.topics_of("broker-a")) == {"T1", "T2"}


def test_too_many_topics_are_refused_before_one_of_them_is_written() -> None:
    table = RouteTable(topic_entries_max=3)
    tell(table, registration(topics=("T1", "T2")))
    with pytest.raises(TableFullError, match="topicEntriesMax"):
        tell(table, registration(topics=("T1", "T2", "T3", "T4"), version=2))
    assert tuple(table.topics) == ("T1", "T2")
    assert table.version_of(BrokerKey("c1", MASTER)) == DataVersion(0, 1, 1)


@pytest.mark.parametrize(
    "much",
    [
        registration(name="broker-b", address=OTHER, topics=[f"{'x' * 200}{number}" for number in range(20)]),
        registration(name="broker-b", address=OTHER, topics=[f"{'主' * 200}{number}" for number in range(8)]),
        registration(name="broker-b", address=OTHER, topics=map(str, range(100))),
        registration(name="broker-b", address=OTHER, filter_servers=("f" * 500,) * 20),
        registration(
            name="broker-b",
            address=OTHER,
            mappings={"T1": StaticMapping("T1", "broker-b", 100, 1, current_ids={n: n for n in range(100)})},
        ),
        registration(1, OTHER, topics=[f"{'x' * 2000}{number}" for number in range(20)], filter_servers=("f" * 9000,)),
    ],
)
def test_registrations_are_bounded_in_bytes(much: Registration) -> None:
    table = RouteTable(registration_bytes_max=12_000)
    tell(table, registration(topics=("T1", "T2")))
    before = table.stats(0.0)
    with pytest.raises(TableFullError, match=r"bytes of registrations and \d+ new .* 12000 .registrationBytesMax."):
        tell(table, much)
    assert table.stats(0.0) == before
    tell(table, registration(topics=("T1", "T2"), version=2))


def test_registration_bytes_are_freed_when_brokers_leave() -> None:
    table = RouteTable(registration_bytes_max=20_000)
    large = [f"{'x' * 50}{number}" for number in range(40)]
    for _ in range(3):
        tell(
            table,
            registration(topics=large, filter_servers=("f:1",), mappings={large[0]: mapping(large[0])}),
            connection=1,
        )
        with pytest.raises(TableFullError):
            tell(table, registration(name="broker-b", address=OTHER, topics=large))
        table.drop_connection(1)
        assert table.stats(0.0).registration_bytes == 0


# One address, one id


def test_another_address_with_the_same_id_replaces_the_broker_and_its_lease() -> None:
    """A broker that restarted with a new address leaves no lease behind that expires later (§23 #3)."""
    table = RouteTable()
    tell(table, registration(filter_servers=("f:1",)), connection=1)
    events = tell(table, registration(0, OTHER), connection=2).events
    assert [type(event) for event in events] == [BrokerLeft, BrokerJoined]
    left = only(events, BrokerLeft)
    assert (left.address, left.cause, left.unused_connections) == (MASTER, Cause.ADDRESS_REPLACED, (1,))
    assert member_addresses(table, "broker-a") == {0: OTHER}
    assert table.renew(BrokerKey("c1", MASTER), connection=1, now=1.0) is None
    assert table.drop_connection(1) == ()
    assert table.filter_servers("broker-a") == {}


def test_topics_outlive_the_replacement_of_the_only_broker() -> None:
    table = RouteTable()
    tell(table, registration(topics=("T1", "T2")))
    tell(table, registration(0, OTHER, topics=("T1", "T3")))
    assert tuple(table.topics) == ("T1", "T2", "T3")


def test_a_slave_that_becomes_master_gives_up_its_old_id() -> None:
    table = RouteTable()
    tell(table, registration())
    tell(table, registration(1, SLAVE))
    table.unregister("c1", MASTER, "broker-a", 0)
    event = only(tell(table, registration(0, SLAVE)).events, BrokerChanged)
    assert (event.id_before, event.id_after) == (1, 0)
    assert member_addresses(table, "broker-a") == {0: SLAVE}
    tell(table, registration(1, MASTER))
    assert member_addresses(table, "broker-a") == {0: SLAVE, 1: MASTER}


def test_a_slave_may_take_the_masters_id_while_the_master_is_there() -> None:
    table = RouteTable()
    tell(table, registration(), connection=1)
    tell(table, registration(1, SLAVE), connection=2)
    events = tell(table, registration(0, SLAVE), connection=2).events
    assert [type(event) for event in events] == [BrokerLeft, BrokerChanged]
    assert member_addresses(table, "broker-a") == {0: SLAVE}


def test_a_broker_that_changes_its_name_leaves_its_old_group() -> None:
    table = RouteTable()
    tell(table, registration(), connection=1)
    events = tell(table, registration(name="broker-b"), connection=1).events
    assert [(type(event), event.broker_name) for event in events] == [
        (BrokerLeft, "broker-a"),
        (TopicsChanged, "broker-a"),
        (GroupChanged, "broker-a"),
        (GroupChanged, "broker-b"),
        (BrokerJoined, "broker-b"),
        (TopicsChanged, "broker-b"),
    ]
    assert not only(events, BrokerLeft).unused_connections, "it speaks through the same connection under its new name"
    assert cluster_view(table).clusters == {"c1": ("broker-b",)}


# Clusters


def test_a_group_that_changes_its_cluster_leaves_the_old_one() -> None:
    """A name is in one cluster only, and an emptied cluster is gone (§23 #4)."""
    table = RouteTable()
    tell(table, registration())
    tell(table, registration(1, SLAVE))
    events = tell(table, registration(cluster="c2")).events
    event = only(events, GroupChanged)
    assert (event.cluster_before, event.cluster_after) == ("c1", "c2")
    view = cluster_view(table)
    assert view.clusters == {"c2": ("broker-a",)}
    assert view.groups[0].cluster == "c2"
    assert view.groups[0].addresses == {0: MASTER, 1: SLAVE}


def test_leases_move_with_their_group_to_another_cluster() -> None:
    """No lease is left that cannot be renewed or ended (§23 #3)."""
    table = RouteTable()
    tell(table, registration(), connection=1)
    tell(table, registration(1, SLAVE), connection=2)
    tell(table, registration(cluster="c2"), connection=1)
    assert table.renew(BrokerKey("c1", SLAVE), connection=1, now=1.0) is None
    assert table.renew(BrokerKey("c2", SLAVE), connection=1, now=1.0) is not None
    table.drop_connection(2)
    assert member_addresses(table, "broker-a") == {0: MASTER}


def test_two_clusters_cannot_share_a_broker_name_and_id() -> None:
    """The second is refused with the owner of the name, instead of mixing both (§23 #4)."""
    table = RouteTable()
    tell(table, registration(cluster="c1"))
    before = cluster_view(table)
    with pytest.raises(NameTakenError, match=r"broker-a\[0\] is taken by 10\.0\.0\.1:10911 of cluster c1.*unique"):
        tell(table, registration(0, OTHER, cluster="c2"))
    assert cluster_view(table) == before


def test_a_broker_whose_address_is_known_in_the_new_cluster_does_not_follow_its_group() -> None:
    table = RouteTable()
    tell(table, registration(0, MASTER, cluster="c1"), connection=1)
    tell(table, registration(1, SLAVE, cluster="c1"), connection=2)
    tell(table, registration(0, SLAVE, name="broker-b", cluster="c2"), connection=3)
    left = only(tell(table, registration(0, MASTER, cluster="c2"), connection=1).events, BrokerLeft)
    assert (left.cluster, left.broker_name, left.address) == ("c1", "broker-a", SLAVE)
    assert member_addresses(table, "broker-a") == {0: MASTER}
    assert member_addresses(table, "broker-b") == {0: SLAVE}


def test_a_group_moves_even_if_none_of_its_brokers_can_follow() -> None:
    table = RouteTable()
    tell(table, registration(1, SLAVE, acting_master=False))
    tell(table, registration(0, SLAVE, name="broker-b", cluster="c2"))
    tell(table, registration(0, MASTER, cluster="c2", topics=("T2", "T3")))
    assert member_addresses(table, "broker-a") == {0: MASTER}
    assert cluster_view(table).clusters == {"c2": ("broker-b", "broker-a")}
    assert set(table.topics_of("broker-a")) == {"T1", "T2", "T3"}


# Leaving


def test_a_broker_is_evicted_just_after_its_lease() -> None:
    table = RouteTable()
    tell(table, registration(), connection=7, now=0.0)
    assert table.evict_expired(now=120.0) == ()
    left = only(table.evict_expired(now=120.1), BrokerLeft)
    assert (left.unused_connections, left.cause) == ((7,), Cause.LEASE_EXPIRED)


def test_a_broker_may_name_its_own_lease_and_a_renewal_keeps_to_it() -> None:
    table = RouteTable(lease_s=60.0)
    tell(table, registration(lease_s=3.0), now=0.0)
    assert table.renew(BrokerKey("c1", MASTER), connection=1, now=2.0) is not None
    assert table.evict_expired(now=5.0) == ()
    assert table.evict_expired(now=5.1) != ()


def test_an_unknown_broker_cannot_renew() -> None:
    table = RouteTable()
    assert table.renew(BrokerKey("c1", MASTER), connection=1, now=0.0) is None
    assert table.version_of(BrokerKey("c1", MASTER)) is None


def test_the_last_broker_takes_group_topics_and_cluster_with_it() -> None:
    table = RouteTable()
    tell(table, registration(zone="z1"))
    events = table.drop_connection(1)
    assert [(type(event), event.cause) for event in events] == [
        (BrokerLeft, Cause.CONNECTION_CLOSED),
        (TopicsChanged, Cause.GROUP_GONE),
        (GroupChanged, Cause.GROUP_GONE),
    ]
    assert set(only(events, TopicsChanged).removed) == {"T1", "T2"}
    assert repr(table) == EMPTY


def test_many_brokers_of_a_connection_leave_in_steps_the_largest_ids_first() -> None:
    table = RouteTable()
    count = 2 * TOPICS_A_STEP // LEAVING_COST
    for at in range(count):
        tell(table, registration(at, f"10.0.1.{at}:1", topics=("T1", "T2")), connection=1)
    left: list[int] = []
    while events := table.drop_connection(1):
        ids = [event.broker_id for event in events if isinstance(event, BrokerLeft)]
        assert len(ids) <= TOPICS_A_STEP // LEAVING_COST
        assert not any(isinstance(event, SmallestIdChanged) for event in events)
        left += ids
        assert table.has_brokers_on(1) == (len(left) < count)
    assert left == list(reversed(range(count)))
    assert repr(table) == EMPTY


@pytest.mark.parametrize(("topics_a_step", "first"), [(LEAVING_COST + 3, 1), (LEAVING_COST + 4, 2)])
def test_a_broker_that_leaves_costs_its_topics_and_members_too(topics_a_step: int, first: int) -> None:
    table = RouteTable(topics_a_step=topics_a_step)
    for name, address in (("broker-a", MASTER), ("broker-b", SLAVE), ("broker-c", OTHER)):
        tell(table, registration(0, address, name=name, topics=("T1", "T2")))
    assert sum(isinstance(event, BrokerLeft) for event in table.drop_connection(1)) == first


def test_topics_of_other_groups_stay_when_a_group_leaves() -> None:
    """Only the group's own topics are looked at, however many there are (§23 #11)."""
    table = RouteTable()
    tell(table, registration(topics=("T1", "T2")), connection=1)
    tell(table, registration(0, OTHER, name="broker-b", topics=("T2", "T3")), connection=2)
    assert set(only(table.drop_connection(1), TopicsChanged).removed) == {"T1", "T2"}
    assert tuple(table.topics) == ("T2", "T3")
    assert table.serving("T2") == ("broker-b",)


def test_every_broker_behind_a_closed_connection_leaves() -> None:
    """A container registers many brokers over one connection (§23 #2)."""
    table = RouteTable()
    for name, address in (("broker-a", MASTER), ("broker-b", SLAVE), ("broker-c", OTHER)):
        tell(table, registration(0, address, name=name), connection=1)
    left = [event for event in table.drop_connection(1) if isinstance(event, BrokerLeft)]
    assert [event.broker_name for event in left] == ["broker-a", "broker-b", "broker-c"]
    assert [event.unused_connections for event in left] == [(), (), (1,)]
    assert repr(table) == EMPTY
    assert table.drop_connection(1) == ()


@pytest.mark.parametrize("fingerprint", [None, b"body"], ids=["with its table", "remembered"])
@pytest.mark.parametrize(("first", "last"), [(1, 2), (2, 1)])
def test_a_broker_that_registered_on_an_older_connection_stays_until_both_are_closed(
    fingerprint: bytes | None, first: int, last: int
) -> None:
    table = RouteTable()
    tell(table, registration(fingerprint=fingerprint), connection=1)
    tell(table, registration(fingerprint=fingerprint), connection=2)
    late = registration(fingerprint=fingerprint)
    if fingerprint is not None:
        late = replace(late, table=None)
    assert table.register(late, connection=1, now=0.0).events == ()
    assert table.drop_connection(first) == ()
    assert only(table.drop_connection(last), BrokerLeft).address == MASTER


def test_a_newer_connection_replaces_all_older_ones() -> None:
    table = RouteTable()
    for connection in (2, 1, 3):
        tell(table, registration(), connection=connection)
    assert table.drop_connection(1) == table.drop_connection(2) == ()
    assert only(table.drop_connection(3), BrokerLeft).address == MASTER


@pytest.mark.parametrize("broker_id", [0, 1], ids=["master", "slave"])
def test_a_delayed_older_version_on_an_older_connection_is_ignored(broker_id: int) -> None:
    table = RouteTable()
    newer, older = DataVersion(0, 2, 2), DataVersion(0, 1, 1)
    tell(table, registration(broker_id, version=newer), connection=2)
    assert table.register(registration(broker_id, version=older), connection=1, now=0.0).overtaken
    assert table.drop_connection(1) == ()
    assert only(table.drop_connection(2), BrokerLeft).version == newer


def test_a_smaller_counter_of_the_same_time_on_the_same_connection_is_ignored() -> None:
    table = RouteTable()
    tell(table, registration(version=DataVersion(0, 7, 2)))
    assert tell(table, registration(version=DataVersion(0, 7, 1))).overtaken
    assert not tell(table, registration(version=DataVersion(0, 7, 2))).overtaken


def test_tickets_number_arrivals() -> None:
    table = RouteTable()
    assert [table.take_ticket() for _ in range(3)] == [1, 2, 3]


def test_an_unchanged_body_that_arrived_earlier_renews_the_lease_and_nothing_else() -> None:
    table = RouteTable()
    said = replace(registration(fingerprint=b"body"), zone="z1")
    tell(table, said, now=0.0)
    first, second, third = (table.take_ticket() for _ in range(3))
    same = replace(said, table=None)
    assert not table.register(same, connection=1, now=1.0, ticket=second).overtaken
    late = table.register(replace(same, zone="z2"), connection=1, now=100.0, ticket=first)
    assert late == RegistrationOutcome(overtaken=True)
    assert table.evict_expired(220.0) == ()
    assert not table.register(same, connection=1, now=1.0, ticket=third).overtaken


def test_a_newer_version_on_an_older_connection_is_applied() -> None:
    table = RouteTable()
    tell(table, registration(version=DataVersion(0, 1, 1)), connection=2)
    tell(table, registration(version=DataVersion(0, 2, 2)), connection=1)
    assert table.drop_connection(2) == ()
    assert only(table.drop_connection(1), BrokerLeft).version == DataVersion(0, 2, 2)


def test_a_connection_is_not_unused_while_another_of_its_brokers_is_registered() -> None:
    table = RouteTable()
    tell(table, registration(lease_s=1.0), connection=1)
    tell(table, registration(0, OTHER, name="broker-b"), connection=1)
    assert not only(table.evict_expired(now=2.0), BrokerLeft).unused_connections


def test_an_evicted_broker_reports_its_older_connection_too() -> None:
    """Both would stay open for ever otherwise: nothing else looks at the connection of a broker that is gone."""
    table = RouteTable()
    tell(table, registration(lease_s=1.0), connection=2)
    tell(table, registration(lease_s=1.0), connection=1)
    assert only(table.evict_expired(now=2.0), BrokerLeft).unused_connections == (2, 1)


def test_closing_an_old_connection_does_not_end_a_broker_that_came_back_over_a_new_one() -> None:
    """A late end of an old connection cannot wipe a fresh registration (§23 #1)."""
    table = RouteTable()
    tell(table, registration(), connection=1)
    tell(table, registration(), connection=2)
    assert table.drop_connection(1) == ()
    assert member_addresses(table, "broker-a") == {0: MASTER}
    assert table.drop_connection(2) != ()


@pytest.mark.parametrize(
    ("cluster", "address", "name", "broker_id"),
    [
        ("c2", MASTER, "broker-a", 0),
        ("c1", OTHER, "broker-a", 0),
        ("c1", MASTER, "broker-b", 0),
        ("c1", MASTER, "broker-a", 1),
    ],
)
def test_an_unregistration_that_does_not_match_the_registration_has_no_effect(
    cluster: str, address: str, name: str, broker_id: int
) -> None:
    """A late unregistration never removes a new registration, and a wrong one has no effect (§23 #1 and #16)."""
    table = RouteTable()
    tell(table, registration())
    assert table.unregister(cluster, address, name, broker_id) == ()
    assert member_addresses(table, "broker-a") == {0: MASTER}


def test_the_unregistration_of_a_replaced_broker_does_not_remove_its_successor() -> None:
    table = RouteTable()
    tell(table, registration(0, MASTER))
    tell(table, registration(0, OTHER))
    assert table.unregister("c1", MASTER, "broker-a", 0) == ()
    assert member_addresses(table, "broker-a") == {0: OTHER}


def test_a_matching_unregistration_is_taken_once() -> None:
    table = RouteTable()
    tell(table, registration())
    assert only(table.unregister("c1", MASTER, "broker-a", 0), BrokerLeft).cause is Cause.UNREGISTERED
    assert table.unregister("c1", MASTER, "broker-a", 0) == ()
    assert find_route(table, "T1") is None


# The smallest id


def test_a_group_that_loses_its_smallest_id_reports_the_old_and_new_broker() -> None:
    table = RouteTable()
    tell(table, registration(acting_master=True), connection=1)
    tell(table, registration(1, SLAVE, acting_master=True), connection=2)
    tell(table, registration(2, OTHER, acting_master=True), connection=3)
    events = table.drop_connection(1)
    assert events[-1] == SmallestIdChanged(
        cluster="c1",
        broker_name="broker-a",
        cause=Cause.CONNECTION_CLOSED,
        acting_master=True,
        smallest_id=1,
        smallest_address=SLAVE,
        others=(OTHER,),
        offline_address=MASTER,
        ha_address=None,
    )


def test_a_new_smallest_id_is_reported_with_its_replication_address() -> None:
    table = RouteTable()
    tell(table, registration(1, SLAVE, acting_master=True))
    tell(table, registration(2, OTHER, acting_master=True))
    events = tell(table, registration(acting_master=True)).events
    assert events[-1] == SmallestIdChanged(
        cluster="c1",
        broker_name="broker-a",
        cause=Cause.REGISTERED,
        acting_master=True,
        smallest_id=0,
        smallest_address=MASTER,
        others=(SLAVE, OTHER),
        offline_address=None,
        ha_address=HA[MASTER],
    )


def test_the_first_broker_of_a_group_is_not_reported_as_smallest() -> None:
    """An empty group has no smallest id, not id 0 (§23 #15)."""
    events = tell(RouteTable(), registration(3, acting_master=True)).events
    assert not any(isinstance(event, SmallestIdChanged) for event in events)


def test_a_lone_broker_that_changes_its_role_is_not_reported() -> None:
    """Smallest ids are compared before and after the role switch (§23 #15)."""
    table = RouteTable()
    tell(table, registration(1, acting_master=True))
    (event,) = tell(table, registration(0, acting_master=True)).events
    assert isinstance(event, BrokerChanged)


def test_a_role_switch_is_reported_with_the_acting_master_flag() -> None:
    """Registering and leaving report alike, and the receiver decides by the group's own flag (§23 #15)."""
    table = RouteTable()
    tell(table, registration(1, SLAVE, acting_master=False))
    tell(table, registration(2, OTHER, acting_master=False))
    event = only(tell(table, registration(0, OTHER, acting_master=False)).events, SmallestIdChanged)
    assert not event.acting_master
    assert (event.smallest_id, event.smallest_address, event.others) == (0, OTHER, (SLAVE,))


def test_a_master_that_becomes_a_slave_is_not_reported_as_offline() -> None:
    table = RouteTable()
    tell(table, registration(0, MASTER))
    tell(table, registration(1, SLAVE))
    event = only(tell(table, registration(2, MASTER)).events, SmallestIdChanged)
    assert (event.smallest_id, event.smallest_address, event.others) == (1, SLAVE, (MASTER,))
    assert (event.offline_address, event.ha_address) == (None, None)


def test_a_replaced_address_under_the_smallest_id_changes_no_smallest_id() -> None:
    table = RouteTable()
    tell(table, registration(0, MASTER))
    tell(table, registration(1, SLAVE))
    events = tell(table, registration(0, OTHER)).events
    assert not any(isinstance(event, SmallestIdChanged) for event in events)


def test_brokers_that_leave_together_are_reported_once_by_the_one_that_was_smallest() -> None:
    table = RouteTable()
    tell(table, registration(0, MASTER), connection=1)
    tell(table, registration(1, SLAVE), connection=1)
    tell(table, registration(2, OTHER), connection=2)
    event = only(table.drop_connection(1), SmallestIdChanged)
    assert (event.smallest_id, event.offline_address, event.others) == (2, MASTER, ())
