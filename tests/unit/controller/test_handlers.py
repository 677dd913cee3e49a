"""Handlers of a controller that does not lead."""

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from skyroute.controller.config import ControllerConfig
from skyroute.controller.errors import Refusal
from skyroute.controller.file_store import FileStore
from skyroute.controller.groups import Groups
from skyroute.controller.handlers import RESPONSE_CODES, ControllerHandlers
from skyroute.controller.heartbeats import Heartbeats
from skyroute.controller.leadership import SoleController
from skyroute.remoting.dispatch import Peer
from skyroute.remoting.errors import RefusedError
from skyroute.wire.calls.controller import (
    ElectionRequest,
    IdApplication,
    ReplicaRegistration,
    encode_election_request,
    encode_id_application,
    encode_replica_query,
    encode_replica_registration,
    encode_sync_state_query,
)
from skyroute.wire.codes import RequestCode
from skyroute.wire.command import Request, Response
from tests.support.clock import ManualClock


@dataclass(frozen=True)
class Follower:
    group: str = "g"
    is_leader: bool = False
    leader_id: str = "n1"
    leader_address: str = "10.0.0.2:9878"

    @property
    def peers(self) -> Mapping[str, str]:
        return {"n0": "10.0.0.1:9878", "n1": self.leader_address}

    async def run(self) -> None: ...

    async def resign(self) -> None: ...


@pytest.fixture
def handlers(tmp_path: Path) -> ControllerHandlers:
    clock = ManualClock()
    groups = Groups(FileStore(tmp_path / "state.json"), lambda events, group: None)
    return ControllerHandlers(groups, Heartbeats(clock.monotonic()), Follower(), ControllerConfig(), clock)


def test_every_refusal_has_its_own_code() -> None:
    assert set(RESPONSE_CODES) == set(Refusal)
    assert len(set(RESPONSE_CODES.values())) == len(Refusal)


async def test_a_query_for_few_groups_does_not_wait_for_long_ones(handlers: ControllerHandlers) -> None:
    leading = replace(handlers, leadership=SoleController("g", "n0", "10.0.0.1:9878"))
    async with leading.lane:
        response = leading.get_sync_states(encode_sync_state_query(["a"]), Peer(1, "10.0.0.9:1"))
    assert isinstance(response, Response)
    assert response.body == b'{"replicasInfoTable":{}}'


async def test_requests_that_change_nothing_are_answered_without_a_task(handlers: ControllerHandlers) -> None:
    leading, peer = replace(handlers, leadership=SoleController("g", "n0", "10.0.0.1:9878")), Peer(1, "10.0.0.9:1")
    application = encode_id_application(IdApplication("C", "a", 1, "10.0.0.2:10911;5"))
    granted = leading.grant_id(application, peer)
    assert isinstance(granted, Awaitable)
    assert (await granted).code == 0
    assert isinstance(leading.grant_id(application, peer), Response)
    registration = encode_replica_registration(ReplicaRegistration("C", "a", 1, "10.0.0.2:10911"), 5)
    assert isinstance(leading.register(registration, peer), Response)
    with pytest.raises(RefusedError, match="is not registered") as refused:
        leading.elect(encode_election_request(ElectionRequest("C", "b", 1, designate=False), 5), peer)
    assert refused.value.code == 2010


async def test_a_follower_names_the_leader_and_decides_nothing(handlers: ControllerHandlers) -> None:
    peer = Peer(1, "10.0.0.9:1")
    by_code = handlers.by_code()
    known = by_code[RequestCode.CONTROLLER_GET_METADATA_INFO](Request(1005), peer)
    assert isinstance(known, Response)
    assert known.fields is not None
    assert (known.fields["isLeader"], known.fields["controllerLeaderAddress"]) == ("false", "10.0.0.2:9878")
    with pytest.raises(RefusedError, match=r"10\.0\.0\.2:9878") as refused:
        by_code[RequestCode.CONTROLLER_GET_REPLICA_INFO](encode_replica_query("a"), peer)
    assert refused.value.code == 2007
