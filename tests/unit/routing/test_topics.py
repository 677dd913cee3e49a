"""What brokers serve: whose topics count, when they replace what is known, and who may write."""

import sys
from collections.abc import Callable
from dataclasses import replace

import pytest

from skyroute.remoting.stepwise import run_through
from skyroute.routing.discovery import find_route
from skyroute.routing.errors import TableFullError
from skyroute.routing.events import (
    BrokerChanged,
    Cause,
    GroupChanged,
    MappingsChanged,
    RegistrationOutcome,
    RouteEvent,
    TopicsChanged,
    WritesChanged,
)
from skyroute.routing.registration import DataVersion
from skyroute.routing.table import RouteTable
from skyroute.routing.table_writer import LEAVING_COST
from skyroute.routing.topic_index import TopicIndex
from skyroute.routing.topology import QUEUES_MAX, BrokerKey, QueueSettings
from tests.unit.routing.brokers import (
    MASTER,
    OTHER,
    READ_ONLY,
    SLAVE,
    WRITABLE,
    mapping,
    only,
    registration,
    tell,
)

KEY = BrokerKey("c1", MASTER)
FEW = QueueSettings(read_queues=1, write_queues=1, permission=6)


def permissions(table: RouteTable, name: str = "broker-a") -> dict[str, int]:
    effective = {topic: table.settings(name, topic) for topic in table.topics_of(name)}
    return {topic: settings.permission for topic, settings in effective.items() if settings is not None}


# Whose topics count


def test_topics_of_ordinary_slaves_are_not_recorded() -> None:
    table = RouteTable()
    tell(table, registration(topics=("T1", "T2")))
    tell(table, registration(1, SLAVE, topics=("T1", "T9"), acting_master=True))
    assert tuple(table.topics) == ("T1", "T2")


@pytest.mark.parametrize(("acting_master", "permission"), [(True, 4), (False, 6), (None, None)])
def test_a_lone_slave_defines_topics_if_it_has_the_acting_master_flag(
    acting_master: bool | None, permission: int | None
) -> None:
    table = RouteTable()
    tell(table, registration(1, SLAVE, acting_master=acting_master))
    route = find_route(table, "T1")
    assert (None if route is None else route.queues[0].settings.permission) == permission


def test_only_the_smallest_slave_defines_topics_of_a_group_without_master() -> None:
    table = RouteTable()
    tell(table, registration(2, OTHER, topics=("T1", "T2"), acting_master=True))
    tell(table, registration(1, SLAVE, topics=("T1", "T3"), acting_master=True))
    tell(table, registration(2, OTHER, topics=("T1", "T4"), acting_master=True, version=2))
    assert tuple(table.topics) == ("T1", "T2", "T3")


def test_a_group_that_loses_its_master_is_read_only_until_a_master_returns_if_slaves_may_act() -> None:
    table = RouteTable()
    tell(table, registration(acting_master=True), connection=1)
    tell(table, registration(1, SLAVE, acting_master=True), connection=2)
    table.drop_connection(1)
    assert permissions(table) == {"T1": 4, "T2": 4}
    tell(table, registration(acting_master=True), connection=3)
    assert permissions(table) == {"T1": 6, "T2": 6}


def test_a_group_without_acting_master_keeps_its_permissions_when_the_master_leaves() -> None:
    table = RouteTable()
    tell(table, registration(), connection=1)
    tell(table, registration(1, SLAVE), connection=2)
    table.drop_connection(1)
    assert permissions(table) == {"T1": 6, "T2": 6}


# Versions


def test_a_new_version_replaces_settings_and_keeps_topics_it_does_not_name() -> None:
    table = RouteTable()
    tell(table, registration(topics=("T1", "T2"), version=1))
    event = only(tell(table, registration(topics={"T1": FEW, "T3": FEW}, version=2)).events, TopicsChanged)
    assert (dict(event.added), dict(event.changed), dict(event.removed)) == (
        {"T3": FEW},
        {"T1": (WRITABLE, FEW)},
        {},
    )
    assert dict(table.queues_of("broker-a")) == {"T1": FEW, "T2": WRITABLE, "T3": FEW}


