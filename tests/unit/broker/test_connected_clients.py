import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from skyroute.broker.clients import connected_clients as clients_module
from skyroute.broker.clients.connected_clients import EXPIRY_S, ConnectedClients, Expired, HeartbeatOutcome
from skyroute.message.tags import java_hash
from skyroute.remoting.dispatch import Peer
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.clients import ConsumeType, Heartbeat, MessageModel, StartFrom, Subscription
from skyroute.wire.codes import ResponseCode
from tests.unit.broker.clients import a_beat, a_consumer, a_peer


def beat(clients: ConnectedClients, connection: int, heartbeat: Heartbeat, now: float = 0.0) -> HeartbeatOutcome:
    return clients.beat(Peer(connection, f"10.0.0.1:{connection}"), heartbeat, "JAVA", 479, now)


def ids(clients: ConnectedClients, group: str) -> list[str]:
    known = clients.consumers(group)
    return [] if known is None else [member.client_id for member in known.members]


def topics_of(clients: ConnectedClients, group: str) -> set[str]:
    known = clients.consumers(group)
    return set() if known is None else set(known.subscriptions)


# ------------------------------------------------------------------------------------------------------- heartbeats


def test_a_heartbeat_registers_a_consumer_with_its_subscriptions() -> None:
    clients = ConnectedClients()
    peer, _ = a_peer(7)
    clients.beat(peer, a_beat("c", a_consumer("g", "T")), "GO", 317, now=5.0)
    group = clients.consumers("g")
    assert group is not None
    assert (group.type, group.model, group.start_from) == (
        ConsumeType.PUSH,
        MessageModel.CLUSTERING,
        StartFrom.LAST_OFFSET,
    )
    (member,) = group.members
    assert (member.peer, member.client_id, member.language, member.version) == (peer, "c", "GO", 317)
    assert member.heard_at == 5.0
    assert group.find("c") is member
    assert group.find("d") is None
    assert clients.subscription("g", "T") == Subscription("T", version=1)
    assert clients.subscription("g", "U") is None
    assert clients.subscription("h", "T") is None


def test_a_client_without_a_language_counts_as_other() -> None:
    clients = ConnectedClients()
    clients.beat(a_peer(1)[0], a_beat("c", producers=["p"]), None, 0, now=0.0)
    assert [member.language for member in clients.producers("p")] == ["OTHER"]


def test_the_last_heartbeat_decides_how_a_group_consumes() -> None:
    clients = ConnectedClients()
    beat(clients, 1, a_beat("a", a_consumer("g", "T")))
    beat(clients, 2, a_beat("b", a_consumer("g", "T", model=MessageModel.BROADCASTING)))
    group = clients.consumers("g")
    assert group is not None
    assert group.model is MessageModel.BROADCASTING


def test_a_heartbeat_of_a_closed_connection_is_ignored() -> None:
    clients = ConnectedClients()
    assert clients.beat(Peer(1, "x", gone=True), a_beat("c", a_consumer("g", "T")), "JAVA", 0, 0.0).changed == ()
    assert clients.consumers("g") is None


# ---------------------------------------------------------------------------------------------------- subscriptions


def test_topics_missing_in_a_heartbeat_are_unsubscribed() -> None:
    clients = ConnectedClients()
    beat(clients, 1, a_beat("a", a_consumer("g", "T", "U")))
    outcome = beat(clients, 1, a_beat("a", a_consumer("g", "U", "V")))
    assert topics_of(clients, "g") == {"U", "V"}
    assert outcome.changed == ["g"]
    beat(clients, 1, a_beat("a", a_consumer("g")))
    assert topics_of(clients, "g") == set()


def test_only_a_newer_subscription_replaces_one() -> None:
    clients = ConnectedClients()
    new, old = Subscription("T", "new", version=2), Subscription("T", "old", version=1)
    same = Subscription("T", "same", version=2)
    beat(clients, 1, a_beat("a", a_consumer("g", subscriptions=[new])))
    for other in (old, same):
        assert beat(clients, 2, a_beat("b", a_consumer("g", subscriptions=[other]))).needs_subscriptions
        assert clients.subscription("g", "T") == new
    newest = Subscription("T", "newest", version=3)
    outcome = beat(clients, 2, a_beat("b", a_consumer("g", subscriptions=[newest])))
    assert clients.subscription("g", "T") == newest
    assert outcome.changed == []  # the topics are the same


