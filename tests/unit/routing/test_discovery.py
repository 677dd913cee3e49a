"""Queries of the route table by clients, brokers and tools."""

from dataclasses import replace

import pytest

from skyroute.routing import discovery
from skyroute.routing.discovery import MEMBER_TOPIC_PREFIX, find_route, placement
from skyroute.routing.table import RouteTable
from skyroute.routing.topology import BrokerGroup, BrokerQueues, ClusterView, QueueSettings, StaticMapping, TopicRoute
from tests.unit.routing.brokers import MASTER, OTHER, READ_ONLY, SLAVE, WRITABLE, mapping, registration, tell


def addresses(route: TopicRoute | None) -> dict[str, dict[int, str]]:
    assert route is not None
    return {group.name: dict(group.addresses) for group in route.groups}


def test_an_unserved_topic_has_no_route() -> None:
    assert find_route(RouteTable(), "T1") is None


def test_a_route_names_groups_queues_filter_servers_and_mappings() -> None:
    table = RouteTable()
    tell(table, registration(1, SLAVE, filter_servers=("f:2",)))
    said = registration(zone="z1", filter_servers=("f:1",), mappings={"T1": mapping("T1"), "T2": mapping("T2")})
    tell(table, said)
    assert find_route(table, "T1") == TopicRoute(
        groups=(BrokerGroup("broker-a", "c1", {0: MASTER, 1: SLAVE}, acting_master=False, zone="z1"),),
        queues=(BrokerQueues("broker-a", WRITABLE),),
        filter_servers={MASTER: ("f:1",), SLAVE: ("f:2",)},
        mappings={"broker-a": mapping("T1")},
    )


def test_addresses_are_sorted_by_id_and_groups_by_when_they_began_to_serve() -> None:
    table = RouteTable()
    tell(table, registration(2, OTHER, name="b", acting_master=False))
    tell(table, registration(0, MASTER, name="b"))
    tell(table, registration(0, SLAVE, name="a"))
    route = find_route(table, "T1")
    assert route is not None
    assert [group.name for group in route.groups] == ["b", "a"]
    assert list(route.groups[0].addresses) == [0, 2]


def test_a_route_does_not_change_with_the_table() -> None:
    """Answers are values, so encoding one cannot see half a change (§23 #6)."""
    table = RouteTable()
    tell(table, registration())
    route = find_route(table, "T1")
    view = discovery.cluster_view(table)
    tell(table, registration(1, SLAVE, filter_servers=("f:1",)))
    assert addresses(route) == {"broker-a": {0: MASTER}}
    assert view.groups[0].addresses == {0: MASTER}


# Keys of routes


def test_topics_with_the_same_queues_on_the_same_groups_share_a_key() -> None:
    table = RouteTable()
    tell(table, registration(topics={"T1": WRITABLE, "T2": WRITABLE, "T3": READ_ONLY}))
    tell(table, registration(0, OTHER, name="broker-b", topics=("T2", "T4", "T5")))
    assert placement(table, "unknown") is None
    assert placement(table, "T4") == placement(table, "T5")
    assert len({placement(table, topic) for topic in ("T1", "T2", "T3", "T4")}) == 4
    before = placement(table, "T3")
    table.forbid_writes("broker-a")
    assert placement(table, "T1") == placement(table, "T3") == before


def test_topics_whose_routes_name_them_share_no_key() -> None:
    table = RouteTable()
    members = f"{MEMBER_TOPIC_PREFIX}broker-a", f"{MEMBER_TOPIC_PREFIX}broker-b"
    mappings = {topic: mapping(topic) for topic in ("T1", "T2")}
    tell(table, registration(topics=("T0", "T1", "T2", *members), mappings=mappings))
    assert len({placement(table, topic) for topic in ("T0", "T1", "T2", *members)}) == 5
    assert placement(table, "T1") == placement(table, "T1")