def test_the_same_version_only_adds_what_is_missing() -> None:
    table = RouteTable()
    tell(table, registration(topics=("T1", "T2"), version=1))
    tell(table, registration(topics={"T1": FEW, "T3": FEW}, version=1))
    assert dict(table.queues_of("broker-a")) == {"T1": WRITABLE, "T2": WRITABLE, "T3": FEW}


def test_an_older_version_over_the_same_connection_renews_the_lease_and_nothing_else() -> None:
    """A registration that was overtaken does not undo the one that overtook it (§23 #13)."""
    table = RouteTable()
    tell(table, registration(topics={"T1": FEW, "T2": FEW}, version=DataVersion(0, 50, 5)), now=0.0)
    old = registration(topics=("T1", "T2", "T3"), version=DataVersion(0, 40, 4), zone="z9", fingerprint=b"old")
    assert tell(table, old, now=100.0) == RegistrationOutcome(overtaken=True)
    assert dict(table.queues_of("broker-a")) == {"T1": FEW, "T2": FEW}
    assert table.version_of(KEY) == DataVersion(0, 50, 5)
    assert not table.remembers(registration(fingerprint=b"old"))
    assert table.evict_expired(now=200.0) == ()


@pytest.mark.parametrize(
    ("broker_id", "version", "connection"),
    [
        pytest.param(0, DataVersion(0, 40, 4), 2, id="another connection"),
        pytest.param(0, DataVersion(1, 40, 4), 1, id="a newer epoch"),
        pytest.param(0, DataVersion(0, 60, 4), 1, id="a later clock"),
        pytest.param(1, DataVersion(0, 40, 4), 1, id="a slave"),
    ],
)
def test_a_smaller_version_is_applied_unless_it_was_overtaken(
    broker_id: int, version: DataVersion, connection: int
) -> None:
    table = RouteTable()
    tell(table, registration(broker_id, acting_master=False, version=DataVersion(0, 50, 5)), connection=1)
    said = registration(broker_id, acting_master=False, topics={"T1": FEW, "T2": FEW}, version=version)
    tell(table, said, connection=connection)
    assert dict(table.queues_of("broker-a")) == {"T1": FEW, "T2": FEW}


@pytest.mark.parametrize(
    ("id_before", "id_after", "cluster"),
    [pytest.param(0, 0, "c2", id="another cluster"), pytest.param(1, 0, "c1", id="another role")],
)
def test_a_smaller_version_is_applied_from_a_broker_in_another_cluster(
    id_before: int, id_after: int, cluster: str
) -> None:
    table = RouteTable()
    tell(table, registration(id_before, acting_master=False, version=DataVersion(0, 50, 5)))
    topics = {"T1": FEW, "T2": FEW}
    tell(table, registration(id_after, topics=topics, cluster=cluster, version=DataVersion(0, 40, 4)))
    assert dict(table.queues_of("broker-a")) == topics


def test_the_same_version_replaces_what_is_known_when_it_comes_from_another_cluster() -> None:
    table = RouteTable()
    tell(table, registration(cluster="c1"))
    tell(table, registration(cluster="c2", topics={"T1": FEW, "T2": FEW}))
    assert dict(table.queues_of("broker-a")) == {"T1": FEW, "T2": FEW}


def test_a_slave_defines_topics_when_the_smaller_one_cannot_follow_into_the_new_cluster() -> None:
    table = RouteTable()
    tell(table, registration(1, SLAVE, acting_master=False))
    tell(table, registration(0, SLAVE, name="broker-b", cluster="c2"))
    tell(table, registration(2, OTHER, cluster="c2", topics=("T1", "T9"), acting_master=False))
    assert table.serving("T9") == ("broker-a",)


def test_missing_topics_stay_by_default() -> None:
    table = RouteTable()
    for version, topics in ((1, ("T1", "T2")), (2, ("T2", "T3"))):
        table.register(registration(topics=topics, version=version), connection=1, now=0.0)
    assert set(table.topics_of("broker-a")) == {"T1", "T2", "T3"}


