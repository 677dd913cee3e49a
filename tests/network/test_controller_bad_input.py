"""Wrong, replayed and dishonest requests: each has its response, and the state of the group stays as it was."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.connections import connection_to
from tests.support.controllers import GROUP, RunningController, pair_in_sync, replica, running
from tests.support.waiting import eventually

ELECT = GROUP | {"brokerId": "1", "designateElect": "false"}
SET = {"brokerName": "a", "masterBrokerId": "1", "masterEpoch": "1"}
BODY = b'{"syncStateSet":[1],"syncStateSetEpoch":2}'
HUGE = str(2**63 - 1)


@pytest.fixture
async def controller(tmp_path: Path) -> AsyncIterator[RunningController]:
    async with running(tmp_path) as here:
        yield here


BAD: list[tuple[str, int, dict[str, str], bytes, int]] = [
    # unknown groups and replicas
    ("set of an unknown group", 1001, SET | {"brokerName": "x"}, BODY, 2013),
    ("election in an unknown group", 1002, ELECT | {"brokerName": "x"}, b"", 2010),
    ("election of an unknown replica", 1002, ELECT | {"brokerId": "9"}, b"", 2010),
    ("registration of an unknown replica", 1003, GROUP | {"brokerId": "9", "brokerAddress": "h:1"}, b"", 2010),
    ("query for an unknown group", 1004, {"brokerName": "x"}, b"", 2008),
    ("removal from an unknown group", 1011, GROUP | {"brokerName": "x", "isCleanLivingBroker": "true"}, b"", 2009),
    # ids and clusters of others
    ("foreign check code", 1013, GROUP | {"appliedBrokerId": "1", "registerCheckCode": "evil:1;1"}, b"", 2014),
    ("skipped id", 1013, GROUP | {"appliedBrokerId": "7", "registerCheckCode": "h:1;1"}, b"", 2014),
    ("id zero", 1013, GROUP | {"appliedBrokerId": "0", "registerCheckCode": "h:1;1"}, b"", 2014),
    ("negative id", 1013, GROUP | {"appliedBrokerId": "-5", "registerCheckCode": "h:1;1"}, b"", 2014),
    ("largest id", 1013, GROUP | {"appliedBrokerId": HUGE, "registerCheckCode": "h:1;1"}, b"", 2014),
    ("id in another cluster", 1013, {"clusterName": "D", "brokerName": "a", "appliedBrokerId": "3",
     "registerCheckCode": "h:1;1"}, b"", 2014),
    # epochs of the past and of the future
    ("past master epoch", 1001, SET | {"masterEpoch": "0"}, BODY, 2000),
    ("future master epoch", 1001, SET | {"masterEpoch": "2147483647"}, BODY, 2000),
    ("negative master epoch", 1001, SET | {"masterEpoch": "-1"}, BODY, 2000),
    ("past set epoch", 1001, SET, b'{"syncStateSet":[1],"syncStateSetEpoch":1}', 2001),
    ("future set epoch", 1001, SET, b'{"syncStateSet":[1],"syncStateSetEpoch":99}', 2001),
    # sets that cannot be
    ("a slave changes the set", 1001, SET | {"masterBrokerId": "2"}, BODY, 2002),
    ("an unknown replica in the set", 1001, SET, b'{"syncStateSet":[1,9],"syncStateSetEpoch":2}', 2003),
    ("a set without its master", 1001, SET, b'{"syncStateSet":[2],"syncStateSetEpoch":2}', 2013),
    ("an empty set", 1001, SET, b'{"syncStateSet":[],"syncStateSetEpoch":2}', 2013),
    ("a thousand and one members", 1001, SET, b'{"syncStateSet":[%s],"syncStateSetEpoch":2}'
     % b",".join(b"%d" % number for number in range(1001)), 1),
    # bytes that are not requests
    ("no body", 1001, SET, b"", 1),
    ("a list for an object", 1001, SET, b"[1,2]", 1),
    ("text for ids", 1001, SET, b'{"syncStateSet":["one"],"syncStateSetEpoch":2}', 1),
    ("an id of 65 bits", 1001, SET, b'{"syncStateSet":[36893488147419103232],"syncStateSetEpoch":2}', 1),
    ("half a body", 1001, SET, BODY[:20], 1),
    ("an epoch that is no number", 1001, SET | {"masterEpoch": "one"}, BODY, 1),
    ("an epoch of 33 bits", 1001, SET | {"masterEpoch": "4294967296"}, BODY, 1),
    ("no broker name", 1002, {"clusterName": "C", "brokerId": "1"}, b"", 1),
    ("an empty broker name", 1004, {"brokerName": ""}, b"", 1),
    ("a broker id that is no number", 1003, GROUP | {"brokerId": "x", "brokerAddress": "h:1"}, b"", 1),
    ("ids that are no numbers", 1011, GROUP | {"brokerControllerIdsToClean": "1;x"}, b"", 1),
    ("names that are no list", 1006, {}, b'{"a":1}', 1),
    ("a heartbeat without an id", 904, GROUP | {"brokerAddr": "h:1"}, b"", 2005),
    ("a heartbeat with a wrong epoch", 904, GROUP | {"brokerAddr": "h:1", "brokerId": "1", "epoch": "x"}, b"", 1),
    ("an unknown code", 1999, {}, b"", 3),
]  # fmt: skip


async def test_wrong_requests_have_their_codes_and_change_nothing(controller: RunningController) -> None:
    async with pair_in_sync(controller), connection_to(controller.address) as stranger:
        before = controller.server.groups.find("a")
        answers = {
            what: ((await stranger.call(code, fields, body)).code, expected)
            for what, code, fields, body, expected in BAD
        }
        assert {what: codes for what, codes in answers.items() if codes[0] != codes[1]} == {}
        assert controller.server.groups.find("a") == before
        assert list(controller.server.groups.all()) == ["a"]


async def test_replayed_and_reordered_requests_change_nothing_a_second_time(controller: RunningController) -> None:
    async with pair_in_sync(controller) as (first, second), connection_to(controller.address) as tool:
        again = GROUP | {"appliedBrokerId": "1", "registerCheckCode": f"{first.listener.address};1758275140000"}
        assert (await tool.call(1013, again)).code == 0  # the same broker may repeat it
        assert (await first.change_set([1, 2], 1, 1)).code == 2013  # the change that made the set
        assert (await first.change_set([1], 1, 2)).code == 0
        assert (await first.change_set([1], 1, 2)).code == 2013
        assert (await first.change_set([1, 2], 1, 2)).code == 2001  # sent before the last one, and late
        assert (await first.change_set([1, 2], 1, 3)).code == 0
        designate = GROUP | {"brokerId": "2", "designateElect": "true", "invokeTime": "1"}
        assert (await tool.call(1002, designate)).code == 0
        state = controller.server.groups.find("a")
        assert (await tool.call(1002, designate)).code == 2011
        assert (await first.change_set([1], 1, 4)).code == 2002  # the old master does not know yet
        assert (await second.register()).fields["masterEpoch"] == "2"
        assert controller.server.groups.find("a") == state


async def test_a_replica_that_lies_about_its_offset_is_not_elected_from_outside_the_set(
    controller: RunningController,
) -> None:
    async with pair_in_sync(controller) as (first, second), replica(controller) as liar:
        await liar.beat(epoch=2**31 - 1, offset=2**63 - 1)
        await eventually(lambda: controller.offset(3) == 2**63 - 1)
        assert (await liar.elect()).code == 2011
        await first.line.close()
        await eventually(lambda: controller.master() == 2)
        assert (await second.listener.receive()).fields["masterBrokerId"] == "2"