@pytest.mark.parametrize("versions", [(1, 2), (2, 1)])
def test_of_two_subscriptions_to_a_topic_the_newer_counts(versions: tuple[int, int]) -> None:
    clients = ConnectedClients()
    twice = [Subscription("T", str(version), version=version) for version in versions]
    beat(clients, 1, a_beat("a", a_consumer("g", "U")))
    beat(clients, 1, a_beat("a", a_consumer("g", subscriptions=twice)))
    assert topics_of(clients, "g") == {"T"}
    subscription = clients.subscription("g", "T")
    assert subscription is not None
    assert subscription.expression == "2"


def test_a_duplicate_topic_does_not_hide_a_missing_one() -> None:
    clients = ConnectedClients()
    beat(clients, 1, a_beat("a", a_consumer("g", "T", "U")))
    beat(clients, 1, a_beat("a", a_consumer("g", "T", "T")))
    assert topics_of(clients, "g") == {"T"}


@pytest.mark.parametrize(("first", "last"), [("T", "U"), ("U", "T")])
def test_of_two_entries_for_a_group_the_last_counts(first: str, last: str) -> None:
    clients = ConnectedClients()
    beat(clients, 1, a_beat("a", a_consumer("g", "T")))
    beat(clients, 1, a_beat("a", a_consumer("g", first), a_consumer("g", last)))
    assert topics_of(clients, "g") == {last}
    assert ids(clients, "g") == ["a"]


def test_tags_beyond_ascii_get_the_hash_of_the_consume_queue() -> None:
    clients = ConnectedClients()
    wanted = Subscription("T", "红 || A", tags=("红", "A"), codes=(12345, 65))
    beat(clients, 1, a_beat("a", a_consumer("g", subscriptions=[wanted])))
    stored = clients.subscription("g", "T")
    assert stored is not None
    assert set(stored.codes) == {12345, 65, java_hash("红")}


# ---------------------------------------------------------------------------------------------- notifications


def test_only_a_heartbeat_that_changes_a_group_causes_a_notification() -> None:
    clients = ConnectedClients()
    assert beat(clients, 1, a_beat("a", a_consumer("g", "T"))).changed == ["g"]
    assert beat(clients, 1, a_beat("a", a_consumer("g", "T"))).changed == []
    assert beat(clients, 2, a_beat("b", a_consumer("g", "T"), producers=["p"])).changed == ["g"]
    assert beat(clients, 2, a_beat("b", a_consumer("g", "T"), producers=["p"])).changed == []


def test_a_broadcasting_group_gets_no_notifications() -> None:
    clients = ConnectedClients()
    everyone = a_consumer("g", "T", model=MessageModel.BROADCASTING)
    assert beat(clients, 1, a_beat("a", everyone)).changed == []
    assert beat(clients, 2, a_beat("b", everyone)).changed == []
    assert clients.leave(1, consumer_group="g") == []
    beat(clients, 1, a_beat("a", everyone))
    assert clients.drop(1) == []


# ----------------------------------------------------------------------------------------- heartbeats of version 2


def test_a_heartbeat_of_version_1_always_needs_subscriptions_next_time() -> None:
    clients = ConnectedClients()
    for _ in range(2):
        assert beat(clients, 1, a_beat("a", a_consumer("g", "T"))).needs_subscriptions


def test_a_client_whose_fingerprint_is_known_may_leave_out_its_subscriptions() -> None:
    clients = ConnectedClients()
    whole = a_beat("a", a_consumer("g", "T"), fingerprint=9)
    assert not beat(clients, 1, whole).needs_subscriptions
    assert not beat(clients, 1, a_beat("a", a_consumer("g"), fingerprint=9, whole=False)).needs_subscriptions
    assert topics_of(clients, "g") == {"T"}


def test_a_new_fingerprint_requests_the_subscriptions() -> None:
    clients = ConnectedClients()
    beat(clients, 1, a_beat("a", a_consumer("g", "T"), fingerprint=9))
    assert beat(clients, 2, a_beat("b", a_consumer("g"), fingerprint=8, whole=False)).needs_subscriptions
    assert ids(clients, "g") == ["a", "b"]
    assert topics_of(clients, "g") == {"T"}
    assert not beat(clients, 2, a_beat("b", a_consumer("g", "T"), fingerprint=8)).needs_subscriptions


def test_a_heartbeat_of_an_unknown_group_requests_the_subscriptions() -> None:
    clients = ConnectedClients()
    assert beat(clients, 1, a_beat("a", a_consumer("g"), fingerprint=9, whole=False)).needs_subscriptions
    assert ids(clients, "g") == ["a"]