def test_missing_topics_stay_unless_the_setting_removes_them() -> None:
    table = RouteTable()
    tell(table, registration(topics=("T1", "T2")))
    tell(table, registration(0, OTHER, name="broker-b", topics=("T1", "T2")))
    shorter = registration(topics=("T2", "T3"), version=2)
    tell(table, shorter)
    assert set(table.topics_of("broker-a")) == {"T1", "T2", "T3"}
    event = only(tell(table, shorter, delete_missing_topics=True).events, TopicsChanged)
    assert dict(event.removed) == {"T1": WRITABLE}
    assert table.serving("T1") == ("broker-b",)


def test_missing_topics_of_a_broker_with_static_topics_stay() -> None:
    table = RouteTable()
    tell(table, registration(topics=("T1", "T2")))
    said = registration(topics=("T2", "T3"), version=2, mappings={"T2": mapping("T2")})
    tell(table, said, delete_missing_topics=True)
    assert set(table.topics_of("broker-a")) == {"T1", "T2", "T3"}


# Bodies that need not be decoded again


def remembered(table: RouteTable) -> bool:
    return table.remembers(registration(fingerprint=b"body"))


def test_a_known_body_is_remembered_for_the_broker_that_sent_it() -> None:
    table = RouteTable()
    tell(table, registration(fingerprint=b"body"))
    assert remembered(table)
    assert not table.remembers(registration(fingerprint=b"else"))
    assert not table.remembers(registration(1, fingerprint=b"body"))
    assert not table.remembers(registration(name="broker-b", fingerprint=b"body"))
    assert not table.remembers(registration(cluster="c2", fingerprint=b"body"))
    assert not table.remembers(registration(acting_master=False, fingerprint=b"body"))


def test_an_unchanged_body_renews_the_lease_and_moves_the_connection() -> None:
    table = RouteTable()
    said = registration(fingerprint=b"body")
    tell(table, said, connection=1, now=0.0)
    assert tell(table, replace(said, table=None), connection=2, now=100.0) == RegistrationOutcome()
    assert table.drop_connection(1) == ()
    assert table.evict_expired(now=200.0) == ()
    assert remembered(table)


def test_header_fields_of_a_registration_with_an_unchanged_body_are_applied() -> None:
    table = RouteTable()
    said = registration(fingerprint=b"body", acting_master=False)
    tell(table, said)
    said = replace(said, table=None, zone="z1", acting_master=True, ha_address="ha:1", lease_s=1.0)
    events = tell(table, said).events
    assert [type(event) for event in events] == [GroupChanged, BrokerChanged]
    assert only(events, BrokerChanged).ha_address_after == "ha:1"
    assert table.version_of(KEY) == DataVersion(0, 1, 1)
    assert table.evict_expired(now=1.5) != ()


def test_the_outcome_of_an_unchanged_body_has_the_master_address() -> None:
    table = RouteTable()
    tell(table, registration())
    said = registration(1, SLAVE, fingerprint=b"body")
    tell(table, said)
    assert tell(table, replace(said, table=None)).master_address == MASTER


def test_a_missing_body_that_is_not_remembered_is_a_bug_of_the_caller() -> None:
    table = RouteTable()
    with pytest.raises(ValueError, match="no remembered body"):
        tell(table, replace(registration(fingerprint=b"body"), table=None))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda table: table.delete_topic("T1"), id="a deleted topic"),
        pytest.param(lambda table: table.register_topic("T9", {"broker-a": FEW}), id="an announced topic"),
        pytest.param(lambda table: tell(table, registration(2, OTHER)), id="a broker that joins"),
        pytest.param(lambda table: tell(table, registration(2, SLAVE)), id="a broker with another id"),
        pytest.param(lambda table: table.drop_connection(2), id="a broker that leaves"),
        pytest.param(lambda table: tell(table, registration(1, SLAVE, cluster="c2")), id="another cluster"),
        pytest.param(lambda table: tell(table, registration()), id="a body without a fingerprint"),
        pytest.param(lambda table: table.forget_fingerprints(), id="another setting"),
    ],
)
def test_a_fingerprint_is_forgotten_when_the_same_body_could_change_something(
    change: Callable[[RouteTable], object],
) -> None:
    table = RouteTable()
    tell(table, registration(1, SLAVE), connection=2)
    tell(table, registration(fingerprint=b"body"), connection=1)
    change(table)
    assert not remembered(table)
    assert not table.remembers(registration(cluster="c2", fingerprint=b"body"))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda table: table.delete_topic("unknown"), id="an unknown topic"),
        pytest.param(lambda table: table.forbid_writes("broker-a"), id="a ban, which the same edition does not lift"),
        pytest.param(lambda table: table.renew(KEY, connection=1, now=1.0), id="a heartbeat"),
        pytest.param(lambda table: tell(table, registration(1, SLAVE, version=2)), id="a slave's new edition"),
        pytest.param(lambda table: tell(table, registration(name="b", address=OTHER)), id="another group"),
    ],
)
def test_a_fingerprint_is_kept_when_the_same_body_changes_nothing(change: Callable[[RouteTable], object]) -> None:
    table = RouteTable()
    tell(table, registration(1, SLAVE), connection=2)
    tell(table, registration(fingerprint=b"body"), connection=1)
    change(table)
    assert remembered(table)


