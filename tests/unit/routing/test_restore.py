"""A table restored after a restart: leases, confirmation and the next registration."""

from dataclasses import replace

import pytest

from skyroute.routing import discovery
from skyroute.routing.errors import InvalidSnapshotError, TableFullError
from skyroute.routing.events import BrokerChanged, BrokerConfirmed, BrokerLeft, Cause, LeaseHeld, TopicsChanged
from skyroute.routing.registration import DataVersion
from skyroute.routing.snapshot import GroupSnapshot, TableSnapshot
from skyroute.routing.table import RouteTable
from skyroute.routing.topology import BrokerKey
from tests.unit.routing.brokers import MASTER, OTHER, READ_ONLY, SLAVE, WRITABLE, mapping, only, registration, tell

LEASE_S = 45.0
KEY = BrokerKey("c1", MASTER)


def restored(before: RouteTable, *, now: float = 0.0) -> RouteTable:
    table = RouteTable()
    table.restore(before.snapshot(now), lease_s=LEASE_S, now=now)
    return table


def snapshot_without_leases(table: RouteTable) -> TableSnapshot:
    groups = table.snapshot(0.0).groups
    return TableSnapshot(
        tuple(
            replace(group, members=tuple(replace(member, left_s=None) for member in group.members)) for group in groups
        )
    )


def one_broker(**said: object) -> RouteTable:
    table = RouteTable()
    tell(table, registration(**said))  # type: ignore[arg-type]
    return table


def test_a_restored_table_has_the_same_routes() -> None:
    before = one_broker()
    tell(before, registration(1, SLAVE))
    table = restored(before)
    assert discovery.find_route(table, "T1") == discovery.find_route(before, "T1")
    assert table.unconfirmed_count == 2
    assert table.is_unconfirmed("broker-a")


def test_a_snapshot_of_a_restored_table_is_the_same_but_for_its_leases() -> None:
    before = one_broker(zone="z1", acting_master=False, lease_s=99.0, filter_servers=("f:1",))
    tell(before, registration(1, SLAVE, version=3, mappings={"T1": mapping("T1")}, zone="z1", acting_master=True))
    tell(before, registration(0, OTHER, name="broker-b", cluster="c2"))
    before.forbid_writes("broker-a")
    table = restored(before)
    assert snapshot_without_leases(table) == snapshot_without_leases(before)
    knows_acting = [[member.knows_acting for member in group.members] for group in before.snapshot(0.0).groups]
    assert knows_acting == [[True, True], [False]]
    assert all(member.left_s is None for group in before.snapshot(0.0).groups for member in group.members)
    assert all(member.left_s == LEASE_S - 5.0 for group in table.snapshot(5.0).groups for member in group.members)


def test_a_broker_that_was_alive_is_restored_with_a_whole_lease() -> None:
    table = restored(one_broker(), now=119.0)
    assert table.evict_expired(119.0 + LEASE_S) == ()
    assert table.evict_expired(119.0 + LEASE_S + 0.1) != ()


def test_a_restored_broker_has_at_most_the_lease_of_restored_brokers() -> None:
    table = RouteTable()
    table.restore(one_broker(lease_s=600.0).snapshot(0.0), lease_s=LEASE_S, now=0.0)
    again = RouteTable()
    again.restore(table.snapshot(0.0), lease_s=10.0, now=0.0)
    assert table.evict_expired(LEASE_S + 0.1) != ()
    assert again.evict_expired(10.1) != ()


def test_a_restored_broker_that_does_not_return_leaves_as_not_confirmed() -> None:
    table = restored(one_broker())
    assert table.evict_expired(LEASE_S) == ()
    left = only(table.evict_expired(LEASE_S + 0.1), BrokerLeft)
    assert (left.cause, left.unused_connections) == (Cause.NOT_CONFIRMED, ())
    assert table.topics == set()


def test_a_restored_broker_keeps_its_shorter_lease() -> None:
    table = restored(one_broker(lease_s=10.0))
    assert only(table.evict_expired(10.1), BrokerLeft).cause is Cause.NOT_CONFIRMED