# ------------------------------------------------------------------------------------------------------- removal


def test_a_client_with_a_new_connection_is_one_member() -> None:
    clients = ConnectedClients()
    beat(clients, 1, a_beat("a", a_consumer("g", "T"), producers=["p"]))
    assert beat(clients, 2, a_beat("a", a_consumer("g", "T"), producers=["p"])).changed == ["g"]
    assert ids(clients, "g") == ["a"]
    assert [member.peer.connection for member in clients.producers("p")] == [2]
    assert clients.drop(1) == ()
    assert ids(clients, "g") == ["a"]
    peer = clients.producer_of("a")
    assert peer is not None
    assert peer.connection == 2


def test_a_new_client_id_on_a_connection_replaces_the_old_one() -> None:
    clients = ConnectedClients()
    beat(clients, 1, a_beat("a", a_consumer("g", "T"), producers=["p"]))
    assert beat(clients, 1, a_beat("b", a_consumer("g", "T"), producers=["p"])).changed == ["g"]
    assert ids(clients, "g") == ["b"]
    assert clients.producer_of("a") is None
    assert clients.producer_of("b") is not None


def test_a_client_that_leaves_is_removed_and_the_others_are_notified() -> None:
    clients = ConnectedClients()
    beat(clients, 1, a_beat("a", a_consumer("g", "T"), producers=["p"]))
    beat(clients, 2, a_beat("b", a_consumer("g", "T")))
    assert clients.leave(1, producer_group="p", consumer_group="g") == ["g"]
    assert ids(clients, "g") == ["b"]
    assert clients.producers("p") == ()
    assert clients.leave(1, producer_group="p", consumer_group="g") == ()
    assert clients.leave(2, consumer_group="g") == []  # no member is left to notify
    assert clients.consumers("g") is None


def test_a_closed_connection_removes_all_its_members() -> None:
    clients = ConnectedClients()
    beat(clients, 1, a_beat("a", a_consumer("g", "T"), a_consumer("h", "T"), producers=["p"]))
    beat(clients, 2, a_beat("b", a_consumer("g", "T")))
    assert clients.drop(1) == ["g"]
    assert clients.drop(1) == ()
    assert (ids(clients, "g"), ids(clients, "h")) == (["b"], [])
    assert clients.producer_of("a") is None


def test_a_group_without_members_forgets_its_subscriptions() -> None:
    clients = ConnectedClients()
    beat(clients, 1, a_beat("a", a_consumer("g", "T", version=9)))
    clients.drop(1)
    beat(clients, 1, a_beat("a", a_consumer("g", "T", version=1)))
    assert clients.subscription("g", "T") == Subscription("T", version=1)


def expired(clients: ConnectedClients, now: float) -> Expired:
    """Return the result of all steps of a scan."""
    found = list(clients.expire(now))
    return Expired([peer for one in found for peer in one.peers], [name for one in found for name in one.changed])


def test_expired_members_are_removed_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "SCANNED_A_STEP", 4)
    clients = ConnectedClients()
    for connection in range(10):
        beat(clients, connection, a_beat(f"c{connection}", a_consumer("g", "T"), producers=["p"]))
    scan = clients.expire(EXPIRY_S + 1)
    assert [peer.connection for peer in next(scan).peers] == [0, 1]
    clients.drop(3)  # between two steps
    assert [[peer.connection for peer in gone.peers] for gone in scan] == [[2, 4], [5, 6], [7, 8], [9]]
    assert repr(clients) == repr(ConnectedClients())


def test_a_member_expires_after_two_minutes_without_a_heartbeat() -> None:
    clients = ConnectedClients()
    beat(clients, 1, a_beat("a", a_consumer("g", "T"), producers=["p"]))
    beat(clients, 2, a_beat("b", a_consumer("g", "T")), now=60.0)
    assert expired(clients, EXPIRY_S) == ([], [])
    gone = expired(clients, EXPIRY_S + 0.1)
    assert [peer.connection for peer in gone.peers] == [1]
    assert gone.changed == ["g"]
    assert ids(clients, "g") == ["b"]
    assert clients.drop(1) == ()


def test_a_group_missing_in_heartbeats_expires_while_its_connection_stays() -> None:
    clients = ConnectedClients()
    beat(clients, 1, a_beat("a", a_consumer("g", "T"), a_consumer("h", "T")))
    beat(clients, 2, a_beat("b", a_consumer("h", "T")))
    for now in (100.0, 200.0):
        beat(clients, 1, a_beat("a", a_consumer("g", "T")), now)
        beat(clients, 2, a_beat("b", a_consumer("h", "T")), now)
    assert expired(clients, 200.0) == ([], ["h"])
    assert (ids(clients, "g"), ids(clients, "h")) == (["a"], ["b"])


