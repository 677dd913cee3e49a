"""The network around a master is cut: another one is elected, and the old one acknowledges nothing.

Part of `make test-controllers`: it starts three brokers, and takes more than a minute.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.apache import ApacheBroker, SkyrouteNameServer
from tests.support.controlled_brokers import JOIN_S, Load, SkyrouteController, broker, read_all
from tests.support.cut_proxy import CutProxy
from tests.support.our_broker import SkyrouteBroker
from tests.support.raw import ClosedError, RawConnection
from tests.support.waiting import wait_until

TIMEOUTS = {
    "controllerHeartBeatTimeoutMills": "3000",
    "minInSyncReplicas": "2",
    "syncFlushTimeout": "2000",
    "slaveTimeout": "1000",
    "haHousekeepingInterval": "3000",
    "haSendHeartbeatInterval": "1000",  # Apache's default, 5 s, would let idle connections of replication expire
}
OF_APACHE = {
    # The default. Apache's master acknowledges the sends that wait when its connections to all slaves expire, although
    # no slave has the message: it takes itself for the only member of the sync state set before the controller agrees.
    # So the load must be at the new master by then.
    "haHousekeepingInterval": "20000",
}
SEND_MESSAGE = 10


def send_to(address: str, number: int) -> int | None:
    """Send a message to one broker, whatever routes say; return the code, or None without a response."""
    fields = {
        "producerGroup": "cut-off",
        "topic": "Failover",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1",
        "flag": "0",
        "properties": "",
        "reconsumeTimes": "0",
    }
    try:
        with RawConnection(address) as line:
            return line.call(SEND_MESSAGE, fields, b"cut-off %d" % number).code
    except (ClosedError, OSError):
        return None


@pytest.mark.long
@pytest.mark.parametrize("kind", [ApacheBroker, SkyrouteBroker])
def test_a_master_that_is_cut_off_acknowledges_nothing(lib: Path, tmp_path: Path, kind: type[ApacheBroker]) -> None:
    timeouts = TIMEOUTS | (OF_APACHE if kind is ApacheBroker else {})
    with ExitStack() as stack:
        server = stack.enter_context(SkyrouteNameServer("name server", tmp_path / "ns"))
        controller = stack.enter_context(SkyrouteController("controller", tmp_path / "controller"))
        to_controller = stack.enter_context(CutProxy(controller.address))
        to_controller.stand_in()  # brokers send all but heartbeats to the address that the controller names
        to_name_server = stack.enter_context(CutProxy(server.address))
        first = broker(tmp_path / "one", to_name_server.address, to_controller.address, kind=kind)
        first.configure(**timeouts)
        replication = stack.enter_context(CutProxy(first.ha_address))
        # The others learn where to replicate from by the name server (Apache's) or by the master (ours).
        rerouting = {first.ha_address: replication.address}
        to_others = stack.enter_context(CutProxy(server.address, rerouting))
        to_master = stack.enter_context(CutProxy(first.address, rerouting))
        others_to_controller = stack.enter_context(CutProxy(controller.address, {first.address: to_master.address}))
        others_to_controller.stand_in()
        network_of_first = (to_controller, to_name_server, replication, to_master)
        others: list[ApacheBroker] = []
        stack.enter_context(first)
        wait_until(lambda: controller.group()[0] == 1, "the first broker is master", timeout_s=JOIN_S)
        for name in ("two", "three"):
            each = broker(tmp_path / name, to_others.address, others_to_controller.address, kind=kind)
            each.configure(**timeouts)
            others.append(stack.enter_context(each))
        wait_until(lambda: controller.group() == (1, 1, [1, 2, 3]), "all are in sync", timeout_s=JOIN_S)
        load = Load(server.address)
        load.start()
        try:
            load.until(200)
            for proxy in network_of_first:
                # A new connection finds no way: Apache's slave waits without end for the handshake of one that opens.
                proxy.cut(refuse=proxy is replication)
            wait_until(lambda: controller.group()[:2] in ((2, 2), (3, 2)), "a new master", timeout_s=JOIN_S)
            codes = [send_to(first.address, number) for number in range(3)]
            assert 0 not in codes, codes  # cut off: nothing is acknowledged
            wait_until(lambda: controller.group()[2] == [2, 3], "the others are in sync", timeout_s=JOIN_S)
            load.until(len(load.acknowledged) + 200)
            assert send_to(first.address, 4) != 0
            for proxy in network_of_first:
                proxy.heal()
            wait_until(lambda: controller.group()[2] == [1, 2, 3], "the old master follows", timeout_s=JOIN_S)
        finally:
            load.ended.set()
            load.join()
        found = read_all(server.address)
        assert set(load.acknowledged) <= found
        assert not {body for body in found if body.startswith(b"cut-off")}  # the old master truncated them