def test_repeated_restarts_do_not_keep_a_dead_broker() -> None:
    table = one_broker()
    for now in (0.0, 20.0, 40.0):
        table = restored(table, now=now)
    assert only(table.evict_expired(LEASE_S + 0.1), BrokerLeft).cause is Cause.NOT_CONFIRMED


def test_a_heartbeat_confirms_a_broker_and_sets_its_connection() -> None:
    table = restored(one_broker())
    events = table.renew(KEY, connection=7, now=30.0)
    assert events is not None
    assert (only(events, BrokerConfirmed).cause, table.unconfirmed_count) == (Cause.HEARTBEAT, 0)
    assert table.renew(KEY, connection=8, now=30.0) == ()
    assert table.evict_expired(149.0) == ()
    assert table.drop_connection(8) == ()
    assert only(table.drop_connection(7), BrokerLeft).cause is Cause.CONNECTION_CLOSED


def test_a_registration_confirms_and_changes_nothing_else_if_nothing_changed() -> None:
    table = restored(one_broker())
    outcome = tell(table, registration(), connection=7, now=1.0)
    assert [type(event) for event in outcome.events] == [BrokerConfirmed]
    assert only(table.drop_connection(7), BrokerLeft).cause is Cause.CONNECTION_CLOSED


def test_an_expiry_after_confirmation_is_an_ordinary_one() -> None:
    table = restored(one_broker())
    tell(table, registration(), now=1.0)
    assert only(table.evict_expired(122.0), BrokerLeft).cause is Cause.LEASE_EXPIRED


def test_forbidden_writes_survive_a_restart_and_the_next_registration() -> None:
    before = one_broker()
    before.forbid_writes("broker-a")
    table = restored(before)
    tell(table, registration())
    assert table.settings("broker-a", "T1") == READ_ONLY
    tell(table, registration(version=2))
    assert table.settings("broker-a", "T1") == WRITABLE


def test_bodies_are_decoded_again_after_a_restart() -> None:
    table = restored(one_broker(fingerprint=b"body"))
    assert not table.remembers(registration(fingerprint=b"body"))


def test_a_single_topic_of_a_newer_version_does_not_make_that_version_known() -> None:
    table = restored(one_broker(version=1))
    outcome = tell(table, registration(topics=("T9",), version=3))
    assert set(only(outcome.events, TopicsChanged).added) == {"T9"}
    assert table.version_of(KEY) == DataVersion(0, 1, 1)
    # Its whole table has the changes since the restart, and is decoded.
    tell(table, registration(topics={"T1": READ_ONLY, "T2": WRITABLE, "T9": WRITABLE}, version=3))
    assert table.settings("broker-a", "T1") == READ_ONLY
    assert table.version_of(KEY) == DataVersion(0, 3, 3)
    outcome = tell(table, registration(topics=("T10",), version=4))
    assert only(outcome.events, BrokerChanged).version_after == DataVersion(0, 4, 4)


def test_single_topics_of_newer_versions_do_not_make_their_version_known_one_after_the_other() -> None:
    table = restored(one_broker(version=1))
    for version, topic in ((3, "T9"), (4, "T10")):
        said = registration(topics=(topic,), version=version, fingerprint=b"body")
        tell(table, said)
        assert table.version_of(KEY) == DataVersion(0, 1, 1)
        assert not table.remembers(said), "the same body must be decoded again"
    whole = registration(version=4, fingerprint=b"whole")
    tell(table, whole)
    assert table.remembers(whole)


def test_an_older_version_is_applied_after_a_restart() -> None:
    table = restored(one_broker(version=5))
    outcome = tell(table, registration(version=2))
    assert not outcome.overtaken
    assert table.version_of(KEY) == DataVersion(0, 2, 2)


def test_a_master_of_an_older_epoch_is_still_kept_out() -> None:
    table = restored(one_broker(version=DataVersion(5, 1, 1)))
    assert tell(table, registration(address=OTHER, version=DataVersion(4, 9, 9))).superseded
    assert not tell(table, registration(address=OTHER, version=DataVersion(6, 1, 1))).superseded
    assert table.unconfirmed_count == 0


