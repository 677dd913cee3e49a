"""Calls of a controller: headers and bodies as Apache's brokers and tools read and write them."""

import tracemalloc

import pytest

from skyroute.remoting.stepwise import run_through
from skyroute.wire.calls.broker_epochs import Epoch, EpochHistory, decode_epochs
from skyroute.wire.calls.controller import (
    MEMBERS_MAX,
    Cleanup,
    ElectionRequest,
    IdApplication,
    ReplicaHeartbeat,
    ReplicaRegistration,
    SyncSetChange,
    decode_cleanup,
    decode_election_request,
    decode_id_application,
    decode_id_query,
    decode_replica_heartbeat,
    decode_replica_query,
    decode_replica_registration,
    decode_sync_set_change,
    decode_sync_state_query,
    encode_cleanup,
    encode_election_request,
    encode_id_application,
    encode_id_query,
    encode_replica_heartbeat,
    encode_replica_query,
    encode_replica_registration,
    encode_sync_set_change,
    encode_sync_state_query,
)
from skyroute.wire.calls.controller_responses import (
    REPLICAS_A_STEP,
    ControllerFields,
    MasterFields,
    ReplicaFields,
    ReplicaGroup,
    SyncStateFields,
    decode_controllers,
    decode_master,
    decode_next_id,
    decode_sync_state,
    decode_sync_states,
    encode_controllers,
    encode_election,
    encode_grant,
    encode_next_id,
    encode_registered,
    encode_replica_info,
    encode_role_change,
    encode_sync_set_changed,
    encode_sync_states,
)
from skyroute.wire.command import Request, Response
from skyroute.wire.errors import BodyError, FieldError

MASTER = MasterFields(2, "10.0.0.2:10911", 3, 7)
SYNC = SyncStateFields(frozenset({2, 1}), 7)
SYNC_BYTES = b'{"syncStateSet":[1,2],"syncStateSetEpoch":7}'
MASTER_TEXT = {
    "masterBrokerId": "2",
    "masterAddress": "10.0.0.2:10911",
    "masterEpoch": "3",
    "syncStateSetEpoch": "7",
}


def test_requests_read_as_they_were_written() -> None:
    assert decode_id_query(encode_id_query("C", "a")) == ("C", "a")
    application = IdApplication("C", "a", 2, "10.0.0.2:10911;1758275140000")
    assert decode_id_application(encode_id_application(application)) == application
    registration = ReplicaRegistration("C", "a", 2, "10.0.0.2:10911")
    assert decode_replica_registration(encode_replica_registration(registration, 5)) == registration
    change = SyncSetChange("a", 2, 3, frozenset({1, 2}), 7)
    assert decode_sync_set_change(encode_sync_set_change(change, 5)) == change
    assert decode_replica_query(encode_replica_query("a")) == "a"
    assert decode_sync_state_query(encode_sync_state_query(["a", "b", "a"])) == ("a", "b")
    for broker_id, designate in ((2, True), (None, False)):
        election = ElectionRequest("C", "a", broker_id, designate)
        assert decode_election_request(encode_election_request(election, 5)) == election
    for cluster, broker_ids in (("C", frozenset({1, 20})), (None, None)):
        cleanup = Cleanup(cluster, "a", broker_ids, allow_living=cluster is None)
        assert decode_cleanup(encode_cleanup(cleanup, 5)) == cleanup
    for broker_id in (2, None):
        beat = ReplicaHeartbeat("C", "a", broker_id, "10.0.0.2:10911", 3, 1 << 40, 5, 9, 10.0)
        assert decode_replica_heartbeat(encode_replica_heartbeat(beat)) == beat


def test_a_list_of_a_million_ids_is_refused_without_a_text_for_each() -> None:
    request = Request(1011, {"brokerName": "a", "brokerControllerIdsToClean": "1;" * 1_000_000})
    tracemalloc.start()
    try:
        with pytest.raises(FieldError, match="not a list of ids"):
            decode_cleanup(request)
        assert tracemalloc.get_traced_memory()[1] < 8_000_000
    finally:
        tracemalloc.stop()