# -------------------------------------------------------------------------------------------------------- producers


def test_connected_producers_take_turns() -> None:
    clients = ConnectedClients()
    peers = [a_peer(number)[0] for number in range(3)]
    for number, peer in enumerate(peers):
        clients.beat(peer, a_beat(f"c{number}", producers=["p"]), "JAVA", 479, 0.0)
    assert {id(clients.next_producer("p")) for _ in range(3)} == {id(peer) for peer in peers}
    peers[1].gone = True
    assert {id(clients.next_producer("p")) for _ in range(4)} == {id(peers[0]), id(peers[2])}
    peers[0].gone = peers[2].gone = True
    assert clients.next_producer("p") is None
    assert clients.next_producer("q") is None


def test_a_producer_is_found_by_client_id_while_it_is_in_a_group() -> None:
    clients = ConnectedClients()
    beat(clients, 1, a_beat("a", producers=["p", "q"]))
    clients.leave(1, producer_group="p")
    assert clients.producer_of("a") is not None
    clients.leave(1, producer_group="q")
    assert clients.producer_of("a") is None


def test_a_consumer_is_not_found_as_a_producer() -> None:
    clients = ConnectedClients()
    beat(clients, 1, a_beat("a", a_consumer("g", "T")))
    assert clients.producer_of("a") is None


# ----------------------------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize(
    ("bound", "most"),
    [
        ("MEMBERSHIPS_MAX", 2),
        ("CONNECTION_GROUPS_MAX", 2),
        ("SUBSCRIPTION_BYTES_MAX", 1000),
    ],
)
def test_a_heartbeat_beyond_a_limit_is_refused_completely(
    monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    monkeypatch.setattr(clients_module, bound, most)
    clients = ConnectedClients()
    beat(clients, 1, a_beat("a", a_consumer("g", "T"), producers=["p"]))
    with pytest.raises(RefusedError, match="heartbeat refused: ") as refused:
        beat(clients, 1, a_beat("a", a_consumer("g", "T"), a_consumer("h", "T", "U"), producers=["p"]))
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
    assert clients.consumers("h") is None
    beat(clients, 1, a_beat("a", a_consumer("g", "T"), producers=["p"]))
    clients.drop(1)
    beat(clients, 1, a_beat("a", a_consumer("h", "T", "U")))


def test_a_group_has_at_most_group_members_max_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "GROUP_MEMBERS_MAX", 1)
    clients = ConnectedClients()
    beat(clients, 1, a_beat("a", a_consumer("g", "T")))
    beat(clients, 1, a_beat("a", a_consumer("g", "T")))
    with pytest.raises(RefusedError, match="heartbeat refused: "):
        beat(clients, 2, a_beat("b", a_consumer("g", "T")))


# ------------------------------------------------------------------------------------------------- against a model

GROUPS = ["g", "h"]
CLIENTS = ["a", "b", "c"]
TOPICS = ["T", "U", "V"]