def test_a_missing_master_is_replaced_once_its_restored_lease_expires() -> None:
    before = one_broker(acting_master=True)
    tell(before, registration(1, SLAVE, acting_master=True))
    table = restored(before)
    tell(table, registration(1, SLAVE, acting_master=True), now=30.0)
    table.evict_expired(LEASE_S + 1)
    route = discovery.find_route(table, "T1", acting_master=True)
    assert route is not None
    assert route.groups[0].addresses == {0: SLAVE}


def test_a_table_without_room_refuses_the_snapshot_and_stays_empty() -> None:
    table = RouteTable(topic_entries_max=1)
    with pytest.raises(TableFullError):
        table.restore(one_broker().snapshot(0.0), lease_s=LEASE_S, now=0.0)
    assert table.groups == ()


def test_only_an_empty_table_is_restored() -> None:
    with pytest.raises(AssertionError, match=r"^only an empty table is restored"):
        one_broker().restore(TableSnapshot(), lease_s=LEASE_S, now=0.0)


def contradicting() -> dict[str, tuple[GroupSnapshot, ...]]:
    before = one_broker()
    tell(before, registration(1, SLAVE))
    tell(before, registration(0, OTHER, name="broker-b"))
    first, second = before.snapshot(0.0).groups
    master, slave = first.members
    unserved = "broker group broker-a has forbidden writes or mappings of topics that it does not serve"
    return {
        "two broker groups have the same name": (first, replace(second, name="broker-a", members=())),
        "two brokers have the same id or address": (replace(first, members=(master, replace(slave, broker_id=0))),),
        "two brokers have the same id or address ": (first, replace(second, members=(master,))),
        "broker group broker-b has no broker": (first, replace(second, members=())),
        unserved: (replace(first, forbidden=frozenset({"T1", "T9"})), second),
        unserved + " ": (replace(first, mappings={"T9": mapping("T9")}), second),
    }


@pytest.mark.parametrize("text", contradicting())
def test_a_snapshot_that_contradicts_itself_is_refused(text: str) -> None:
    table = RouteTable()
    with pytest.raises(InvalidSnapshotError, match=f"^{text.strip()}$"):
        table.restore(TableSnapshot(contradicting()[text]), lease_s=LEASE_S, now=0.0)
    assert table.groups == ()


def test_leases_that_expire_together_are_extended_once() -> None:
    table = RouteTable()
    for number in range(4):
        tell(table, registration(name=f"b{number}", address=f"10.0.0.{number}:1"))
    assert table.hold_expired(120.0, share_max=0.5) == ()
    held = table.hold_expired(121.0, share_max=0.5)
    assert [type(event) for event in held] == [LeaseHeld] * 4
    assert table.evict_expired(121.0) == ()
    table.renew(BrokerKey("c1", "10.0.0.0:1"), connection=1, now=200.0)
    assert table.hold_expired(242.0, share_max=0.5) == (), "once is enough"
    assert len([event for event in table.evict_expired(242.0) if isinstance(event, BrokerLeft)]) == 3
    assert len(table.hold_expired(321.0, share_max=0.5)) == 1, "who was heard from is held again"


def test_leases_of_unconfirmed_brokers_are_not_extended() -> None:
    table = RouteTable()
    table.restore(one_broker().snapshot(0.0), lease_s=LEASE_S, now=0.0)
    assert table.hold_expired(LEASE_S + 1, share_max=0.5) == ()
    (left, *_) = table.evict_expired(LEASE_S + 1)
    assert left.cause is Cause.NOT_CONFIRMED


def test_a_small_share_of_expired_leases_is_not_extended() -> None:
    table = RouteTable()
    for number in range(4):
        tell(table, registration(name=f"b{number}", address=f"10.0.0.{number}:1"), now=float(number > 1) * 60)
    assert table.hold_expired(121.0, share_max=0.5) == ()