@pytest.mark.parametrize(
    "other",
    [
        replace(mapping("T1"), total_queues=3),
        replace(mapping("T1"), epoch=2),
        replace(mapping("T1"), scope="another"),
        replace(mapping("T1"), dirty=True),
        replace(mapping("T1"), current_ids={0: 1, 1: 0}),
        mapping("T1", "broker-b"),
    ],
)
def test_every_change_of_a_static_topic_changes_its_key(other: StaticMapping) -> None:
    table = RouteTable()
    tell(table, registration(mappings={"T1": mapping("T1")}))
    before = placement(table, "T1")
    tell(table, registration(mappings={"T1": other}, version=2))
    assert placement(table, "T1") != before


# Acting masters


def without_master(*, acting_master: bool) -> RouteTable:
    table = RouteTable()
    topics = ("T1", "rmq_sys_SYNC_BROKER_MEMBER_broker-a")
    tell(table, registration(0, MASTER, topics=topics, acting_master=acting_master), connection=1)
    tell(table, registration(1, SLAVE, topics=topics, acting_master=acting_master), connection=2)
    tell(table, registration(2, OTHER, topics=topics, acting_master=acting_master), connection=3)
    table.drop_connection(1)
    return table


def test_the_smallest_slave_is_shown_in_the_masters_place() -> None:
    route = find_route(without_master(acting_master=True), "T1", acting_master=True)
    assert addresses(route) == {"broker-a": {0: SLAVE, 2: OTHER}}
    assert route is not None
    assert route.queues[0].settings.permission == 4


def test_the_member_topic_shows_the_real_members_of_a_group() -> None:
    table = without_master(acting_master=True)
    route = find_route(table, "rmq_sys_SYNC_BROKER_MEMBER_broker-a", acting_master=True)
    assert addresses(route) == {"broker-a": {1: SLAVE, 2: OTHER}}
    assert discovery.member_addresses(table, "broker-a") == {1: SLAVE, 2: OTHER}
    assert discovery.cluster_view(table).groups[0].addresses == {1: SLAVE, 2: OTHER}


@pytest.mark.parametrize(("group_allows", "server_allows"), [(True, False), (False, True)])
def test_no_slave_acts_unless_both_its_group_and_the_server_allow_it(
    *, group_allows: bool, server_allows: bool
) -> None:
    route = find_route(without_master(acting_master=group_allows), "T1", acting_master=server_allows)
    assert addresses(route) == {"broker-a": {1: SLAVE, 2: OTHER}}


def test_a_master_that_returns_takes_its_place_again() -> None:
    table = without_master(acting_master=True)
    tell(table, registration(acting_master=True), connection=4)
    route = find_route(table, "T1", acting_master=True)
    assert addresses(route) == {"broker-a": {0: MASTER, 1: SLAVE, 2: OTHER}}


# Zones


def two_zones() -> RouteTable:
    table = RouteTable()
    tell(
        table,
        registration(0, MASTER, name="a", zone="Z1", filter_servers=("f:1",), mappings={"T1": mapping("T1", "a")}),
    )
    tell(
        table, registration(0, SLAVE, name="b", zone="z2", filter_servers=("f:2",), mappings={"T1": mapping("T1", "b")})
    )
    return table


def test_a_zone_leaves_out_other_zones_with_their_queues_and_filter_servers_but_not_mappings() -> None:
    route = find_route(two_zones(), "T1", zone="z1")
    assert route is not None
    assert [group.name for group in route.groups] == ["a"]
    assert [queues.broker_name for queues in route.queues] == ["a"]
    assert route.filter_servers == {MASTER: ("f:1",)}
    assert set(route.mappings) == {"a", "b"}


@pytest.mark.parametrize("zone", [None, "", "  "])
def test_no_zone_leaves_nothing_out(zone: str | None) -> None:
    assert set(addresses(find_route(two_zones(), "T1", zone=zone))) == {"a", "b"}


def test_a_zone_without_groups_gives_a_route_without_groups() -> None:
    route = find_route(two_zones(), "T1", zone="z9")
    assert route is not None
    assert (route.groups, route.queues) == ((), ())


def test_a_group_without_master_is_in_every_zone_and_one_with_an_acting_master_is_not() -> None:
    table = RouteTable()
    tell(table, registration(1, SLAVE, zone="z2", acting_master=True))
    assert addresses(find_route(table, "T1", zone="z1")) == {"broker-a": {1: SLAVE}}
    assert addresses(find_route(table, "T1", zone="z1", acting_master=True)) == {}


