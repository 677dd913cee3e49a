"""The strategies return the same shares as Apache's."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skyroute.client.consuming.strategies import (
    AVERAGE,
    Average,
    AverageByCircle,
    Configured,
    ConsistentHash,
    MachineRoom,
    NearbyMachineRoom,
    Strategy,
)
from skyroute.client.errors import ClientError
from skyroute.message.queue_ref import QueueRef

GOLDEN: Final[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "golden" / "client" / "shares.json").read_text("utf-8")
)


def room_of_queue(queue: QueueRef) -> str:
    return queue.broker_name.split("@")[0]


def room_of_client(client_id: str) -> str:
    return client_id.rpartition("#")[2]


APACHES: Final[dict[str, Strategy]] = {
    "average": Average(),
    "circle": AverageByCircle(),
    "hash": ConsistentHash(),
    "hash-3": ConsistentHash(virtual_nodes=3),
    "rooms": MachineRoom(["north", "west", ""]),
    "nearby": NearbyMachineRoom(room_of_queue, room_of_client),
    "nearby-hash": NearbyMachineRoom(room_of_queue, room_of_client, within=ConsistentHash()),
    "config": Configured([QueueRef("T", "broker-a", 2), QueueRef("T", "broker-a", 0)]),
}
FOR_ALL_QUEUES: Final = [name for name in APACHES if name not in {"rooms", "config"}]


def queues_of(case: dict[str, Any]) -> list[QueueRef]:
    per_broker = -(-case["queues"] // len(case["brokers"]))
    return [
        QueueRef(case["topic"], case["brokers"][number // per_broker], number % per_broker)
        for number in range(case["queues"])
    ]


@pytest.mark.parametrize("name", APACHES)
def test_every_share_is_the_one_that_apaches_client_computes(name: str) -> None:
    cases = [case for case in GOLDEN["cases"] if name in case["shares"]]
    assert cases
    for case in cases:
        queues = queues_of(case)
        ranked = sorted(queues)
        ours = [
            " ".join(str(ranked.index(queue)) for queue in APACHES[name](client_id, queues, case["clients"]))
            for client_id in case["clients"]
        ]
        assert "|".join(ours) == case["shares"][name], case


@pytest.mark.parametrize("name", APACHES)
def test_a_strategy_has_the_name_that_apaches_has(name: str) -> None:
    assert getattr(APACHES[name], "name", None) == GOLDEN["names"][name]


CLIENT_IDS = st.lists(
    st.tuples(st.text(max_size=6), st.sampled_from(["a", "b", "c"])).map("#".join),
    min_size=1,
    max_size=8,
    unique=True,
)
QUEUES = st.lists(
    st.builds(
        QueueRef,
        st.just("T"),
        st.tuples(st.sampled_from(["a", "b", "d"]), st.text(max_size=3)).map("@".join),
        st.integers(0, 50),
    ),
    max_size=30,
    unique=True,
)


@pytest.mark.parametrize("name", FOR_ALL_QUEUES)
@given(queues=QUEUES, client_ids=CLIENT_IDS)
def test_every_queue_is_in_exactly_one_share(name: str, queues: list[QueueRef], client_ids: list[str]) -> None:
    shares = [queue for client_id in client_ids for queue in APACHES[name](client_id, queues, client_ids)]
    assert sorted(shares) == sorted(queues)


@pytest.mark.parametrize("name", ["average", "circle"])
@given(queues=QUEUES, client_ids=CLIENT_IDS)
def test_average_shares_differ_by_one_at_most(name: str, queues: list[QueueRef], client_ids: list[str]) -> None:
    sizes = {len(APACHES[name](client_id, queues, client_ids)) for client_id in client_ids}
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("name", APACHES)
@given(queues=QUEUES, client_ids=CLIENT_IDS, data=st.data())
def test_the_order_of_queues_and_members_does_not_matter(
    name: str, queues: list[QueueRef], client_ids: list[str], data: st.DataObject
) -> None:
    otherwise = APACHES[name](client_ids[0], data.draw(st.permutations(queues)), data.draw(st.permutations(client_ids)))
    assert otherwise == APACHES[name](client_ids[0], queues, client_ids)


@pytest.mark.parametrize("name", [name for name in APACHES if name != "config"])
def test_a_client_that_is_not_a_member_gets_no_queue(name: str) -> None:
    queue = QueueRef("T", "north@a", 0)
    assert APACHES[name]("me#north", [queue], ["me#north"]) == [queue]
    assert APACHES[name]("me#north", [queue], ["you#north"]) == []
    assert APACHES[name]("me#north", [queue], []) == []


@pytest.mark.parametrize("name", APACHES)
def test_no_queues_are_no_share(name: str) -> None:
    assert APACHES[name]("me#north", [], ["me#north"]) == []


@given(queues=QUEUES, client_ids=CLIENT_IDS)
def test_on_the_ring_a_member_that_leaves_moves_only_its_own_queues(
    queues: list[QueueRef], client_ids: list[str]
) -> None:
    share = ConsistentHash()
    gone, *left = client_ids
    for client_id in left:
        before = share(client_id, queues, client_ids)
        after = share(client_id, queues, left)
        assert set(before) <= set(after)
        assert set(after) - set(before) <= set(share(gone, queues, client_ids))


def test_a_ring_without_nodes_is_refused() -> None:
    with pytest.raises(ClientError, match="virtual_nodes is 0: expected a whole number, from 1 to 100000"):
        ConsistentHash(virtual_nodes=0)


def test_queues_of_rooms_without_members_are_shared_by_all() -> None:
    nearby = NearbyMachineRoom(room_of_queue, room_of_client)
    queues = [QueueRef("T", broker, number) for broker in ("here@1", "lonely@1") for number in range(2)]
    clients = ["1#here", "2#there"]
    assert nearby("1#here", queues, clients) == [*queues[:2], queues[2]]
    assert nearby("2#there", queues, clients) == [queues[3]]


@pytest.mark.parametrize(("queue_room", "client_room"), [("", "north"), ("north", "")])
def test_a_room_without_a_name_raises(queue_room: str, client_room: str) -> None:
    nearby = NearbyMachineRoom(lambda _: queue_room, lambda _: client_room)
    with pytest.raises(ClientError, match=r"(T@b:0|me) has no machine room"):
        nearby("me", [QueueRef("T", "b", 0)], ["me"])


def test_a_strategy_of_the_applications_own_can_share_within_a_room() -> None:
    def everything(client_id: str, queues: object, client_ids: object) -> list[QueueRef]:
        return kept

    kept = [QueueRef("T", "north@a", 0)]
    nearby = NearbyMachineRoom(room_of_queue, room_of_client, within=everything)
    assert nearby("1#north", [*kept, QueueRef("T", "west@a", 0)], ["1#north"]) == kept * 2
    assert len(kept) == 1
    assert nearby.name == "MACHINE_ROOM_NEARBY-CUSTOM"


def test_a_configured_queue_counts_once_the_topic_has_it() -> None:
    told = [QueueRef("T", "b", 1), QueueRef("Other", "b", 0), QueueRef("T", "b", 7)]
    assert Configured(told)("me", [QueueRef("T", "b", number) for number in range(4)], ["me"]) == told[:1]


def test_equal_strategies_are_equal() -> None:
    assert Average() == AVERAGE
    assert MachineRoom(["a", "b"]) == MachineRoom({"b", "a"})
    assert MachineRoom("north") == MachineRoom(["north"])
    assert ConsistentHash() != ConsistentHash(3)