def test_a_body_is_decoded_again_when_its_broker_gains_the_acting_master_flag() -> None:
    table = RouteTable()
    said = registration(1, MASTER, fingerprint=b"body", acting_master=None)
    tell(table, said)
    learnt = replace(said, acting_master=False)
    assert not table.remembers(learnt), "its topics count from now on"
    with pytest.raises(ValueError, match="no remembered body"):
        tell(table, replace(learnt, table=None))


# An operator's ban on writes


def test_forbidding_writes_takes_the_write_bit_and_restoring_gives_back_what_was_registered() -> None:
    """A read-only topic stays read-only, and other bits are kept (§23 #9)."""
    table = RouteTable()
    odd = QueueSettings(4, 4, permission=2 | 4 | 8 | 64)
    tell(table, registration(topics={"T1": WRITABLE, "T2": READ_ONLY, "T3": odd}))
    count, events = table.forbid_writes("broker-a")
    assert count == 3
    assert events == (
        WritesChanged(
            "c1", "broker-a", Cause.WRITES_FORBIDDEN, forbidden=frozenset({"T1", "T3"}), restored=frozenset()
        ),
    )
    assert permissions(table) == {"T1": 4, "T2": 4, "T3": 4 | 8 | 64}
    count, events = table.restore_writes("broker-a")
    assert count == 3
    assert only(events, WritesChanged).restored == {"T1", "T3"}
    assert permissions(table) == {"T1": 6, "T2": 4, "T3": 2 | 4 | 8 | 64}


def test_forbidding_twice_counts_the_topics_and_changes_nothing() -> None:
    table = RouteTable()
    tell(table, registration())
    assert table.restore_writes("broker-a") == (2, ())
    table.forbid_writes("broker-a")
    assert table.forbid_writes("broker-a") == (2, ())


def test_an_unknown_broker_has_no_topics_to_forbid_or_restore() -> None:
    assert RouteTable().forbid_writes("nobody") == (0, ())
    assert RouteTable().restore_writes("nobody") == (0, ())


def test_forbidden_writes_outlive_heartbeats_and_end_with_a_new_version() -> None:
    table = RouteTable()
    tell(table, registration(version=1))
    table.forbid_writes("broker-a")
    tell(table, registration(version=1))
    assert permissions(table) == {"T1": 4, "T2": 4}
    event = only(tell(table, registration(version=2, topics=("T1",))).events, WritesChanged)
    assert (event.cause, event.restored) == (Cause.REGISTERED, frozenset({"T1"}))
    assert permissions(table) == {"T1": 6, "T2": 4}


def test_a_topic_that_comes_back_read_only_is_not_reported_as_restored() -> None:
    table = RouteTable()
    tell(table, registration(version=1))
    table.forbid_writes("broker-a")
    events = tell(table, registration(version=2, topics={"T1": READ_ONLY})).events
    assert [type(event) for event in events] == [BrokerChanged, TopicsChanged]
    assert table.restore_writes("broker-a")[1] == (
        WritesChanged("c1", "broker-a", Cause.WRITES_RESTORED, forbidden=frozenset(), restored=frozenset({"T2"})),
    )


def test_a_topic_that_is_deleted_and_comes_back_is_not_forbidden() -> None:
    table = RouteTable()
    tell(table, registration(version=1))
    table.forbid_writes("broker-a")
    table.delete_topic("T1")
    tell(table, registration(version=1))
    assert permissions(table) == {"T2": 4, "T1": 6}