def test_requests_have_apaches_bytes() -> None:
    change = encode_sync_set_change(SyncSetChange("a", 2, 3, frozenset({2, 1}), 7), 1758275140000)
    assert (change.code, change.body) == (1001, SYNC_BYTES)
    assert change.fields == {
        "brokerName": "a",
        "masterBrokerId": "2",
        "masterEpoch": "3",
        "invokeTime": "1758275140000",
    }
    assert encode_sync_state_query(["a", "b"]).body == b'["a","b"]'
    assert encode_cleanup(Cleanup("C", "a", frozenset({2, 1}), allow_living=False), 5).fields == {
        "clusterName": "C",
        "brokerName": "a",
        "brokerControllerIdsToClean": "1;2",
        "isCleanLivingBroker": "false",
        "invokeTime": "5",
    }
    assert encode_election_request(ElectionRequest("C", "a", None, designate=False), 5).fields["brokerId"] == "-1"


def test_responses_have_apaches_bytes() -> None:
    assert encode_next_id("C", "a", 3).fields == {"clusterName": "C", "brokerName": "a", "nextBrokerId": "3"}
    assert decode_next_id(encode_next_id("C", "a", 3)) == 3
    assert encode_grant("C", "a").fields == {"clusterName": "C", "brokerName": "a"}
    registered = encode_registered("C", "a", MASTER, SYNC)
    assert (registered.fields, registered.body) == ({"clusterName": "C", "brokerName": "a", **MASTER_TEXT}, SYNC_BYTES)
    without = encode_registered("C", "a", None, SyncStateFields(frozenset(), 0))
    assert without.fields == {"clusterName": "C", "brokerName": "a"}
    assert without.body == b'{"syncStateSet":[],"syncStateSetEpoch":0}'
    changed = encode_sync_set_changed(SYNC)
    assert (changed.fields, changed.body) == ({"newSyncStateSetEpoch": "7"}, SYNC_BYTES)
    info = encode_replica_info(MasterFields(master_epoch=4), SYNC)
    assert (info.fields, info.body) == ({"masterEpoch": "4"}, SYNC_BYTES)


def test_an_election_names_the_group_only_with_a_new_master() -> None:
    group = ("C", "a", {2: "10.0.0.2:10911", 1: "10.0.0.1:10911"})
    new = encode_election(MASTER, frozenset({2}), group)
    assert (new.code, new.fields) == (0, MASTER_TEXT)
    assert new.body == (
        b'{"brokerMemberGroup":{"brokerAddrs":{"1":"10.0.0.1:10911","2":"10.0.0.2:10911"},"brokerName":"a","cluster":"C"},'
        b'"syncStateSet":[2]}'
    )
    old = encode_election(MASTER, frozenset({1, 2}), None, code=2011, remark="still there")
    assert (old.code, old.body, old.remark) == (2011, b'{"syncStateSet":[1,2]}', "still there")


def test_the_controllers_are_listed_as_dledger_lists_them() -> None:
    fields = ControllerFields("g", "n0", "10.0.0.1:9878", True, {"n0": "10.0.0.1:9878", "n1": "10.0.0.2:9878"})
    assert encode_controllers(fields).fields == {
        "group": "g",
        "controllerLeaderId": "n0",
        "controllerLeaderAddress": "10.0.0.1:9878",
        "isLeader": "true",
        "peers": "n0:10.0.0.1:9878;n1:10.0.0.2:9878;",
    }


def test_replicas_are_listed_by_their_place() -> None:
    replicas = [ReplicaFields(1, "h:1", False, False), ReplicaFields(2, "h:2", True, True)]
    body = run_through(encode_sync_states([("a", MASTER, replicas), ("b", MasterFields(None, None, 2, 1), [])])).body
    assert body == (
        b'{"replicasInfoTable":{"a":{"inSyncReplicas":[{"alive":true,"brokerAddress":"h:2","brokerId":2,"brokerName":"a"}],'
        b'"masterAddress":"10.0.0.2:10911","masterBrokerId":2,"masterEpoch":3,'
        b'"notInSyncReplicas":[{"alive":false,"brokerAddress":"h:1","brokerId":1,"brokerName":"a"}],"syncStateSetEpoch":7},'
        b'"b":{"inSyncReplicas":[],"masterEpoch":2,"notInSyncReplicas":[],"syncStateSetEpoch":1}}}'
    )