def test_a_group_without_a_zone_is_in_no_zone() -> None:
    table = RouteTable()
    tell(table, registration())
    assert addresses(find_route(table, "T1", zone="z1")) == {}


# Lists


def test_a_cluster_view_has_groups_and_clusters_in_order_of_registration() -> None:
    table = RouteTable()
    tell(table, registration(0, MASTER, name="b", cluster="c2"))
    tell(table, registration(0, SLAVE, name="a", cluster="c1"))
    tell(table, registration(0, OTHER, name="c", cluster="c2"))
    assert discovery.cluster_view(table) == ClusterView(
        groups=(
            BrokerGroup("b", "c2", {0: MASTER}),
            BrokerGroup("a", "c1", {0: SLAVE}),
            BrokerGroup("c", "c2", {0: OTHER}),
        ),
        clusters={"c2": ("b", "c"), "c1": ("a",)},
    )


def test_topics_of_a_cluster_are_served_by_one_of_its_groups() -> None:
    table = RouteTable()
    tell(table, registration(0, MASTER, name="a", cluster="c1", topics=("T1", "T2")))
    tell(table, registration(0, SLAVE, name="b", cluster="c1", topics=("T2", "T3")))
    tell(table, registration(0, OTHER, name="c", cluster="c2", topics=("T3", "T4")))
    assert discovery.topics_of_cluster(table, "c1") == ("T1", "T2", "T3")
    assert discovery.topics_of_cluster(table, "c2") == ("T3", "T4")
    assert discovery.topics_of_cluster(table, "nowhere") == ()
    assert discovery.topics_of_cluster(table, "c1", ("T4", "T3", "T9")) == ("T3",)
    assert tuple(table.topics) == ("T1", "T2", "T3", "T4")


def test_system_topics_are_names_of_clusters_and_groups_with_one_broker_address() -> None:
    table = RouteTable()
    assert discovery.system_topics(table) == ((), None)
    tell(table, registration(1, SLAVE, name="a"))
    tell(table, registration(0, MASTER, name="c1"))
    assert discovery.system_topics(table) == (("c1", "a"), SLAVE)


def test_an_unknown_group_has_nothing() -> None:
    table = RouteTable()
    assert discovery.member_addresses(table, "nobody") == {}
    assert table.filter_servers("nobody") == {}
    assert table.group("nobody") is None
    assert table.settings("nobody", "T1") is None
    assert table.mapping("nobody", "T1") is None
    assert not table.is_unconfirmed("nobody")


def test_unit_lists_go_by_the_flags_of_the_first_group() -> None:
    table = RouteTable()
    flags = {f"T{flag}": QueueSettings(1, 1, 6, flag) for flag in (0, 1, 2, 3)}
    tell(table, registration(0, MASTER, name="a", topics=flags))
    tell(table, registration(0, SLAVE, name="b", topics=("T0", "T1", "T2", "T3")))
    assert discovery.unit_topics(table) == ("T1", "T3")
    assert discovery.unit_subscription_topics(table) == ("T2", "T3")
    assert discovery.unit_subscription_only_topics(table) == ("T2",)
    some = ("T0", "T2", "T1")
    assert discovery.unit_topics(table, some) == ("T1",)
    assert discovery.unit_subscription_topics(table, some) == ("T2",)
    assert discovery.unit_subscription_only_topics(table, ("T3", "T0")) == ()


def test_unit_lists_leave_out_topics_that_no_group_serves_any_more() -> None:
    table = RouteTable(topics_a_step=1)
    tell(table, registration(topics=dict.fromkeys(("T1", "T2"), QueueSettings(1, 1, 6, 1))))
    table.drop_connection(1)
    assert list(table.topics) == ["T1", "T2"], "they are removed in steps"
    assert discovery.unit_topics(table) == ()


def test_listing_the_topics_of_a_group_follows_its_changes() -> None:
    table = RouteTable()
    tell(table, registration())
    view = table.topics_of("broker-a")
    tell(table, registration(topics=("T3",), version=2))
    assert set(view) == {"T1", "T2", "T3"}
    assert set(table.topics_of("nobody")) == set()