# Queue counts


@pytest.mark.parametrize("few", [0, 1, QUEUES_MAX])
@pytest.mark.parametrize("much", [-1, QUEUES_MAX + 1])
def test_queue_counts_are_from_none_to_the_maximum(few: int, much: int) -> None:
    assert QueueSettings(few, 0, 6).is_within_bounds()
    assert QueueSettings(0, few, 6).is_within_bounds()
    assert not QueueSettings(few, much, 6).is_within_bounds()
    assert not QueueSettings(much, few, 6).is_within_bounds()


# Single topics


def test_a_topic_is_deleted_in_one_cluster_or_everywhere() -> None:
    table = RouteTable()
    tell(table, registration(cluster="c1"))
    tell(table, registration(0, OTHER, name="broker-b", cluster="c2"))
    event = only(table.delete_topic("T1", cluster="c2"), TopicsChanged)
    assert (event.broker_name, event.cause, dict(event.removed)) == ("broker-b", Cause.TOPIC_DELETED, {"T1": WRITABLE})
    assert table.serving("T1") == ("broker-a",)
    table.delete_topic("T2")
    assert tuple(table.topics) == ("T1",)


@pytest.mark.parametrize(("topics_a_step", "at_once"), [(1, 1), (2 * LEAVING_COST, 2)])
def test_a_topic_of_many_groups_is_deleted_from_some_at_a_time(topics_a_step: int, at_once: int) -> None:
    table = RouteTable(topics_a_step=topics_a_step)
    for name, address in (("broker-a", MASTER), ("broker-b", SLAVE), ("broker-c", OTHER)):
        tell(table, registration(0, address, name=name))
    names = [event.broker_name for event in table.delete_topic("T1")]
    assert names == ["broker-a", "broker-b"][:at_once]
    while events := table.delete_topic("T1"):
        names += [event.broker_name for event in events]
    assert names == ["broker-a", "broker-b", "broker-c"]


def test_deleting_an_unknown_topic_or_in_an_unknown_cluster_is_no_event() -> None:
    """What cannot be meant changes nothing and reports nothing (§23 #8)."""
    table = RouteTable()
    tell(table, registration())
    assert table.delete_topic("T9") == ()
    assert table.delete_topic("T1", cluster="nowhere") == ()
    assert table.delete_topic("") == ()


def test_a_deleted_topic_that_the_broker_still_has_comes_back_with_the_same_version() -> None:
    table = RouteTable()
    tell(table, registration())
    table.delete_topic("T1")
    tell(table, registration())
    assert find_route(table, "T1") is not None


def test_a_single_registered_topic_is_served_by_its_groups() -> None:
    table = RouteTable()
    tell(table, registration())
    tell(table, registration(0, OTHER, name="broker-b"))
    events = table.register_topic("T9", {"broker-a": FEW, "broker-b": WRITABLE})
    assert [(type(event), event.broker_name, event.cause) for event in events] == [
        (TopicsChanged, "broker-a", Cause.TOPIC_REGISTERED),
        (TopicsChanged, "broker-b", Cause.TOPIC_REGISTERED),
    ]
    assert table.serving("T9") == ("broker-a", "broker-b")
    assert table.register_topic("T9", {"broker-a": FEW}) == ()


def test_a_single_topic_with_an_unknown_broker_is_ignored() -> None:
    table = RouteTable()
    tell(table, registration())
    assert table.register_topic("T9", {"broker-a": FEW, "nobody": FEW}) == ()
    assert table.register_topic("T9", {}) == ()
    assert table.serving("T9") == ()


def test_registering_a_single_topic_restores_writes() -> None:
    table = RouteTable()
    tell(table, registration())
    table.forbid_writes("broker-a")
    (event,) = table.register_topic("T1", {"broker-a": WRITABLE})
    assert isinstance(event, WritesChanged)
    assert event.restored == {"T1"}
    assert permissions(table) == {"T1": 6, "T2": 4}
    (event,) = table.register_topic("T2", {"broker-a": READ_ONLY})
    assert isinstance(event, TopicsChanged)
    assert event.changed == {"T2": (WRITABLE, READ_ONLY)}