def test_the_replicas_of_many_groups_are_listed_in_steps() -> None:
    groups = [(f"b{number}", MASTER, [ReplicaFields(1, "h:1", True, True)] * 99) for number in range(30)]
    assert sum(1 for _ in encode_sync_states(groups)) >= 3000 // REPLICAS_A_STEP - 1
    assert set(decode_sync_states(run_through(encode_sync_states(groups)).body)) == {name for name, _, _ in groups}


def test_a_notice_of_a_new_master_reads_as_it_was_written() -> None:
    notice = encode_role_change(MASTER, SYNC)
    assert (notice.code, notice.fields, notice.body) == (1008, MASTER_TEXT, SYNC_BYTES)
    assert decode_master(notice.fields) == MASTER
    assert decode_sync_state(notice.body) == SYNC
    assert decode_master(None) == MasterFields()


@pytest.mark.parametrize("text", ["x", "1;;2", "-1", "1;2;9999999999999999999", ";".join(["1"] * (MEMBERS_MAX + 1))])
def test_ids_to_remove_are_checked(text: str) -> None:
    with pytest.raises(FieldError, match="brokerControllerIdsToClean"):
        decode_cleanup(Request(1011, {"brokerName": "a", "brokerControllerIdsToClean": text}))


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ({}, SYNC_BYTES),
        ({"brokerName": "a", "masterBrokerId": "x", "masterEpoch": "1"}, SYNC_BYTES),
        ({"brokerName": "a", "masterBrokerId": "1", "masterEpoch": "3000000000"}, SYNC_BYTES),
        ({"brokerName": "a", "masterBrokerId": "1", "masterEpoch": "1"}, b""),
        ({"brokerName": "a", "masterBrokerId": "1", "masterEpoch": "1"}, b'{"syncStateSet":["x"]}'),
        ({"brokerName": "a", "masterBrokerId": "1", "masterEpoch": "1"}, b'{"syncStateSet":[%s]}' % (b"1," * 1001)),
    ],
)
def test_a_malformed_change_of_the_set_is_refused(fields: dict[str, str], body: bytes) -> None:
    with pytest.raises((FieldError, BodyError)):
        decode_sync_set_change(Request(1001, fields, body=body))


def test_what_tools_read_is_what_a_controller_writes() -> None:
    known = ControllerFields("g", "n1", "h:2", is_leader=False, peers={"n0": "h:1", "n1": "h:2"})
    assert decode_controllers(encode_controllers(known)) == known
    assert decode_controllers(Response()) == ControllerFields("", "", "", is_leader=False, peers={})
    replicas = (ReplicaFields(1, "h:1", True, True), ReplicaFields(2, "h:2", False, False))
    written = run_through(encode_sync_states([("a", MASTER, replicas), ("b", MasterFields(None, None, 2, 3), ())]))
    found = decode_sync_states(written.body)
    assert found == {"a": ReplicaGroup(MASTER, replicas), "b": ReplicaGroup(MasterFields(None, None, 2, 3), ())}


def test_the_newest_epoch_ends_with_the_log() -> None:
    body = (
        b'{"brokerId":2,"brokerName":"a","clusterName":"C","epochList":[{"endOffset":7,"epoch":1,"startOffset":0},'
        b'{"endOffset":9223372036854775807,"epoch":2,"startOffset":7}],"maxOffset":9}'
    )
    assert decode_epochs(body) == EpochHistory("C", "a", 2, (Epoch(1, 0, 7), Epoch(2, 7, 9)), 9)
    for wrong in (b"", b"[]", b'{"epochList":[{"epoch":"x"}]}'):
        with pytest.raises(BodyError):
            decode_epochs(wrong)
    with pytest.raises(BodyError):
        decode_sync_states(b'{"replicasInfoTable":{"a":{"inSyncReplicas":[{"brokerId":"x"}]}}}')