class MembersAgainstAModel(RuleBasedStateMachine):
    """The model is a list of (kind, group, connection, client id, heard at), searched from end to end."""

    def __init__(self) -> None:
        super().__init__()
        self.clients = ConnectedClients()
        self.rows: list[tuple[str, str, int, str, float]] = []
        self.subscriptions: dict[str, dict[str, int]] = {}
        self.now = 0.0
        self.peers = {number: Peer(number, f"10.0.0.1:{number}") for number in range(4)}

    def enter(self, kind: str, group: str, connection: int, client: str) -> None:
        self.rows = [
            row for row in self.rows if row[:2] != (kind, group) or (row[2] != connection and row[3] != client)
        ]
        self.rows.append((kind, group, connection, client, self.now))

    def forget_empty(self) -> None:
        there = {group for kind, group, *_ in self.rows if kind == "c"}
        self.subscriptions = {group: topics for group, topics in self.subscriptions.items() if group in there}

    def told(self, groups: set[str]) -> set[str]:
        return groups & self.subscriptions.keys()

    @rule(
        connection=st.integers(0, 3),
        client=st.sampled_from(CLIENTS),
        consumed=st.dictionaries(
            st.sampled_from(GROUPS), st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 3), max_size=3)
        ),
        produced=st.sets(st.sampled_from(GROUPS)),
        whole=st.booleans(),
    )
    def beat(
        self,
        connection: int,
        client: str,
        consumed: dict[str, dict[str, int]],
        produced: set[str],
        whole: bool,
    ) -> None:
        changed = set()
        for group, topics in consumed.items():
            if ("c", group, connection, client) not in {row[:4] for row in self.rows}:
                changed.add(group)
            self.enter("c", group, connection, client)
            known = self.subscriptions.setdefault(group, {})
            if whole:
                if known.keys() != topics.keys():
                    changed.add(group)
                self.subscriptions[group] = {
                    topic: max(version, known.get(topic, version)) for topic, version in topics.items()
                }
        for group in produced:
            self.enter("p", group, connection, client)
        consumers = [
            a_consumer(group, subscriptions=[Subscription(topic, version=number) for topic, number in topics.items()])
            for group, topics in consumed.items()
        ]
        heartbeat = a_beat(client, *consumers, producers=produced, fingerprint=1, whole=whole)
        outcome = self.clients.beat(self.peers[connection], heartbeat, "JAVA", 479, self.now)
        assert set(outcome.changed) == changed

    @rule(connection=st.integers(0, 3), group=st.sampled_from(GROUPS), kind=st.sampled_from("pc"))
    def leave(self, connection: int, group: str, kind: str) -> None:
        before = len(self.rows)
        self.rows = [row for row in self.rows if row[:3] != (kind, group, connection)]
        self.forget_empty()
        changed = self.told({group}) if kind == "c" and len(self.rows) < before else set()
        names = {"producer_group": group} if kind == "p" else {"consumer_group": group}
        assert set(self.clients.leave(connection, **names)) == changed

    @rule(connection=st.integers(0, 3))
    def drop(self, connection: int) -> None:
        changed = {row[1] for row in self.rows if row[0] == "c" and row[2] == connection}
        self.rows = [row for row in self.rows if row[2] != connection]
        self.forget_empty()
        assert set(self.clients.drop(connection)) == self.told(changed)

    @rule(seconds=st.sampled_from([1.0, 50.0, EXPIRY_S + 1]))
    def expire(self, seconds: float) -> None:
        self.now += seconds
        gone = [row for row in self.rows if self.now - row[4] > EXPIRY_S]
        self.rows = [row for row in self.rows if row not in gone]
        self.forget_empty()
        outcome = expired(self.clients, self.now)
        assert set(outcome.changed) == self.told({row[1] for row in gone if row[0] == "c"})
        left = {row[2] for row in self.rows}
        assert {peer.connection for peer in outcome.peers} == {row[2] for row in gone} - left

    @invariant()
    def both_agree(self) -> None:
        for group in GROUPS:
            consuming = {(row[2], row[3], row[4]) for row in self.rows if row[:2] == ("c", group)}
            known = self.clients.consumers(group)
            clients = set() if known is None else known.members
            assert {(one.peer.connection, one.client_id, one.heard_at) for one in clients} == consuming
            versions = {} if known is None else {topic: one.version for topic, one in known.subscriptions.items()}
            assert versions == self.subscriptions.get(group, {})
            producing = {(row[2], row[3]) for row in self.rows if row[:2] == ("p", group)}
            assert {(one.peer.connection, one.client_id) for one in self.clients.producers(group)} == producing
        for client in CLIENTS:
            found = self.clients.producer_of(client)
            connections = {row[2] for row in self.rows if row[0] == "p" and row[3] == client}
            assert found is None or found.connection in connections

    @invariant()
    def nothing_is_left_over(self) -> None:
        assert self.clients._memberships == len(self.rows)
        assert self.clients._connections.keys() == {row[2] for row in self.rows}
        if not self.rows:
            assert self.clients._subscription_bytes == 0
            assert not self.clients._producing


MembersAgainstAModel.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestMembersAgainstAModel = MembersAgainstAModel.TestCase


def test_the_next_producer_is_found_without_a_look_at_all_others() -> None:
    clients = ConnectedClients()
    for connection in range(100):
        beat(clients, connection, a_beat(f"c{connection}", producers=["p"]))
    seen: list[int] = []

    def is_allowed(peer: Peer) -> bool:
        seen.append(peer.connection)
        return True

    turns = [clients.next_producer("p", is_allowed) for _ in range(150)]
    assert [peer.connection for peer in turns if peer is not None] == [*range(100), *range(50)]
    assert len(seen) == 150