def test_a_single_topic_needs_room_in_the_table() -> None:
    table = RouteTable(brokers_max=1, topic_entries_max=2)
    tell(table, registration())
    with pytest.raises(TableFullError):
        table.register_topic("T9", {"broker-a": FEW})
    table.register_topic("T1", {"broker-a": FEW})
    assert table.serving("T9") == ()


# Static topics


def mapped(events: tuple[RouteEvent, ...]) -> dict[str, bool]:
    return {topic: after is not None for topic, (_, after) in only(events, MappingsChanged).changed.items()}


def test_mappings_are_removed_with_their_topic_or_group() -> None:
    """No mapping outlives what it belongs to (§23 #7)."""
    table = RouteTable()
    said = registration(mappings={"T1": mapping("T1"), "T2": mapping("T2")})
    assert mapped(tell(table, said).events) == {"T1": True, "T2": True}
    assert mapped(table.delete_topic("T1")) == {"T1": False}
    assert table.mapping("broker-a", "T1") is None
    assert mapped(table.drop_connection(1)) == {"T2": False}
    tell(table, registration())
    assert table.mapping("broker-a", "T2") is None


def test_mappings_are_removed_with_missing_topics() -> None:
    table = RouteTable()
    tell(table, registration(topics=("T1", "T2"), mappings={"T1": mapping("T1")}))
    events = tell(table, registration(topics=("T2", "T3"), version=2), delete_missing_topics=True).events
    assert mapped(events) == {"T1": False}


def test_a_mapping_that_is_missing_is_merged_by_the_same_version_and_a_known_one_is_not_replaced() -> None:
    """A table sent in parts brings its mappings with the last part, under the version of the first (§23 #7)."""
    table = RouteTable()
    tell(table, registration(topics=("T1", "T2")))
    tell(table, registration(topics=("T3", "T4"), mappings={"T1": mapping("T1", epoch=1)}))
    tell(table, registration(topics=("T3", "T4"), mappings={"T1": mapping("T1", epoch=2)}))
    assert table.mapping("broker-a", "T1") == mapping("T1", epoch=1)
    tell(table, registration(topics=("T3", "T4"), mappings={"T1": mapping("T1", epoch=2)}, version=2))
    assert table.mapping("broker-a", "T1") == mapping("T1", epoch=2)


def test_a_mapping_of_a_topic_the_group_does_not_serve_is_not_kept() -> None:
    table = RouteTable()
    tell(table, registration(mappings={"T9": mapping("T9")}))
    assert table.mapping("broker-a", "T9") is None


# Names


@pytest.mark.parametrize("topics_a_step", [1, 5_000])
def test_a_table_keeps_each_name_once_and_no_longer_than_its_topic(topics_a_step: int) -> None:
    table = RouteTable(topics_a_step=topics_a_step)
    first, second, other = (f"topic-{topics_a_step}" for _ in range(3))
    for connection, name in enumerate((first, second)):
        said = registration(0, (MASTER, OTHER)[connection], name=f"broker-{connection}", topics=(name, "T1"))
        table.register(said, connection=connection, now=0.0, preparation=run_through(table.prepare(said)))
    kept = [next(iter(table.topics_of(f"broker-{connection}"))) for connection in range(2)]
    assert kept[0] is kept[1] is table.own_name(other) is first
    # Python 3.12 keeps interned names for ever.
    assert sys.intern(other) is other
    for connection in range(2):
        table.drop_connection(connection)
    run_through(table.sweep())
    assert table.own_name(other) is other


def test_names_of_a_refused_registration_are_not_kept() -> None:
    table = RouteTable(topic_entries_max=1, topics_a_step=1)
    name, other = ("".join(("a", "-topic")) for _ in range(2))
    with pytest.raises(TableFullError):
        run_through(table.prepare(registration(topics=(name, "T1"))))
    run_through(table.sweep())
    assert table.own_name(other) is other


def test_every_write_to_the_index_is_counted() -> None:
    index = TopicIndex()
    counts = [index.edits]
    for write in (index.add, index.add, index.remove, index.remove):
        write(("T1",), "broker-a")
        counts.append(index.edits)
    assert counts == [0, 1, 2, 3, 4]
